"""A visit ends, its step closes, the next one opens. Read this to follow a join, a collision or a way on.

    ended ─► journaled, held ─► all of its step have ended ─► writes count ─► ways on are chosen ─► next step opens
                                        │                         │
                                        └ reducers of the         └ `branch.call` of the agent, costly
                                          agent: a visit with       conditions: a visit with the role
                                          the role `reduce`         `branch`

A step is a super-step (bsp.py), or one visit alone (dag.py, and most steps of a graph that never branches). A step with
a visit that failed never closes: see settle.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal

from sleipnir.graph.model import EndNode, Json
from sleipnir.graph.template import TemplateError, keys_read, render_lenient, updates_read
from sleipnir.messages import QUEUE_OF
from sleipnir.runs import arrivals
from sleipnir.runs.checkpoints import several
from sleipnir.runs.dag_checkpoints import plain_ways
from sleipnir.runs.run import Fork, changed
from sleipnir.runs.transitions import Closing, DropValue, PutValues, SetValue, SplitCommands
from sleipnir.runs.visits import (
    BRANCH,
    WIDE,
    AgentFunction,
    Branch,
    Child,
    ChildWait,
    Commands,
    Ended,
    Failed,
    Failure,
    Fan,
    Ready,
    Visit,
    Work,
)
from sleipnir_scheduler.planner import breakpoints, failing, recovering
from sleipnir_scheduler.planner.context import (
    OUTPUT_OF_RUN,
    STEP_TIMER,
    Context,
    NextVisit,
    RunFailed,
    VisitFailed,
    VisitOutcome,
    at_node,
)
from sleipnir_scheduler.planner.draft.visits import Member, member
from sleipnir_scheduler.planner.engines import routing
from sleipnir_scheduler.planner.folding import FoldError, FoldResult, Writer

_NOTHING: Final[Mapping[str, Any]] = {}


def ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """A branch has ended."""
    outcome = recovering.recovered(context, visit, outcome) or outcome
    if outcome.ok or outcome.sends is not None or outcome.next is not None:
        if context.engine.goes_straight_on(context, visit, outcome):
            breakpoints.stop(context, (visit.node,))
            return
        error = routing.dead_end(context, visit, outcome)
    else:
        outcome, error = failing.failed(context, visit, outcome)
    visits = context.draft.visits
    held = visits.has_mates(visit) or (error is not None and _folds(context, outcome.written) is not None)
    step = journal(context, visit, outcome, held=held)
    if outcome.sends:
        context.draft.record.item(SplitCommands(visit.seq))
        context.draft.record.keep_commands(step)
    if error is not None:
        if not held:
            _apply(context, [_ended_member(visit, Ended(step, keys=outcome.written))], step, None)
        visits.move(visit, _failed_body(context, visit, at_node(visit.node, error), outcome))
        return
    visits.move(visit, Ended(step, outcome.ok, False, outcome.written, outcome.next, outcome.sends))
    if visits.has_ended_step(visit.group):
        close(context, visit.group, step)


def agent_function_ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """A function of the agent has chosen a route, or folded values."""
    visits = context.draft.visits
    step = context.draft.record.write(
        visit,
        delta=bool(outcome.keys),
        keys=outcome.written,
        notes=outcome.notes,
        ok=outcome.ok,
        error=outcome.error,
        held=False,
        **outcome.how,
        **context.engine.journal_fields(context, visit, None),
    )
    if not outcome.ok:
        error = at_node(visit.node, outcome.error or "failed")
        visits.move(visit, failed_body(visit, error, outcome))
        return
    visits.move(visit, Ended(step, keys=outcome.keys, next=outcome.next))
    if visits.has_ended_step(visit.group):
        close(context, visit.group, step)


def end_reached(context: Context, visit: Visit) -> None:
    """A visit of an end node: it sees the writes of its step, and is journaled when the step closes."""
    context.draft.visits.move(visit, Ended(0))
    if context.draft.visits.has_ended_step(visit.group):
        close(context, visit.group, context.draft.record.last_step)


def refuse(context: Context, visit: Visit, error: str) -> None:
    """The visit cannot be made. The run fails when its running visits have ended."""
    context.draft.visits.move(visit, failed_body(visit, error))


def _failed_body(context: Context, visit: Visit, error: str, outcome: VisitOutcome) -> Failed:
    """The same as failed_body, with what the graph collects of failures."""
    body = failed_body(visit, error, outcome)
    assert body.failure is not None
    return changed(body, failure=recovering.with_place(context, visit, body.failure, outcome))


def failed_body(visit: Visit, error: str, outcome: VisitOutcome | None = None) -> Failed:
    """The body that is kept of a failed visit. Its node has reported the failure, so no work is in doubt."""
    failure = _cause(visit, outcome)
    match visit.body:
        case Fan() as fan:
            return Failed(error, fan, failure=failure)
        case ChildWait(child) | Work(child=Child() as child):
            return Failed(error, child, failure=failure)
        case Ready(Fan() | Child() as earlier):
            return Failed(error, earlier, failure=failure)
    return Failed(error, failure=failure)


def _cause(visit: Visit, outcome: VisitOutcome | None) -> Failure:
    """What a run fails for because of this visit: of one that waited for a run, what that one failed for."""
    if outcome is not None and outcome.failure is not None:
        return changed(outcome.failure, seq=visit.seq)
    return Failure("visit", visit.seq, None if outcome is None else outcome.error_type)


def close(context: Context, group: int, step: int) -> None:
    """All visits of a step have ended. `step` is a journal step of this event that records which writes count now.
    While the run is held, writes count, but anything that could end the run waits (`go_on_after_hold`)."""
    members = context.draft.visits.ranked(group)
    branches = [member for member in members if member.role == "node"]
    is_held = context.draft.clock.is_held
    if pending := [member for member in branches if member.ended is None or not member.ended.applied]:
        reduced = [member for member in members if member.role == "reduce"]
        try:
            if not _apply(context, pending, step, max(reduced, key=lambda entry: entry.seq, default=None)):
                return
        except RunFailed:
            if is_held:
                return  # it fails again when the run goes on
            raise
    if is_held and (context.defers or any(member.visit.kind == "end" for member in branches)):
        _note_applied(context, branches)
        return
    agent_functions = ((entry.visit.place, entry.ended) for entry in members if entry.role == "branch")
    labels = {place.visit: chosen for place, chosen in agent_functions if isinstance(place, AgentFunction)}
    if not labels and (calls := routing.needing_calls(context, branches)):
        _note_applied(context, branches)
        for visit in calls:
            _open_agent_function(context, visit, "branch")
        return
    try:
        _go_on(context, group, members, {seq: _names(chosen) for seq, chosen in labels.items()}, step)
    except RunFailed:
        _note_applied(context, branches)
        raise


def go_on_after_hold(context: Context) -> None:
    """The last hold has ended: close the steps whose visits ended meanwhile. The last journal step is of this event."""
    if context.draft.clock.is_held:
        return
    groups: dict[int, list[Visit]] = {}
    for visit in context.draft.visits.all():
        if visit.is_branch:
            groups.setdefault(visit.group, []).append(visit)
    for group, visits in sorted(groups.items()):
        if not context.draft.is_over and all(visit.state == "ended" for visit in visits):
            close(context, group, context.draft.record.last_step)


def enter(context: Context, node: str) -> None:
    """Open the first visit of the run at a node, also when a failed run of an older release is retried."""
    context.engine.open_step(context, [NextVisit(node)], [], {})
    breakpoints.stop(context, ())


def go_on_at(context: Context, fork: Fork) -> None:
    """Open the first visits of a fork. That of an update stops after its one. The store has the values of commands
    under the numbers that the visits had which gave these, so the visits of the fork get greater ones."""
    point, visits = fork.checkpoint, context.draft.visits
    if not point.opens:  # an update has ended what came next
        context.end("completed")
        return
    ways: list[NextVisit] = []
    sources: list[Visit] = []
    wide: dict[int, list[str]] = {}
    for each in point.lists:
        depth, node, lineage, index = each.rank
        place = Branch(each.seq) if each.sent else BRANCH
        source = Visit(each.seq, node, "", 1, context.now_ms, place, Ended(0), 0, depth, lineage, index)
        visits.last_seq = max(visits.last_seq, each.seq)
        own_ways = [NextVisit(to, number) for number, to in enumerate(each.nodes) if to]
        if len(each.nodes) - each.nodes.count("") > WIDE:
            wide[each.seq] = each.nodes
            own_ways = _ways_of_many_commands(each.nodes)
        ways += own_ways
        sources += [source] * len(own_ways)
    context.engine.go_on_at(context, point, ways, sources, wide)
    if fork.update is None:
        breakpoints.stop(context, ())


def journal(context: Context, visit: Visit, outcome: VisitOutcome, *, held: bool) -> int:
    """Write the step of a visit that has ended; its number."""
    folds = _folds(context, outcome.written)
    return context.draft.record.write(
        visit,
        delta=bool(outcome.keys),
        collect=outcome.collect,
        values=outcome.values,
        keys=outcome.written,
        notes=outcome.notes,
        code=None if outcome.ok else recovering.code_of(outcome),
        ok=outcome.ok,
        error=outcome.error,
        held=held,
        folds=folds,
        **outcome.how,
        **context.engine.journal_fields(context, visit, folds),
    )


def _folds(context: Context, keys: Sequence[str]) -> dict[str, str] | None:
    """The reducers of those keys that have one."""
    return {key: reducer for key in keys if (reducer := context.graph.reducer_of(key)) is not None} or None


# The writes begin to count


def _apply(context: Context, members: list[Member], step: int, reduced: Member | None) -> bool:
    """Let the writes of these visits count. False: reducers of the agent's own have to run first."""
    if context.graph.is_state_graph and len(members) > 1:
        members = sorted(members, key=_place_among_sends)
    writers = [
        Writer(rank[1], rank, ended.step, ended.keys)
        for rank, _, _, ended, *_ in members
        if ended is not None and ended.keys
    ]
    if not writers:
        return True
    first, record = members[0].visit, context.draft.record
    try:
        folded = context.engine.fold(context, first, writers)
    except FoldError as error:
        _hold(context, writers)
        raise RunFailed(str(error), kind="writes") from None
    own = record.written(writers[-1].step)
    if folded.open and reduced is None:
        _hold(context, writers)
        if not any(visit.role == "reduce" and visit.state != "ended" for visit in context.draft.visits.all()):
            _open_agent_function(context, first, "reduce", folded.open)
        return False
    context.engine.keep_windows(context, folded)
    plain = len(writers) == 1 and own is not None and not own.step.held and not folded.apart
    if not plain or record.copies is not None:
        _let_count(context, writers, folded, step)
    for writer in writers:
        skipped = folded.skips.get(writer.step, ())
        if keys := [key for key in writer.keys if key not in folded.apart and key not in skipped]:
            context.values.set_in(writer.step, keys)
    for key, value in folded.values.items():
        context.values.set(key, value)
    for key in record.apart & context.values.latest.keys():  # it was apart for some steps of this event, not for all
        record.folded[key] = context.values.current(key)
    if reduced is not None and reduced.ended is not None:
        context.values.set_in(reduced.ended.step, reduced.ended.keys)
    return True


