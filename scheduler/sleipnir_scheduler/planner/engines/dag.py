"""The engine `dag`: every visit is a step of its own, and leads on as soon as it has ended.

What a visit writes counts at once (dag_folding.py). A visit has its place in the visit order by its rank, not by its
end: `depth` is one more than that of its cause, `lineage` a hash of its causes, `index` tells the visits of one list
of commands, or the firings of one join, apart. One node runs one visit at a time, those of a list of commands apart.
When a visit fails for good, nothing more starts.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sleipnir.runs.run import changed
from sleipnir.runs.transitions import Drop
from sleipnir.runs.visits import BRANCH, Branch, Commands, Ended, Failed, Rank, Visit
from sleipnir_scheduler.planner.context import Context, Outcome, RunFailed, Way, at_node
from sleipnir_scheduler.planner.engines.dag_folding import FoldedVisit, Window, fold_visit
from sleipnir_scheduler.planner.engines.entering import check_limit, count_entry, open_visit, stops_before
from sleipnir_scheduler.planner.folding import Folded, Writer

OUTPUT = "\0output"
"""Whose top says which end node the run's output is from; no key of the state is named so."""


def goes_straight_on(context: Context, visit: Visit, outcome: Outcome) -> bool:
    return False


def open_step(context: Context, ways: Sequence[Way], sources: Sequence[Visit], wide: Mapping[int, list[str]]) -> None:
    for source in {source.seq: source for source in sources if source.seq in wide}.values():
        targets = wide[source.seq]
        left = {target: count for target, count in Counter(targets).items() if target}
        context.draft.visits.stay(source, Commands(source.seq, tuple(targets), left=left), group=source.group)
    counted: set[str] = set()
    for position, way in enumerate(ways):
        cause = sources[position] if position < len(sources) else None
        if cause is not None and cause.seq in wide:
            continue
        _open(context, way, cause, counts=way.command is None or way.target not in counted)
        if way.command is not None:
            counted.add(way.target)


def open_commands(context: Context, visit: Visit, commands: Commands, most: int) -> None:
    number, left = commands.next, dict(commands.left)
    counted = set(commands.targets[:number])
    while left and most:
        target, way = commands.targets[number], Way(commands.targets[number], number)
        number += 1
        if not target:
            continue
        _open(context, way, visit, counts=target not in counted)
        counted.add(target)
        most, left[target] = most - 1, left[target] - 1
        if not left[target]:
            del left[target]
    if left:
        context.draft.visits.move(visit, changed(commands, next=number, left=left))
    else:
        context.draft.visits.drop(visit)


def _open(context: Context, way: Way, source: Visit | None, *, counts: bool) -> None:
    """One visit. What is wrong with it waits until the visits that run have ended. Of a list of commands to one node,
    the first one `counts`."""
    draft = context.draft
    depth = way.depth if way.join else (source.depth if source else 0)
    lineage = _hash(way.join or "") if way.join or source is None else _lineage_after(source)
    # Two firings of a join may have one depth; the second one comes later in the visit order, however fast either is.
    index = draft.record.count(f"\0{way.join}") - 1 if way.join else way.command or 0
    visit = open_visit(context, way, source, group=None, depth=depth + 1, lineage=lineage, index=index)
    try:
        if stops_before(context, draft.steps + 1):
            draft.visits.drop(visit)
            if visit.overlay is not None:
                draft.record.item(Drop(visit.overlay))
            return
        check_limit(context, draft.steps + 1)
        draft.steps += 1
        if context.deadline_passed():
            raise RunFailed(context.timed_out(f"at '{way.target}'"))
        if counts:
            count_entry(context, way.target)
    except RunFailed as failure:
        draft.visits.move(visit, Failed(at_node(failure.node, str(failure))))


def fold(context: Context, first: Visit, writers: Sequence[Writer]) -> Folded:
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


def keep_windows(context: Context, folded: Folded) -> None:
    """The writes count from here on: keep the tops and windows that they leave."""
    if isinstance(folded, FoldedVisit):
        context.draft.tops |= folded.tops
        context.draft.record.windows |= {key: window.to_json() for key, window in folded.windows.items()}


def journal_fields(context: Context, visit: Visit, folds: Mapping[str, str] | None) -> dict[str, Any]:
    return {"rank": visit.rank}


def next_to_reduce(context: Context) -> int | None:
    frontier = context.draft.visits.frontier
    if not frontier.rested or any(frontier[seq].role == "reduce" for seq in frontier.helpers):
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
    """Drop the tops and windows that no live visit can come before any more."""
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
        return False  # a visit has failed in this event: an end must not complete the run
    return visit.place != BRANCH or not frontier.nodes.get(visit.node)


def is_awaited(visit: Visit) -> bool:
    return visit.state == "queued"


def _window(context: Context, key: str) -> Window:
    """The updates that a key is made of. It was fetched, or this event has made it."""
    windows = context.draft.record.windows
    return Window.from_json(windows[key] if key in windows else context.known.windows[key])


def _lower_lives(context: Context, visit: Visit) -> bool:
    """A failed visit counts: when the run is continued, it writes where it stands in visit order."""
    depth, rank, seq = visit.depth, visit.rank, visit.seq
    return any(  # asked for each visit, of hundreds
        other.place.is_branch and other.seq != seq and _lowest_rank(other) < rank
        for other in context.draft.visits.frontier.values()
        if other.depth <= depth
    )


def _lowest_rank(visit: Visit) -> Rank:
    """Its rank; of one whose commands have not all become visits, no higher than the lowest of those to come."""
    commands = visit.body.was if isinstance(visit.body, Failed) else visit.body
    if not isinstance(commands, Commands):
        return visit.rank
    return (visit.depth + 1, min(commands.left), _lineage_after(visit), commands.next)


def _lineage_after(source: Visit) -> str:
    """Of what a visit leads to. What follows two firings of a join has one hash, and keeps their order."""
    base, dot, firing = source.lineage.partition(".")
    is_one_of_a_list = isinstance(source.place, Branch) and source.place.batch is not None
    if source.index and not is_one_of_a_list:
        return f"{_hash(str((source.depth, source.node, base, 0)))}{dot}{firing}.{source.index:06}"
    return f"{_hash(str((source.depth, source.node, base, source.index)))}{dot}{firing}"


def _hash(cause: str) -> str:
    return f"{zlib.crc32(cause.encode()):08x}"
