"""A visit ends, its step closes, the next one opens. Read this to follow a join, a collision or a way on.

    ended ─► journaled, held ─► all of its step have ended ─► writes count ─► ways on are chosen ─► next step opens
                                        │                         │
                                        └ reducers of the         └ `branch.call` of the agent's own, costly
                                          agent's own: a visit      conditions: a visit with the role `branch`
                                          with the role `reduce`

A step is a super-step (`bsp`), or one visit alone (`dag`, and most steps of a graph that never branches). Visits of a
step see the state as it was when the step began. A step with a visit that failed never closes: see settle.py.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from sleipnir.graph.model import EndNode, Json
from sleipnir.graph.template import TemplateError, keys_read, render_lenient, updates_read
from sleipnir.messages import QUEUE_OF
from sleipnir.runs.run import Ended, Rank, Spread, Visit, changed
from sleipnir.runs.transitions import Drop, Put, Split
from sleipnir_scheduler.planner import failing, joins, routing
from sleipnir_scheduler.planner.context import STEP_TIMER, Context, Outcome, RunFailed, VisitFailed, at_node
from sleipnir_scheduler.planner.draft import Member
from sleipnir_scheduler.planner.folding import Folded, Unfoldable, Writer, fold_step, fold_visit
from sleipnir_scheduler.planner.routing import Way


def ended(context: Context, visit: Visit, outcome: Outcome) -> None:
    """A visit has ended (items of maps apart: maps.py)."""
    if visit.role != "node":
        _role_ended(context, visit, outcome)
        return
    if outcome.ok or outcome.sends is not None or outcome.next is not None:
        error = routing.dead_end(context, visit, outcome)
    else:
        outcome, error = failing.failed(context, visit, outcome)
    held = context.draft.has_mates(visit) or (error is not None and _folds(context, outcome.written) is not None)
    step = _journal(context, visit, outcome, held=held)
    if outcome.sends:
        context.draft.item(Split(visit.seq))
    if error is not None:
        if not held:
            _apply(context, [_member(changed(visit, ended=Ended(step, keys=outcome.written)))], step, None)
        context.draft.put(_at_rest(visit, failed=True, error=at_node(visit.node, error)))
        return
    result = Ended(step, outcome.ok, False, outcome.written, outcome.next, outcome.sends)
    context.draft.put(_at_rest(visit, ended=result))
    if context.draft.has_ended_step(visit.group):
        close(context, visit.group, step)


def end_reached(context: Context, visit: Visit) -> None:
    """A visit of an end node: it sees what the others of its step write, and is journaled when the step closes."""
    context.draft.put(_at_rest(visit, ended=Ended(0)))
    if context.draft.has_ended_step(visit.group):
        close(context, visit.group, context.draft.last_step)


def close(context: Context, group: int, step: int) -> None:
    """All visits of a step have ended. `step` is a journal step of this draft, which tells what counts from here on.
    While the run is held, what they wrote counts, and what could end the run waits (see `go_on_after_hold`)."""
    members = context.draft.ranked(group)
    nodes = [member for member in members if member.role == "node"]
    if pending := [member for member in nodes if member.ended is None or not member.ended.applied]:
        folds = [member.visit for member in members if member.role == "reduce"]
        try:
            if not _apply(context, pending, step, max(folds, key=lambda visit: visit.seq, default=None)):
                return
        except RunFailed:
            if context.draft.is_held:
                return  # the same once it goes on
            raise
    if context.draft.is_held and (context.defers or any(member.visit.kind == "end" for member in nodes)):
        _note_applied(context, _bodies(nodes))
        return
    labels = {int(each.visit.batch or 0): each.ended for each in members if each.role == "branch"}
    if not labels and (calls := routing.needing_calls(context, nodes)):
        _note_applied(context, _bodies(nodes))
        for visit in calls:
            _open_role(context, visit, "branch")
        return
    try:
        _go_on(context, group, members, {seq: _names(ended_) for seq, ended_ in labels.items()}, step)
    except RunFailed:
        _note_applied(context, _bodies(nodes))
        raise


def go_on_after_hold(context: Context) -> None:
    """The run is held no more: what has ended meanwhile and still waits for that finds its ways on. The last journal
    step is of this draft."""
    if context.draft.is_held:
        return
    groups: dict[int, list[Visit]] = {}
    for visit in context.draft.visits():
        if visit.is_branch:
            groups.setdefault(visit.group, []).append(visit)
    for group, members in sorted(groups.items()):
        if not context.draft.over and all(visit.ended is not None for visit in members):
            close(context, group, context.draft.last_step)


def waiting_to_reduce(context: Context) -> list[int]:
    """Steps of a `dag` that have ended and wait until another one's reducers are done."""
    frontier = context.draft.frontier
    if context.graph.engine == "bsp" or not frontier.rested:
        return []
    if any(frontier[seq].role == "reduce" for seq in frontier.helpers):
        return []
    rested = [frontier[seq] for seq in sorted(frontier.rested)]
    return [visit.group for visit in rested if visit.ended and not visit.ended.applied]


