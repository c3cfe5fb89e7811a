"""Runs that wait: held by a person, asked about a lost effect, or left without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.runs.events import (
    RUN_DEADLINE,
    Answered,
    Cancelled,
    Commented,
    LeaseLost,
    Paused,
    Resumed,
    Retried,
    Submitted,
    TimerFired,
)
from sleipnir.runs.run import changed, read_effect_answer
from sleipnir.runs.transitions import Transition
from sleipnir_scheduler.planner.plan import IgnoredEvent, plan
from tests.model_store import Driver, bad, ok

ONCE = """
name: once
start: pay
nodes:
  pay: {type: script, script: pay.sh, effect: once, next: done, state_updates: {text: "{{id}} of {{who}}"}}
  other: {type: script, script: o.sh, next: done}
  done: {type: end, output: "{{text}}"}
"""

EXPIRING = """
name: expiring
start: ask
nodes:
  ask: {type: input, question: who, default: "{{host}}", timeout: 60, next: sure, state_updates: {who: "{{input}}"}}
  sure: {type: approval, question: sure, options: [yes], routes: {yes: done}, on_other: done, timeout: 30,
         on_timeout: late}
  late: {type: input, question: why, timeout: 5, next: done}
  done: {type: end, output: "{{who}}"}
"""

TWO = """
name: two
start: a
settings: {timeout: 10}
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: script, script: b.sh, next: done}
  done: {type: end}