def _place_among_sends(entry: Member) -> tuple[int, int]:
    """Before all commands; or among these: by their source, then by their place in its list."""
    visit = entry.visit
    if not isinstance(visit.place, Branch) or visit.place.batch is None or visit.overlay is None:
        return (0, 0)
    return (visit.place.batch, int(visit.overlay.rpartition(".")[2]))


def _hold(context: Context, writers: list[Writer]) -> None:
    """Hold the writes of this event's steps: they do not count by themselves."""
    for writer in writers:
        if context.draft.record.written(writer.step):
            context.draft.record.amend(writer.step, held=True)


def _let_count(context: Context, writers: list[Writer], folded: FoldResult, step: int) -> None:
    """Let held writes count. What an event writes after that counts in this way too: the store copies the writes of
    held steps after it has stored those of all others."""
    record = context.draft.record
    _hold(context, writers)
    closing = record.written(step)
    applied, skipped = (closing.step.applies, closing.step.skips or {}) if closing else ((), {})
    skips = {**skipped, **{str(held): tuple(keys) for held, keys in folded.skips.items()}}
    record.amend(step, applies=(*applied, *(writer.step for writer in writers)), skips=skips or None)
    record.copies = _last_writers(writers, folded.apart, record.copies)
    record.apart |= folded.apart
    record.folded |= folded.values


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


