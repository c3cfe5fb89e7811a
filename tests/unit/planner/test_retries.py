"""Retry policies of nodes (spec/graph-package.md F37), first as a decision, then in a run."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.graph.model import Retry
from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Cancelled, LeaseLost, Paused, Resumed, Submitted, TimerFired
from sleipnir.runs.visits import Visit, Work
from sleipnir_scheduler.planner.plan import IgnoredEvent, plan
from sleipnir_scheduler.planner.retry_policy import GiveUp, RetryTime, decide
from tests.model_store import Driver, bad, ok, work_of

FLAKY = """
name: flaky
start: a
nodes:
  a: {type: script, script: a.sh, next: done, fallback: rescue, retry: RETRY}
  rescue: {type: script, script: r.sh, next: done}
  done: {type: end, output: "{{x}}"}
"""


def decision(policies: list[Retry], failures: int = 0, now_ms: int = 1_000, **failure: Any) -> RetryTime | GiveUp:
    visit = Visit(1, "a", "script", failures + 1, 0, body=Work("scripts", failures=failures))
    header = ResultHeader(ok=False, error="boom", **failure)
    return decide(policies, visit, failures, header, run="r", now_ms=now_ms, deadline_ms=None)


def pause_ms(policy: Retry, failures: int) -> int:
    again = decision([policy], failures)
    assert isinstance(again, RetryTime)
    return again.at_ms - 1_000


def test_the_pause_grows_by_the_factor_up_to_the_longest() -> None:
    policy = Retry(max_attempts=9, jitter=False)
    assert [pause_ms(policy, n) for n in range(6)] == [500, 1_000, 2_000, 4_000, 8_000, 8_000]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Retry(max_attempts=9, backoff=0, jitter=False), [500, 500, 500]),
        (Retry(max_attempts=9, backoff=-3, jitter=False), [500, 500, 500]),
        (Retry(max_attempts=9, max_interval=0, jitter=False), [500, 500, 500]),
        (Retry(max_attempts=9, backoff=1e308, jitter=False), [500, 8_000, 8_000]),
        (Retry(max_attempts=9, initial_interval=0, jitter=False), [0, 0, 0]),
    ],
)
def test_odd_policies_have_a_meaning(policy: Retry, expected: list[int]) -> None:
    assert [pause_ms(policy, n) for n in range(3)] == expected


def test_jitter_adds_up_to_as_much_again_and_is_the_same_when_planned_twice() -> None:
    policy = Retry(max_attempts=99, initial_interval=1_000, backoff=1, max_interval=60_000)
    pauses = [pause_ms(policy, n) for n in range(50)]
    assert all(1_000 <= pause < 2_000 for pause in pauses)
    assert len(set(pauses)) > 40
    assert pauses == [pause_ms(policy, n) for n in range(50)]
    assert pause_ms(Retry(max_attempts=9, initial_interval=1_000, max_interval=1_000), 3) == 1_000


def test_attempts_count_the_first_one() -> None:
    assert isinstance(decision([Retry(max_attempts=3)], failures=1), RetryTime)
    assert decision([Retry(max_attempts=3)], failures=2) == GiveUp("execution failed after 3 attempts")
    assert decision([Retry(max_attempts=1)]) == GiveUp()
    assert decision([]) == GiveUp()


def test_a_budget_of_time_ends_the_tries() -> None:
    spent = decision([Retry(max_elapsed=1)])
    assert spent == GiveUp("retry budget of 0.001s exhausted after 1 attempts")


@pytest.mark.parametrize(
    ("on", "failure", "again"),
    [
        (["any"], {"error_kind": "exit"}, True),
        ([], {"error_kind": "exit"}, False),
        (["transient"], {"error_kind": "exit"}, False),
        (["transient"], {"error_kind": "exit", "transient": True}, True),
        (["transient"], {"error_kind": "timeout"}, True),
        (["timeout"], {"error_kind": "timeout"}, True),
        (["timeout"], {"error_kind": "exit", "transient": True}, False),
        (["exit", "output"], {"error_kind": "output"}, True),
        (["ValueError"], {"error_kind": "exception", "error_type": "builtins:ValueError"}, True),
        (["pkg.x:MyError"], {"error_kind": "exception", "error_type": "pkg.x:MyError"}, True),
        (["other:MyError"], {"error_kind": "exception", "error_type": "pkg.x:MyError"}, False),
    ],
)
def test_a_policy_is_about_the_failures_it_names(on: list[str], failure: dict[str, Any], again: bool) -> None:
    assert isinstance(decision([Retry(on=on)], **failure), RetryTime) is again


def test_the_first_policy_that_matches_decides() -> None:
    policies = [Retry(on=["timeout"], max_attempts=1), Retry(on=["any"], max_attempts=5)]
    assert decision(policies, error_kind="timeout") == GiveUp()
    assert isinstance(decision(policies, error_kind="exit"), RetryTime)


def flaky(retry: str) -> Driver:
    driver = Driver(FLAKY.replace("RETRY", retry))
    driver.send(Submitted())
    return driver


def test_a_failed_visit_waits_for_its_timer_and_is_dispatched_again() -> None:
    driver = flaky("{max_attempts: 3, jitter: false}")
    failed = driver.send(bad(1, keys=("_error",), usage={"calls": 1}))
    assert (failed.writes, failed.dispatches, failed.delivered, failed.usage) == ((), (), 1, {"calls": 1})
    assert failed.timers == {"visit/1/2": driver.now_ms + 500}
    assert driver.run.status == "waiting"
    assert [notice.type for notice in failed.notices] == ["visit_retrying"]
    due = driver.send(TimerFired("visit/1/2"), after_ms=500)
    assert [(visit.seq, visit.attempt, visit.queue) for visit in due.dispatches] == [(1, 2, "scripts")]
    assert driver.run.counts == {"a": 1}
    done = driver.send(ok(1, attempt=2))
    assert done.status == "completed"
    assert driver.run.counts == {"a": 1, "done": 1}


def test_what_comes_late_for_a_visit_that_waits_changes_nothing() -> None:
    driver = flaky("{max_attempts: 3}")
    driver.send(bad(1))
    for event in (bad(1), ok(1), LeaseLost(1, 1, "w"), TimerFired("visit/1/1"), TimerFired("visit/9/1")):
        assert isinstance(plan(driver.graph, driver.run, event, driver.now_ms), IgnoredEvent)
    driver.send(TimerFired("visit/1/2"))
    assert isinstance(plan(driver.graph, driver.run, TimerFired("visit/1/2"), driver.now_ms), IgnoredEvent)


def test_the_last_failure_goes_where_failures_go_and_reports_how_often_it_was_tried() -> None:
    driver = flaky("{max_attempts: 2}")
    driver.send(bad(1))
    driver.send(TimerFired("visit/1/2"))
    last = driver.send(bad(1, attempt=2, keys=("_error",)))
    assert driver.live() == ["rescue"]
    assert last.writes[0].delta
    closed = next(notice for notice in last.notices if notice.type == "visit_closed")
    assert closed.data["notes"] == ["execution failed after 2 attempts"]


def test_lost_workers_are_counted_apart_from_tries() -> None:
    driver = flaky("{max_attempts: 2}")
    for attempt in range(1, 4):
        driver.send(LeaseLost(1, attempt, "w"))
    driver.send(bad(1, attempt=4))
    driver.send(TimerFired("visit/1/5"))
    lost = driver.send(LeaseLost(1, 5, "w"))
    assert "WorkerLost: 4 workers died" in str(lost.writes[0].step.error)
    assert driver.live() == ["rescue"]


def test_a_handed_back_visit_is_always_queued_again() -> None:
    driver = flaky("{max_attempts: 1}")
    for attempt in range(1, 20):
        driver.send(LeaseLost(1, attempt, "w", handed_back=True))
    visit = driver.run.frontier[1]
    assert (visit.attempt, work_of(visit).losses) == (20, 0)


def test_no_try_is_put_off_beyond_the_run_s_deadline() -> None:
    text = FLAKY.replace("RETRY", "{max_attempts: 9, initial_interval: 5s, jitter: false}")
    driver = Driver(text.replace("start: a", "start: a\nsettings: {timeout: 6}"))
    driver.send(Submitted())
    driver.send(bad(1))
    driver.send(TimerFired("visit/1/2"), after_ms=5_000)
    late = driver.send(bad(1, attempt=2))
    closed = next(notice for notice in late.notices if notice.type == "visit_closed")
    assert closed.data["notes"] == ["the run's deadline comes before attempt 3"]


STEP = FLAKY.replace("RETRY", "{max_attempts: 9, initial_interval: 5s, jitter: false}")
STEP = STEP.replace("start: a", "version: sleipnir/1\nstart: a\nlimits: {step_timeout: 6s}")


def test_no_try_is_put_off_beyond_the_deadline_of_its_super_step() -> None:
    driver = Driver(STEP)
    driver.send(Submitted())
    driver.send(bad(1))
    driver.send(TimerFired("visit/1/2"), after_ms=5_000)
    late = driver.send(bad(1, attempt=2))
    closed = next(notice for notice in late.notices if notice.type == "visit_closed")
    assert closed.data["notes"] == ["the super-step's deadline comes before attempt 3"]
    assert driver.live() == ["rescue"]


def test_a_hold_gives_the_super_step_of_a_retry_its_time_again() -> None:
    driver = Driver(STEP)
    driver.send(Submitted())
    driver.send(Paused("ada"))
    driver.send(Resumed(), after_ms=4_000)
    assert driver.send(bad(1)).timers["visit/1/2"] == driver.now_ms + 5_000


def test_a_graph_may_name_a_policy_for_all_its_nodes_and_a_node_may_refuse_it() -> None:
    graph = FLAKY.replace("start: a", "start: a\nretry: {max_attempts: 2}")
    driver = Driver(graph.replace(", retry: RETRY", ""))
    driver.send(Submitted())
    assert driver.send(bad(1)).timers
    stubborn = Driver(graph.replace("RETRY", "[]"))
    stubborn.send(Submitted())
    assert not stubborn.send(bad(1)).timers


def test_a_run_that_ends_drops_its_timers() -> None:
    driver = flaky("{max_attempts: 2}")
    driver.send(bad(1))
    assert set(driver.send(Cancelled()).untimers) == {"visit/1/2", "deadline"}
