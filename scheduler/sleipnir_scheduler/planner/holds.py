"""Holds: a person, the parent run, or the run's own budget keeps visits of a run from starting.

What workers have ends and is committed. The clocks of the run, of its loops and of its child runs stand still until the
last hold has ended; child runs are held with it. No hold ends another.
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
    """End the holds of an owner, who has one. The run goes on unless another one is left."""
    clock = draft.clock
    since_ms = clock.held_since_ms
    clock.hold(tuple(hold for hold in clock.holds if not hold.ends_with(owner)))
    _release(draft, since_ms)
    draft.record.write_request("resumed", _requester(draft, by, owner))
    draft.record.notice("run_resumed", by=by, owner=owner)


def hold_for_budget(draft: Draft, budget: Budget, visit: Visit) -> None:
    """Hold the run until it may use more; `visit` asks a person for that."""
    if not draft.clock.is_held:
        _notify_children(draft, "paused", f"the budget of run {draft.run.id}")
    draft.clock.allow(changed(budget, asked=visit.seq, asked_ms=draft.now_ms))


def allow(draft: Draft, budget: Budget) -> None:
    """Let the run go on with another budget, unless it has another hold."""
    since_ms = draft.clock.held_since_ms
    draft.clock.allow(budget)
    _release(draft, since_ms)


def _release(draft: Draft, since_ms: int | None) -> None:
    """A hold has ended; the run was held since then. The holds that are left count from their own beginning."""
    clock, next_ms = draft.clock, draft.clock.held_since_ms
    since_ms = draft.now_ms if since_ms is None else since_ms
    until_ms = draft.now_ms if next_ms is None else max(since_ms, next_ms)
    clock.idle_ms += until_ms - since_ms
    for visit in draft.visits.all():  # the clocks of loops and children have stood still
        body = visit.body
        if isinstance(body, (Loop, ChildWait)) and body.due_ms is not None:
            idle_ms = max(0, until_ms - max(since_ms, visit.opened_ms))
            draft.visits.move(visit, changed(body, due_ms=body.due_ms + idle_ms))
    if next_ms is None:
        _notify_children(draft, "resumed")
        draft.wakes += [visit for visit in draft.run.frontier.values() if visit.state == "queued"]


def _notify_children(draft: Draft, what: Literal["paused", "resumed"], by: str = "") -> None:
    for child in children_of(draft.visits.frontier.values()):
        draft.owed.add(TellChild(child, what, by))


def _requester(draft: Draft, by: str, owner: HoldOwner) -> str:
    """Who wants something of the run, for its journal."""
    parent = f"run {draft.run.spec.parent}"
    if owner != "parent" or by.startswith(parent):
        return by
    return f"{parent} ({by})" if by else parent
