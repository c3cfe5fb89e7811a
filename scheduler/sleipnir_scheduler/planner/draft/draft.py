"""The changes that one event has made to a run so far: the run's own fields, and four parts. None of them decides.

    visits   the visits, and the moves that they make       (visits.py)
    clock    the run's clocks, holds and timers             (clock.py)
    record   journal, values, notices, counters, gates      (record.py)
    owed     effects on other runs                          (owed.py)

`transition` turns the draft into the planner's answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sleipnir.messages import ResultHeader, RunStatus
from sleipnir.runs.budgets import BudgetUse
from sleipnir.runs.events import RUN_DEADLINE
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import FailedVisits, RunView, Slot, changed
from sleipnir.runs.transitions import NO_CHANGES, Transition
from sleipnir.runs.visits import ChildWait, Failure, Fan, Rank, Visit
from sleipnir_scheduler.planner.draft.clock import Clock
from sleipnir_scheduler.planner.draft.owed import Changes, Owed, all_of
from sleipnir_scheduler.planner.draft.record import EventRecord
from sleipnir_scheduler.planner.draft.visits import LiveVisits


@dataclass
class Draft:
    """Mutable, and used within one call of plan(). The fields are those of Transition, except `status`, which is None
    while the run is not over. `uncounted` are the nodes of the super-step that has opened last whose entries were not
    counted, because one broke a limit."""

    run: RunView
    now_ms: int
    visits: LiveVisits
    clock: Clock
    record: EventRecord
    steps: int
    arrived: Mapping[str, Mapping[str, int]]
    deferred: Mapping[str, int]
    tops: dict[str, Rank]
    slot: Slot | None
    spent: BudgetUse
    failed_visits: FailedVisits
    limited_from: int
    owed: Owed = field(default_factory=Owed)
    status: RunStatus | None = None
    ended_ms: int | None = None
    error: str | None = None
    failure: Failure | None = None
    output: str | None = None
    stopped_by: str | None = None
    keeps: bool = False
    revives: bool = False
    unless_claimed: bool = False
    unless_answered: bool = False
    stops: bool = False
    is_ending: bool = False
    uncounted: frozenset[str] = frozenset()
    wakes: list[Visit] = field(default_factory=list)
    delivered: int | None = None
    usage: Mapping[str, Any] | None = None
    usage_of: str | None = None

    @classmethod
    def of(cls, run: RunView, now_ms: int) -> Draft:
        """A draft without changes."""
        return cls(
            run,
            now_ms,
            LiveVisits(run.frontier, now_ms, Frontier.of(run.frontier), run.seq),
            Clock(run.id, now_ms, run.started_ms, run.idle_ms, run.holds, run.budget or run.spec.budget, run.is_held),
            EventRecord(run, now_ms, run.step),
            steps=run.steps,
            arrived=run.arrived,
            deferred=run.deferred,
            tops=dict(run.tops),
            slot=run.slot,
            spent=run.spent,
            failed_visits=run.failed_visits,
            limited_from=run.limited_from,
        )

    @property
    def is_over(self) -> bool:
        """Whether the run ends with this event, but perhaps for the agent's functions after it (`is_ending`)."""
        return self.status is not None or self.is_ending

    def deliver(self, visit: Visit, header: ResultHeader) -> None:
        """This transition consumes the delivery of a worker."""
        self.delivered = visit.seq
        if header.usage:
            self.usage = header.usage

    @property
    def stays_over(self) -> bool:
        """Whether the run was over before and stays so: the event only counts the cost of its children."""
        return self.run.is_final and not self.revives

    def transition(self) -> Transition:
        """All changes of this draft, as one transition."""
        visits, clock, record = self.visits, self.clock, self.record
        if record.answer is not None:
            record.write_answer()
        changes: Changes = []
        for seq, was in visits.touched.items():
            now = visits.frontier.get(seq)
            if now is not was:
                changes.append((was, now))
        is_over = self.status is not None
        return changed(  # two fields in three are those of most transitions: __init__ takes four times as long
            NO_CHANGES,
            close=tuple(was for was, now in changes if was is not None and (now is None or _is_claimable(was))),
            gone=visits.gone,
            open=tuple(now for _, now in changes if now is not None),
            gates=tuple(record.gates.values()),
            writes=tuple(record.writes),
            delivered=self.delivered,
            wakes=tuple(self.wakes),
            unless_claimed=self.unless_claimed,
            unless_answered=self.unless_answered,
            stopped_by=self.stopped_by,
            counts=record.counts,
            timings=record.timings,
            status=self.status or self._live_status(),
            started_ms=clock.started_ms if clock.is_started else None,
            ended_ms=self.ended_ms,
            error=self.error,
            failure=self.failure,
            holds=clock.holds,
            slot=None if is_over else self.slot,
            idle_ms=clock.idle_ms,
            revives=self.revives,
            keeps=self.keeps,
            output=self.output,
            usage=None if self.usage is None else dict(self.usage),
            usage_of=self.usage_of,
            timers={} if is_over else {**clock.timers, **_due(changes)},
            untimers=(*_ended_timers(changes), *clock.untimers, *((RUN_DEADLINE,) if is_over else ())),
            notices=tuple(record.notices),
            seq=visits.last_seq,
            steps=self.steps,
            arrived=self.arrived,
            deferred=self.deferred,
            tops=self.tops,
            items=tuple(record.items),
            drops=tuple(record.drops),
            apart=frozenset(record.apart),
            copies=record.copies,
            folded=record.folded,
            windows=record.windows,
            effects=tuple(
                all_of(
                    self.run,
                    self.owed,
                    changes,
                    record.notices,
                    self.slot,
                    ends=is_over,
                    stays_over=self.stays_over,
                )
            ),
            budget=clock.budget,
            spent=self.spent,
            failed_visits=self.failed_visits,
            limited_from=self.limited_from,
            continues=visits.continues and not is_over,
            stops=self.stops and not is_over,
            frontier=visits.frontier,
        )

    def _live_status(self) -> RunStatus:
        """The status of a live run: `waiting` when no visit is on a worker or ready for a slot."""
        if self.stays_over:
            return self.run.status
        if self.clock.is_held:
            return "paused"
        frontier = self.visits.frontier
        if frontier.queued or frontier.ready or self.visits.continues:
            return "running"
        return "waiting" if frontier.waiting else "running"


def _is_claimable(visit: Visit) -> bool:
    """Whether a worker or a person can act on the visit, so that closing it must revoke that."""
    if visit.state == "waiting":
        return visit.due_ms is not None or not isinstance(visit.body, (Fan, ChildWait))
    return visit.state == "queued"


def _due(changes: Changes) -> dict[str, int]:
    return {now.timer: due_ms for _, now in changes if now and (due_ms := now.body.due_ms) is not None}


def _ended_timers(changes: Changes) -> list[str]:
    return [was.timer for was, _ in changes if was and was.body.due_ms is not None]
