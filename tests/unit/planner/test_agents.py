"""Agent nodes: what a commit owes to a child run, and what its end means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sleipnir.events import Cancelled, ChildEnded, Paused, Resumed, Retried, Submitted, TimerFired
from sleipnir.messages import RESULT
from sleipnir.runs import RunSpec, child_id
from sleipnir.transitions import StartChild, TellChild, TellParent, TellRoot, Transition
from sleipnir_scheduler.planner.plan import Ignore
from tests.unit.planner.driver import Driver, ok

GRAPH = """
name: g
start: call
nodes:
  call: {{type: agent, agent: helper, prompt: "for {{{{who}}}}", {more}next: e}}
  e: {{type: end, output: "{{{{said}}}}"}}
"""
PLAIN = GRAPH.format(more="state_updates: {said: '<{{output}}>'}, ")
TYPED = GRAPH.format(more="output_schema: {type: object}, ")
CHILD = child_id("run1", 1)


def started(graph: str = PLAIN, spec: RunSpec | None = None) -> Driver:
    driver = Driver(graph, {"who": "Ada"})
    if spec is not None:
        driver.run = replace(driver.run, spec=spec)
    return driver.start()


def over(status: str = "completed", *, attempt: int = 1, child: str = CHILD, **more: object) -> ChildEnded:
    return ChildEnded(1, attempt, child, status, **more)  # type: ignore[arg-type]


def test_a_child_is_started_by_the_commit_that_opens_the_visit() -> None:
    driver = started()
    assert driver.last is not None
    assert driver.last.effects == (StartChild(CHILD, "helper", "for Ada", "call", 1, 1),)
    [visit] = driver.run.frontier.values()
    assert (visit.state, visit.queue, visit.wake_ms, visit.is_asking) == (
        "waiting",
        None,
        driver.now_ms + 300_000,
        False,
    )
    assert driver.run.status == "waiting"
    assert driver.last.dispatches == ()


def test_the_id_of_a_child_follows_from_its_parents_visit() -> None:
    assert child_id("run1", 1) == CHILD != child_id("run1", 2)
    assert len(CHILD) == 12


def test_the_output_of_a_child_is_taken_once() -> None:
    driver = started()
    ended = driver.try_(over(usage={"calls": 2, "input_tokens": 5}), {RESULT: "hello"})
    assert isinstance(ended, Transition)
    assert (ended.status, ended.output, ended.effects) == ("completed", "<hello>", ())
    assert (ended.delivered, ended.usage) == (1, {"calls": 2, "input_tokens": 5})
    assert isinstance(driver.try_(over(), {RESULT: "hello"}), Ignore)


@pytest.mark.parametrize("event", [over(attempt=2), over(child="another"), ChildEnded(7, 1, CHILD, "completed")])
def test_the_end_of_a_child_that_nobody_waits_for_changes_nothing(event: ChildEnded) -> None:
    assert isinstance(started().try_(event, {RESULT: "hello"}), Ignore)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (over("failed", error="the disk is full"), "the disk is full"),
        (over("failed"), "it gives no reason"),
        (over("cancelled"), "it was cancelled"),
    ],
)
def test_a_child_that_does_not_complete_fails_the_graph(event: ChildEnded, why: str) -> None:
    failed = started().send(event)
    assert failed.status == "failed"
    assert str(failed.error).endswith(f"at node 'call': Agent 'helper' failed: {why}")
    assert failed.effects == ()  # it is over already, and need not be cancelled


def test_data_is_made_by_a_worker_in_another_attempt() -> None:
    driver = started(TYPED)
    waits = driver.try_(over(), {RESULT: "three"})
    assert isinstance(waits, Transition)
    [visit] = driver.run.frontier.values()
    assert (visit.state, visit.queue, visit.attempt, visit.given) == ("queued", "llm", 2, "1.output")
    assert driver.memory.items == {"1.output": '"three"'}
    assert isinstance(driver.try_(over(), {RESULT: "three"}), Ignore)
    driver.try_(ok(1, attempt=2, keys=("n",)), {"n": 3})
    assert (driver.run.status, driver.state["n"], driver.memory.items) == ("completed", 3, {})


def test_the_time_of_a_child_stands_still_while_its_parent_is_held() -> None:
    driver = started()
    held = driver.send(Paused("me"), after_ms=100_000)
    assert held.effects == (TellChild(CHILD, "paused", "me"),)
    assert isinstance(driver.try_(TimerFired("visit/1/1"), after_ms=250_000), Ignore)
    assert driver.send(Resumed(), after_ms=50_000).effects == (TellChild(CHILD, "resumed"),)
    again = driver.send(TimerFired("visit/1/1"))
    assert (again.status, list(again.timers)) == ("waiting", ["visit/1/1"])
    late = driver.send(TimerFired("visit/1/1"), after_ms=200_000)
    assert str(late.error).endswith("at node 'call': Agent 'helper' timed out after 300s")
    assert late.effects == (TellChild(CHILD, "cancelled"),)


def test_who_cancels_a_run_cancels_its_children() -> None:
    assert started().send(Cancelled()).effects == (TellChild(CHILD, "cancelled"),)


def test_a_child_tells_its_parent_that_it_is_over_and_the_top_what_it_asks() -> None:
    spec = RunSpec("agent", "digest", parent="up", parent_seq=4, root="top", depth=3, path=["x", "y", "call"])
    asks = "name: g\nstart: q\nnodes:\n  q: {type: input, question: 'Well?', next: e}\n  e: {type: end}\n"
    driver = started(asks, spec)
    assert driver.last is not None
    [told] = driver.last.effects
    assert isinstance(told, TellRoot)
    assert (told.type, told.data["run"], told.data["path"]) == ("gate_opened", "run1", ["x", "y", "call"])
    assert driver.send(Cancelled()).effects == (TellParent(),)


def test_a_run_at_the_limit_of_depth_starts_no_child() -> None:
    driver = Driver(PLAIN, {"who": "Ada"})
    driver.run = replace(driver.run, spec=RunSpec("agent", "digest", parent="up", root="top", depth=3))
    refused = driver.send(Submitted())
    assert str(refused.error).endswith("at node 'call': Max agent depth exceeded (4/3)")
    assert refused.effects == (TellParent(),)


def test_a_failed_parent_that_is_retried_starts_another_child() -> None:
    driver = started()
    driver.send(over("failed", error="no"))
    assert driver.send(Retried()).effects == (StartChild(child_id("run1", 2), "helper", "for Ada", "call", 2, 1),)