# The ways on


def _go_on(context: Context, group: int, members: list[Member], labels: dict[int, list[str]], step: int) -> None:
    is_loki, draft = context.graph.is_loki, context.draft
    before = draft.arrived, draft.deferred
    branches = [member for member in members if member.role == "node"]
    end_nodes = {node for node in {member.rank[1] for member in branches} if _is_end(context, node)}
    ends = [member for member in branches if member.rank[1] in end_nodes] if end_nodes else []
    if is_loki and len(ends) > 1:
        names = ", ".join(branch.visit.node for branch in ends)
        raise RunFailed(
            f"super-step ended with multiple End targets ({names}). Fan-out branches must converge at a join node "
            "before terminating. Let them meet in one node, and end after it."
        )
    for end in ends:
        if end.ended is not None and not _write_end(context, end.visit, end.ended):
            _note_applied(context, [other for other in branches if other is not end])
            return
    over = is_loki and bool(ends)
    leads, wide = ({}, {}) if over else _leads(context, branches, labels)
    _forget_idle_commands(context, branches, leads, wide)
    fired = [] if over else _arrivals(context, branches)
    _record_routes(context, branches, leads, step)
    if context.times_steps:
        draft.clock.disarm(f"{STEP_TIMER}{group}")
    draft.record.drops += draft.visits.drop_step(group, members)
    last = draft.record.last_step
    if over:
        _record_closing(context, last, before)
        context.end("completed")
        return
    ways: list[NextVisit] = []
    sources: list[Visit] = []
    for branch in branches:
        if own_ways := leads.get(branch.seq):
            ways += own_ways
            sources += [branch.visit] * len(own_ways)
    newest = draft.visits.last_seq
    context.engine.open_step(context, [*ways, *fired], sources, wide)
    if context.graph.engine == "dag":
        _record_ways(context, step, branches, leads)
    else:
        _record_closing(context, last, before, _lists(context, branches))
    breakpoints.stop(context, (branch.visit.node for branch in branches), newest, wide)


