"""Wait nodes that wait until a time, or for a signal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.runs.events import SIGNALLED, Cancelled, Paused, Resumed, Retried, TimerFired, Told
from sleipnir.runs.transitions import AwaitSignal, DeclineSignal, LeaveSignal
from sleipnir.runs.visits import Delay, SignalWait
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver

UNTIL = """
name: g
version: sleipnir/1
engine: ENGINE
start: pause
nodes:
  pause: {type: wait, until: "{{when}}", state_updates: {n: "waited"}, next: done}
  done: {type: end, output: "{{n}}"}
"""

EVENT = """
name: g
version: sleipnir/1
engine: ENGINE
start: pause
nodes:
  pause: {type: wait, event: "order.{{id}}.paid", OPTIONS, state_updates: {n: "{{event.data.n}}"}, next: done}
  late: {type: end, output: late}
  done: {type: end, output: "{{n}}"}
"""

ENGINES = pytest.mark.parametrize("engine", ["bsp", "dag"])


def until(when: Any, engine: str = "bsp") -> Driver:
    return Driver(UNTIL.replace("ENGINE", engine), {"when": when}).start()


def waiting(options: str = "timeout: 30s", engine: str = "bsp", **state: Any) -> Driver:
    text = EVENT.replace("ENGINE", engine).replace("OPTIONS", options)
    return Driver(text, {"id": 17, "least": 5, **state}).start()


def paid(data: Any = None, number: str = "5", attempt: int = 1, name: str = "order.17.paid", **more: Any) -> Told:
    signal = {"seq": 1, "attempt": attempt, "name": name, "number": number, "id": "e", "data": json.dumps(data)}
    return Told(SIGNALLED, {**signal, **more})


@ENGINES
@pytest.mark.parametrize("when", ["1970-01-01T01:00:31.500+01:00", "1970-01-01T00:00:31.5Z", "31.5", 31.5])
def test_until_waits_for_a_time_with_a_zone_or_in_unix_seconds(engine: str, when: Any) -> None:
    driver = until(when, engine)
    assert (driver.run.frontier[1].body, driver.run.status) == (Delay(31_500), "waiting")
    assert driver.send(TimerFired("visit/1/1"), after_ms=31_000).output == "waited"


@ENGINES
@pytest.mark.parametrize("when", ["1", "1970-01-01T00:00:00Z", "0001-01-02T00:00:00Z"])
def test_a_time_that_has_passed_is_waited_for_no_longer(engine: str, when: str) -> None:
    driver = until(when, engine)
    assert driver.last is not None
    assert (driver.last.status, driver.last.output) == ("completed", "waited")


@pytest.mark.parametrize(
    ("when", "error"),
    [
        ("soon", "'soon' is no time: neither ISO 8601 with a zone nor Unix seconds"),
        ("2030-01-31T08:00:00", "'2030-01-31T08:00:00' has no zone: add Z, or an offset such as +01:00"),
        ("2030-01-31T08:00:00Z", "'2030-01-31T08:00:00Z' is more than 365 days away"),
        ("9" * 400, "is no time: neither"),
        ({"a": 1}, "is no time: neither"),
        (None, "'null' is no time: neither"),
    ],
)
def test_a_time_that_cannot_be_read_fails_the_visit(when: Any, error: str) -> None:
    driver = until(when)
    assert driver.last is not None
    assert driver.last.status == "failed"
    assert error in str(driver.last.error)


@ENGINES
def test_a_wait_for_a_signal_is_registered_and_ends_with_it(engine: str) -> None:
    driver = waiting(engine=engine)
    assert driver.last is not None
    now_ms = driver.now_ms
    assert driver.last.effects == (AwaitSignal("order.17.paid", 1, 1, now_ms),)
    assert driver.run.frontier[1].body == SignalWait("order.17.paid", now_ms, now_ms + 30_000)
    assert (driver.last.dispatches, driver.run.status) == ((), "waiting")
    ended = driver.send(paid({"n": 7}))
    assert (ended.status, ended.output) == ("completed", "7")
    assert ended.effects == (LeaveSignal("order.17.paid", 1, 1, "5"),)
    assert ended.untimers[0] == "visit/1/1"


@ENGINES
def test_what_comes_again_or_for_another_attempt_or_name_changes_nothing(engine: str) -> None:
    driver = waiting(engine=engine)
    for told in (paid(attempt=2), paid(name="order.18.paid"), paid(seq=9)):
        assert isinstance(driver.try_(told), IgnoredEvent)
    driver.send(paid({"n": 7}))
    assert isinstance(driver.try_(paid({"n": 7})), IgnoredEvent)


@ENGINES
def test_without_a_signal_in_time_it_goes_on_at_on_timeout_or_fails(engine: str) -> None:
    driver = waiting("timeout: 30s, on_timeout: late", engine)
    ended = driver.send(TimerFired("visit/1/1"), after_ms=30_000)
    assert (ended.output, ended.effects) == ("late", (LeaveSignal("order.17.paid", 1, 1),))
    failed = waiting(engine=engine).send(TimerFired("visit/1/1"), after_ms=30_000)
    assert "no event 'order.17.paid' for wait node 'pause' within 30s" in str(failed.error)


def test_look_back_and_consume_are_part_of_the_registration() -> None:
    for options, one, sure in (
        ("consume: one", True, True),
        ("consume: one, filter: event.data.n > 1", True, False),
        ("filter: event.data.n > 1", False, False),
    ):
        driver = waiting(f"look_back: 1s, {options}")
        assert driver.last is not None
        assert driver.last.effects == (AwaitSignal("order.17.paid", 1, 1, driver.now_ms - 1_000, one, sure),)


@pytest.mark.parametrize(
    ("data", "error"),
    [({"n": 4}, None), ({"m": 4}, "'n' does not exist"), ("text", "no such"), ({"n": [1] * 20_000}, "too large")],
)
def test_a_signal_that_does_not_match_is_declined_if_it_is_for_one_and_the_visit_waits_on(
    data: Any, error: Any
) -> None:
    for is_one in (False, True):
        driver = waiting(f"filter: event.data.n >= state.least, consume: {'one' if is_one else 'all'}")
        declined = driver.send(paid(data, one=is_one))
        assert declined.effects == ((DeclineSignal("order.17.paid", 1, 1, "5"),) if is_one else ())
        [notice] = declined.notices
        assert notice.type == "signal_declined"
        assert error is None if notice.data["error"] is None else error is not None
        assert driver.send(paid({"n": 9}, number="6")).output == "9"


def test_a_name_that_is_none_fails_the_visit() -> None:
    for id_ in ("a b", "", "x" * 200, "*"):
        driver = (
            waiting(id=id_) if id_ else Driver(EVENT.replace("ENGINE", "bsp").replace("OPTIONS", "timeout: 1s"), {})
        )
        if not id_:
            driver.start()
        assert driver.last is not None
        assert driver.last.status == "failed"
        assert not driver.last.effects


@ENGINES
def test_a_cancelled_run_leaves_and_a_retry_waits_again(engine: str) -> None:
    leave = LeaveSignal("order.17.paid", 1, 1)
    assert leave in waiting(engine=engine).send(Cancelled()).effects
    driver = waiting(engine=engine)
    assert leave in driver.send(TimerFired("visit/1/1"), after_ms=30_000).effects
    again = driver.send(Retried())
    assert AwaitSignal("order.17.paid", 2, 1, driver.now_ms) in again.effects


@ENGINES
def test_a_held_run_takes_its_signal_and_goes_on_when_it_is_resumed(engine: str) -> None:
    driver = waiting(engine=engine)
    driver.send(Paused("ann"))
    taken = driver.send(paid({"n": 7}))
    assert (taken.status, taken.effects) == ("paused", (LeaveSignal("order.17.paid", 1, 1, "5"),))
    assert driver.send(Resumed()).output == "7"
