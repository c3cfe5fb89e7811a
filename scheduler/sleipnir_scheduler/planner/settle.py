"""After every event: start what may start, and see whether the run is over.

limits.max_concurrency, and that of the run's configuration, limit the visits of a run that are on workers at the same
time; settings.max_concurrency limits the branches of a step, and the items of each map. Further visits wait in order. A
`dag` runs one visit of a node at a time, except the visits of one list of commands.

While a run is held, results, answers and due retries change the frontier, but no visit starts and the run does not end.
It goes on when the last hold has ended.

After the run's deadline no item of a map starts: the run ends when its visits on workers have ended.

When a visit fails for good, a `dag` starts no more visits; the visits of a super-step all run to their end. Then the
run fails, with the first failure in visit order, and keeps its ended visits: `retry` runs only the others.
"""

from __future__ import annotations

from sleipnir.graph.model import MapNode
from sleipnir.graph.plain import compact_json
from sleipnir.messages import QUEUE_OF
from sleipnir.runs.visits import WIDE, Commands, Ended, Failed, Fan, Item, Visit, WholeRun
from sleipnir_scheduler.planner.context import Context, RunFailed
from sleipnir_scheduler.planner.draft.draft import Draft
from sleipnir_scheduler.planner.engines import joins, steps
from sleipnir_scheduler.planner.engines.entering import steps_are_used_up
from sleipnir_scheduler.planner.nodes import maps

MOST_STARTS = 1_000
"""The most visits that one event may start: a scheduler plans them in 20 ms, and Redis commits them in 10 ms."""


def settle(context: Context) -> None:
    """Start all visits that may start, until the run is held, and end it if it is done. Raises RunFailed."""
    draft = context.draft
    if (draft.slot is not None and not draft.slot.granted) or draft.clock.is_held:
        return
    while _goes_on(draft):
        group = None if context.graph.engine == "bsp" else context.engine.next_to_reduce(context)
        if group is not None:
            steps.close(context, group, draft.record.last_step)
        if not _start_some(context):
            break
    if draft.tops:
        context.engine.forget_tops(context)
    if _goes_on(draft):
        _end_if_done(context)


def _goes_on(draft: Draft) -> bool:
    """Whether the run is neither over nor held: a node that needs no worker may have led to a breakpoint."""
    return not draft.is_over and not draft.clock.is_held


def has_more_to_start(context: Context) -> bool:
    """Whether there are visits that settle may start."""
    frontier = context.draft.visits.frontier
    return bool(frontier.ready or frontier.maps or frontier.commands)


class _Capacity:
    """What the limits of concurrency allow for the current frontier."""

    def __init__(self, context: Context) -> None:
        self._context, self._frontier = context, context.draft.visits.frontier
        self._is_dag = context.graph.engine == "dag"
        overall, own = context.graph.limits.max_concurrency, context.run.spec.config.get("max_concurrency")
        if own is not None:
            overall = own if overall is None else min(own, overall)
        self._overall: int | None = overall
        self._most = context.graph.max_concurrency if own is None or overall is None else overall

    def is_used_up(self) -> bool:
        """Whether no branch may start for now."""
        return not self._fits(self._frontier.branches, self._most)

    def has_room(self, visit: Visit) -> bool:
        """For a visit that is ready."""
        place = visit.place
        if isinstance(place, Item):
            return self._has_room_of_map(place.map, place.of)
        if not place.is_branch:
            return True
        if self._is_dag and not self._context.engine.may_start(self._context, visit):
            return False
        return visit.kind not in QUEUE_OF or self._fits(self._frontier.branches, self._most)

    def has_room_in(self, visit: Visit, fan: Fan) -> bool:
        """For one more item of a map, if one is left."""
        return fan.next < fan.total and self._has_room_of_map(fan.id, visit.node)

    def _has_room_of_map(self, fan: int, map_node: str) -> bool:
        node = self._context.graph.nodes[map_node]
        own = node.max_concurrency if isinstance(node, MapNode) else None
        return self._fits(self._frontier.items_of.get(fan, 0), own or self._most)

    def _fits(self, running: int, most: int) -> bool:
        if self._overall is None:
            return running < most
        return running < most and self._frontier.branches + sum(self._frontier.items_of.values()) < self._overall