"""


def lost_effect(**lease: bool) -> Driver:
    driver = Driver(ONCE, {"who": "Ann"})
    driver.send(Submitted())
    asked = driver.send(LeaseLost(1, 1, "w1", **lease))
    assert (asked.gates[0].kind, asked.gates[0].options, asked.dispatches) == ("effect", ("run again", "fail"), ())
    assert driver.run.status == "waiting"
    return driver


def test_a_lost_effect_is_run_again_on_request_of_a_person() -> None:
    driver = lost_effect()
    again = driver.send(Answered(1, "run again"))
    assert [(visit.seq, visit.attempt, visit.queue) for visit in again.dispatches] == [(1, 2, "scripts")]
    assert driver.send(ok(1, attempt=2)).status == "completed"


def test_a_result_that_comes_while_a_person_is_asked_changes_nothing() -> None:
    driver = lost_effect()
    assert isinstance(plan(driver.graph, driver.run, ok(1), driver.now_ms), IgnoredEvent)


def test_an_effect_that_is_handed_back_is_asked_about_as_well() -> None:
    assert lost_effect(handed_back=True).live() == ["pay"]


def test_an_effect_that_has_happened_continues_with_the_output_that_a_person_gives() -> None:
    driver = lost_effect()
    settled = driver.send(Answered(1, '{"id": 7, "_next": "other"}'))
    assert settled.writes[0].values == {"id": 7, "text": "7 of Ann"}
    assert (settled.writes[0].step.ok, driver.live()) == (True, ["other"])


def test_an_effect_that_is_given_up_fails_its_node() -> None:
    driver = lost_effect()
    failed = driver.send(Answered(1, "fail"))
    assert failed.writes[0].values["_error"] == {
        "node": "pay",
        "message": "WorkerLost: its worker died, and it was decided not to run it again",
    }


def test_an_unclear_answer_about_an_effect_is_asked_for_again() -> None:
    driver = lost_effect()
    again = driver.send(Answered(1, "dunno"))
    assert "must be 'run again', 'fail' or a JSON object, not 'dunno'" in again.gates[0].question
    assert driver.send(Answered(1, "run again")).dispatches


def test_an_answer_about_an_attempt_does_not_apply_to_the_next_one() -> None:
    driver = lost_effect()
    driver.send(Answered(1, "run again"))
    asked = driver.send(LeaseLost(1, 2, "w2"))
    assert asked.gates[0].attempt == 2
    assert isinstance(plan(driver.graph, driver.run, Answered(1, "run again"), driver.now_ms), IgnoredEvent)
    assert driver.send(Answered(1, "run again", attempt=2)).dispatches[0].attempt == 3


def test_a_recorded_failure_of_an_effect_opens_no_question() -> None:
    driver = Driver(ONCE, {"who": "Ann"})
    driver.send(Submitted())
    assert driver.send(bad(1)).status == "completed"


@pytest.mark.parametrize("text", ["", "yes", "[1]", "NaN", '{"a": NaN}', '{"a": "\\ud800"}', "{", "[" * 100_000])
def test_what_is_no_answer_about_an_effect_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="run again"):
        read_effect_answer(text)


def test_a_question_without_an_answer_takes_its_default_then_its_way_out_then_fails() -> None:
    driver = Driver(EXPIRING, {"host": "nobody"})
    opened = driver.send(Submitted())
    assert opened.timers == {"visit/1/1": driver.now_ms + 60_000}
    defaulted = driver.send(TimerFired("visit/1/1"), after_ms=60_000)
    assert defaulted.writes[0].values == {"who": "nobody"}
    assert driver.live() == ["sure"]
    driver.send(TimerFired("visit/2/1"), after_ms=30_000)
    assert driver.live() == ["late"]
    failed = driver.send(TimerFired("visit/3/1"), after_ms=5_000)
    assert "at node 'late': input node 'late' was not answered within 5s" in str(failed.error)


def test_an_answer_in_time_drops_the_timer_and_a_late_timer_changes_nothing() -> None:
    driver = Driver(EXPIRING, {"host": "nobody"})
    driver.send(Submitted())
    assert driver.send(Answered(1, "Ann")).untimers == ("visit/1/1",)
    assert isinstance(plan(driver.graph, driver.run, TimerFired("visit/1/1"), driver.now_ms), IgnoredEvent)


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_comment_on_a_question_is_a_step_of_the_journal_and_nothing_else(is_paused: bool) -> None:
    driver = Driver(EXPIRING, {"host": "nobody"})
    driver.send(Submitted())
    if is_paused:
        driver.send(Paused("ann"))
    before = driver.run
    said = driver.send(Commented(1, 1, "Ann knows", "bob@desk (api)"))
    [step] = [write.step for write in said.writes]
    assert (step.kind, step.by, step.reason, step.gate, step.seq) == (
        "commented", "bob@desk (api)", "Ann knows", 1, None,
    )  # fmt: skip
    assert not (said.close or said.open or said.timers or said.untimers or said.dispatches)
    assert (driver.run.frontier, driver.run.status) == (before.frontier, before.status)
    for other in (Commented(1, 2, "of another attempt", "bob"), Commented(7, 1, "of no visit", "bob")):
        assert isinstance(plan(driver.graph, driver.run, other, driver.now_ms), IgnoredEvent)
    driver.send(Answered(1, "Ann"))
    assert isinstance(plan(driver.graph, driver.run, Commented(1, 1, "late", "bob"), driver.now_ms), IgnoredEvent)


def test_a_paused_run_commits_what_runs_and_dispatches_nothing_until_it_is_resumed() -> None:
    driver = Driver(TWO)
    driver.send(Submitted())
    assert driver.send(Paused("ann", "costs")).status == "paused"
    moved = driver.send(ok(1))
    assert (moved.status, moved.dispatches, states(driver)) == ("paused", (), {"b": "ready"})
    resumed = driver.send(Resumed())
    assert [visit.node for visit in resumed.dispatches] == ["b"]
    assert (states(driver), driver.run.status) == ({"b": "queued"}, "running")
    assert driver.send(ok(2)).status == "completed"


def states(driver: Driver) -> dict[str, str]:
    return {visit.node: visit.state for visit in driver.run.frontier.values()}


OWN_NODES = """
name: g
version: sleipnir/1
start: a
engine: ENGINE
nodes:
  a: {type: script, script: a.sh, next: r}
  r: {type: router, state_updates: {seen: "yes"}, next: NEXT}
  q: {type: input, question: "Well?", next: e}
  p: {type: approval, question: "Go on?", options: [y], routes: {y: e}, on_other: e}
  e: {type: end, output: "done"}
