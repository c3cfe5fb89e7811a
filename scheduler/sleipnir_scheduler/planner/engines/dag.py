"""The engine `dag`: every visit is its own step, and opens the next visits as soon as it has ended.

The writes of a visit count immediately (dag_folding.py). Its rank, not the time of its end, is its position in the
visit order: `depth` is one more than that of its cause, `lineage` a hash of its causes, `index` tells the visits of one
list of commands, or the firings of one join, apart. One node runs one visit at a time, except visits of a list of
commands. When a visit fails for good, no more visits start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sleipnir.runs.run import Checkpoint, changed
from sleipnir.runs.transitions import DropValue
from sleipnir.runs.visits import BRANCH, Branch, Commands, Ended, Failed, Rank, Visit, lineage_after, lineage_of
from sleipnir_scheduler.planner.context import Context, NextVisit, RunFailed, VisitOutcome, at_node
from sleipnir_scheduler.planner.engines.dag_folding import FoldedVisit, Window, fold_visit
from sleipnir_scheduler.planner.engines.entering import (
    check_limit,
    check_recursion,
    count_entry,
    open_visit,
    stops_before,
)
from sleipnir_scheduler.planner.folding import FoldResult, Writer

OUTPUT = "\0output"
"""The pseudo key whose top is the rank of the end node that the output comes from; no state key has this name."""


def goes_straight_on(context: Context, visit: Visit, outcome: VisitOutcome) -> bool:
    return False


def open_step(
    context: Context, ways: Sequence[NextVisit], sources: Sequence[Visit], wide: Mapping[int, list[str]]
) -> None:
    for source in {source.seq: source for source in sources if source.seq in wide}.values():
        targets = wide[source.seq]
        remaining = {target: count for target, count in Counter(targets).items() if target}
        context.draft.visits.stay(source, Commands(source.seq, tuple(targets), left=remaining), group=source.group)
    counted: set[str] = set()
    for position, way in enumerate(ways):
        cause = sources[position] if position < len(sources) else None
        if cause is not None and cause.seq in wide:
            continue
        _open(context, way, cause, counts=way.command is None or way.target not in counted)
        if way.command is not None:
            counted.add(way.target)


def go_on_at(
    context: Context,
    point: Checkpoint,
    ways: Sequence[NextVisit],
    sources: Sequence[Visit],
    wide: Mapping[int, list[str]],
) -> None:
    """The visits that were unfinished have the ranks that they had in the source of the fork."""
    for unfinished in point.visits:
        depth, target, lineage, index = unfinished.rank
        way = NextVisit(target)
        _admit(context, open_visit(context, way, None, group=None, depth=depth, lineage=lineage, index=index))
    first = [] if point.visits else [NextVisit(node) for node in point.nodes]
    open_step(context, [*ways, *first], sources, wide)


def open_commands(context: Context, visit: Visit, commands: Commands, most: int) -> None:
    number, remaining = commands.next, dict(commands.left)
    counted = set(commands.targets[:number])
    while remaining and most:
        target, way = commands.targets[number], NextVisit(commands.targets[number], number)
        number += 1
        if not target:
            continue
        _open(context, way, visit, counts=target not in counted)
        counted.add(target)
        most, remaining[target] = most - 1, remaining[target] - 1
        if not remaining[target]:
            del remaining[target]
    if remaining:
        context.draft.visits.move(visit, changed(commands, next=number, left=remaining))
    else:
        context.draft.visits.drop(visit)


def _open(context: Context, way: NextVisit, source: Visit | None, *, counts: bool) -> None:
    """Open one visit. If it breaks a limit, it fails, and the run ends when its running visits have ended. Of a list of
    commands to one node, only the first `counts` as an entry."""
    draft = context.draft
    depth = way.depth if way.join else (source.depth if source else 0)
    lineage = lineage_of(way.join or "") if way.join or source is None else _lineage_after(source)
    # Two firings of a join may have the same depth; the second one comes later in the visit order.
    index = draft.record.count(f"\0{way.join}") - 1 if way.join else way.command or 0
    visit = open_visit(context, way, source, group=None, depth=depth + 1, lineage=lineage, index=index)
    _admit(context, visit, counts=counts)


def _admit(context: Context, visit: Visit, *, counts: bool = True) -> None:
    """Count a visit that has opened. If it breaks a limit, it fails, or is dropped."""
    draft, is_counted = context.draft, not counts
    try:
        if stops_before(context, draft.steps + 1):
            draft.visits.drop(visit)
            if visit.overlay is not None:
                draft.record.item(DropValue(visit.overlay))
            return
        check_recursion(context, draft.steps)
        check_limit(context, draft.steps + 1)
        draft.steps += 1
        if context.deadline_passed():
            raise RunFailed(context.timed_out(f"at '{visit.node}'"))
        is_counted = True
        if counts:
            count_entry(context, visit.node)
    except RunFailed as failure:
        error = at_node(failure.node, str(failure))
        draft.visits.move(visit, Failed(error, failure=failure.failure, counted=is_counted))


def fold(context: Context, first: Visit, writers: Sequence[Writer]) -> FoldResult:
    """A step is one visit, so there is one writer."""
    graph, draft, values = context.graph, context.draft, context.values
    [writer] = writers
    folding = [key for key in writer.keys if graph.reducer_of(key)]
    windows = [key for key in folding if key in draft.tops and key not in draft.record.windows]
    values.require_folds(writers, folding, windows)
    folded: FoldedVisit = fold_visit(
        graph,
        writer,
        values.current,
        values.step_value,
        tops=draft.tops,
        window=lambda key: _window(context, key),
        lower_lives=_lower_lives(context, first),
    )
    return folded


def keep_windows(context: Context, folded: FoldResult) -> None:
    """The writes count now: keep their tops and windows."""
    if isinstance(folded, FoldedVisit):
        context.draft.tops |= folded.tops
        context.draft.record.windows |= {key: window.to_json() for key, window in folded.windows.items()}


def journal_fields(context: Context, visit: Visit, folds: Mapping[str, str] | None) -> dict[str, Any]:
    return {"rank": visit.rank}


def next_to_reduce(context: Context) -> int | None:
    frontier = context.draft.visits.frontier
    if not frontier.rested or any(frontier[seq].role == "reduce" for seq in frontier.agent_functions):
        return None
    for seq in sorted(frontier.rested):
        visit = frontier[seq]
        if isinstance(visit.body, Ended) and not visit.body.applied:
            return visit.group
    return None


def owns_output(context: Context, visit: Visit) -> bool:
    tops = context.draft.tops
    if OUTPUT in tops and tops[OUTPUT] > visit.rank:
        return False
    if _lower_lives(context, visit):
        tops[OUTPUT] = visit.rank
    return True


def forget_tops(context: Context) -> None:
    """Drop the tops and windows that all live visits come after."""
    draft = context.draft
    if not draft.tops:
        return
    lowest = min((_lowest_rank(visit) for visit in draft.visits.frontier.values() if visit.is_branch), default=None)
    for key, top in list(draft.tops.items()):
        if lowest is None or lowest > top:
            del draft.tops[key]
            if context.graph.reducer_of(key) is not None:
                draft.record.windows[key] = None


def may_start(context: Context, visit: Visit | None = None) -> bool:
    frontier = context.draft.visits.frontier
    if visit is None:
        return not frontier.failed
    if visit.kind == "end" and frontier.failed:
        return False  # a visit failed in this event: an end node must not complete the run
    return visit.place != BRANCH or not frontier.nodes.get(visit.node)


def is_awaited(visit: Visit) -> bool:
    return visit.state == "queued"


def _window(context: Context, key: str) -> Window:
    """The window of a key, as fetched or as made by this event."""
    windows = context.draft.record.windows
    return Window.from_json(windows[key] if key in windows else context.known.windows[key])


def _lower_lives(context: Context, visit: Visit) -> bool:
    """Whether a visit of a lower rank is live. A failed visit counts: after a retry it writes at its position in the
    visit order."""
    depth, rank, seq = visit.depth, visit.rank, visit.seq
    return any(  # asked for each visit, of hundreds
        live.place.is_branch and live.seq != seq and _lowest_rank(live) < rank
        for live in context.draft.visits.frontier.values()
        if live.depth <= depth
    )


def _lowest_rank(visit: Visit) -> Rank:
    """The rank of a visit; if some of its commands have not become visits, a lower bound of their ranks."""
    commands = visit.body.was if isinstance(visit.body, Failed) else visit.body
    if not isinstance(commands, Commands):
        return visit.rank
    return (visit.depth + 1, min(commands.left), _lineage_after(visit), commands.next)


def _lineage_after(source: Visit) -> str:
    """The lineage of the visits that a visit opens."""
    is_one_of_a_list = isinstance(source.place, Branch) and source.place.batch is not None
    return lineage_after(source.rank, is_one_of_a_list=is_one_of_a_list)