def _leads(
    context: Context, members: list[Member], labels: Mapping[int, list[str]]
) -> tuple[dict[int, list[NextVisit]], dict[int, list[str]]]:
    """The ways on of each visit; and of those whose commands are too many to become visits at once, their targets by
    number: a target of theirs is one way. Visits of a node that have ended alike share a list of ways, and have chosen
    it once: there may be thousands."""
    leads: dict[int, list[NextVisit]] = {}
    wide: dict[int, list[str]] = {}
    alike: dict[tuple[str, bool, str | tuple[str, ...] | None], list[NextVisit]] = {}
    for rank, seq, _, ended, _, _, visit in members:
        node = rank[1]
        if ended is None:
            continue
        if ended.sends is not None:
            targets = routing.command_targets(context, visit, ended)
            if len(targets) - targets.count("") > WIDE:
                wide[seq] = targets
                leads[seq] = [*routing.chosen_nodes(context, visit, ended), *_ways_of_many_commands(targets)]
                continue
        elif seq not in labels:
            kind = (node, ended.ok, ended.next)
            if kind not in alike:
                alike[kind] = [] if _is_end(context, node) else routing.ways_on(context, visit, ended, None)
            leads[seq] = alike[kind]
            continue
        if not _is_end(context, node):
            leads[seq] = routing.ways_on(context, visit, ended, labels.get(seq))
    return leads, wide


def _ways_of_many_commands(targets: Sequence[str]) -> list[NextVisit]:
    """One way for each target."""
    first = {to: number for number, to in reversed([*enumerate(targets)]) if to}
    count = Counter(targets)
    return [NextVisit(to, number, commands=count[to]) for to, number in sorted(first.items(), key=itemgetter(1))]


def _write_end(context: Context, visit: Visit, ended: Ended) -> bool:
    """Write the values of an end node, and the run's output. False: reducers of the agent's own have to run first."""
    node = context.graph.nodes[visit.node]
    if not isinstance(node, EndNode):
        raise TypeError(f"node '{visit.node}' is no end node")
    has_written = ended.step > 0
    own: Collection[str] = () if has_written else (node.state_updates or {})
    state = context.values.state(updates_read(node) | (keys_read(node.output) - set(own)), visit)
    writes: Mapping[str, Json] = {}
    if not has_written:
        try:
            writes = context.updates(node, state)
        except VisitFailed as failure:
            raise RunFailed(str(failure), node.id) from None
        step = journal(context, visit, VisitOutcome(values=writes), held=False)
        written = Ended(step, keys=tuple(writes))
        counts = _apply(context, [_ended_member(visit, written)], step, None)
        context.draft.visits.move(visit, written)
        if not counts:
            return False
    if context.engine.owns_output(context, visit):
        try:
            context.draft.output = render_lenient(node.output, {**state, **writes})
        except TemplateError as error:
            raise RunFailed(str(error), node.id) from None
        if context.graph.calls_around_run("after"):
            context.draft.record.item(SetValue(OUTPUT_OF_RUN, context.draft.output))
    return True