"""


@pytest.mark.parametrize("engine", ["bsp", "dag"])
@pytest.mark.parametrize("next_", ["e", "q", "p"])
@pytest.mark.parametrize("owner", ["person", "parent", ""])
def test_a_paused_run_starts_no_node_of_the_planner_s_own_and_does_not_end(engine: str, next_: str, owner: Any) -> None:
    """Finding C15: end, router, input and approval nodes went on, and the run completed."""
    driver = Driver(OWN_NODES.replace("ENGINE", engine).replace("NEXT", next_))
    driver.send(Submitted())
    driver.send(Paused("ann", owner=owner))
    moved = driver.send(ok(1))
    assert (moved.status, moved.gates, states(driver)) == ("paused", (), {"r": "ready"})
    assert "seen" not in driver.state
    resumed = driver.send(Resumed(owner=owner))
    assert driver.state["seen"] == "yes"
    assert (resumed.status, len(resumed.gates)) == (("completed", 0) if next_ == "e" else ("waiting", 1))


def test_a_paused_run_does_not_end_with_the_last_visit_next_to_an_end_node() -> None:
    """Finding C15: the end node has been reached before, and waits for the others of its step."""
    text = """
name: g
version: sleipnir/1
start: s
reducers: {x: overwrite}
nodes:
  s: {type: router, next: [e, a]}
  a: {type: script, script: a.sh}
  e: {type: end, output: "{{x}}"}
"""
    driver = Driver(text)
    driver.send(Submitted())
    [a] = [visit.seq for visit in driver.run.frontier.values() if visit.node == "a"]
    driver.send(Paused("ann"))
    moved = driver.try_(ok(a, keys=("x",)), {"x": "mine"})
    assert isinstance(moved, Transition)
    assert (moved.status, driver.state["x"]) == ("paused", "mine"), "the result counts"
    assert driver.run.status == "paused"
    assert driver.send(Resumed()).status == "completed"
    assert driver.last is not None and driver.last.output == "mine"


def test_a_paused_run_fails_for_what_came_meanwhile_once_it_continues() -> None:
    """Finding C15: neither a failed visit nor a limit ends a run that is held."""
    driver = Driver(TWO)
    driver.send(Submitted())
    driver.send(Paused("ann"))
    assert driver.send(ok(1, "ghost")).status == "paused"
    assert driver.send(Resumed()).status == "failed"

    limited = Driver(TWO.replace("nodes:", "limits: {max_steps: 1}\nnodes:"))
    limited.send(Submitted())
    limited.send(Paused("ann"))
    assert limited.send(ok(1)).status == "paused"
    assert (limited.send(Resumed()).status, limited.run.status) == ("failed", "failed")


@pytest.mark.parametrize("event", [ok(1), LeaseLost(1, 1, "w1")])
def test_a_paused_run_whose_time_was_up_before_takes_what_comes_and_fails_once_it_continues(event: Any) -> None:
    """Planning failed instead, when the timer of the run's deadline was behind the pause in the inbox."""
    driver = Driver(TWO)
    driver.send(Submitted())
    driver.send(Paused("ann"), after_ms=60_000)
    assert driver.send(event).status == "paused"
    driver.send(Resumed())
    if driver.run.status != "failed":
        driver.send(TimerFired(RUN_DEADLINE), after_ms=2)
    assert driver.run.status == "failed"


