"""Wait nodes: visits that wait for a time, without a worker."""

from __future__ import annotations

import pytest

from sleipnir.runs.events import (
    RUN_DEADLINE,
    Answered,
    Cancelled,
    LeaseLost,
    Paused,
    Resumed,
    Retried,
    TimerFired,
)
from sleipnir.runs.visits import Delay
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, bad, ok

ALONE = """
name: alone
version: sleipnir/1
engine: ENGINE
start: pause
settings: {timeout: 60}
limits: {step_timeout: 45s}
state: {n: int}
nodes:
  pause: {type: wait, for: 30s, state_updates: {n: "{{given}}"}, next: done}
  done: {type: end, output: "{{n}}"}
"""

BESIDE = """
name: beside
version: sleipnir/1
engine: ENGINE
start: split
limits: {max_concurrency: 1}
nodes:
  split: {type: router, next: [pause, work]}
  pause: {type: wait, for: 30s}
  work: {type: script, script: w.sh}
  done: {type: end, output: met, wait_for: [pause, work]}
"""

ENGINES = pytest.mark.parametrize("engine", ["bsp", "dag"])
PAUSE = TimerFired("visit/1/1")


def started(text: str, engine: str, given: str = "5") -> Driver:
    return Driver(text.replace("ENGINE", engine), {"given": given}).start()


def beside(engine: str) -> tuple[Driver, dict[str, int]]:
    """A run that waits while a worker has a visit, and the numbers of its visits by node."""
    driver = started(BESIDE, engine)
    return driver, {visit.node: visit.seq for visit in driver.run.frontier.values()}


def timer(driver: Driver, node: str) -> TimerFired:
    (visit,) = (visit for visit in driver.run.frontier.values() if visit.node == node)
    return TimerFired(visit.timer)


@ENGINES
def test_it_waits_without_a_worker_and_ends_at_its_time(engine: str) -> None:
    driver = started(ALONE, engine)
    assert driver.last is not None
    assert (driver.last.timers["visit/1/1"], driver.last.dispatches) == (driver.now_ms + 30_000, ())
    assert (driver.run.frontier[1].body, driver.run.status) == (Delay(driver.now_ms + 30_000), "waiting")
    ended = driver.send(PAUSE, after_ms=30_000)
    assert (ended.status, ended.output, ended.writes[0].values) == ("completed", "5", {"n": 5})


@ENGINES
def test_nothing_but_its_timer_ends_it_and_that_only_once(engine: str) -> None:
    driver, seqs = beside(engine)
    pause = timer(driver, "pause")
    others = [
        TimerFired(f"visit/{seqs['pause']}/2"),
        ok(seqs["pause"]),
        LeaseLost(seqs["pause"], 1, "w"),
        Answered(seqs["pause"], "yes"),
    ]
    assert all(isinstance(driver.try_(event), IgnoredEvent) for event in others)
    driver.send(pause, after_ms=30_000)
    assert isinstance(driver.try_(pause), IgnoredEvent)


@ENGINES
@pytest.mark.parametrize("first", ["pause", "work"])
def test_it_takes_no_slot_and_joins_concurrent_visits(engine: str, first: str) -> None:
    driver, seqs = beside(engine)
    assert {visit.node: visit.state for visit in driver.run.frontier.values()} == {"pause": "waiting", "work": "queued"}
    events = {"pause": timer(driver, "pause"), "work": ok(seqs["work"])}
    assert driver.send(events.pop(first)).status != "completed"
    assert driver.send(*events.values()).output == "met"


@ENGINES
def test_a_forbidden_write_fails_it_at_its_end_and_a_retry_waits_again(engine: str) -> None:
    driver = started(ALONE, engine, given="many")
    assert "'n' must be int" in str(driver.send(PAUSE, after_ms=30_000).error)
    again = driver.send(Retried())
    assert again.timers["visit/2/1"] == driver.now_ms + 30_000


@ENGINES
def test_a_failing_run_does_not_wait_for_it_and_a_retry_waits_again(engine: str) -> None:
    driver, seqs = beside(engine)
    pause = timer(driver, "pause")
    assert driver.send(bad(seqs["work"])).status == "failed"
    assert isinstance(driver.try_(pause, after_ms=30_000), IgnoredEvent)
    again = driver.send(Retried())
    assert again.timers[timer(driver, "pause").name] == driver.now_ms + 30_000
    assert timer(driver, "pause") != pause


@ENGINES
@pytest.mark.parametrize("keeps", [False, True])
def test_a_cancel_ends_it(engine: str, keeps: bool) -> None:
    driver = started(ALONE, engine)
    cancelled = driver.send(Cancelled(keeps=keeps))
    assert (cancelled.status, cancelled.untimers[0]) == ("cancelled", PAUSE.name)
    assert bool(driver.run.frontier) == keeps


@ENGINES
def test_a_pause_does_not_stop_it_and_nothing_starts_before_the_run_continues(engine: str) -> None:
    driver = started(ALONE, engine)
    driver.send(Paused("ann"))
    ended = driver.send(PAUSE, after_ms=30_000)
    assert (ended.status, ended.writes[0].values) == ("paused", {"n": 5})
    assert driver.send(Resumed()).status == "completed"


def test_the_time_of_its_step_and_of_its_run_count() -> None:
    late = {RUN_DEADLINE: "timed out after 60s at 'pause'", "step/1": "super-step 1 timed out after 45s"}
    for name, error in late.items():
        driver = started(ALONE, "bsp")
        assert error in str(driver.send(TimerFired(name), after_ms=60_001).error)
