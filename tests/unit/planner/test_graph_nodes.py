"""Graph nodes: a worker makes the first state of a child run, and another execution writes what that run returned."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sleipnir.messages import RESULT, InterruptQuestion, ResultHeader
from sleipnir.runs.events import Answered, ChildEnded, ChildGone, Resulted, Retried, TimerFired
from sleipnir.runs.interrupts import UsedAnswer, answers_of, output_of
from sleipnir.runs.journal import read_entry
from sleipnir.runs.run import child_id
from sleipnir.runs.transitions import RetryChild, StartChild, TellChild
from sleipnir.runs.visits import Child, ChildWait, Failure, Visit, Work
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver

ABOVE = """
name: above
version: sleipnir/1
start: low
state: {log: {type: list, reducer: append}}
state_classes: ["steps.py:State"]
nodes:
  low: {type: graph, graph: low, MORE next: last}
  last: {type: function, call: "steps.py:last", protocol: state_graph}
graphs:
  low: {name: low, version: sleipnir/1, start: a, nodes: {a: {type: router}}}
"""
BELOW = """
name: low
version: sleipnir/1
start: first
state: {log: {type: list, reducer: append}, secret: any}
state_classes: ["steps.py:State"]
output_keys: [log, absent]
nodes:
  first: {type: function, call: "steps.py:first", protocol: state_graph, next: [left, right]}
  left: {type: function, call: "steps.py:left", protocol: state_graph}
  right: {type: function, call: "steps.py:right", protocol: state_graph}