def _forget_idle_commands(
    context: Context, members: list[Member], leads: Mapping[int, list[NextVisit]], wide: Mapping[int, list[str]]
) -> None:
    """Commands that only end their branch are no visits, so their values are not needed."""
    for _, seq, _, ended, *_ in members:
        if ended is not None and ended.sends:
            if (targets := wide.get(seq)) is not None:
                idle = [number for number, to in enumerate(targets) if not to]
            else:
                made = {way.command for way in leads.get(seq, ())}
                idle = [number for number in range(len(ended.sends)) if number not in made]
            for number in idle:
                context.draft.record.item(DropValue(f"{seq}.{number}"))


def _arrivals(context: Context, members: list[Member]) -> list[NextVisit]:
    """The joins that fire. A node that several visits of one list of commands run has arrived with the last of them."""
    if not context.graph.joins:
        return []
    batches = {each.seq: each.visit.place.batch for each in members if isinstance(each.visit.place, Branch)}
    live = _commanded(context, {batch for batch in batches.values() if batch}, batches)
    sources = {
        each.visit.node: each.visit.depth
        for each in members
        if (batch := batches[each.seq]) is None or (each.visit.node, batch) not in live
    }
    context.draft.arrived, fired = arrivals.arrive(context.graph, context.draft.arrived, list(sources.items()))
    return [NextVisit(join.target, join=join.name, depth=join.depth) for join in fired]


def _commanded(context: Context, batches: Collection[int], ended: Collection[int]) -> set[tuple[str, int]]:
    """The nodes, each with its list of commands, of which visits are live or to come, of these lists."""
    if not batches:
        return set()
    live: set[tuple[str, int]] = set()
    for visit in context.draft.visits.frontier.values():
        if isinstance(visit.body, Commands) and visit.body.of in batches:
            live |= {(node, visit.body.of) for node in visit.body.left}
        elif isinstance(visit.place, Branch) and (batch := visit.place.batch) in batches and visit.seq not in ended:
            live.add((visit.node, batch or 0))
    return live


def _record_routes(context: Context, members: list[Member], leads: Mapping[int, list[NextVisit]], step: int) -> None:
    """Journal what was decided: in the step of a visit that is journaled now, else in `step`. A source leads to its
    joins, whether they fire now or not."""
    is_dag = context.graph.engine == "dag"
    alike: dict[tuple[str, int], tuple[str, ...]] = {}  # by node and list of ways, which visits share
    routes: dict[str, tuple[str, ...]] = {}
    routed: dict[tuple[str, tuple[str, ...]], None] = {}
    nothing: list[NextVisit] = []
    for rank, seq, _, ended, *_ in members:
        node, ways = rank[1], leads.get(seq, nothing)
        targets = alike.get((node, id(ways)))
        if targets is None:
            targets = tuple(dict.fromkeys(way.target for way in ways))
            targets += tuple(join for join, _ in context.graph.joins.get(node, ()) if join not in targets)
            alike[node, id(ways)] = targets
        if ended is None or not (targets or (is_dag and ended.step)):
            continue
        if (is_written := ended.step > context.run.step) and targets:
            leads_to = targets[0] if len(targets) == 1 else targets
            context.draft.record.amend(ended.step, next=leads_to, unrouted=False)
        if not is_written or (is_dag and ended.step != step):
            routes[str(seq)] = targets  # of a `dag` also that there are none: it was unrouted until now
            if targets and not is_written:
                routed[node, targets] = None
    if routes:
        write = context.draft.record.written(step)
        before = write.step.routes if write is not None else None  # of another visit of a `dag`, routed by this event
        context.draft.record.amend(step, routes={**(before or {}), **routes})
        for node, targets in routed:
            context.draft.record.notice("routed", node=node, next=targets)