def enter(context: Context, node: str) -> None:
    """The run begins at a node; or goes on at one, as a failed run of an older release does when it is retried."""
    _open_step(context, [Way(node)], [], {})


def _role_ended(context: Context, visit: Visit, outcome: Outcome) -> None:
    """What a function of the agent's own has chosen or folded."""
    step = _journal(context, visit, outcome, held=False)
    if not outcome.ok:
        context.draft.put(_at_rest(visit, failed=True, error=at_node(visit.node, outcome.error or "failed")))
        return
    context.draft.put(_at_rest(visit, ended=Ended(step, keys=outcome.keys, next=outcome.next)))
    if context.draft.has_ended_step(visit.group):
        close(context, visit.group, step)


def _journal(context: Context, visit: Visit, outcome: Outcome, *, held: bool) -> int:
    more: dict[str, Any] = dict(outcome.how)
    if visit.role == "node":
        more["folds"] = _folds(context, outcome.written)
    if more.get("folds") and context.graph.is_loki and context.graph.engine == "bsp":
        more["strict"] = True
    if context.graph.engine == "dag":
        more["rank"] = visit.rank
    return context.draft.journal(
        visit,
        None,
        delta=bool(outcome.keys),
        collect=outcome.collect,
        values=outcome.values,
        keys=outcome.written,
        notes=outcome.notes,
        ok=outcome.ok,
        error=outcome.error,
        held=held,
        **more,
    )


def _folds(context: Context, keys: Sequence[str]) -> dict[str, str] | None:
    """The reducers of those keys that have one."""
    return {key: reducer for key in keys if (reducer := context.graph.reducer_of(key)) is not None} or None


# The writes begin to count


def _apply(context: Context, members: list[Member], step: int, reduced: Visit | None) -> bool:
    """Let the writes of these visits count. False: reducers of the agent's own have to run first."""
    writers = [
        Writer(rank[1], rank, ended.step, ended.keys)
        for rank, _, _, ended, *_ in members
        if ended is not None and ended.keys
    ]
    if not writers:
        return True
    first = members[0].visit
    try:
        folded = _folded(context, first, writers)
    except Unfoldable as error:
        _hold(context, writers)
        raise RunFailed(str(error)) from None
    own = context.draft.written(writers[-1].step)
    if folded.open and reduced is None:
        _hold(context, writers)
        if not any(visit.role == "reduce" and visit.ended is None for visit in context.draft.visits()):
            _open_role(context, first, "reduce", folded.open)
        return False
    context.draft.tops |= folded.tops
    context.draft.windows |= {key: window.to_json() for key, window in folded.windows.items()}
    plain = len(writers) == 1 and own is not None and not own.step.held and not folded.apart
    if not plain:
        _let_count(context, writers, folded, step)
    for writer in writers:
        kept = folded.skips.get(writer.step, ())
        if keys := [key for key in writer.keys if key not in folded.apart and key not in kept]:
            context.latest_in(writer.step, keys)
    for key, value in folded.values.items():
        context.latest(key, value)
    if reduced is not None:
        context.latest_in(_ended(reduced).step, _ended(reduced).keys)
    return True