def test_a_run_over_its_budget_does_not_complete_before_a_person_has_decided() -> None:
    """Finding C15, of the hold of a budget."""
    graph = OWN_NODES.replace("ENGINE", "bsp").replace("NEXT", "e").replace("next: r", "next: b")
    driver = Driver(graph + "  b: {type: script, script: b.sh, next: r}\n")
    driver.run = changed(driver.run, spec=changed(driver.run.spec, max_cost_usd=0.5))
    driver.send(Submitted())
    usage = {"calls": 1, "cost_usd": 0.6, "input_tokens": 1, "output_tokens": 1}
    assert driver.send(ok(1, usage=usage)).status == "paused"
    [b] = [visit.seq for visit in driver.run.frontier.values() if visit.node == "b"]
    assert driver.send(ok(b)).status == "paused"
    [asks] = [visit for visit in driver.run.frontier.values() if visit.is_asking]
    assert driver.send(Answered(asks.seq, "yes", by="ann@host (cli)")).status == "completed"


def test_a_hold_ends_only_with_its_owner() -> None:
    """Finding C10: the resume of a parent ended a person's pause of the child."""
    driver = Driver(TWO)
    driver.send(Submitted())
    driver.send(Paused("ann", owner="person"), after_ms=1_000)
    driver.send(Paused("bob", owner="parent"), after_ms=1_000)
    assert [hold.owner for hold in driver.run.holds] == ["person", "parent"]
    assert driver.send(Resumed(owner="parent"), after_ms=1_000).status == "paused"
    assert [hold.by for hold in driver.run.holds] == ["ann"]
    assert isinstance(driver.try_(Resumed(owner="parent")), IgnoredEvent)
    assert driver.send(Resumed(owner="person"), after_ms=1_000).status == "running"
    assert driver.run.idle_ms == 3_001  # one more by the resume that changed nothing

    driver.send(Paused("ann", owner="person"))
    assert isinstance(driver.try_(Resumed(owner="parent")), IgnoredEvent)
    assert driver.send(Paused("bob", owner="parent")).status == "paused"
    assert driver.send(Resumed(owner="person")).status == "paused"
    assert driver.send(Resumed(owner="parent")).status == "running"


@pytest.mark.parametrize("owner", ["person", "parent", ""])
def test_a_hold_of_an_older_release_ends_by_any_resume(owner: Any) -> None:
    """Finding C10: its record does not say whose it is."""
    driver = Driver(TWO)
    driver.send(Submitted())
    driver.send(Paused("ann"))
    assert driver.send(Resumed(owner=owner)).status == "running"
    for each in ("person", "parent"):
        driver.send(Paused("ann", owner=each))  # type: ignore[arg-type]
    assert driver.send(Resumed()).status == "running", "an entry of an older release ends all"


def test_pausing_or_resuming_twice_changes_nothing() -> None:
    driver = Driver(TWO)
    driver.send(Submitted())
    assert isinstance(plan(driver.graph, driver.run, Resumed(), 2_000), IgnoredEvent)
    driver.send(Paused("ann"))
    assert isinstance(plan(driver.graph, driver.run, Paused("bob"), 2_000), IgnoredEvent)


def test_the_clock_of_a_paused_run_stops() -> None:
    driver = Driver(TWO)
    driver.send(Submitted())
    driver.send(Paused("ann"), after_ms=4_000)
    assert isinstance(plan(driver.graph, driver.run, TimerFired("deadline"), 60_000), IgnoredEvent)
    driver.send(ok(1), after_ms=60_000)
    assert states(driver) == {"b": "ready"}
    resumed = driver.send(Resumed(), after_ms=40_000)
    assert driver.run.idle_ms == 100_000
    assert resumed.timers == {"deadline": driver.run.started_ms + 110_001}
    assert driver.send(ok(2), after_ms=5_000).status == "completed"


def test_the_timer_of_a_deadline_that_has_moved_ends_nothing() -> None:
    driver = Driver(TWO)
    driver.send(Submitted())
    driver.send(Paused("ann"), after_ms=1_000)
    driver.send(Resumed(), after_ms=60_000)
    again = driver.send(TimerFired("deadline"), after_ms=1_000)
    assert (again.status, again.timers) == ("running", {"deadline": driver.run.started_ms + 70_001})


def test_a_run_that_is_paused_before_it_started_still_starts() -> None:
    driver = Driver(TWO)
    driver.send(Paused("ann"))
    assert driver.send(Submitted()).dispatches == ()
    assert driver.send(Resumed()).dispatches


