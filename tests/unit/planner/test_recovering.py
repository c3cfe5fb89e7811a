"""The `errors:` block: failures after which a visit counts as ended well, and what is recorded of failures."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.messages import ResultHeader
from sleipnir.runs.events import ChildEnded, Resulted, Retried, TimerFired
from sleipnir.runs.run import child_id
from sleipnir.runs.visits import Failed, Failure
from sleipnir_scheduler.planner.recovering import MOST_MESSAGE, MOST_RECORDS
from tests.model_store import Driver

GRAPH = """
name: g
version: sleipnir/1
engine: ENGINE
start: a
errors: {collect: true, recoverable: [timeout, ValueError, "f.py:Soft"]}
nodes:
  a: {type: function, call: "f.py:a", MORE next: b}
  b: {type: function, call: "f.py:b"}
"""
both = pytest.mark.parametrize("engine", ["bsp", "dag"])


def started(more: str = "", engine: str = "bsp", **state: Any) -> Driver:
    return Driver(GRAPH.replace("MORE", more).replace("ENGINE", engine), state).start()


def fails(driver: Driver, node: str = "a", delta: dict[str, Any] | None = None, **header: Any) -> None:
    visit, delta = driver.visit(node), delta or {}
    failed = ResultHeader(ok=False, keys=tuple(delta), **{"error": "boom", **header})
    driver.try_(Resulted(visit.seq, visit.attempt, failed), delta)


def errors(driver: Driver) -> list[dict[str, Any]]:
    return driver.state.get("execution_errors", [])


@both
@pytest.mark.conformance("ER-02")
@pytest.mark.parametrize(
    ("header", "type_"),
    [
        ({"error_kind": "timeout"}, "timeout"),
        ({"error_kind": "exception", "error_type": "builtins:ValueError"}, "builtins:ValueError"),
        ({"error_kind": "exception", "error_type": "sleipnir_agent_0af3.f:Soft"}, "f.py:Soft"),
        (
            {"error_kind": "exception", "error_type": "sleipnir_agent_0af3.lib.f:Other", "recoverable": True},
            "lib/f.py:Other",
        ),
    ],
)
def test_a_recoverable_failure_is_recorded_and_the_run_goes_on(engine: str, header: dict[str, Any], type_: str) -> None:
    driver = started(engine=engine)
    fails(driver, error_code="E7", **header)
    assert driver.on_workers() == ["b"]
    [record] = errors(driver)
    assert record == {
        "severity": "recoverable",
        "node": "a",
        "step": record["step"],
        "type": type_,
        "message": "boom",
        "code": "E7",
        "time": driver.now_ms,
    }
    assert driver.run.failed_visits.count == 0
    assert "_error" not in driver.state


@pytest.mark.conformance("ER-01", "ER-03")
def test_what_the_node_gives_instead_is_written_and_chooses_the_way_on() -> None:
    driver = started("ends: {other: b}, ")
    fails(driver, delta={"n": 3}, recoverable=True, next="b", error_kind="exception")
    assert (driver.state["n"], driver.on_workers(), len(errors(driver))) == (3, ["b"], 1)


def test_what_a_failed_body_left_of_itself_is_not_written() -> None:
    driver = started()
    fails(driver, delta={"_error": {"node": "a"}, "last_error": "boom"}, error_kind="timeout")
    assert driver.state.keys() == {"execution_errors"}


@both
def test_records_of_parallel_visits_are_in_visit_order(engine: str) -> None:
    graph = GRAPH.replace("MORE", "").replace("ENGINE", engine).replace("next: b", "next: [b, c]")
    driver = Driver(graph + '  c: {type: function, call: "f.py:c"}\n', {}).start()
    driver.does("a")
    fails(driver, "c", error_kind="timeout", error="second")
    fails(driver, "b", error_kind="timeout", error="first")
    assert driver.run.status == "completed"
    assert [record["node"] for record in errors(driver)] == ["b", "c"]


@pytest.mark.conformance("ER-05")
def test_retries_come_first_and_a_failure_is_recorded_once() -> None:
    driver = started("retry: {max_attempts: 2, initial_interval: 10ms}, ")
    fails(driver, error_kind="timeout")
    assert errors(driver) == []
    visit = next(iter(driver.run.frontier.values()))
    driver.now_ms += 60_000
    driver.send(TimerFired(f"visit/{visit.seq}/{visit.attempt}"))
    fails(driver, error_kind="timeout")
    assert len(errors(driver)) == 1
    fails(driver, "b", error="hard", error_kind="exception", error_type="builtins:OSError")
    assert driver.run.status == "failed"
    assert [record["node"] for record in errors(driver)] == ["a"], "and the recovered one is not the fatal one"


def test_a_failure_that_on_error_handles_is_recorded_too() -> None:
    driver = started("on_error: continue, ")
    fails(driver, error_kind="exit")
    assert [(record["severity"], record["type"]) for record in errors(driver)] == [("recoverable", "exit")]
    assert driver.run.failed_visits.count == 1
    assert driver.state["_error"]["message"] == "boom"


@pytest.mark.conformance("ER-04")
def test_a_fatal_failure_is_kept_by_the_run_and_not_by_the_state() -> None:
    driver = started()
    fails(driver, error_kind="exception", error_type="builtins:OSError", error_code="5")
    assert driver.run.status == "failed"
    assert errors(driver) == []
    assert driver.last is not None
    assert driver.last.failure == Failure("visit", 1, "builtins:OSError", "5", "a", 1)
    [visit] = driver.run.frontier.values()
    assert isinstance(visit.body, Failed)
    driver.send(Retried())
    driver.does("a")
    assert driver.on_workers() == ["b"]


@pytest.mark.conformance("ER-06")
def test_the_failure_of_a_child_is_that_of_its_node() -> None:
    graph = GRAPH.replace("ENGINE", "bsp").replace(
        '{type: function, call: "f.py:a", MORE', "{type: agent, agent: x, prompt: y, "
    )
    driver = Driver(graph, {}).start()
    below = Failure("visit", 3, "sleipnir_agent_1.f:Soft", "E9")
    driver.try_(ChildEnded(1, 1, child_id("run1", 1), "failed", "below", failure=below))
    assert [(record["type"], record["code"]) for record in errors(driver)] == [("f.py:Soft", "E9")]
    assert driver.on_workers() == ["b"]


@pytest.mark.conformance("ER-08")
def test_a_failure_without_a_reason_says_so() -> None:
    driver = started()
    fails(driver, error="", error_kind="timeout")
    assert errors(driver)[0]["message"] == "it gives no reason"


def test_the_records_are_bounded() -> None:
    driver = started(execution_errors=[{"n": n} for n in range(MOST_RECORDS)])
    fails(driver, error_kind="timeout")
    assert (len(errors(driver)), driver.on_workers()) == (MOST_RECORDS, ["b"])
    driver = started()
    fails(driver, error="x" * 10_000, error_kind="timeout")
    assert len(errors(driver)[0]["message"]) == MOST_MESSAGE


def test_without_the_block_nothing_is_recovered_from_or_recorded() -> None:
    graph = GRAPH.replace("MORE", "on_error: continue, ").replace("ENGINE", "bsp")
    driver = Driver("\n".join(line for line in graph.splitlines() if "errors:" not in line), {}).start()
    fails(driver, error_kind="timeout", recoverable=True)
    assert driver.run.failed_visits.count == 1
    assert "execution_errors" not in driver.state


@pytest.mark.conformance("ER-07")
def test_planning_twice_records_the_same_once() -> None:
    """A commit that is refused is planned again from the same values: nothing is kept between."""
    driver = started()
    visit = driver.visit("a")
    event = Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error="boom", error_kind="timeout"))
    driver.try_(event)
    driver.try_(event)
    assert len(errors(driver)) == 1


@both
@pytest.mark.conformance("CB-13")
@pytest.mark.parametrize("block", [True, False])
def test_the_code_of_a_fatal_failure_is_the_same_in_the_events_of_its_node_and_of_its_run(
    engine: str, block: bool
) -> None:
    text = GRAPH.replace("MORE", "").replace("ENGINE", engine)
    driver = Driver(text if block else text.replace("errors: {", "# {"), {}).start()
    fails(driver, error_kind="exception", error_type="builtins:KeyError", error_code="E7")
    assert driver.last is not None and driver.last.failure is not None
    events = {notice.type: notice.data for notice in driver.last.notices}
    assert (events["visit_closed"]["code"], events["run_ended"]["code"], driver.last.failure.code) == ("E7",) * 3
    driver = started(engine=engine)
    fails(driver, error_kind="exception")
    assert driver.last is not None
    assert not any("code" in notice.data for notice in driver.last.notices)
