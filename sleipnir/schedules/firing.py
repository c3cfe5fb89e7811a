"""What a schedule does now: which of its times fire, and how. A pure decision, which the store applies in one step.

1. Times are decided in order, each once: `cursor_ms` only grows, except after Redis' clock was set back.
2. A time at most GRACE_MS late fires. Of earlier ones, those in the catch-up window do; without a window only the last.
3. The overlap policy is applied to each fire, with the run that started last.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from sleipnir.schedules.records import Fire, Outcome, SchedulePlan, ScheduleProgress, due_ms, fire_run_id, manual_run_id

GRACE_MS: Final = 60_000
"""A scheduler that dies is replaced within seconds: times that come meanwhile are late, not missed."""

MOST_AT_ONCE: Final = 50
"""Fires that one decision makes; the next decision makes more."""

LOOK_AGAIN_MS: Final = 1_000
"""How often the end of the run is looked for that a queued fire waits for."""

SET_BACK_MS: Final = 60_000
"""The clock was set back if times are decided that are further ahead than this."""


@dataclass(frozen=True)
class StartedRun:
    """A run that a fire starts; of a schedule of batches, a batch."""

    run: str
    at_ms: int


@dataclass(frozen=True)
class DueFires:
    """The progress after a decision, the new entries of the log, and its effects in order: runs to start, and the ids
    of runs to cancel (or of batches). `look_ms` is when the schedule is looked at again; None: never."""

    progress: ScheduleProgress
    look_ms: int | None
    log: tuple[Fire, ...] = ()
    effects: tuple[StartedRun | str, ...] = ()

    @property
    def starts(self) -> tuple[StartedRun, ...]:
        return tuple(effect for effect in self.effects if isinstance(effect, StartedRun))


@dataclass
class _Draft:
    name: str
    token: str
    plan: SchedulePlan
    progress: ScheduleProgress
    now_ms: int
    active: bool
    log: list[Fire] = field(default_factory=list)
    effects: list[StartedRun | str] = field(default_factory=list)

    def note(self, at_ms: int, outcome: Outcome, run: str | None = None, why: str | None = None) -> None:
        self.log.append(Fire(at_ms, self.now_ms, outcome, run, why))

    def start(self, at_ms: int) -> None:
        run = fire_run_id(self.name, self.token, at_ms)
        self.effects.append(StartedRun(run, at_ms))
        self.note(at_ms, "started", run)
        self.progress = replace(self.progress, last_run=run, last_ms=at_ms, fires=self.progress.fires + 1)
        self.active = True

    def skip(self, at_ms: int, why: str) -> None:
        self.note(at_ms, "skipped", why=why)
        self.progress = replace(self.progress, skipped=self.progress.skipped + 1)

    def fire(self, at_ms: int) -> None:
        """One time, as the overlap policy says."""
        last = self.progress.last_run
        match self.plan.overlap if self.active and last is not None else "allow":
            case "skip":
                self.skip(at_ms, f"{self.plan.work} {last} is not over")
            case "queue" if self.progress.waiting_ms is not None:
                self.skip(at_ms, "another fire waits already")
            case "queue":
                self.note(at_ms, "queued", why=f"{self.plan.work} {last} is not over")
                self.progress = replace(self.progress, waiting_ms=at_ms)
            case "cancel":
                self.effects.append(str(last))
                self.start(at_ms)
            case _:
                self.start(at_ms)

    def start_waiting(self) -> None:
        """The queued fire starts when the run before it is over, or when nothing holds it any more."""
        waiting_ms = self.progress.waiting_ms
        if waiting_ms is not None and (not self.active or self.plan.overlap != "queue"):
            self.progress = replace(self.progress, waiting_ms=None)
            self.fire(waiting_ms)

    def decided(self) -> DueFires:
        return DueFires(
            self.progress, look_ms(self.name, self.plan, self.progress, self.now_ms), (*self.log,), (*self.effects,)
        )


def decide(
    name: str, token: str, plan: SchedulePlan, progress: ScheduleProgress, now_ms: int, *, active: bool
) -> DueFires | None:
    """What is due. `active`: the run that started last is not over. None: nothing changes."""
    if progress.paused is not None:
        return None
    draft = _Draft(name, token, plan, progress, now_ms, active)
    draft.start_waiting()
    for at_ms in _due_times(draft):
        draft.fire(at_ms)
    return None if draft.progress == progress else draft.decided()


def decide_now(
    name: str, token: str, plan: SchedulePlan, progress: ScheduleProgress, now_ms: int, *, request: str, by: str
) -> DueFires:
    """A fire on a person's request, whatever runs."""
    run = manual_run_id(name, token, request)
    after = replace(progress, last_run=run, last_ms=now_ms, fires=progress.fires + 1)
    log = (Fire(now_ms, now_ms, "started", run, f"by {by}"),)
    return DueFires(after, look_ms(name, plan, after, now_ms), log, (StartedRun(run, now_ms),))


def begun(plan: SchedulePlan, progress: ScheduleProgress | None, now_ms: int) -> ScheduleProgress:
    """The progress of a schedule that counts its times from now on: a new one, one with other times, a resumed one, or
    one in a Redis whose clock was set back."""
    next_ms = plan.timing.first_after(now_ms)
    if progress is None:
        return ScheduleProgress(now_ms, next_ms)
    return replace(progress, cursor_ms=now_ms, next_ms=next_ms)


def set_back(progress: ScheduleProgress, now_ms: int) -> bool:
    """Whether Redis' clock was set back since the last decision."""
    return progress.cursor_ms > now_ms + SET_BACK_MS


def look_ms(name: str, plan: SchedulePlan, progress: ScheduleProgress, now_ms: int) -> int | None:
    """When a schedule is looked at again; None: it does nothing by itself."""
    if progress.paused is not None:
        return None
    next_ms = None if progress.next_ms is None else due_ms(name, plan, progress.next_ms)
    if progress.waiting_ms is None:
        return next_ms
    return now_ms + LOOK_AGAIN_MS if next_ms is None else min(next_ms, now_ms + LOOK_AGAIN_MS)


def _due_times(draft: _Draft) -> list[int]:
    """The times to fire now, in order; moves the cursor past them, and past those that are missed."""
    plan, progress, now_ms, timing = draft.plan, draft.progress, draft.now_ms, draft.plan.timing
    if progress.next_ms is None or due_ms(draft.name, plan, progress.next_ms) > now_ms:
        return []
    from_ms = now_ms - max(GRACE_MS, plan.catch_up_ms or 0) - plan.jitter_ms
    cursor_ms, first_ms, times = progress.cursor_ms, progress.next_ms, list[int]()
    if first_ms < from_ms:
        last_ms = timing.last_between(cursor_ms, from_ms - 1)
        later_ms = timing.first_after(max(cursor_ms, from_ms - 1))
        is_last = later_ms is None or due_ms(draft.name, plan, later_ms) > now_ms
        if plan.catch_up_ms is None and is_last and last_ms is not None:
            times.append(last_ms)
        if times != [first_ms]:
            draft.note(first_ms, "missed", why=f"no scheduler fired it until {(now_ms - first_ms) // 1000} s later")
            draft.progress = progress = replace(progress, missed=progress.missed + 1)
        cursor_ms = from_ms - 1
    next_ms = timing.first_after(cursor_ms)
    while next_ms is not None and len(times) < MOST_AT_ONCE and due_ms(draft.name, plan, next_ms) <= now_ms:
        times.append(next_ms)
        cursor_ms, next_ms = next_ms, timing.first_after(next_ms)
    draft.progress = replace(progress, cursor_ms=cursor_ms, next_ms=next_ms)
    return times