def _record_closing(
    context: Context,
    step: int,
    before: tuple[Mapping[str, Any], Mapping[str, Any]],
    lists: Mapping[str, tuple[tuple[str, int], ...]] = _NOTHING,
) -> None:
    """Journal that the super-step closes with the journal step `step`, the last one of its visits, and how the run goes
    on. The target of a step of a chain says so already."""
    draft = context.draft
    if (write := draft.record.written(step)) is None:
        return
    arrived = None if draft.arrived == before[0] else draft.arrived
    deferred = None if draft.deferred == before[1] else draft.deferred
    is_plain = write.step.is_checkpoint and not lists and arrived is None and deferred is None
    if is_plain and not (context.graph.joins or context.graph.deferred):
        return  # its targets are the nodes, of which there may be thousands
    opened = [visit for visit in draft.visits.all() if not isinstance(visit.body, Commands)]
    nodes = sorted(each.node for each in opened if isinstance(each.place, Branch) and each.place.batch is None)
    if not is_plain or nodes != sorted(several(write.step.next)):
        commands = sum(count for targets in lists.values() for node, count in targets if node)
        draft.record.amend(step, closing=Closing(tuple(nodes), arrived, deferred, commands, lists))


def _lists(context: Context, branches: Sequence[Member]) -> dict[str, tuple[tuple[str, int], ...]]:
    """The lists of commands that open visits, as in transitions.Closing."""
    lists: dict[str, tuple[tuple[str, int], ...]] = {}
    for branch in branches:
        if branch.ended is not None and branch.ended.sends:
            targets = routing.command_targets(context, branch.visit, branch.ended)
            if any(targets):
                lists[str(branch.seq)] = tuple((node, len([*same])) for node, same in groupby(targets))
    return lists


def _record_ways(
    context: Context, step: int, branches: Sequence[Member], leads: Mapping[int, Sequence[NextVisit]]
) -> None:
    """Journal how a `dag` goes on after visits have ended, as far as their targets do not say it."""
    record, lists = context.draft.record, _lists(context, branches)
    ways: dict[str, tuple[str, ...]] = {}
    for branch in branches:
        if (ended := branch.ended) is None or not ended.step:
            continue
        own = record.written(ended.step)
        targets = several(own.step.next) if own is not None else _routed(context, step, branch.seq)
        nodes = [way.target for way in leads.get(branch.seq, ()) if way.command is None]
        told = plain_ways(context.graph, branch.rank[1], targets)
        may_be_dead_end = not targets and (not ended.ok or ended.sends is not None)
        if may_be_dead_end or str(branch.seq) in lists or sorted(nodes) != sorted(told):
            ways[str(branch.seq)] = tuple(nodes)
    if not (lists or ways):
        return
    before = (written := record.written(step)) and written.step.closing
    if before:
        lists, ways = {**before.lists, **lists}, {**before.ways, **ways}
    commands = sum(count for targets in lists.values() for node, count in targets if node)
    record.amend(step, closing=Closing(commands=commands, lists=lists, ways=ways))


def _routed(context: Context, step: int, seq: int) -> tuple[str, ...]:
    """The targets of a visit that has ended at an earlier step than it is routed, as journaled with `step`."""
    write = context.draft.record.written(step)
    return ((write.step.routes or {}) if write else {}).get(str(seq), ())


# Small parts


def _ended_member(visit: Visit, ended: Ended) -> Member:
    return member(changed(visit, body=ended))


def _is_end(context: Context, node: str) -> bool:
    return isinstance(context.graph.nodes[node], EndNode)


def _open_agent_function(
    context: Context, visit: Visit, role: Literal["branch", "reduce"], overlay: dict[str, Any] | None = None
) -> None:
    """Let a worker run a function of the agent for an ended visit."""
    visits = context.draft.visits
    own_overlay = None
    if overlay is not None:
        seq = visits.last_seq + 1
        context.draft.record.item(PutValues(seq, (overlay,)))
        own_overlay = f"{seq}.0"
    opened = visits.open(
        visit.node,
        role,
        place=AgentFunction(role, visit.seq),
        group=visit.group,
        depth=visit.depth,
        lineage=visit.lineage,
        index=visit.index,
        overlay=own_overlay,
    )
    visits.begin(opened, Work(QUEUE_OF["function"]))


def _note_applied(context: Context, members: Sequence[Member]) -> None:
    """Note, for a retry, that the writes of these visits count already; the journal of a `dag` tells that their ways on
    are still to be chosen."""
    record = context.draft.record
    for entry in members:
        now = context.draft.visits.get(entry.seq)
        if now is not None and isinstance(now.body, Ended):
            context.draft.visits.move(now, changed(now.body, applied=True))
            if context.graph.engine == "dag" and record.written(now.body.step) is not None:
                record.amend(now.body.step, unrouted=True)


def _names(chosen: Ended | None) -> list[str]:
    if chosen is None or chosen.next is None:
        return []
    return [chosen.next] if isinstance(chosen.next, str) else list(chosen.next)
