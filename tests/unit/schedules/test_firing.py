"""What a schedule does when it is looked at: pure, with literal times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir.errors import UsageError
from sleipnir.schedules.firing import MOST_AT_ONCE, StartedRun, begun, decide, decide_now, look_ms, set_back
from sleipnir.schedules.records import (
    MOST_CATCH_UP_MS,
    SchedulePause,
    SchedulePlan,
    ScheduleProgress,
    checked_name,
    checked_plan,
    due_ms,
    fire_run_id,
)

T = 1_790_000_000_000
EVERY = SchedulePlan(every_ms=1_000, anchor_ms=T, overlap="allow")
HOUR = 3_600_000


def started(progress: ScheduleProgress, plan: SchedulePlan, now_ms: int, *, active: bool = False) -> Any:
    """The times that fire, and the progress after."""
    decision = decide("s", "t", plan, progress, now_ms, active=active)
    if decision is None:
        return [], progress
    assert decision.look_ms == look_ms("s", plan, decision.progress, now_ms)
    return [start.at_ms - T for start in decision.starts], decision.progress


def log(progress: ScheduleProgress, plan: SchedulePlan, now_ms: int, *, active: bool = False) -> list[tuple[int, str]]:
    decision = decide("s", "t", plan, progress, now_ms, active=active)
    return [] if decision is None else [(fire.at_ms - T, fire.outcome) for fire in decision.log]


def test_each_time_fires_once_however_often_it_is_looked_at() -> None:
    progress = begun(EVERY, None, T)
    assert (progress.next_ms, look_ms("s", EVERY, progress, T)) == (T + 1_000, T + 1_000)
    assert started(progress, EVERY, T + 999) == ([], progress)
    fired, after = started(progress, EVERY, T + 1_000)
    assert (fired, after.last_ms, after.fires) == ([1_000], T + 1_000, 1)
    assert after.last_run == fire_run_id("s", "t", T + 1_000)
    assert started(after, EVERY, T + 1_900) == ([], after)


def test_times_that_come_while_a_scheduler_is_replaced_are_late_and_all_fire() -> None:
    fired, after = started(begun(EVERY, None, T), EVERY, T + 20_500)
    assert fired == list(range(1_000, 21_000, 1_000))
    assert (after.missed, after.next_ms) == (0, T + 21_000)


def test_many_fires_take_several_decisions() -> None:
    plan, progress, fired = replace(EVERY, catch_up_ms=HOUR), begun(EVERY, None, T), []
    while True:
        some, progress = started(progress, plan, T + 300_000)
        if not some:
            break
        assert len(some) <= MOST_AT_ONCE
        fired += some
    assert fired == list(range(1_000, 301_000, 1_000))


def test_after_an_outage_only_the_last_time_is_made_up_for() -> None:
    plan = replace(EVERY, every_ms=HOUR)
    progress = begun(plan, None, T)
    assert log(progress, plan, T + 5 * HOUR + 600_000) == [(HOUR, "missed"), (5 * HOUR, "started")]
    assert log(progress, plan, T + HOUR + 600_000) == [(HOUR, "started")]
    on_time = T + 5 * HOUR + 100
    assert log(progress, plan, on_time) == [(HOUR, "missed"), (5 * HOUR, "started")]
    once = SchedulePlan(at_ms=T + HOUR)
    assert log(begun(once, None, T), once, T + 9 * HOUR) == [(HOUR, "started")]


def test_a_catch_up_window_makes_up_for_what_is_in_it() -> None:
    plan = replace(EVERY, every_ms=HOUR, catch_up_ms=2 * HOUR)
    progress = begun(plan, None, T)
    assert log(progress, plan, T + 5 * HOUR + 600_000) == [
        (HOUR, "missed"), (4 * HOUR, "started"), (5 * HOUR, "started"),
    ]  # fmt: skip
    none = replace(plan, catch_up_ms=0)
    decision = decide("s", "t", none, progress, T + 5 * HOUR + 600_000, active=False)
    assert decision is not None and decision.starts == ()
    assert (decision.progress.next_ms, decision.progress.missed) == (T + 6 * HOUR, 1)
    once = SchedulePlan(at_ms=T + HOUR, catch_up_ms=HOUR)
    assert log(begun(once, None, T), once, T + 9 * HOUR) == [(HOUR, "missed")]


def test_a_clock_that_jumps_ahead_by_a_day_fires_no_day() -> None:
    progress = begun(EVERY, None, T)
    fired, after = started(progress, EVERY, T + 24 * HOUR)
    assert len(fired) <= MOST_AT_ONCE and min(fired) >= 24 * HOUR - 60_000
    assert after.missed == 1


def test_a_clock_that_was_set_back_is_noticed_and_repeats_only_ids() -> None:
    _, ahead = started(begun(EVERY, None, T), EVERY, T + 24 * HOUR)
    assert set_back(ahead, T + 2_000) and not set_back(ahead, T + 24 * HOUR)
    again = begun(EVERY, ahead, T + 2_000)
    assert (again.next_ms, again.fires) == (T + 3_000, ahead.fires)
    assert fire_run_id("s", "t", T + 3_000) == fire_run_id("s", "t", T + 3_000)
    assert len({fire_run_id(*key) for key in [("s", "t", T), ("s", "t", T + 1), ("s", "u", T), ("r", "t", T)]}) == 4


@pytest.mark.parametrize(
    ("overlap", "outcomes"),
    [
        ("allow", ["started", "started", "started"]),
        ("skip", ["skipped", "skipped", "skipped"]),
        ("queue", ["queued", "skipped", "skipped"]),
        ("cancel", ["started", "started", "started"]),
    ],
)
def test_overlap_policies(overlap: Any, outcomes: list[str]) -> None:
    plan = replace(EVERY, overlap=overlap)
    progress = replace(begun(plan, None, T), last_run="old", last_ms=T)
    assert [outcome for _, outcome in log(progress, plan, T + 3_000, active=True)] == outcomes
    decision = decide("s", "t", plan, progress, T + 1_000, active=True)
    assert decision is not None
    run = StartedRun(fire_run_id("s", "t", T + 1_000), T + 1_000)
    assert list(decision.effects) == {"allow": [run], "cancel": ["old", run]}.get(overlap, [])
    assert [outcome for _, outcome in log(progress, plan, T + 1_000)] == ["started"]


def test_of_several_times_at_once_one_starts_under_skip() -> None:
    plan = replace(EVERY, overlap="skip")
    assert [o for _, o in log(begun(plan, None, T), plan, T + 3_000)] == ["started", "skipped", "skipped"]


def test_a_queued_fire_starts_when_the_run_before_it_is_over() -> None:
    plan = replace(EVERY, every_ms=HOUR, overlap="queue")
    progress = replace(begun(plan, None, T), last_run="old", last_ms=T)
    _, queued = started(progress, plan, T + HOUR, active=True)
    assert (queued.waiting_ms, queued.next_ms) == (T + HOUR, T + 2 * HOUR)
    assert look_ms("s", plan, queued, T + HOUR) == T + HOUR + 1_000
    assert started(queued, plan, T + HOUR + 1_000, active=True) == ([], queued)
    fired, after = started(queued, plan, T + HOUR + 2_000)
    assert (fired, after.waiting_ms, after.last_run) == ([HOUR], None, fire_run_id("s", "t", T + HOUR))
    fired, _ = started(queued, replace(plan, overlap="allow"), T + HOUR + 2_000, active=True)
    assert fired == [HOUR]


def test_a_paused_schedule_does_nothing() -> None:
    progress = replace(begun(EVERY, None, T), paused=SchedulePause("me", T), waiting_ms=T)
    assert decide("s", "t", EVERY, progress, T + HOUR, active=False) is None
    assert look_ms("s", EVERY, progress, T + HOUR) is None


def test_a_fire_on_request_changes_no_times() -> None:
    progress = begun(EVERY, None, T)
    decision = decide_now("s", "t", EVERY, progress, T + 300, request="r", by="me")
    assert (decision.progress.next_ms, decision.progress.cursor_ms) == (progress.next_ms, progress.cursor_ms)
    again = decide_now("s", "t", EVERY, progress, T + 400, request="r", by="me")
    assert decision.starts[0].run == again.starts[0].run != fire_run_id("s", "t", T + 300)


@given(jitter=st.integers(0, 3_000), steps=st.lists(st.integers(1, 5_000), min_size=1, max_size=30))
def test_jitter_puts_off_and_loses_nothing(jitter: int, steps: list[int]) -> None:
    plan = replace(EVERY, jitter_ms=jitter)
    progress, now_ms, seen = begun(plan, None, T), T, list[int]()
    for step in steps:
        now_ms += step
        decision = decide("s", "t", plan, progress, now_ms, active=False)
        if decision is not None:
            assert all(due_ms("s", plan, start.at_ms) <= now_ms for start in decision.starts)
            seen += [start.at_ms for start in decision.starts]
            progress = decision.progress
    assert seen == [T + 1_000 * number for number in range(1, len(seen) + 1)]
    assert progress.next_ms is not None and due_ms("s", plan, progress.next_ms) > now_ms
    assert 0 <= due_ms("s", plan, T) - T <= jitter
    assert due_ms("s", plan, T) == due_ms("s", plan, T)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (replace(EVERY, overlap="both"), "overlap policy"),
        (replace(EVERY, jitter_ms=2 * 24 * HOUR), "jitter"),
        (replace(EVERY, catch_up_ms=MOST_CATCH_UP_MS + 1), "catch-up"),
    ],
)
def test_a_plan_that_is_wrong_is_refused(plan: SchedulePlan, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        checked_plan(plan, T)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "x" * 65, "a:b", "é"])
def test_names_that_cannot_be_keys_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a schedule"):
        checked_name(name)
