"""After every event: start what may start, and see whether the run is over.

A run has so many visits on workers at once, wherever those are (limits.max_concurrency, else settings.max_concurrency
for the branches of a step and for each map). Those beyond wait, first come first served; a `dag` runs no node twice at
once, but for the visits of one list of commands.

When a visit fails for good, a `dag` starts nothing more; the visits of a super-step all run to their end. Then the run
fails, for the first failure in visit order, and keeps what has ended: `retry` runs only what has not.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

from sleipnir.graph.model import MapNode
from sleipnir.runs import Visit
from sleipnir_scheduler.planner import joins, maps, starting, steps
from sleipnir_scheduler.planner.context import Context


def settle(context: Context) -> None:
    """Leave nothing that could start or end. Raises RunFailed."""
    while not context.draft.over:
        for group in steps.waiting_to_reduce(context)[:1]:
            steps.close(context, group, context.draft.last_step)
        if not _start_some(context):
            break
    steps.forget_tops(context)
    if not context.draft.over:
        _end_if_done(context)


class _Slots:
    """Who is on a worker now, and who may still come."""

    def __init__(self, context: Context, visits: list[Visit]) -> None:
        self._graph = context.graph
        self._branches = 0
        self._of_map: Counter[int] = Counter()
        self._nodes: set[str] = set()
        self._most = {visit.fan.id: self._most_of(visit) for visit in visits if visit.fan}
        self.are_taken = False
        """Whether no branch may come for now."""
        for visit in visits:
            if not visit.ready and not visit.failed and visit.ended is None:
                self.take(visit)

    def take(self, visit: Visit) -> None:
        if visit.item is not None:
            self._of_map[visit.item.map] += 1
        elif visit.state == "queued":
            self._branches += 1
        if visit.batch is None and visit.item is None:
            self._nodes.add(visit.node)
        self.are_taken = not self._fits(self._branches, self._graph.max_concurrency)

    def has_room(self, visit: Visit) -> bool:
        """For a visit that is ready."""
        if visit.item is not None:
            return self._fits(self._of_map[visit.item.map], self._most[visit.item.map])
        if self._graph.engine == "dag" and visit.batch is None and visit.node in self._nodes:
            return False
        return visit.kind not in _ON_WORKERS or not self.are_taken

    def has_room_in(self, of: Visit) -> bool:
        """For one more item of a map, if one is left."""
        assert of.fan is not None
        most = self._most.setdefault(of.fan.id, self._most_of(of))
        return of.fan.next < of.fan.total and self._fits(self._of_map[of.fan.id], most)

    def _most_of(self, of: Visit) -> int:
        node = self._graph.nodes[of.node]
        assert isinstance(node, MapNode)
        return node.max_concurrency or self._graph.max_concurrency

    def _fits(self, running: int, most: int) -> bool:
        overall = self._graph.limits.max_concurrency
        return running < most and (overall is None or self._branches + self._of_map.total() < overall)


_SEQ = attrgetter("seq")
_ON_WORKERS = frozenset({"script", "function", "llm"})


def _start_some(context: Context) -> bool:
    """Start what is ready and has a slot. True when that changed so much that it is worth another look."""
    visits = context.draft.visits()
    failing = any(visit.failed and visit.item is None for visit in visits)
    if failing and context.graph.engine == "dag":
        return False
    if len(visits) == 1 and visits[0].ready:  # alone, it always has a slot
        return _start(context, None, visits[0])
    slots, again = _Slots(context, visits), False
    for visit in sorted((visit for visit in visits if visit.ready), key=_SEQ):
        if context.draft.over:
            return False
        if slots.are_taken and visit.item is None and visit.kind in _ON_WORKERS:
            continue  # as has_room would say, of thousands in each event
        if slots.has_room(visit):
            again = _start(context, slots, visit) or again
    for of in [visit for visit in context.draft.visits() if visit.fan and visit.state == "waiting"]:
        again = _start_items(context, slots, of) or again
    return again


def _start(context: Context, slots: _Slots | None, visit: Visit) -> bool:
    starting.start(context, visit)
    now = context.draft.visit(visit.seq)
    if now is None or now.ended is not None or now.failed:
        return True
    if slots is not None:
        slots.take(now)
    return now.fan is not None


def _start_items(context: Context, slots: _Slots, of: Visit) -> bool:
    while (here := context.draft.visit(of.seq)) and here.fan and slots.has_room_in(here):
        if _start(context, slots, maps.open_item(context, here)):
            return True
    return False


def _end_if_done(context: Context) -> None:
    visits = context.draft.visits()
    failed = [visit for visit in visits if visit.failed and visit.item is None]
    if failed:
        if not any(_is_awaited(visit, context.graph.engine) for visit in visits):
            first = min(failed, key=lambda visit: visit.rank)
            context.fail_with(first.error or "failed")
        return
    if visits or not context.draft.steps:
        return  # something is live, or the run has not begun
    graph, draft = context.graph, context.draft
    starved = None if steps.steps_are_used_up(context) else joins.starved(graph, draft.arrived)
    if starved is not None:
        context.fail_with(starved)
    elif graph.dialect == "loki":
        context.fail_with(f"Graph '{graph.name}' frontier emptied without reaching an End node")
    else:
        context.end("completed")


def _is_awaited(visit: Visit, engine: str) -> bool:
    """Whether a run that fails lets this visit end first. For a person's answer it does not wait."""
    if visit.state == "queued":
        return True
    retries = visit.wake_ms is not None and visit.queue is not None
    return engine == "bsp" and (
        visit.state == "ready" or retries or (visit.fan is not None and visit.state == "waiting")
    )
