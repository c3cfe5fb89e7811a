"""`pause --timeout`: visits that still run at the deadline are stopped, and run again later (spec F30)."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.runs.events import PAUSE_DEADLINE, Cancelled, ChildGone, LeaseLost, Paused, Resumed, Retried, TimerFired
from sleipnir.runs.run import Hold
from sleipnir.runs.transitions import StartChild, TellChild, Transition
from sleipnir.runs.visits import Doubt, Visit
from sleipnir.store.holds import hold_fields, holds_of
from sleipnir.store.visit_records import read_visit, visit_text
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, ok, work_of

GRAPH = """
name: g
version: sleipnir/1
engine: ENGINE
start: split
state: {log: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [slow, quick]}
  slow: {type: script, script: s.sh, MORE}
  quick: {type: script, script: q.sh}
  last: {type: script, script: l.sh, wait_for: [slow, quick], next: done}
  done: {type: end, output: "{{log}}"}
"""
PARENT = """
name: parent
start: ask
nodes:
  ask: {type: agent, agent: worker, prompt: p, next: done}
  done: {type: end}
"""
POLICY = "retry: {max_attempts: 2, initial_interval: 1s, on: [any]}"
ENGINES = pytest.mark.parametrize("engine", ["bsp", "dag"])


def run_of(engine: str = "bsp", more: str = POLICY, **state: Any) -> Driver:
    return Driver(GRAPH.replace("ENGINE", engine).replace("MORE", more), state).start()


def pause(driver: Driver, timeout_ms: int | None, owner: Any = "person") -> Transition:
    moved = driver.send(Paused("ann", "costs", owner, timeout_ms))
    assert moved.status == "paused"
    return moved


def stop(driver: Driver, visit: Visit, seen: int | None = None) -> Transition:
    """What the commit that stops visits posts about each."""
    return driver.send(LeaseLost(visit.seq, visit.attempt, "w", handed_back=True, stopped=True, seen=seen))


def holds(driver: Driver) -> list[tuple[str, int | None, bool]]:
    return [(hold.owner, hold.due_ms, hold.forced) for hold in driver.run.holds]


@ENGINES
def test_what_ends_in_time_counts_and_the_rest_runs_again_after_the_pause(engine: str) -> None:
    driver = run_of(engine)
    slow = driver.visit("slow")
    paused = pause(driver, 20_000)
    due_ms = driver.now_ms + 20_000
    assert (paused.timers, paused.stops) == ({PAUSE_DEADLINE: due_ms}, False)
    driver.does("quick", log=["q"])
    forced = driver.send(TimerFired(PAUSE_DEADLINE), after_ms=20_000)
    assert forced.stops
    assert holds(driver) == [("person", due_ms, True)]
    stopped = stop(driver, slow)
    assert (stopped.dispatches, stopped.status) == ((), "paused")
    again = driver.visit("slow")
    assert (again.seq, again.attempt) == (slow.seq, 2)
    assert (work_of(again).failures, work_of(again).losses) == (0, 0), "no failure, and no loss"
    assert isinstance(driver.try_(ok(slow.seq, keys=("log",)), {"log": ["late"]}), IgnoredEvent)
    resumed = driver.send(Resumed("person"))
    assert [visit.node for visit in resumed.dispatches] == ["slow"], "what has ended does not run again"
    driver.does("slow", log=["s"]).does("last")
    assert driver.run.status == "completed"
    assert sorted(driver.state["log"]) == ["q", "s"]
    requests = [(step.kind, step.by, step.gate) for step, _ in driver.memory.values.journal if step.by]
    assert requests == [("paused", "ann", None), ("stopped", "ann", slow.seq), ("resumed", "", None)][:2]


@ENGINES
def test_a_timeout_of_zero_stops_at_once(engine: str) -> None:
    driver = run_of(engine)
    paused = pause(driver, 0)
    assert paused.stops
    assert PAUSE_DEADLINE not in paused.timers
    assert holds(driver) == [("person", driver.now_ms, True)]
    assert isinstance(driver.try_(TimerFired(PAUSE_DEADLINE)), IgnoredEvent)


def test_the_deadline_comes_at_most_once() -> None:
    driver = run_of()
    pause(driver, 5_000)
    early = driver.send(TimerFired(PAUSE_DEADLINE), after_ms=1)
    assert not early.stops, "a timer of an earlier pause"
    assert PAUSE_DEADLINE in early.timers
    assert driver.send(TimerFired(PAUSE_DEADLINE), after_ms=5_000).stops
    assert isinstance(driver.try_(TimerFired(PAUSE_DEADLINE)), IgnoredEvent)


def test_a_run_that_is_resumed_before_the_deadline_is_not_stopped() -> None:
    driver = run_of()
    pause(driver, 5_000)
    assert PAUSE_DEADLINE in driver.send(Resumed("person")).untimers
    assert isinstance(driver.try_(TimerFired(PAUSE_DEADLINE), after_ms=9_000), IgnoredEvent)


def test_a_visit_that_was_stopped_before_the_run_goes_on_is_dispatched_then() -> None:
    driver = run_of()
    slow = driver.visit("slow")
    pause(driver, 0)
    driver.send(Resumed("person"))
    assert [visit.node for visit in stop(driver, slow).dispatches] == ["slow"]


@pytest.mark.parametrize(("first", "second", "counts"), [
    (None, None, False), (5_000, None, False), (5_000, 9_000, False), (0, 0, False),
    (None, 5_000, True), (5_000, 1_000, True), (5_000, 0, True),
])  # fmt: skip
def test_a_second_request_counts_only_if_its_deadline_is_earlier(
    first: int | None, second: int | None, counts: bool
) -> None:
    driver = run_of()
    pause(driver, first)
    again = driver.try_(Paused("bob", None, "person", second))
    assert isinstance(again, Transition) == counts
    assert len(driver.run.holds) == 1
    if counts:
        assert driver.run.holds[0].due_ms == driver.now_ms + (second or 0)
        assert driver.run.holds[0].by == "ann"


def test_of_two_holds_each_stops_at_its_own_deadline() -> None:
    driver = run_of()
    pause(driver, 9_000)
    other = pause(driver, 5_000, "parent")
    assert other.timers[PAUSE_DEADLINE] == driver.now_ms + 5_000
    left = driver.send(Resumed("parent"))
    assert left.timers[PAUSE_DEADLINE] == driver.run.holds[0].due_ms


def test_children_are_held_with_the_same_deadline() -> None:
    driver = Driver(PARENT).start()
    child = driver.visit("ask").children[0]
    paused = pause(driver, 4_000)
    due_ms = driver.now_ms + 4_000
    assert paused.effects == (TellChild(child, "paused", "ann", due_ms=due_ms),)
    below = run_of()
    held = below.send(Paused("ann", None, "parent", due_ms=due_ms))
    assert held.timers == {PAUSE_DEADLINE: due_ms}


def test_a_child_that_starts_in_a_run_that_is_held_has_its_deadline() -> None:
    driver = Driver(PARENT).start()
    visit = driver.visit("ask")
    pause(driver, 0)
    moved = driver.send(ChildGone(visit.seq, visit.attempt, visit.children[0]))
    [child] = [effect.child for effect in moved.effects if isinstance(effect, StartChild)]
    assert TellChild(child, "paused", "ann", due_ms=driver.run.holds[0].due_ms) in moved.effects


@ENGINES
def test_an_effect_that_must_happen_once_is_asked_about(engine: str) -> None:
    driver = run_of(engine, "effect: once")
    slow = driver.visit("slow")
    pause(driver, 0)
    stopped = stop(driver, slow)
    assert isinstance(driver.visit("slow").body, Doubt)
    assert "The run was paused, and the time ended while w ran node 'slow'" in stopped.gates[0].question
    driver.answers("slow", "run again")
    driver.send(Resumed("person"))
    assert "slow" in driver.on_workers()


def test_a_visit_of_a_dag_sees_what_it_saw_before_and_one_of_a_super_step_the_state() -> None:
    driver = run_of("dag", log=["old"])
    slow = driver.visit("slow")
    seen = driver.run.step
    driver.does("quick", log=["new"])
    pause(driver, 0)
    stop(driver, slow, seen)
    again = driver.visit("slow")
    assert work_of(again).sees == seen
    assert read_visit(visit_text(again)) == again
    assert driver.memory.values.state_after(seen)["log"] == '["old"]'
    pause_again = driver.send(Resumed("person")) and pause(driver, 0)
    assert pause_again.stops
    stop(driver, again, driver.run.step)
    assert work_of(driver.visit("slow")).sees == seen, "the first input stays"
    steps = run_of("bsp")
    other = steps.visit("slow")
    pause(steps, 0)
    stop(steps, other, steps.run.step)
    assert work_of(steps.visit("slow")).sees is None


def test_commands_keep_their_own_values() -> None:
    driver = Driver(GRAPH.replace("ENGINE", "bsp").replace("MORE", "next: quick")).start()
    driver.does("slow", sends=[("quick", {"n": 1}), ("quick", {"n": 2})])
    driver.does("quick")
    first, second = sorted(
        (visit for visit in driver.run.frontier.values() if visit.node == "quick"), key=lambda visit: visit.seq
    )
    pause(driver, 0)
    driver.ends(first)
    stop(driver, second)
    driver.send(Resumed("person"))
    assert driver.sees(driver.visit("quick"))["n"] == 2


def test_the_timer_goes_with_the_run() -> None:
    driver = run_of()
    pause(driver, 5_000)
    assert PAUSE_DEADLINE in driver.send(Cancelled()).untimers


def test_a_failure_after_a_forced_stop_has_all_tries_of_its_policy() -> None:
    driver = run_of()
    slow = driver.visit("slow")
    pause(driver, 0)
    stop(driver, slow)
    driver.send(Resumed("person"))
    driver.fails("slow")
    assert driver.run.status != "failed"
    assert isinstance(driver.try_(Retried()), IgnoredEvent)


def test_the_deadline_is_stored_with_the_hold() -> None:
    for hold in (
        Hold("ann", 5, "x", "person", due_ms=9, forced=True),
        Hold("ann", 5, None, "person", due_ms=9),
        Hold("ann", 5),
    ):
        stored = hold_fields([hold])
        assert holds_of(stored["paused"], stored["holds"]) == (hold,)
    assert hold_fields([Hold("ann", 5)])["holds"] == '[{"by":"ann","at_ms":5,"v":1}]'
