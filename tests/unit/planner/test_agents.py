"""Agent nodes: what a commit owes to a child run, and what its end means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sleipnir.messages import RESULT
from sleipnir.runs.events import Cancelled, ChildEnded, ChildGone, Paused, Resumed, Retried, Submitted, TimerFired
from sleipnir.runs.run import RunSpec, child_id
from sleipnir.runs.transitions import RetryChild, StartChild, TellChild, TellParent, TellRoot, Transition
from sleipnir.store.keys import Keys
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, bad, ok, work_of

GRAPH = """
name: g
start: call
nodes:
  call: {{type: agent, agent: helper, prompt: "for {{{{who}}}}", {more}next: e}}
  e: {{type: end, output: "{{{{said}}}}"}}
"""
PLAIN = GRAPH.format(more="state_updates: {said: '<{{output}}>'}, ")
TYPED = GRAPH.format(more="output_schema: {type: object}, ")
MAP_OF_ONE = """
name: g
version: sleipnir/1
start: each
nodes:
  each: {type: map, over: "{{names}}", as: who, branch: call, collect_into: all, max_concurrency: 1, next: e}
  call: {type: agent, agent: helper, prompt: "for {{who}}"}
  e: {type: end, output: "{{all}}"}
"""
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
    assert (visit.state, visit.queue, visit.due_ms, visit.is_asking) == (
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


def test_a_child_whose_agent_has_a_session_is_in_the_partition_of_that() -> None:
    spec = RunSpec("agent", "digest", sessions={"helper": "desk"})
    last = started(spec=spec).last
    assert last is not None
    [start] = last.effects
    assert isinstance(start, StartChild)
    assert start.child == child_id("run1", 1, "helper/desk") != CHILD
    for seq in range(1, 200):
        for keys in (Keys(known_partitions=16), Keys(known_partitions=7)):
            assert keys.partition_of(child_id("run1", seq, "helper/desk")) == keys.partition_of("helper/desk")
    assert len({child_id("run1", seq, "helper/desk") for seq in range(1000)}) == 1000


def test_a_child_that_was_refused_is_cancelled_should_it_start_all_the_same() -> None:
    failed = started().send(over("refused", error="its session is busy"))
    assert (failed.status, failed.effects) == ("failed", (TellChild(CHILD, "cancelled"),))


def test_the_output_of_a_child_is_taken_once() -> None:
    driver = started()
    ended = driver.try_(over(usage={"calls": 2, "input_tokens": 5}), {RESULT: "hello"})
    assert isinstance(ended, Transition)
    assert (ended.status, ended.output, ended.effects) == ("completed", "<hello>", ())
    assert (ended.delivered, ended.usage) == (1, {"calls": 2, "input_tokens": 5})
    assert isinstance(driver.try_(over(), {RESULT: "hello"}), IgnoredEvent)


@pytest.mark.parametrize("event", [over(attempt=2), over(child="another"), ChildEnded(7, 1, CHILD, "completed")])
def test_the_end_of_a_child_without_a_waiting_visit_changes_nothing(event: ChildEnded) -> None:
    assert isinstance(started().try_(event, {RESULT: "hello"}), IgnoredEvent)


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
    assert (visit.state, visit.queue, visit.attempt, work_of(visit).given) == ("queued", "llm", 2, "1.output")
    assert driver.memory.items == {"1.output": '"three"'}
    assert isinstance(driver.try_(over(), {RESULT: "three"}), IgnoredEvent)
    driver.try_(ok(1, attempt=2, keys=("n",)), {"n": 3})
    assert (driver.run.status, driver.state["n"], driver.memory.items) == ("completed", 3, {})


def test_the_time_of_a_child_stops_while_its_parent_is_held() -> None:
    driver = started()
    held = driver.send(Paused("me"), after_ms=100_000)
    assert held.effects == (TellChild(CHILD, "paused", "me"),)
    assert isinstance(driver.try_(TimerFired("visit/1/1"), after_ms=250_000), IgnoredEvent)
    assert driver.send(Resumed(), after_ms=50_000).effects == (TellChild(CHILD, "resumed"),)
    again = driver.send(TimerFired("visit/1/1"))
    assert (again.status, list(again.timers)) == ("waiting", ["visit/1/1"])
    late = driver.send(TimerFired("visit/1/1"), after_ms=200_000)
    assert str(late.error).endswith("at node 'call': Agent 'helper' timed out after 300s")
    assert late.effects == (TellChild(CHILD, "cancelled", keeps=True),)


def test_who_cancels_a_run_cancels_its_children() -> None:
    assert started().send(Cancelled()).effects == (TellChild(CHILD, "cancelled"),)


COST = {"input_tokens": 5, "output_tokens": 2, "calls": 1, "cost_usd": 0.5}
ALL = {"input_tokens": 9, "output_tokens": 4, "calls": 3, "cost_usd": 0.75}


def test_an_ended_run_gets_the_cost_of_a_cancelled_child() -> None:
    driver = started(GRAPH.format(more="timeout: 1, "), RunSpec("agent", "digest", parent="up", root="up", depth=1))
    ended = driver.send(TimerFired("visit/1/1"), after_ms=1_000)
    assert ended.status == "failed"
    assert ended.effects == (TellChild(CHILD, "cancelled", keeps=True), TellParent())
    for _ in range(2):
        late = driver.send(over("cancelled", usage=COST))
        assert (late.status, late.usage, late.usage_of) == ("failed", COST, CHILD)
        assert (late.effects, late.ended_ms, late.error, late.delivered) == ((TellParent(),), None, None, 1)
    assert isinstance(driver.try_(over("cancelled")), IgnoredEvent), "it has cost nothing"
    assert driver.send(Retried()).status == "waiting"


def test_a_later_cost_report_of_a_child_is_applied() -> None:
    driver = started()
    first = driver.try_(over(usage=COST), {RESULT: "hello"})
    assert isinstance(first, Transition)
    assert (first.status, first.usage, first.usage_of) == ("completed", COST, CHILD)
    last = driver.send(over(usage=ALL))
    assert (last.status, last.usage, last.usage_of) == ("completed", ALL, CHILD)


def test_a_child_reports_its_end_to_its_parent_and_its_questions_to_the_root() -> None:
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


AGAIN = RetryChild(CHILD, "helper", 2, 1)
ANOTHER = StartChild(child_id("run1", 2), "helper", "for Ada", "call", 2, 1)


def after_extraction_failed() -> Driver:
    driver = started(TYPED)
    driver.try_(over(), {RESULT: "three"})
    driver.send(bad(1, attempt=2))
    return driver


def test_a_parent_that_is_retried_waits_for_the_same_child_again() -> None:
    driver = started()
    driver.send(over("failed", error="no", usage={"calls": 2, "input_tokens": 5, "cost_usd": 1.0}))
    again = driver.send(Retried())
    assert again.effects == (AGAIN,)
    assert again.timers == {"visit/2/1": driver.now_ms + 300_000}
    assert isinstance(driver.try_(over("failed", error="no")), IgnoredEvent)  # the first end, told once more
    usage = {"calls": 3, "input_tokens": 9, "cost_usd": 1.5}
    ended = driver.try_(ChildEnded(2, 1, CHILD, "completed", usage=usage), {RESULT: "hello"})
    assert isinstance(ended, Transition)
    assert (ended.status, ended.output) == ("completed", "<hello>")
    assert (ended.usage, ended.usage_of) == (usage, CHILD)


def test_a_child_may_fail_and_continue_more_than_once() -> None:
    driver = started()
    for seq in (1, 2, 3):
        driver.send(ChildEnded(seq, 1, CHILD, "failed", "no"))
        assert driver.send(Retried()).effects == (RetryChild(CHILD, "helper", seq + 1, 1),)


@pytest.mark.parametrize("fails", ["time", "run"])
def test_a_child_that_was_cancelled_with_its_failed_parent_continues(fails: str) -> None:
    driver = started(PLAIN.replace("start: call", "start: call\nsettings: {timeout: 100}") if fails == "run" else PLAIN)
    due = "visit/1/1" if fails == "time" else "deadline"
    assert driver.send(TimerFired(due), after_ms=301_000).effects == (TellChild(CHILD, "cancelled", keeps=True),)
    assert driver.run.status == "failed"
    assert driver.send(Retried()).effects == (AGAIN,)


def test_fresh_children_begin_at_their_start() -> None:
    driver = started()
    driver.send(over("failed", error="no"))
    assert driver.send(Retried(fresh_children=True)).effects == (ANOTHER,)


def test_a_child_whose_output_was_refused_is_not_asked_again() -> None:
    driver = after_extraction_failed()
    assert (driver.run.status, driver.memory.items) == ("failed", {})
    assert driver.send(Retried()).effects == (ANOTHER,)


def test_data_is_still_extracted_from_the_output_of_a_child_after_the_run_has_failed() -> None:
    driver = started(TYPED.replace("start: call", "start: call\nsettings: {timeout: 100}"))
    driver.try_(over(), {RESULT: "three"})
    driver.send(TimerFired("deadline"), after_ms=101_000)
    driver.send(Retried())
    [visit] = driver.run.frontier.values()
    assert (visit.state, visit.queue, work_of(visit).given) == ("queued", "llm", "1.output")


def test_a_removed_child_is_replaced_by_another_once() -> None:
    driver = started()
    driver.send(over("failed", error="no"))
    driver.send(Retried())
    gone = ChildGone(2, 1, CHILD)
    fresh = driver.send(gone)
    assert fresh.effects == (replace(ANOTHER, attempt=2),)
    assert (fresh.untimers, list(fresh.timers)) == (("visit/2/1",), ["visit/2/2"])
    assert isinstance(driver.try_(gone), IgnoredEvent)
    driver.try_(ChildEnded(2, 2, ANOTHER.child, "completed"), {RESULT: "hello"})
    assert driver.run.status == "completed"


def test_a_prompt_that_can_no_longer_be_rendered_fails_if_the_child_was_removed() -> None:
    driver = started()
    driver.send(over("failed", error="no"))
    driver.send(Retried())
    del driver.memory.values.state["who"]
    failed = driver.send(ChildGone(2, 1, CHILD))
    assert "Failed to interpolate prompt for agent 'helper'" in str(failed.error)
    assert failed.effects == ()


def test_the_failed_items_of_a_map_wait_for_their_children_again() -> None:
    driver = Driver(
        """
        name: g
        version: sleipnir/1
        start: each
        nodes:
          each: {type: map, over: "{{names}}", as: who, branch: call, collect_into: all, next: e}
          call: {type: agent, agent: helper, prompt: "for {{who}}"}
          e: {type: end, output: "{{all}}"}
        """,
        {"names": ["a", "b", "c"]},
    ).start()
    for seq, status in ((2, "failed"), (3, "completed"), (4, "failed")):
        driver.try_(ChildEnded(seq, 1, child_id("run1", seq), status), {RESULT: "x"})  # type: ignore[arg-type]
    again = driver.send(Retried())
    assert again.effects == tuple(RetryChild(child_id("run1", old), "helper", new, 1) for old, new in ((2, 6), (4, 7)))
    for old, new in ((2, 6), (4, 7)):
        driver.try_(ChildEnded(new, 1, child_id("run1", old), "completed"), {RESULT: "y"})
    assert driver.output == '["y","x","y"]'


BELOW = RunSpec("agent", "digest", parent="up", parent_seq=4, root="top", depth=1, path=["call"])


def test_a_child_that_is_cancelled_because_its_parent_failed_keeps_what_it_has_done() -> None:
    driver = started(spec=BELOW)
    cancelled = driver.send(Cancelled(keeps=True))
    assert (cancelled.status, cancelled.keeps) == ("cancelled", True)
    assert cancelled.effects == (TellChild(CHILD, "cancelled", keeps=True), TellParent())
    again = driver.send(Retried())
    assert (again.status, again.effects[0]) == ("waiting", AGAIN)
    assert driver.send(Cancelled()).effects == (TellChild(CHILD, "cancelled"), TellParent())
    assert not driver.run.frontier


def test_a_child_that_has_not_ended_just_continues_when_its_parent_wants_it_to() -> None:
    driver = started(spec=BELOW)
    heard = driver.send(Retried())
    assert (heard.revives, heard.effects, heard.open, heard.close) == (True, (), (), ())


def test_a_child_that_a_person_cancelled_meanwhile_notifies_its_parent() -> None:
    driver = started(spec=BELOW)
    driver.send(Cancelled())
    told = driver.send(Retried())
    assert (told.status, told.effects) == ("cancelled", (TellParent(),))


def test_a_child_continues_when_its_paused_parent_does() -> None:
    driver = Driver(MAP_OF_ONE, {"names": ["a", "b"]}).start()
    driver.send(ChildEnded(2, 1, child_id("run1", 2), "failed"))
    driver.send(ChildEnded(3, 1, child_id("run1", 3), "failed"))
    driver.send(Retried())
    driver.send(Paused("me"))
    assert driver.try_(ChildEnded(5, 1, child_id("run1", 2), "completed"), {RESULT: "y"})
    assert driver.last is not None
    again = child_id("run1", 3)
    assert driver.last.effects == ()
    driver.send(Resumed())
    assert driver.last.effects == (RetryChild(again, "helper", 6, 1),)