def _hold(context: Context, writers: list[Writer]) -> None:
    """What these have written in this draft does not count by itself."""
    for writer in writers:
        if context.draft.written(writer.step):
            context.draft.amend(writer.step, held=True)


def _let_count(context: Context, writers: list[Writer], folded: Folded, step: int) -> None:
    draft = context.draft
    _hold(context, writers)
    skips = {str(held): tuple(keys) for held, keys in folded.skips.items()} or None
    draft.amend(step, applies=tuple(writer.step for writer in writers), skips=skips)
    draft.copies = _last_writers(writers, folded.apart, draft.copies)
    draft.apart |= folded.apart
    draft.folded |= folded.values


def _last_writers(
    writers: list[Writer], apart: Collection[str], before: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """The steps whose writes are to be copied into the state: each key's last one counts. None: all."""
    if before is None and len(writers) == 1:
        return (writers[0].step,)
    seen, last = set(apart), []
    for writer in reversed(writers):
        if not seen.issuperset(writer.keys):
            seen.update(writer.keys)
            last.append(writer.step)
    return (*(before or ()), *reversed(last))


def _folded(context: Context, first: Visit, writers: list[Writer]) -> Folded:
    graph, draft = context.graph, context.draft
    strict = graph.is_loki
    count = Counter(chain.from_iterable(writer.keys for writer in writers))
    folding = [key for key, times in count.items() if graph.reducer_of(key) or (strict and times > 1)]
    if not folding and graph.engine == "bsp":
        return Folded()
    context.require_folds(writers, folding)
    if graph.engine == "bsp":
        return fold_step(graph, writers, context.current, context.step_value)
    [writer] = writers  # of a `dag`, where a step is one visit
    return fold_visit(
        graph,
        writer,
        context.current,
        context.step_value,
        tops=draft.tops,
        window=context.window,
        lower_lives=_lower_lives(context, first),
    )


def _lower_lives(context: Context, visit: Visit) -> bool:
    """A failed visit counts: when the run is continued, it writes where it stands in visit order."""
    depth, rank, seq = visit.depth, visit.rank, visit.seq
    return any(  # asked for each visit, of hundreds
        other.is_branch and other.seq != seq and _lowest_rank(other) < rank
        for other in context.draft.frontier.values()
        if other.depth <= depth
    )


def _lowest_rank(visit: Visit) -> Rank:
    """Its rank; of one whose commands have not all become visits, no higher than the lowest of those to come."""
    if visit.spread is None:
        return visit.rank
    return (visit.depth + 1, min(visit.spread.left), _lineage_after(visit), visit.spread.next)


def _lineage_after(source: Visit) -> str:
    """Of what a visit leads to. What follows two firings of a join has one hash, and keeps their order."""
    base, dot, firing = source.lineage.partition(".")
    if source.index and source.batch is None:
        return f"{_lineage(str((source.depth, source.node, base, 0)))}{dot}{firing}.{source.index:06}"
    return f"{_lineage(str((source.depth, source.node, base, source.index)))}{dot}{firing}"


def _lineage(cause: str) -> str:
    return f"{zlib.crc32(cause.encode()):08x}"


def forget_tops(context: Context) -> None:
    """Drop the tops and windows of a `dag` that no live visit can come before any more."""
    draft = context.draft
    if not draft.tops:
        return
    lowest = min((_lowest_rank(visit) for visit in draft.frontier.values() if visit.is_branch), default=None)
    for key, top in list(draft.tops.items()):
        if lowest is None or lowest > top:
            del draft.tops[key]
            if context.graph.reducer_of(key) is not None:
                draft.windows[key] = None


# The ways on


def _go_on(context: Context, group: int, members: list[Member], labels: dict[int, list[str]], step: int) -> None:
    is_loki = context.graph.is_loki
    nodes = [member for member in members if member.role == "node"]
    end_nodes = {node for node in {member.rank[1] for member in nodes} if _is_end(context, node)}
    ends = [member.visit for member in nodes if member.rank[1] in end_nodes] if end_nodes else []
    if is_loki and len(ends) > 1:
        names = ", ".join(visit.node for visit in ends)
        raise RunFailed(
            f"super-step ended with multiple End targets ({names}). Fan-out branches must converge at a join node "
            "before terminating. Let them meet in one node, and end after it."
        )
    for visit in ends:
        if not _write_end(context, visit):
            _note_applied(context, [other for other in _bodies(nodes) if other is not visit])
            return
    over = is_loki and bool(ends)
    leads, wide = ({}, {}) if over else _leads(context, nodes, labels)
    _forget_idle_commands(context, nodes, leads, wide)
    fired = [] if over else _arrivals(context, nodes)
    _record_routes(context, nodes, leads, step)
    if context.times_steps:
        context.draft.disarm(f"{STEP_TIMER}{group}")
    context.draft.drop_step(group, members)
    if over:
        context.end("completed")
        return
    ways: list[Way] = []
    sources: list[Visit] = []
    for member in nodes:
        if here := leads.get(member.seq):
            ways += here
            sources += [member.visit] * len(here)
    _open_step(context, [*ways, *fired], sources, wide)


def _leads(
    context: Context, members: list[Member], labels: Mapping[int, list[str]]
) -> tuple[dict[int, list[Way]], dict[int, list[str]]]:
    """The ways on of each visit; and of those whose commands are too many to become visits at once, their targets by
    number: a target of theirs is one way. Visits of a node that have ended alike share a list of ways, and have chosen
    it once: there may be thousands."""
    leads: dict[int, list[Way]] = {}
    wide: dict[int, list[str]] = {}
    alike: dict[tuple[str, bool, str | tuple[str, ...] | None], list[Way]] = {}
    for rank, seq, _, ended, _, _, visit in members:
        node = rank[1]
        assert ended is not None
        if ended.sends is not None:
            targets = routing.command_targets(context, visit)
            if len(targets) - targets.count("") > WIDE:
                wide[seq] = targets
                first = {to: number for number, to in reversed([*enumerate(targets)]) if to}
                count = Counter(targets)
                leads[seq] = [
                    Way(to, number, commands=count[to]) for to, number in sorted(first.items(), key=itemgetter(1))
                ]
                continue
        elif seq not in labels:
            kind = (node, ended.ok, ended.next)
            if kind not in alike:
                alike[kind] = [] if _is_end(context, node) else routing.ways_on(context, visit, None)
            leads[seq] = alike[kind]
            continue
        if not _is_end(context, node):
            leads[seq] = routing.ways_on(context, visit, labels.get(seq))
    return leads, wide


OUTPUT = "\0output"
"""Whose top says which end node of a `dag` the run's output is from; no key of the state is named so."""


def _write_end(context: Context, visit: Visit) -> bool:
    """What an end node writes, and the run's output. False: reducers of the agent's own have to run first."""
    node = context.graph.nodes[visit.node]
    assert isinstance(node, EndNode)
    has_written = _ended(visit).step > 0
    own: Collection[str] = () if has_written else (node.state_updates or {})
    state = context.state(updates_read(node) | (keys_read(node.output) - set(own)), visit)
    writes: Mapping[str, Json] = {}
    if not has_written:
        try:
            writes = context.updates(node, state)
        except VisitFailed as failure:
            raise RunFailed(str(failure), node.id) from None
        step = _journal(context, visit, Outcome(values=writes), held=False)
        written = changed(visit, ended=Ended(step, keys=tuple(writes)))
        counts = _apply(context, [_member(written)], step, None)
        context.draft.put(written)
        if not counts:
            return False
    tops = context.draft.tops
    if OUTPUT not in tops or tops[OUTPUT] <= visit.rank:
        try:
            context.draft.output = render_lenient(node.output, {**state, **writes})
        except TemplateError as error:
            raise RunFailed(str(error), node.id) from None
        if context.graph.engine == "dag" and _lower_lives(context, visit):
            tops[OUTPUT] = visit.rank
    return True


def _forget_idle_commands(
    context: Context, members: list[Member], leads: Mapping[int, list[Way]], wide: Mapping[int, list[str]]
) -> None:
    """Commands that only end their branch are no visits, so nobody needs their values."""
    for _, seq, _, ended, *_ in members:
        if ended is not None and ended.sends:
            if (targets := wide.get(seq)) is not None:
                idle = [number for number, to in enumerate(targets) if not to]
            else:
                made = {way.command for way in leads.get(seq, ())}
                idle = [number for number in range(len(ended.sends)) if number not in made]
            for number in idle:
                context.draft.item(Drop(f"{seq}.{number}"))


def _arrivals(context: Context, members: list[Member]) -> list[Way]:
    """The joins that fire. A node that several visits of one list of commands run has arrived with the last of them."""
    if not context.graph.joins:
        return []
    bodies = _bodies(members)
    here = {visit.seq for visit in bodies}
    live = _commanded(context, {visit.batch for visit in bodies if visit.batch}, here)
    there = {
        visit.node: visit.depth for visit in bodies if visit.batch is None or (visit.node, visit.batch) not in live
    }
    context.draft.arrived, fired = joins.arrive(context.graph, context.draft.arrived, list(there.items()))
    return [Way(join.target, join=join.name, depth=join.depth) for join in fired]


def _commanded(context: Context, batches: Collection[int], here: Collection[int]) -> set[tuple[str, int]]:
    """The nodes, each with its list of commands, of which visits are live or to come, of these lists."""
    if not batches:
        return set()
    live: set[tuple[str, int]] = set()
    for visit in context.draft.frontier.values():
        if visit.spread is not None and visit.spread.of in batches:
            live |= {(node, visit.spread.of) for node in visit.spread.left}
        elif visit.batch in batches and visit.seq not in here:
            live.add((visit.node, visit.batch))
    return live


def _record_routes(context: Context, members: list[Member], leads: Mapping[int, list[Way]], step: int) -> None:
    """Journal what was decided: in the step of a visit that is journaled now, else in `step`. A source leads to its
    joins, whether they fire now or not."""
    alike: dict[tuple[str, int], tuple[str, ...]] = {}  # by node and list of ways, which visits share
    routes: dict[str, tuple[str, ...]] = {}
    routed: dict[tuple[str, tuple[str, ...]], None] = {}
    nothing: list[Way] = []
    for rank, seq, _, ended, *_ in members:
        node, ways = rank[1], leads.get(seq, nothing)
        targets = alike.get((node, id(ways)))
        if targets is None:
            targets = tuple(dict.fromkeys(way.target for way in ways))
            targets += tuple(join for join, _ in context.graph.joins.get(node, ()) if join not in targets)
            alike[node, id(ways)] = targets
        if not targets or ended is None:
            continue
        if ended.step > context.run.step:
            context.draft.amend(ended.step, next=targets[0] if len(targets) == 1 else targets)
        else:
            routes[str(seq)] = targets
            routed[node, targets] = None
    if routes:
        context.draft.amend(step, routes=routes)
        for node, targets in routed:
            context.draft.notice("routed", node=node, next=targets)


# The next step opens


def _open_step(context: Context, ways: list[Way], sources: list[Visit], wide: Mapping[int, list[str]]) -> None:
    """`sources` are those of the first ways; `wide` are the targets of commands that become visits later."""
    if not ways:
        return
    spreading = {source.seq: source for source in sources if source.seq in wide} if wide else {}
    if context.graph.engine == "dag":
        for visit in spreading.values():
            _spread(context, visit, wide[visit.seq], group=visit.group)
        by_command: set[str] = set()
        for position, way in enumerate(ways):
            source = sources[position] if position < len(sources) else None
            if source is not None and source.seq in wide:
                continue
            _open_alone(context, way, source, counts=way.command is None or way.target not in by_command)
            if way.command is not None:
                by_command.add(way.target)
        return
    draft = context.draft
    if _stops_before(context, draft.steps + 1):
        return
    group = draft.steps = draft.steps + 1
    if len(ways) == 1 and not wide:
        _open(context, ways[0], sources[0] if sources else None, group=group, depth=group)
        _check_entries(context, [ways[0].target])
        return
    places: dict[tuple[str, str | None, int], tuple[Way, Visit | None]] = {}
    for position, way in enumerate(ways):
        number = position if way.command is not None else -1  # edges to one node are one visit, commands one each
        if number < 0 and (way.target, way.join, -1) in places:
            continue
        places.setdefault((way.target, way.join, number), (way, sources[position] if position < len(sources) else None))
    opened: dict[str, int] = {}
    first: dict[int, dict[str, int]] = {}
    for _, (way, source) in sorted(places.items(), key=lambda place: (place[0][0], place[0][2], place[0][1] or "")):
        index = opened[way.target] = opened.get(way.target, -1) + 1
        if source is not None and source.seq in wide:
            first.setdefault(source.seq, {})[way.target] = index
            opened[way.target] += way.commands - 1
        else:
            _open(context, way, source, group=group, depth=group, index=index)
    for visit in spreading.values():
        _spread(context, visit, wide[visit.seq], group=group, index=first[visit.seq])
    _check_entries(context, list(opened))


WIDE = 128
"""A longer list of commands becomes visits as others end: so many of them wait for slots at once."""


def _spread(context: Context, visit: Visit, targets: list[str], **place: Any) -> None:
    """Let the visit stay, and its commands become visits as there are slots for them."""
    index = place.pop("index", {})
    left = {to: count for to, count in Counter(targets).items() if to}
    spread = Spread(visit.seq, tuple(targets), left=left, index=index)
    context.draft.put(_at_rest(visit, ended=None, spread=spread, overlay=None, batch=None, **place))


def open_commands(context: Context, visit: Visit, most: int) -> None:
    """Make visits of the next commands, of `most` or those that are left."""
    spread, draft = visit.spread, context.draft
    assert spread is not None
    number, left, index = spread.next, dict(spread.left), dict(spread.index)
    alone = context.graph.engine == "dag"
    counted = set(spread.targets[:number]) if alone else set()
    while left and most:
        target, way = spread.targets[number], Way(spread.targets[number], number)
        number += 1
        if not target:
            continue
        if alone:
            _open_alone(context, way, visit, counts=target not in counted)
            counted.add(target)
        else:
            _open(context, way, visit, group=visit.group, depth=visit.group, index=index[target])
            index[target] += 1
        most, left[target] = most - 1, left[target] - 1
        if not left[target]:
            del left[target]
    if left:
        draft.put(changed(visit, spread=changed(spread, next=number, left=left, index=index)))
    else:
        draft.drop(visit)


def _check_entries(context: Context, nodes: list[str]) -> None:
    """What Loki's executor checks before a super-step, in its order (spec 2.10). Raises RunFailed."""
    _check_limit(context, context.draft.steps)
    if context.deadline_passed():
        names = ", ".join(f'"{name}"' for name in nodes)
        where = f"at '{nodes[0]}'" if len(nodes) == 1 else f"before super-step with frontier [{names}]"
        raise RunFailed(context.timed_out(where))
    for node in nodes:
        _count(context, node)
    context.arm_step()


def _open_alone(context: Context, way: Way, source: Visit | None, *, counts: bool) -> None:
    """One visit of a `dag`. What is wrong with it waits until the visits that run have ended. Of a list of commands to
    one node, the first one `counts`."""
    draft = context.draft
    depth = way.depth if way.join else (source.depth if source else 0)
    lineage = _lineage(way.join or "") if way.join or source is None else _lineage_after(source)
    # Two firings of a join may have one depth; the second one comes later in the visit order, however fast either is.
    index = draft.count(f"\0{way.join}") - 1 if way.join else way.command or 0
    visit = _open(context, way, source, group=0, depth=depth + 1, lineage=lineage, index=index)
    visit = draft.put(changed(visit, group=visit.seq))
    try:
        if _stops_before(context, draft.steps + 1):
            draft.drop(visit)
            if visit.overlay is not None:
                draft.item(Drop(visit.overlay))
            return
        _check_limit(context, draft.steps + 1)
        draft.steps += 1
        if context.deadline_passed():
            raise RunFailed(context.timed_out(f"at '{way.target}'"))
        if counts:
            _count(context, way.target)
    except RunFailed as failure:
        refuse(context, visit, at_node(failure.node, str(failure)))


def refuse(context: Context, visit: Visit, error: str) -> None:
    """The visit cannot be made. The run fails for it once the visits that run have ended."""
    context.draft.put(_at_rest(visit, failed=True, error=error))


def _open(context: Context, way: Way, source: Visit | None, **place: Any) -> Visit:
    node = context.graph.nodes.get(way.target)
    if way.command is not None and source is not None:
        of = source.seq if source.spread is None else source.spread.of
        place |= {"overlay": f"{of}.{way.command}", "batch": of}
    return context.draft.open(way.target, node.kind if node else "unknown", **place)


def _count(context: Context, node: str) -> None:
    """Count an entry into a node. Raises RunFailed beyond its cap, and for a node that does not exist."""
    count, cap = context.draft.count(node), context.graph.settings.max_loop_iterations
    if count > cap:
        message = f"Node '{node}' visited {count} times (max_loop_iterations={cap}). Possible infinite loop."
        raise RunFailed(message, node)
    if node not in context.graph.nodes:
        raise RunFailed(f"Node '{node}' not found in graph '{context.graph.name}'")


def _stops_before(context: Context, number: int) -> bool:
    """Whether the run has used up its steps, and stops for that as its author wants."""
    limits = context.graph.limits
    if limits.max_steps is None or number <= limits.max_steps or limits.on_max_steps != "stop":
        return False
    context.draft.stopped_by("max_steps")
    context.draft.notice("max_steps", limit=limits.max_steps, what=_what_is_limited(context))
    return True


def steps_are_used_up(context: Context) -> bool:
    """Whether the run may have stopped before what was to come, as its author wants."""
    limits = context.graph.limits
    return limits.max_steps is not None and context.draft.steps >= limits.max_steps and limits.on_max_steps == "stop"


def _check_limit(context: Context, number: int) -> None:
    """Raises RunFailed when the run has used up its steps. The visits beyond are open then: `retry` goes on there."""
    limits = context.graph.limits
    if limits.max_steps is not None and number > limits.max_steps:
        raise RunFailed(
            f"Graph '{context.graph.name}' is not done after {limits.max_steps} {_what_is_limited(context)} "
            "(limits.max_steps). Raise the limit, or give the loop an exit."
        )


def _what_is_limited(context: Context) -> str:
    return "visits" if context.graph.engine == "dag" else "super-steps"


# Small parts


def _bodies(members: list[Member]) -> list[Visit]:
    return [member.visit for member in members]


def _member(visit: Visit) -> Member:
    return Member(visit.rank, visit.seq, visit.role, visit.ended, visit.overlay, False, visit)


def _is_end(context: Context, node: str) -> bool:
    return isinstance(context.graph.nodes[node], EndNode)


def _open_role(context: Context, visit: Visit, role: Any, overlay: dict[str, Any] | None = None) -> None:
    """Let a worker run a function of the agent's own for a visit that has ended."""
    place = {"group": visit.group, "depth": visit.depth, "lineage": visit.lineage, "index": visit.index}
    opened = context.draft.open(visit.node, role, role=role, batch=visit.seq, **place)
    if overlay is not None:
        context.draft.item(Put(opened.seq, (overlay,)))
        opened = context.draft.put(changed(opened, overlay=f"{opened.seq}.0"))
    context.draft.begin(opened, QUEUE_OF["function"])


def _at_rest(visit: Visit, **how: Any) -> Visit:
    return changed(visit, queue=None, wake_ms=None, ready=False, **how)


def _ended(visit: Visit) -> Ended:
    assert visit.ended is not None
    return visit.ended


def _note_applied(context: Context, bodies: list[Visit]) -> None:
    """What these visits wrote counts already, should the run be retried."""
    for visit in bodies:
        if (now := context.draft.visit(visit.seq)) is not None:
            context.draft.put(changed(now, ended=changed(_ended(now), applied=True)))


def _names(chosen: Ended | None) -> list[str]:
    if chosen is None or chosen.next is None:
        return []
    return [chosen.next] if isinstance(chosen.next, str) else list(chosen.next)
