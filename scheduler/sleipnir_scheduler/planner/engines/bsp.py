"""The engine `bsp`: visits run in super-steps. All visits of a step see the state as it was when the step began. When
the last one has ended, all their writes count, and the next step opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from sleipnir.runs.run import Checkpoint, changed
from sleipnir.runs.transitions import Closing
from sleipnir.runs.visits import Backoff, Commands, Ended, Fan, Visit
from sleipnir_scheduler.planner.context import STEP_TIMER, Context, NextVisit, VisitOutcome
from sleipnir_scheduler.planner.engines.entering import check_entries, check_recursion, open_visit, stops_before
from sleipnir_scheduler.planner.engines.routing import ways_on
from sleipnir_scheduler.planner.folding import FoldResult, Writer, fold_step
from sleipnir_scheduler.planner.values import InStep


def goes_straight_on(context: Context, visit: Visit, outcome: VisitOutcome) -> bool:
    """The fast path for a result whose visit is alone in its super-step and leads to one node by plain edges, or (not
    in Loki's format) ends the last branch."""
    graph, draft = context.graph, context.draft
    keys, node = outcome.keys, graph.nodes[visit.node]
    if (
        draft.visits.frontier.members.get(visit.group) != 1
        or (node.branch is not None or visit.kind == "end" or graph.joins)
        or (outcome.values or outcome.collect is not None or outcome.sends is not None)
        or (context.defers or graph.limits.max_steps is not None)
        or any(map(graph.reducer_of, keys))
    ):
        return False
    ways = ways_on(context, visit, Ended(0, outcome.ok, next=outcome.next), None)
    if len(ways) > 1 or (not ways and graph.is_loki):
        return False
    target = ways[0].target if ways else None
    if draft.deferred and (target is None or target in graph.deferred):
        return False
    step = draft.record.write(
        visit,
        target,
        delta=bool(keys),
        keys=keys,
        notes=outcome.notes,
        ok=outcome.ok,
        error=outcome.error,
        closing=Closing() if target is None else None,
        **outcome.how,
    )
    context.values.latest |= dict.fromkeys(keys, InStep(step))
    if graph.limits.step_timeout:
        draft.clock.disarm(f"{STEP_TIMER}{visit.group}")
    if visit.overlay is not None:
        draft.record.drops.append(visit.overlay)
    draft.visits.drop(visit)
    if target is None:
        check_recursion(context, draft.steps)
        return True
    group = draft.steps = draft.steps + 1
    next_node = graph.nodes.get(target)
    draft.visits.open(target, next_node.kind if next_node else "unknown", group=group, depth=group)
    check_entries(context, [target])
    return True


def open_step(
    context: Context, ways: Sequence[NextVisit], sources: Sequence[Visit], wide: Mapping[int, list[str]]
) -> None:
    if context.graph.deferred:
        ways, sources = _next_ways(context, ways, sources)
    draft = context.draft
    if not ways:
        check_recursion(context, draft.steps)
        return
    if context.graph.limits.max_steps is not None and stops_before(context, draft.steps + 1):
        return
    group = draft.steps = draft.steps + 1
    if len(ways) == 1 and not wide:
        open_visit(context, ways[0], sources[0] if sources else None, group=group, depth=group)
        check_entries(context, [ways[0].target])
        return
    places: dict[tuple[str, str | None, int], tuple[NextVisit, Visit | None]] = {}
    for position, way in enumerate(ways):
        number = (
            position if way.command is not None else -1
        )  # edges to one node open one visit, each command opens its own
        join = None if context.graph.is_state_graph else way.join
        if number < 0 and (way.target, join, -1) in places:
            continue
        places.setdefault((way.target, join, number), (way, sources[position] if position < len(sources) else None))
    last_index: dict[str, int] = {}
    first_index: dict[int, dict[str, int]] = {}
    for _, (way, source) in sorted(places.items(), key=lambda place: (place[0][0], place[0][2], place[0][1] or "")):
        index = last_index[way.target] = last_index.get(way.target, -1) + 1
        if source is not None and source.seq in wide and way.command is not None:
            first_index.setdefault(source.seq, {})[way.target] = index
            last_index[way.target] += way.commands - 1
        else:
            open_visit(context, way, source, group=group, depth=group, index=index)
    for source in {source.seq: source for source in sources if source.seq in wide}.values():
        _spread(context, source, wide[source.seq], group, first_index[source.seq])
    check_entries(context, list(last_index))


def _next_ways(
    context: Context, ways: Sequence[NextVisit], sources: Sequence[Visit]
) -> tuple[Sequence[NextVisit], Sequence[Visit]]:
    """The ways without those to deferred nodes, with their sources; if there are no others, one to each deferred node.
    A command always starts its visit."""
    draft = context.draft
    is_deferred = [way.command is None and way.target in context.graph.deferred for way in ways]
    targets = {way.target: draft.steps for way, defers in zip(ways, is_deferred, strict=True) if defers}
    deferred = {**targets, **draft.deferred}
    if all(is_deferred):
        draft.deferred = {}
        return [NextVisit(node) for node in deferred], ()
    draft.deferred = deferred
    others = [way for way, defers in zip(ways, is_deferred, strict=True) if not defers]
    return others, [source for source, defers in zip(sources, is_deferred, strict=False) if not defers]


def _spread(context: Context, source: Visit, targets: list[str], group: int, index: dict[str, int]) -> None:
    """Keep the source until all its commands have become visits, as slots become free."""
    remaining = {target: count for target, count in Counter(targets).items() if target}
    commands = Commands(source.seq, tuple(targets), left=remaining, index=index)
    context.draft.visits.stay(source, commands, group=group)


def go_on_at(
    context: Context,
    point: Checkpoint,
    ways: Sequence[NextVisit],
    sources: Sequence[Visit],
    wide: Mapping[int, list[str]],
) -> None:
    open_step(context, [*ways, *map(NextVisit, dict.fromkeys(point.nodes))], sources, wide)


def open_commands(context: Context, visit: Visit, commands: Commands, most: int) -> None:
    number, remaining, index = commands.next, dict(commands.left), dict(commands.index)
    while remaining and most:
        target, way = commands.targets[number], NextVisit(commands.targets[number], number)
        number += 1
        if not target:
            continue
        open_visit(context, way, visit, group=visit.group, depth=visit.group, index=index[target])
        index[target] += 1
        most, remaining[target] = most - 1, remaining[target] - 1
        if not remaining[target]:
            del remaining[target]
    if remaining:
        context.draft.visits.move(visit, changed(commands, next=number, left=remaining, index=index))
    else:
        context.draft.visits.drop(visit)


def fold(context: Context, first: Visit, writers: Sequence[Writer]) -> FoldResult:
    graph, values = context.graph, context.values
    count = Counter(chain.from_iterable(writer.keys for writer in writers))
    folding = [
        key
        for key, times in count.items()
        if graph.reducer_of(key) or (times > 1 and (graph.is_loki or graph.takes_one_write(key)))
    ]
    if not folding:
        return FoldResult()
    values.require_folds(writers, folding)
    return fold_step(graph, writers, values.current, values.step_value)


def keep_windows(context: Context, folded: FoldResult) -> None:
    pass


def journal_fields(context: Context, visit: Visit, folds: Mapping[str, str] | None) -> dict[str, Any]:
    return {"strict": True} if folds and context.graph.is_loki else {}


def next_to_reduce(context: Context) -> int | None:
    return None


def owns_output(context: Context, visit: Visit) -> bool:
    return True


def forget_tops(context: Context) -> None:
    pass


def may_start(context: Context, visit: Visit | None = None) -> bool:
    return True


def is_awaited(visit: Visit) -> bool:
    return visit.state in ("queued", "ready") or isinstance(visit.body, (Backoff, Fan, Commands))
