"""Holds: a person, the parent run, or the run's own budget keeps visits of a run from starting.

Work on workers ends and is committed. The clocks of the run, its loops and its child runs stop until the last hold has
ended; child runs are held too. No hold ends another.
"""

from __future__ import annotations

from typing import Literal

from sleipnir.runs.budgets import Budget
from sleipnir.runs.run import Hold, HoldOwner, changed
from sleipnir.runs.transitions import TellChild
from sleipnir.runs.visits import ChildWait, Loop, Visit
from sleipnir_scheduler.planner.draft.draft import Draft
from sleipnir_scheduler.planner.draft.owed import children_of


def pause(draft: Draft, by: str, reason: str | None, owner: HoldOwner) -> None:
    """Hold the run for an owner."""
    clock = draft.clock
    if not clock.is_held:
        _notify_children(draft, "paused", by)
    clock.hold((*clock.holds, Hold(by, draft.now_ms, reason, owner)))
    draft.record.write_request("paused", _requester(draft, by, owner), reason=reason)
    draft.record.notice("run_paused", by=by, reason=reason, owner=owner)


def resume(draft: Draft, owner: HoldOwner, by: str) -> None:
    """End the holds of an owner, who must have one. The run goes on unless it has another hold."""
    clock = draft.clock
    since_ms = clock.held_since_ms
    clock.hold(tuple(hold for hold in clock.holds if not hold.ends_with(owner)))
    _release(draft, since_ms)
    draft.record.write_request("resumed", _requester(draft, by, owner))
    draft.record.notice("run_resumed", by=by, owner=owner)


def hold_for_budget(draft: Draft, budget: Budget, visit: Visit) -> None:
    """Hold the run until its budget is raised; `visit` asks a person for that."""
    if not draft.clock.is_held:
        _notify_children(draft, "paused", f"the budget of run {draft.run.id}")
    draft.clock.allow(changed(budget, asked=visit.seq, asked_ms=draft.now_ms))


def allow(draft: Draft, budget: Budget) -> None:
    """Let the run go on with another budget, unless it has another hold."""
    since_ms = draft.clock.held_since_ms
    draft.clock.allow(budget)
    _release(draft, since_ms)


def _release(draft: Draft, since_ms: int | None) -> None:
    """A hold has ended; the run was held since `since_ms`. The remaining holds count from their own start."""
    clock, next_ms = draft.clock, draft.clock.held_since_ms
    since_ms = draft.now_ms if since_ms is None else since_ms
    until_ms = draft.now_ms if next_ms is None else max(since_ms, next_ms)
    clock.idle_ms += until_ms - since_ms
    for visit in draft.visits.all():  # their clocks were stopped
        body = visit.body
        if isinstance(body, (Loop, ChildWait)) and body.due_ms is not None:
            idle_ms = max(0, until_ms - max(since_ms, visit.opened_ms))
            draft.visits.move(visit, changed(body, due_ms=body.due_ms + idle_ms))
    if next_ms is None:
        _notify_children(draft, "resumed")
        draft.wakes += [visit for visit in draft.run.frontier.values() if visit.state == "queued"]


def _notify_children(draft: Draft, event: Literal["paused", "resumed"], by: str = "") -> None:
    for child in children_of(draft.visits.frontier.values()):
        draft.owed.add(TellChild(child, event, by))


def _requester(draft: Draft, by: str, owner: HoldOwner) -> str:
    """The actor of a request, for the journal."""
    parent = f"run {draft.run.spec.parent}"
    if owner != "parent" or by.startswith(parent):
        return by
    return f"{parent} ({by})" if by else parent
