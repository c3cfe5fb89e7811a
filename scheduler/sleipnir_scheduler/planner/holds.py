"""Holds: a person, the parent run, a breakpoint, or the run's own budget keeps visits of a run from starting.

Work on workers ends and is committed. A hold with a deadline waits for that only so long: then the visits that workers
have are taken from them, and they run again when the run goes on. That is no failure, no try of a policy and no loss.

The clocks of the run, its loops and its child runs stop until the last hold has ended; child runs are held too. No
hold ends another.
"""

from __future__ import annotations

from typing import Literal

from sleipnir.runs.budgets import Budget
from sleipnir.runs.events import PAUSE_DEADLINE
from sleipnir.runs.run import BREAKPOINT, Breakpoint, Hold, HoldOwner, changed
from sleipnir.runs.transitions import TellChild
from sleipnir.runs.visits import ChildWait, Loop, Visit
from sleipnir_scheduler.planner.draft.draft import Draft
from sleipnir_scheduler.planner.draft.owed import children_of


def pause(draft: Draft, by: str, reason: str | None, owner: HoldOwner, due_ms: int | None = None) -> None:
    """Hold the run for an owner, or give the owner's hold an earlier deadline."""
    clock, before = draft.clock, held_by(draft, owner)
    if not clock.is_held or due_ms is not None:
        _notify_children(draft, "paused", by, due_ms)
    if before is None:
        clock.hold((*clock.holds, Hold(by, draft.now_ms, reason, owner, due_ms=due_ms)))
    else:
        clock.hold(tuple(changed(hold, due_ms=due_ms) if hold is before else hold for hold in clock.holds))
    draft.record.write_request("paused", _requester(draft, by, owner), reason=reason)
    more = {} if due_ms is None else {"stops_in_ms": max(0, due_ms - draft.now_ms)}
    draft.record.notice("run_paused", by=by, reason=reason, owner=owner, **more)
    if due_ms is not None:
        stop_if_due(draft)


def held_by(draft: Draft, owner: HoldOwner) -> Hold | None:
    """The hold of an owner, if the run has it. Breakpoints are other holds."""
    return next((hold for hold in draft.clock.holds if hold.owner == owner and hold.breakpoint is None), None)


def stop_if_due(draft: Draft) -> None:
    """Stop what runs, if a deadline of a hold has come; else wait for the next one."""
    clock = draft.clock
    due = [hold for hold in clock.holds if (at := hold.pending_ms) is not None and at <= draft.now_ms]
    if due:
        draft.stops = True
        clock.hold(tuple(changed(hold, forced=True) if hold in due else hold for hold in clock.holds))
    if (next_ms := clock.pending_ms) is not None:
        clock.arm(PAUSE_DEADLINE, next_ms)
    else:
        clock.disarm(PAUSE_DEADLINE)


def resume(draft: Draft, owner: HoldOwner, by: str, seen_ms: int | None = None) -> None:
    """End the holds of an owner, who must have one (`seen_ms` as in events.Resumed). The run goes on unless it has
    another hold, or stops before the nodes that come after a breakpoint."""
    clock = draft.clock
    since_ms = clock.held_since_ms
    ended = [hold for hold in clock.holds if hold.ends_with(owner, seen_ms)]
    had_deadline = clock.pending_ms is not None
    clock.hold(tuple(hold for hold in clock.holds if hold not in ended))
    if had_deadline:
        stop_if_due(draft)
    draft.record.write_request("resumed", _requester(draft, by, owner))
    draft.record.notice("run_resumed", by=by, owner=owner)
    for passed in (hold.breakpoint for hold in ended):
        if passed is not None and passed.then:
            _hold_at(draft, Breakpoint("before", passed.then, passed.planned))
    _release(draft, since_ms)


def stop(draft: Draft, breakpoint: Breakpoint) -> None:
    """Hold the run at a breakpoint until a person resumes it."""
    if not draft.clock.is_held:
        _notify_children(draft, "paused", BREAKPOINT)
    _hold_at(draft, breakpoint)


def _hold_at(draft: Draft, breakpoint: Breakpoint) -> None:
    clock = draft.clock
    for number, hold in enumerate(clock.holds):
        if hold.breakpoint is not None and hold.breakpoint.phase == breakpoint.phase:
            both = changed(hold, breakpoint=hold.breakpoint.plus(breakpoint))
            clock.hold((*clock.holds[:number], both, *clock.holds[number + 1 :]))
            break
    else:
        clock.hold((*clock.holds, Hold(BREAKPOINT, draft.now_ms, owner="person", breakpoint=breakpoint)))
    draft.record.write_request("paused", BREAKPOINT, reason=breakpoint.in_words)
    nodes, planned = list(breakpoint.nodes), list(breakpoint.planned)
    draft.record.notice("run_stopped", phase=breakpoint.phase, nodes=nodes, planned=planned, at_ms=draft.now_ms)


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


def _notify_children(
    draft: Draft, event: Literal["paused", "resumed"], by: str = "", due_ms: int | None = None
) -> None:
    for child in children_of(draft.visits.frontier.values()):
        draft.owed.add(TellChild(child, event, by, due_ms=due_ms))


def _requester(draft: Draft, by: str, owner: HoldOwner) -> str:
    """The actor of a request, for the journal."""
    parent = f"run {draft.run.spec.parent}"
    if owner != "parent" or by.startswith(parent):
        return by
    return f"{parent} ({by})" if by else parent
