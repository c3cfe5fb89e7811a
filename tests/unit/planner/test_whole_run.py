"""`callbacks.agent`: the agent's functions around a whole run, as the planner lets workers call them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.messages import RESULT
from sleipnir.runs.checkpoints import CheckpointReader
from sleipnir.runs.events import Cancelled, LeaseLost, Paused, Resumed, Retried, Skipped, TimerFired
from sleipnir.runs.journal import state_after
from sleipnir.runs.run import Checkpoint
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Visit
from sleipnir.store.visit_records import read_visit, visit_text
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, bad, ok

GRAPH = """
name: watched
version: sleipnir/1
engine: ENGINE
start: a
callbacks: {agent: {AROUND}}
limits: {max_steps: 2}
settings: {timeout: 60}
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: script, script: b.sh, next: done}
  done: {type: end, output: "{{n}} {{who}}"}
"""
BOTH = 'before: "h.py:f", after: "h.py:g"'
AFTER = 'after: "h.py:g"'
ENGINES = pytest.mark.parametrize("engine", ["bsp", "dag"])


def watched(around: str = BOTH, engine: str = "bsp", steps: int = 9, **state: Any) -> Driver:
    text = GRAPH.replace("AROUND", around).replace("ENGINE", engine).replace("max_steps: 2", f"max_steps: {steps}")
    return Driver(text, {"n": 1, "who": "ann", **state}).start()


def called(driver: Driver) -> Visit:
    [visit] = [visit for visit in driver.run.frontier.values() if visit.role in ("before_run", "after_run")]
    return visit


def told(driver: Driver) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(driver.memory.values.talk(called(driver)).told)
    return said


@ENGINES
def test_the_first_visit_begins_after_the_functions_before_the_run_and_sees_what_they_changed(engine: str) -> None:
    driver = watched(engine=engine)
    assert [(visit.node, visit.role, visit.queue) for visit in driver.run.frontier.values()] == [
        ("a", "before_run", "functions")
    ]
    driver.ends(called(driver), who="bob")
    assert driver.live() == ["a"]
    assert driver.state["who"] == "bob"
    assert state_after(driver.memory.entries[:2])["who"] == "bob"
    assert state_after(driver.memory.entries[:1])["who"] == "ann"


@ENGINES
def test_an_output_that_before_gives_ends_the_run_and_no_other_function_is_called(engine: str) -> None:
    driver = watched(engine=engine)
    driver.ends(called(driver), **{RESULT: {"answer": 42}, "who": "bob"})
    assert (driver.run.status, driver.output, driver.run.frontier) == ("completed", '{"answer":42}', {})
    assert driver.state == {"n": 1, "who": "bob"}
    assert [notice.type for notice in driver.last.notices] == ["run_ended"] if driver.last else False


@ENGINES
def test_functions_after_the_run_get_its_output_and_leave_it_or_replace_it(engine: str) -> None:
    for values, output in (
        ({}, "1 ann"),
        ({RESULT: "short"}, "short"),
        ({"n": 7}, "1 ann"),
        ({RESULT: "s", "n": 7}, "s"),
    ):
        driver = watched(AFTER, engine).does("a").does("b")
        assert driver.run.status == "running"
        assert told(driver) == {"output": "1 ann", "error": None}
        driver.ends(called(driver), **values)
        assert (driver.run.status, driver.output, driver.run.frontier) == ("completed", output, {})
        state = {"n": values.get("n", 1), "who": "ann"}
        assert driver.state == state
        assert state_after(driver.memory.entries) == state


@ENGINES
def test_functions_after_a_run_that_fails_get_its_error_and_may_recover_it(engine: str) -> None:
    driver = watched(AFTER, engine).does("a").fails("b", "no luck")
    assert driver.run.status == "running"
    assert (told(driver)["output"], driver.failed()) == (None, ["b"])
    assert "at node 'b': no luck" in told(driver)["error"]
    driver.ends(called(driver), **{RESULT: "sorry"})
    assert (driver.run.status, driver.output, driver.run.frontier) == ("completed", "sorry", {})
    assert driver.run.failed_visits.count == 0


@ENGINES
def test_a_run_that_fails_and_is_not_recovered_can_be_retried_and_they_are_called_again(engine: str) -> None:
    driver = watched(AFTER, engine).does("a").fails("b", "no luck")
    driver.ends(called(driver))
    assert driver.run.status == "failed"
    assert "at node 'b': no luck" in str(driver.error)
    driver.send(Retried())
    driver.does("b")
    assert told(driver) == {"output": "1 ann", "error": None}
    driver.ends(called(driver))
    assert (driver.run.status, driver.output) == ("completed", "1 ann")


@pytest.mark.parametrize("around", [BOTH, 'before: "h.py:f"'])
def test_a_failure_before_the_run_fails_it_without_the_functions_after_it_and_a_retry_begins_again(around: str) -> None:
    driver = watched(around)
    driver.send(bad(called(driver).seq, "refused", error_kind="callback"))
    assert (driver.run.status, driver.run.frontier) == ("failed", {})
    assert "refused" in str(driver.error)
    driver.send(Retried())
    assert called(driver).role == "before_run"
    driver.ends(called(driver))
    assert driver.live() == ["a"]


@ENGINES
def test_a_failure_after_the_run_fails_it_and_a_retry_calls_them_again_with_the_same_output(engine: str) -> None:
    driver = watched(AFTER, engine).does("a").does("b")
    driver.send(bad(called(driver).seq, "refused"))
    assert (driver.run.status, driver.run.frontier) == ("failed", {})
    driver.send(Retried())
    assert told(driver) == {"output": "1 ann", "error": None}
    driver.ends(called(driver))
    assert (driver.run.status, driver.output) == ("completed", "1 ann")


def test_a_failure_after_a_run_that_failed_tells_of_both() -> None:
    driver = watched(AFTER).fails("a", "no luck")
    driver.send(bad(called(driver).seq, "refused"))
    assert driver.run.status == "failed"
    assert "refused (before that: Graph execution failed" in str(driver.error)
    assert "no luck" in str(driver.error)
    driver.send(Retried())
    assert driver.live() == ["a"]


@ENGINES
def test_a_limit_that_ends_a_run_is_told_and_its_steps_are_not_those_of_functions(engine: str) -> None:
    driver = watched(engine=engine, steps=2)
    driver.ends(called(driver))
    driver.does("a").does("b")
    assert "limits.max_steps" in told(driver)["error"]
    driver.ends(called(driver))
    assert driver.run.status == "failed"
    assert driver.last is not None and driver.last.failure is not None
    assert driver.last.failure.kind == "steps"


def test_the_deadline_of_a_run_ends_functions_after_it() -> None:
    driver = watched(AFTER).does("a").does("b")
    driver.now_ms += 61_000
    driver.send(TimerFired("deadline"))
    assert (driver.run.status, driver.run.frontier) == ("failed", {})
    assert "timed out" in str(driver.error)


@pytest.mark.parametrize("around", [AFTER, BOTH])
def test_a_run_that_is_cancelled_calls_none(around: str) -> None:
    driver = watched(around)
    driver.send(Cancelled())
    assert (driver.run.status, driver.run.frontier) == ("cancelled", {})


def test_a_paused_run_begins_none_of_its_nodes_until_it_goes_on() -> None:
    driver = watched()
    driver.send(Paused(by="ann"))
    driver.ends(called(driver), who="bob")
    assert (driver.run.status, [visit.state for visit in driver.run.frontier.values()]) == ("paused", ["ready"])
    driver.send(Resumed(by="ann"))
    assert driver.on_workers() == ["a"]


@ENGINES
@pytest.mark.parametrize(
    ("values", "output"), [({}, "1 ann"), ({RESULT: "short"}, "short"), ({RESULT: {"a": 1}, "n": 7}, '{"a":1}')]
)
def test_a_run_that_is_paused_while_functions_are_called_ends_once_it_goes_on(
    values: dict[str, Any], output: str, engine: str
) -> None:
    driver = watched(AFTER, engine).does("a").does("b")
    driver.send(Paused(by="ann"))
    after = called(driver)
    driver.ends(after, **values)
    assert (driver.run.status, driver.output, called(driver).state) == ("paused", None, "ended")
    assert driver.state["n"] == values.get("n", 1), "what they write counts at once"
    assert read_visit(visit_text(called(driver))) == called(driver)
    assert isinstance(driver.try_(ok(after.seq)), IgnoredEvent)
    driver.now_ms += 61_000
    driver.try_(TimerFired("deadline"))
    assert driver.run.status == "paused"
    driver.send(Resumed(by="ann"))
    assert (driver.run.status, driver.output, driver.run.frontier) == ("completed", output, {})


def test_a_paused_run_does_not_end_before_each_hold_has_ended() -> None:
    driver = watched(AFTER).does("a").does("b")
    driver.send(Paused(by="ann", owner="person"))
    driver.send(Paused(by="run above", owner="parent"))
    driver.ends(called(driver))
    driver.send(Resumed(by="ann", owner="person"))
    assert driver.run.status == "paused"
    driver.send(Resumed(by="run above", owner="parent"))
    assert (driver.run.status, driver.output) == ("completed", "1 ann")


@pytest.mark.parametrize("around", [AFTER, BOTH])
def test_a_failure_of_functions_of_a_paused_run_fails_it_once_it_goes_on(around: str) -> None:
    driver = watched(around)
    if around == AFTER:
        driver.fails("a", "no luck")
    driver.send(Paused(by="ann"))
    driver.send(bad(called(driver).seq, "refused"))
    assert (driver.run.status, driver.error) == ("paused", None)
    driver.send(Resumed(by="ann"))
    assert driver.run.status == "failed"
    assert "refused" in str(driver.error)
    assert ("no luck" in str(driver.error)) == (around == AFTER)
    driver.send(Retried())
    assert driver.on_workers() == ["a"]


def test_an_output_given_before_a_paused_run_ends_it_once_it_goes_on_and_a_cancelled_one_has_none() -> None:
    for event, ended in ((Resumed(by="ann"), ("completed", "pong")), (Cancelled(), ("cancelled", None))):
        driver = watched()
        driver.send(Paused(by="ann"))
        driver.ends(called(driver), **{RESULT: "pong"})
        assert driver.run.status == "paused"
        driver.send(event)
        assert (driver.run.status, driver.output, driver.run.frontier) == (*ended, {})


@ENGINES
def test_a_lost_worker_and_a_repeated_result_change_nothing(engine: str) -> None:
    driver = watched(engine=engine)
    first = called(driver)
    driver.send(LeaseLost(first.seq, first.attempt, "w"))
    assert isinstance(driver.try_(ok(first.seq)), IgnoredEvent)
    driver.ends(called(driver))
    assert isinstance(driver.try_(ok(first.seq, attempt=2)), IgnoredEvent)
    driver.does("a").fails("b")
    after = called(driver)
    driver.send(LeaseLost(after.seq, after.attempt, "w"))
    assert told(driver)["error"]
    for _ in range(3):
        driver.send(LeaseLost(after.seq, called(driver).attempt, "w"))
    assert driver.run.status == "failed"
    assert "WorkerLost" in str(driver.error)


def test_a_visit_that_failed_cannot_be_skipped_while_they_are_called() -> None:
    driver = watched(AFTER).fails("a")
    [failed] = [visit for visit in driver.run.frontier.values() if visit.state == "failed"]
    assert isinstance(driver.try_(Skipped(failed.seq, {}, (), "ann", None)), IgnoredEvent)
    assert isinstance(driver.try_(Skipped(called(driver).seq, {}, (), "ann", None)), IgnoredEvent)


def test_their_visits_are_stored_as_they_are() -> None:
    driver = watched()
    before = called(driver)
    driver.ends(before).fails("a")
    for visit in (before, called(driver)):
        assert read_visit(visit_text(visit)) == visit


def test_the_checkpoints_of_a_run_are_those_of_its_nodes() -> None:
    driver = watched()
    driver.ends(called(driver), who="bob").does("a").does("b").ends(called(driver), n=2)
    steps = [step for step, _ in driver.memory.values.journal]
    assert [step.role for step in steps if step.seq] == ["before_run", "node", "node", "node", "after_run"]
    assert [step.step for step in steps if step.is_checkpoint] == [0, 2, 3, 4]
    reader = CheckpointReader(Checkpoint(0, ("a",))).over(steps)
    assert (reader.step, reader.leads_on) == (4, False)


def test_a_run_without_them_has_no_such_visit() -> None:
    text = (
        GRAPH.replace("callbacks: {agent: {AROUND}}", "")
        .replace("ENGINE", "bsp")
        .replace("max_steps: 2", "max_steps: 9")
    )
    driver = Driver(text, {"n": 1, "who": "ann"}).start().does("a").does("b")
    assert isinstance(driver.last, Transition)
    assert (driver.run.status, driver.memory.items) == ("completed", {})