def _start_some(context: Context) -> bool:
    """Start ready visits that have a slot. True: visits may have become ready meanwhile."""
    draft = context.draft
    frontier = draft.visits.frontier
    if not (frontier.ready or frontier.maps or frontier.commands):
        return False
    if frontier.failed and not frontier.run_functions and not context.engine.may_start(context):
        return False
    if frontier.commands:
        _open_commands(context)
    capacity, again = _Capacity(context), False
    is_used_up = capacity.is_used_up()
    for seq in sorted(frontier.ready):
        if not _goes_on(draft):
            return False
        if is_used_up and seq in frontier.ready_for_workers:
            continue  # as has_room would say, of hundreds in each event
        visit = frontier[seq]
        if capacity.has_room(visit) and not (visit.item is not None and _is_too_late(context)):
            if not _may_start(draft):
                return False
            again = _start(context, visit) or again
            is_used_up = capacity.is_used_up()
    for seq in sorted(frontier.maps) if _goes_on(draft) else ():
        again = _start_items(context, capacity, seq) or again
    return (again or _may_open_commands(context)) and not draft.visits.continues


def _may_start(draft: Draft) -> bool:
    """Whether this event may start one more visit. Otherwise the run goes on with an event of its own."""
    draft.visits.starts += 1
    if draft.visits.starts > MOST_STARTS:
        draft.visits.continues = True
    return draft.visits.starts <= MOST_STARTS


def _open_commands(context: Context) -> None:
    """Make visits of commands, half of what may be ready at once or more."""
    frontier = context.draft.visits.frontier
    for seq in sorted(frontier.commands):
        visit = frontier[seq]
        if _may_open_commands(context) and isinstance(visit.body, Commands):
            context.engine.open_commands(context, visit, visit.body, WIDE - len(frontier.ready))


def _may_open_commands(context: Context) -> bool:
    frontier = context.draft.visits.frontier
    return bool(frontier.commands) and len(frontier.ready) <= WIDE // 2


def _start(context: Context, visit: Visit) -> bool:
    context.kinds.start(context, visit)
    now = context.draft.visits.frontier.get(visit.seq)
    return now is None or isinstance(now.body, (Ended, Failed, Fan))


def _start_items(context: Context, capacity: _Capacity, seq: int) -> bool:
    visits = context.draft.visits
    while (visit := visits.get(seq)) and isinstance(visit.body, Fan) and capacity.has_room_in(visit, visit.body):
        if not _goes_on(context.draft) or _is_too_late(context) or not _may_start(context.draft):
            return False
        if _start(context, maps.open_item(context, visit, visit.body)):
            return True
    return False


def _is_too_late(context: Context) -> bool:
    """Whether the run's deadline has passed while workers have visits. The timer had no effect then, and is armed
    again. Raises RunFailed if workers have none."""
    if not context.deadline_passed():
        return False
    if not context.draft.visits.frontier.queued:
        oldest = min(context.draft.visits.all(), key=lambda visit: visit.seq)
        raise RunFailed(context.timed_out(f"at '{oldest.node}'"))
    context.draft.clock.arm_deadline(context.now_ms)
    return True


def _end_if_done(context: Context) -> None:
    draft, graph = context.draft, context.graph
    frontier = draft.visits.frontier
    if frontier.run_functions:
        return  # they decide
    if frontier.failed:
        if frontier.queued or any(map(context.engine.is_awaited, frontier.values())):
            return
        failures = [visit for visit in frontier.values() if visit.state == "failed" and visit.is_branch]
        first = min(failures, key=lambda visit: visit.rank).body
        error, failure = (first.error, first.failure) if isinstance(first, Failed) else (None, None)
        context.fail(error or "failed", failure)
        return
    if any(not isinstance(visit.place, WholeRun) for visit in frontier.values()) or not draft.steps:
        return  # something is live, or the run has not begun
    is_stopped = steps_are_used_up(context)
    starved = None if is_stopped else joins.starved(graph, draft.arrived)
    if starved is not None and not graph.is_state_graph:
        context.fail(starved)
    elif graph.is_loki and not is_stopped:
        context.fail(f"Graph '{graph.name}' frontier emptied without reaching an End node")
    else:
        if starved is not None:
            draft.record.notice("join_starved", message=starved)
        draft.deferred = {}  # if the run has stopped early
        context.end("completed", output=_returned(context))


def _returned(context: Context) -> str | None:
    """What the run of a graph that is a node returns: its state, for the graph above. Raises MissingValues."""
    keys = context.graph.output_keys
    return None if keys is None else compact_json(context.values.state(keys))
