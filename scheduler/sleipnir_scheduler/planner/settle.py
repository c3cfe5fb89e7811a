"""After every event: start what may start, and see whether the run is over.

A run has so many visits on workers at once, wherever those are (limits.max_concurrency, else settings.max_concurrency
for the branches of a step and for each map). Those beyond wait, first come first served; a `dag` runs no node twice at
once, but for the visits of one list of commands.

While a run is held, results, answers and retries that are due are taken into the frontier, and nothing starts or ends:
no visit of any node, not the run either. Where it left off, it goes on when no hold is left.

Of a map nothing more is started once the run's time is up: the run ends when what is on workers has.

When a visit fails for good, a `dag` starts nothing more; the visits of a super-step all run to their end. Then the run
fails, for the first failure in visit order, and keeps what has ended: `retry` runs only what has not.
"""

from __future__ import annotations

from sleipnir.graph.model import MapNode
from sleipnir.messages import QUEUE_OF
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.run import Visit
from sleipnir_scheduler.planner import joins, maps, starting, steps
from sleipnir_scheduler.planner.context import Context, RunFailed


def settle(context: Context) -> None:
    """Leave nothing that could start or end; of a run that is held, nothing does. Raises RunFailed."""
    if context.draft.waits_for_slot or context.draft.is_held:
        return
    while not context.draft.over:
        for group in steps.waiting_to_reduce(context)[:1]:
            steps.close(context, group, context.draft.last_step)
        if not _start_some(context):
            break
    steps.forget_tops(context)
    if not context.draft.over:
        _end_if_done(context)


class _Slots:
    """Who may come, as the frontier is at the time of asking."""

    def __init__(self, context: Context) -> None:
        self._graph, self._frontier = context.graph, context.draft.frontier

    def are_taken(self) -> bool:
        """Whether no branch may come for now."""
        return not self._fits(self._frontier.branches, self._graph.max_concurrency)

    def has_room(self, visit: Visit) -> bool:
        """For a visit that is ready."""
        if visit.part is not None:
            return True
        if visit.item is not None:
            return self._has_room_of(visit.item.map, visit.item.of)
        if self._graph.engine == "dag" and visit.batch is None and self._frontier.nodes.get(visit.node):
            return False
        return visit.kind not in QUEUE_OF or not self.are_taken()

    def has_room_in(self, of: Visit) -> bool:
        """For one more item of a map, if one is left."""
        assert of.fan is not None
        return of.fan.next < of.fan.total and self._has_room_of(of.fan.id, of.node)

    def _has_room_of(self, fan: int, map_node: str) -> bool:
        node = self._graph.nodes[map_node]
        assert isinstance(node, MapNode)
        most = node.max_concurrency or self._graph.max_concurrency
        return self._fits(self._frontier.items_of.get(fan, 0), most)

    def _fits(self, running: int, most: int) -> bool:
        overall = self._graph.limits.max_concurrency
        if overall is None:
            return running < most
        return running < most and self._frontier.branches + sum(self._frontier.items_of.values()) < overall


def _start_some(context: Context) -> bool:
    """Start what is ready and has a slot. True when that changed so much that it is worth another look."""
    frontier = context.draft.frontier
    if frontier.failed and context.graph.engine == "dag":
        return False
    if frontier.spreads:
        _open_commands(context)
    slots, again = _Slots(context), False
    are_taken = slots.are_taken()
    for seq in sorted(frontier.ready):
        if context.draft.over:
            return False
        if are_taken and seq in frontier.ready_for_workers:
            continue  # as has_room would say, of hundreds in each event
        visit = frontier[seq]
        if visit.kind == "end" and context.draft.frontier.failed and context.graph.engine == "dag":
            continue  # a visit has failed since this loop began: an end must not complete the run
        if slots.has_room(visit) and not (visit.item is not None and _is_too_late(context)):
            if not context.draft.may_start():
                return False
            again = _start(context, visit) or again
            are_taken = slots.are_taken()
    for seq in sorted(frontier.maps):
        again = _start_items(context, slots, seq) or again
    return (again or _may_open_commands(context)) and not context.draft.continues


def _open_commands(context: Context) -> None:
    """Make visits of commands, half of what may be ready at once or more."""
    for seq in sorted(context.draft.frontier.spreads):
        if _may_open_commands(context):
            room = steps.WIDE - len(context.draft.frontier.ready)
            steps.open_commands(context, context.draft.frontier[seq], room)


def _may_open_commands(context: Context) -> bool:
    frontier = context.draft.frontier
    return bool(frontier.spreads) and len(frontier.ready) <= steps.WIDE // 2


def has_more_to_start(context: Context) -> bool:
    """Whether settle may find something that waits to be started."""
    frontier = context.draft.frontier
    return bool(frontier.ready or frontier.maps or frontier.spreads)


def _start(context: Context, visit: Visit) -> bool:
    starting.start(context, visit)
    now = context.draft.visit(visit.seq)
    return now is None or now.ended is not None or now.failed or now.fan is not None


def _start_items(context: Context, slots: _Slots, seq: int) -> bool:
    while (here := context.draft.visit(seq)) and here.fan and slots.has_room_in(here):
        if _is_too_late(context) or not context.draft.may_start():
            return False
        if _start(context, maps.open_item(context, here)):
            return True
    return False


def _is_too_late(context: Context) -> bool:
    """Whether the run's time is up, and workers have visits still: its timer has come to nothing for that, and comes
    once more. Raises RunFailed when they have none."""
    if not context.deadline_passed():
        return False
    if not context.draft.frontier.queued:
        oldest = min(context.draft.visits(), key=lambda visit: visit.seq)
        raise RunFailed(context.timed_out(f"at '{oldest.node}'"))
    context.draft.arm_deadline(context.now_ms)
    return True


def _end_if_done(context: Context) -> None:
    frontier = context.draft.frontier
    if frontier.failed:
        if frontier.queued or any(_is_awaited(visit, context.graph.engine) for visit in frontier.values()):
            return
        failed = (visit for visit in frontier.values() if visit.failed and visit.is_branch)
        context.fail_with(min(failed, key=lambda visit: visit.rank).error or "failed")
        return
    if any(visit.kind != BUDGET for visit in frontier.values()) or not context.draft.steps:
        return  # something is live, or the run has not begun
    graph, draft = context.graph, context.draft
    is_stopped = steps.steps_are_used_up(context)
    starved = None if is_stopped else joins.starved(graph, draft.arrived)
    if starved is not None:
        context.fail_with(starved)
    elif graph.is_loki and not is_stopped:
        context.fail_with(f"Graph '{graph.name}' frontier emptied without reaching an End node")
    else:
        context.end("completed")


def _is_awaited(visit: Visit, engine: str) -> bool:
    """Whether a run that fails lets this visit end first. For a person's answer it does not wait."""
    if visit.state == "queued":
        return True
    retries = visit.wake_ms is not None and visit.queue is not None
    return engine == "bsp" and (
        visit.state == "ready"
        or retries
        or ((visit.fan is not None or visit.spread is not None) and visit.state == "waiting")
    )