"""
CHILD = child_id("run1", 1)
STATE = {"log": ["given"], "text": "abc"}


def of(driver: Driver, node: str) -> Visit:
    [visit] = [visit for visit in driver.run.frontier.values() if visit.node == node]
    return visit


def resulted(driver: Driver, node: str, delta: dict[str, object], **header: bool) -> None:
    visit = of(driver, node)
    driver.try_(Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, keys=tuple(delta), **header)), delta)


def waiting(more: str = "") -> Driver:
    """A run whose child has started."""
    driver = Driver(ABOVE.replace("MORE", more), {}).start()
    resulted(driver, "low", {RESULT: STATE})
    return driver


def test_the_child_starts_with_the_state_that_a_worker_has_made() -> None:
    driver = Driver(ABOVE.replace("MORE", ""), {}).start()
    assert of(driver, "low").body == Work("functions")
    resulted(driver, "low", {RESULT: STATE})
    assert driver.last is not None
    assert driver.last.effects == (StartChild(CHILD, "agent/low", "", "low", 1, 2, STATE),)
    assert of(driver, "low").body == ChildWait(Child(CHILD, "agent/low"), None), "without a time limit"
    assert RESULT not in driver.state


def test_what_the_child_returned_is_written_by_a_worker() -> None:
    driver = waiting()
    driver.try_(ChildEnded(1, 2, CHILD, "completed"), {RESULT: '{"log": ["a"]}'})
    visit = of(driver, "low")
    assert (visit.attempt, visit.body) == (3, Work("functions", given="1.output"))
    resulted(driver, "low", {"log": ["given", "a"]})
    assert driver.state["log"] == ["given", "a"]
    assert of(driver, "last").state == "queued"


def test_a_router_asks_and_its_execution_gets_the_output_of_the_child_with_the_answers() -> None:
    driver = waiting()
    driver.try_(ChildEnded(1, 2, CHILD, "completed"), {RESULT: '{"log": ["a"]}'})
    for at, answer in enumerate(("left", {"n": 1})):
        visit = of(driver, "low")
        asked = InterruptQuestion(f"low#{at}", "where to?", at=at)
        driver.try_(Resulted(1, visit.attempt, ResultHeader(ok=True, interrupt=asked)))
        driver.send(Answered(1, json.dumps(answer), visit.attempt))
    visit = of(driver, "low")
    assert isinstance(visit.body, Work) and visit.body.given is not None
    given = driver.memory.items[visit.body.given]
    assert output_of(given) == '{"log": ["a"]}'
    assert answers_of(given) == [UsedAnswer(None, 0, "left"), UsedAnswer(None, 1, {"n": 1})]
    resulted(driver, "low", {"log": ["given", "a"]})
    assert of(driver, "last").state == "queued"
    assert driver.memory.items == {}


def test_a_late_message_for_the_execution_that_made_the_state_changes_nothing() -> None:
    driver = waiting()
    late = Resulted(1, 1, ResultHeader(ok=True, keys=(RESULT,)))
    assert isinstance(driver.try_(late, {RESULT: STATE}), IgnoredEvent)
    assert isinstance(driver.try_(ChildEnded(1, 1, CHILD, "completed"), {RESULT: "{}"}), IgnoredEvent)


def test_a_child_that_fails_fails_the_node() -> None:
    driver = waiting()
    driver.send(ChildEnded(1, 2, CHILD, "failed", "why"))
    assert (driver.run.status, driver.error) == (
        "failed",
        "Graph execution failed for agent 'agent': at node 'low': Graph 'low' failed: why",
    )


@pytest.mark.parametrize("failure", [Failure("steps"), Failure("writes"), Failure("visit", 7, "pkg.x:MyError")])
def test_a_run_fails_for_what_the_run_below_failed_for_at_the_visit_that_waited_for_it(failure: Failure) -> None:
    driver = waiting()
    driver.send(ChildEnded(1, 2, CHILD, "failed", "why", failure=failure))
    assert driver.last is not None
    assert driver.last.failure == replace(failure, seq=1)


def test_the_end_of_a_child_that_an_earlier_release_reports_is_a_failed_visit() -> None:
    driver = waiting()
    driver.send(ChildEnded(1, 2, CHILD, "failed", "why"))
    assert driver.last is not None
    assert driver.last.failure == Failure("visit", 1)


def test_a_child_that_is_late_is_cancelled_and_fails_the_node() -> None:
    driver = waiting("timeout: 5,")
    visit = of(driver, "low")
    assert visit.due_ms == driver.now_ms + 5_000
    driver.send(TimerFired(visit.timer), after_ms=5_000)
    assert driver.last is not None
    assert TellChild(CHILD, "cancelled", keeps=True) in driver.last.effects
    assert "Graph 'low' timed out after 5s" in (driver.error or "")


def test_a_retry_continues_the_child_and_another_one_gets_a_new_state_if_that_is_gone() -> None:
    driver = waiting()
    driver.send(ChildEnded(1, 2, CHILD, "failed", "why"))
    retried = driver.send(Retried())
    assert retried.effects == (RetryChild(CHILD, "agent/low", 2, 1),)
    driver.send(ChildGone(2, 1, CHILD))
    visit = of(driver, "low")
    assert (visit.attempt, visit.body) == (2, Work("functions"))
    resulted(driver, "low", {RESULT: STATE})
    assert driver.last is not None
    assert driver.last.effects == (StartChild(child_id("run1", 2), "agent/low", "", "low", 2, 3, STATE),)


def test_the_run_of_a_graph_below_returns_its_output_keys() -> None:
    driver = Driver(BELOW, {}).start()
    resulted(driver, "first", {"log": ["first"], "secret": 1})
    resulted(driver, "left", {"log": ["left"]})
    resulted(driver, "right", {"log": ["right"]})
    assert (driver.run.status, driver.output) == ("completed", '{"log":["first","left","right"]}')


def test_a_command_for_the_graph_above_ends_the_run_and_drops_the_writes_of_its_step() -> None:
    driver = Driver(BELOW, {}).start()
    resulted(driver, "first", {"log": ["first"]})
    resulted(driver, "left", {"log": ["left"]})
    resulted(driver, "right", {RESULT: {"__parent__": {"update": [], "goto": ["x"]}}}, returns=True)
    assert driver.run.status == "completed"
    assert driver.output == '{"__parent__":{"update":[],"goto":["x"]}}'
    assert driver.state["log"] == ["first"]
    assert not driver.run.frontier


def test_its_time_in_the_journal_is_that_of_its_child_too() -> None:
    driver = waiting()
    driver.try_(ChildEnded(1, 2, CHILD, "completed"), {RESULT: "{}"}, after_ms=5_000)
    visit = of(driver, "low")
    driver.try_(Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, took_ms=7)))
    assert read_entry(driver.memory.entries[-1])[0].took_ms > 5_000