def test_a_paused_run_can_be_cancelled() -> None:
    driver = Driver(TWO)
    driver.send(Submitted())
    driver.send(Paused("ann"))
    ended = driver.send(Cancelled())
    assert (ended.status, ended.holds) == ("cancelled", ())


TIMED = """
name: g
version: sleipnir/1
start: s
engine: bsp
limits: {step_timeout: 10}
nodes:
  s: {type: router, next: [a, b]}
  a: {type: script, script: s.sh}
  b: {type: script, script: s.sh}
"""


def test_a_run_that_fails_as_it_continues_leaves_no_timer() -> None:
    """The timer of its step is there from before, and going on arms it anew."""
    driver = Driver(TIMED)
    assert list(driver.send(Submitted()).timers) == ["step/2"]
    driver.send(Paused("ann"))
    driver.send(bad(driver.visit("a").seq))
    driver.send(ok(driver.visit("b").seq))
    ended = driver.send(Resumed())
    assert (ended.status, ended.timers, ended.untimers) == ("failed", {}, ("step/2", "deadline"))


ASKS_FOR_LONG = """
name: g
version: sleipnir/1
start: s
limits: {step_timeout: 10}
nodes:
  s: {type: router, next: [q, a]}
  q: {type: input, question: "Well?", next: e}
  a: {type: script, script: a.sh, next: e}
  e: {type: end, output: "done"}
"""


def test_the_time_of_a_step_ends_no_question_to_a_person() -> None:
    """Finding C26: questions have an expiry of their own."""
    driver = Driver(ASKS_FOR_LONG)
    driver.send(Submitted())
    timer = next(name for name in driver.last.timers if name.startswith("step/")) if driver.last else ""
    [a] = [visit.seq for visit in driver.run.frontier.values() if visit.node == "a"]
    [q] = [visit.seq for visit in driver.run.frontier.values() if visit.node == "q"]
    driver.send(ok(a))
    for _ in range(3):
        again = driver.send(TimerFired(timer), after_ms=10_000)
        assert (again.status, again.timers) == ("waiting", {timer: driver.now_ms + 10_000})
    assert driver.send(Answered(q, "yes")).status == "completed"


def test_the_timeout_of_a_step_ends_visits_next_to_a_question() -> None:
    driver = Driver(ASKS_FOR_LONG)
    driver.send(Submitted())
    timer = next(name for name in driver.last.timers if name.startswith("step/")) if driver.last else ""
    ended = driver.send(TimerFired(timer), after_ms=10_000)
    assert ended.status == "failed"
    assert str(ended.error).endswith("not done by then: 'a'")


def test_a_run_that_a_limit_has_stopped_reports_it() -> None:
    """Finding C26: it looked like one that has done all."""
    stopping = TWO.replace("nodes:", "limits: {max_steps: 1, on_max_steps: stop}\nnodes:")
    driver = Driver(stopping)
    driver.send(Submitted())
    ended = driver.send(ok(1))
    assert (ended.status, ended.stopped_by) == ("completed", "max_steps")
    driver = Driver(TWO)
    driver.send(Submitted())
    driver.send(ok(1))
    assert driver.send(ok(2)).stopped_by is None


def test_an_open_question_about_lost_work_is_asked_again_when_the_run_has_timed_out() -> None:
    """The run's deadline takes back visits that no worker has begun; this one may have done its work."""
    driver = Driver(
        "name: g\nstart: a\nsettings: {timeout: 5}\nnodes:\n"
        "  a: {type: script, script: s.sh, effect: once, next: e}\n  e: {type: end}\n"
    ).start()
    driver.send(LeaseLost(1, 1, "w"))
    driver.send(TimerFired(RUN_DEADLINE), after_ms=6_000)
    assert driver.run.status == "failed"
    driver.send(Retried())
    [visit] = driver.run.frontier.values()
    assert (visit.is_asking, driver.on_workers()) == (True, [])
