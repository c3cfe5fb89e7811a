"""Forks: runs that go on from a checkpoint of another run, their source, which stays as it is.

The past is referred to, not repeated: the journal of a fork begins with a step that names the run and the step that it
goes on from, and the nodes of the next super-step open as they would have in the source. A fork is a run of its own:
its visits, gates and child runs are new, and its cost begins at zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sleipnir.client.options import ForkChanges
from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.client.updates import WantedUpdate
from sleipnir.errors import UsageError
from sleipnir.graph.agent_names import folder_of
from sleipnir.graph.model import FunctionNode, Graph, ScriptNode
from sleipnir.graph.plain import first_not_json
from sleipnir.graph.state import StateError, initial, problem, to_json
from sleipnir.messages import VERSION
from sleipnir.runs.checkpoints import CheckpointReader, JournalReader, is_visit
from sleipnir.runs.dag_checkpoints import DagReader
from sleipnir.runs.run import IN_THE_MIDDLE, OF_FORK, Checkpoint, Fork, RunSpec
from sleipnir.runs.threads import NO_THREADS, ThreadName, checked
from sleipnir.runs.visits import WIDE
from sleipnir.store.runs.creation import TurnRefused

if TYPE_CHECKING:
    from sleipnir.client.preparation import Preparation
    from sleipnir.runs.transitions import Step
    from sleipnir.store.runs import Runs
    from sleipnir.store.runs.journal import PastInfo
    from sleipnir.store.store import Store
    from sleipnir.store.threads import NextTurn

TRIES = 5
"""How often a fork of a run that goes on meanwhile is tried."""

LEAST_MS = 3_600_000
"""A fork refers to the state of its source, if that stays readable for at least this time."""

MOST_STEPS, MOST_BYTES = 10_000, 64 * 2**20
"""The journals from which a scheduler may have to compute the state that a fork refers to, while other runs wait."""


@dataclass(frozen=True)
class ForkPoint:
    """A checkpoint to fork from, with the updates of the commands that it leads to (Step.overlays). `last` is the last
    step of the source; `is_present`: no step after the checkpoint has written anything, so that its state is the
    current one. `writers` are the nodes whose super-step it closed."""

    checkpoint: Checkpoint
    overlays: Mapping[str, str]
    last: int
    is_present: bool
    writers: tuple[str, ...] = ()


@dataclass(frozen=True)
class WantedFork:
    """A fork of the run `source` after its step `at`, before the last visit of the node `before`, or, without both, at
    the last checkpoint that leads anywhere. `values` of the state are in their stored form; `agent` and `model` are as
    in run.Fork. With an `update` it begins with that, and the last checkpoint may lead nowhere."""

    source: str
    at: int | None = None
    before: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    agent: str | None = None
    model: str | None = None
    update: WantedUpdate | None = None


def fork(
    store: Store,
    preparation: Preparation,
    source: str,
    *,
    at: int | None,
    before: str | None,
    changes: ForkChanges,
    thread: str | None = None,
    rewinds: bool = False,
) -> str:
    """Submit a fork of the run `source`, as the next turn of the `thread` of its agent (None: in none); its id.
    `rewinds`: the source is cancelled with that, if it is not over. Raises as Run.fork and Run.rewind."""
    if at is not None and before is not None:
        raise UsageError("a fork begins at a step or before a node, not both")
    with store.errors():
        spec = store.runs.spec(source)
    if rewinds and at is None and before is None:
        raise UsageError("name the step after which the run goes on again (at), or the node (before)")
    if rewinds and spec.parent is not None:
        raise UsageError(f"run {source!r} was started by run {spec.parent!r}, which waits for it: rewind that one")
    again, graph, roster = preparation.fork(spec, changes)
    again = again.of_author(store.person.name)
    refuse_kind(f"run {source!r}", spec)
    name = None if thread is None else _thread_of(again, graph, thread)
    agent = None if changes.agent is None else str(changes.agent)
    values = stored_values(graph, changes.state)
    wanted = WantedFork(source, at, before, values, agent, changes.model, changes.update)
    graph_of = partial(pinned_graph, store)
    with store.errors():
        if roster is not None:
            preparation.offer(roster)
        if name is None:
            run_id = preparation.fork_id(source)
            submit(store.runs, wanted, spec, again, graph, run_id, graph_of=graph_of, rewinds=rewinds)
            return run_id
        run_id, turn = preparation.fork_id(str(name)), store.threads.next_turn(name)
        again = _as_turn(again, graph, name.name, turn)
        try:
            submit(store.runs, wanted, spec, again, graph, run_id, graph_of=graph_of, rewinds=rewinds)
        except TurnRefused as refused:
            raise store.threads.refusal(name, refused.code, refused.run) from None
    return run_id


def _thread_of(again: RunSpec, graph: Graph, thread: str) -> ThreadName:
    """The thread of a fork with this spec. Raises UsageError."""
    if graph.loop is not None:
        raise UsageError(NO_THREADS.format(agent=again.agent))
    if again.agent != folder_of(again.agent):
        raise UsageError(f"a run of {again.agent!r}, a graph within an agent, is in no thread: leave out --thread")
    return ThreadName(again.agent, checked(thread), again.namespace)


def _as_turn(again: RunSpec, graph: Graph, thread: str, turn: NextTurn) -> RunSpec:
    """The same as a turn of a thread; the nodes of a graph that is written in Python see its name."""
    if graph.state_classes:
        configurable = {**again.config.get("configurable", {}), "thread_id": thread}
        again = replace(again, config={**again.config, "configurable": configurable})
    return again.in_thread(thread, turn.number, turn.previous)


def submit(
    runs: Runs,
    wanted: WantedFork,
    spec: RunSpec,
    again: RunSpec,
    graph: Graph,
    run_id: str,
    *,
    graph_of: Callable[[RunSpec], Graph],
    place: str = "",
    rewinds: bool = False,
) -> None:
    """Submit the fork `run_id`, with the spec `again` and its `graph`, of a run with this `spec`, if it does not exist.
    `graph_of` reads the graph of the source, where it is another one. `place` is the row of a batch that it is. Raises
    TurnRefused, UsageError if the fork is refused otherwise, and what reading raises."""
    for _ in range(TRIES):
        info = runs.past_info(wanted.source, spec)
        # a turn has its state at once, because the next one begins with it, even if it is cancelled before it begins
        due_ms = None if again.thread is not None else _due_ms(info)
        point = _point(runs, wanted, spec, graph, graph_of)
        made = Fork(wanted.source, point.checkpoint, tuple(wanted.values), wanted.agent, wanted.model)
        if wanted.update is None:
            _refuse_open(wanted.source, point, graph, is_other=wanted.agent is not None)
        elif point.checkpoint.visits or graph.engine != "bsp":
            raise UsageError(f"run {wanted.source!r} is of the engine 'dag': the state of its forks cannot be updated")
        else:
            made = wanted.update.begin(made, graph, point.writers or _earlier_writers(runs, spec))
        is_present = point.is_present and not info.is_past
        is_copied = not (is_present or due_ms)
        past = _past(runs, wanted, graph, point.checkpoint.step, is_whole=is_copied)
        if runs.fork(
            run_id,
            replace(again, fork=made, v=max(again.v, _version(made, graph))),
            overlays=point.overlays if made.checkpoint.lists else None,
            last_step=point.last if is_present else None,
            state=past if is_copied else {},
            changes=wanted.values if wanted.agent is None else _begun(graph, past, wanted.values),
            cancels_source=rewinds,
            place=place,
            due_ms=due_ms,
        ):
            return
    raise UsageError(
        f"run {wanted.source!r} goes on while it is forked; pause it, or name a step that has passed (--at)"
    )


def _earlier_writers(runs: Runs, spec: RunSpec) -> tuple[str, ...]:
    """The nodes that wrote last before a run with this spec; none if it is no fork."""
    fork = spec.fork
    if fork is None:
        return ()
    above = runs.spec(fork.run)
    return last_writers(runs.entries(fork.run), fork.checkpoint.step) or _earlier_writers(runs, above)


def last_writers(entries: Iterable[tuple[Step, bool]], at: int) -> tuple[str, ...]:
    """The nodes that the super-step closed by the step `at` had visited."""
    wrote: dict[str, None] = {}
    for step, _ in entries:
        if is_visit(step):
            wrote[str(step.node)] = None
        if step.step >= at:
            break
        if step.is_checkpoint:
            wrote = {}
    return tuple(wrote)


def _version(made: Fork, graph: Graph) -> int:
    """The version of the spec of a fork."""
    if made.checkpoint.lists or made.checkpoint.visits:
        return IN_THE_MIDDLE
    return VERSION if made.model is None and made.update is None and graph.concurrency is None else OF_FORK


def _due_ms(info: PastInfo) -> int | None:
    """When a fork has to take the state that it refers to: long before it is lost. None: at once."""
    if info.left_ms < LEAST_MS or info.steps > MOST_STEPS or info.bytes_ > MOST_BYTES:
        return None
    return info.now_ms + info.left_ms // 2


def refuse_kind(source: str, spec: RunSpec) -> None:
    """Raises UsageError for runs that cannot be forked at all. `source` names them: `run 'x'`."""
    if spec.session is not None:
        raise UsageError(f"{source} is in the session {spec.session!r}; runs in sessions cannot be forked")


def stored_values(graph: Graph, state: Mapping[str, Any]) -> dict[str, Any]:
    """The given values in their stored form. Raises UsageError with all that do not fit."""
    declared = graph.state
    values = {key: to_json(declared[key], value) if key in declared else value for key, value in state.items()}
    wrong = [f"state key {key!r} {why}" for key in values if (why := first_not_json({key: values[key]}))]
    wrong += [f"state key {key!r} is written by the runtime" for key in values if key == "_next"]
    if not wrong:
        wrong = [
            f"state key {key!r} {why}"
            for key, value in values.items()
            if key in declared and (why := problem(declared[key], value))
        ]
    if wrong:
        raise UsageError("a fork cannot begin with these values:" + "".join(f"\n  - {why}" for why in wrong))
    return values


def _past(runs: Runs, wanted: WantedFork, graph: Graph, step: int, *, is_whole: bool) -> dict[str, Any]:
    """What is to be known of the state that a fork begins with: all of it, or what another definition checks."""
    if is_whole:
        return runs.fold(wanted.source, step)
    if wanted.agent is None:
        return {}
    return runs.past_values(wanted.source, step, {*graph.state, "initial_prompt"})


def _begun(graph: Graph, past: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, and the first values of keys that the past of another definition lacks. Raises UsageError if the
    state does not fit the definition."""
    try:
        begin = initial(graph, {**past, **values})
    except StateError as error:
        listed = "".join(f"\n  - {why}" for why in error.problems)
        raise UsageError(
            f"agent {graph.name!r} cannot go on with the state of the past (--set replaces values):{listed}"
        ) from None
    return {**values, **{key: value for key, value in begin.items() if key not in past and key not in values}}


def _point(
    runs: Runs, wanted: WantedFork, spec: RunSpec, graph: Graph, graph_of: Callable[[RunSpec], Graph]
) -> ForkPoint:
    """The checkpoint that is meant: at a step, the last one before a node, or the last one that leads on."""
    source, at = wanted.source, wanted.at
    first = Checkpoint(0, (graph.start,)) if spec.fork is None else replace(spec.fork.checkpoint, step=0)
    reader: CheckpointReader | DagReader = CheckpointReader(first)
    requests: list[Step] = []
    last, written = 0, 0
    ended, writers = dict[str, None](), tuple[str, ...]()
    for step, wrote in runs.entries(source):
        last = step.step
        if wrote:
            written = last
        if isinstance(reader, CheckpointReader) and step.rank is not None:  # the first visit of a `dag`
            reader = _of_dag(graph if wanted.agent is None else graph_of(spec), first, requests, keeps=reader.has_kept)
        elif step.seq is None:
            requests.append(step)
        if is_visit(step):
            ended[str(step.node)] = None
        if reader.add(step) or not last:
            if _is_meant(reader, wanted):
                reader.keep()
                writers = tuple(ended)
            ended = {}
        if at is not None and reader.has_kept and written > at and isinstance(reader, CheckpointReader):
            break  # its state is folded, whatever follows
    if (point := reader.kept) is None:
        raise UsageError(_nowhere(runs, wanted, last, reader))
    _refuse_journal(wanted, reader, point.checkpoint.step, ended)
    return ForkPoint(point.checkpoint, point.overlays, last, written <= point.checkpoint.step, writers)


def _refuse_journal(wanted: WantedFork, reader: JournalReader, step: int, ended: Iterable[str]) -> None:
    """Refuse what a journal does not tell. Raises UsageError."""
    if isinstance(reader, DagReader) and reader.is_strange:
        raise UsageError(
            f"run {wanted.source!r} cannot be forked: an earlier release has executed some of it, and has not kept "
            "which of its visits were unfinished at its steps"
        )
    if wanted.update is not None and wanted.at is None and ended:
        names = ", ".join(map(repr, ended))
        raise UsageError(
            f"run {wanted.source!r} has a super-step that is open: {names} ended, others have not. An update would "
            f"lose what these wrote: let them end, or name the step to go on from (at={step})"
        )


def _of_dag(graph: Graph, first: Checkpoint, requests: Sequence[Step], *, keeps: bool) -> DagReader:
    """A reader of the journal of a `dag` that begins with these requests, which has kept its step 0 or nothing."""
    reader = DagReader(graph, first)
    for step in requests:
        reader.add(step)
        if keeps and step.step == 0:
            reader.keep()
    return reader


def _is_meant(reader: JournalReader, wanted: WantedFork) -> bool:
    """Whether the last checkpoint of the reader is meant."""
    if not reader.is_whole:
        return False
    if wanted.at is not None:
        return reader.step == wanted.at
    if wanted.update is not None:
        return True
    return reader.leads_to(wanted.before) if wanted.before is not None else reader.leads_on


def _nowhere(runs: Runs, wanted: WantedFork, last: int, reader: JournalReader) -> str:
    source, at, before = wanted.source, wanted.at, wanted.before
    if at is not None and not 0 <= at <= last:
        return f"run {source!r} has no step {at:,}; it has the steps 0 to {last:,}: `sleipnir history {source}`"
    if at is not None and isinstance(reader, DagReader) and any(step.step == at for step in _checkpoints(runs, source)):
        return (
            f"run {source!r} cannot be forked at step {at}: the ways on of a visit that has ended were still to be "
            "chosen there. Name another checkpoint"
        )
    if at is not None:
        near = runs.checkpoint(source, at)
        return (
            f"step {at} of run {source!r} is no checkpoint: a super-step was open there. The last one before it is "
            f"{near}; `sleipnir history {source}` marks all"
        )
    if before is not None:
        return (
            f"no checkpoint of run {source!r} leads to node {before!r}, or only commands do; "
            f"`sleipnir history {source}` shows its path"
        )
    return f"run {source!r} leads nowhere after its step {reader.step}: it has ended there. Name an earlier step (--at)"


def _checkpoints(runs: Runs, source: str) -> Iterable[Step]:
    return (step for step, _ in runs.entries(source) if step.is_checkpoint)


def _refuse_open(source: str, kept: ForkPoint, graph: Graph, *, is_other: bool) -> None:
    """Refuse what a fork cannot take over. Raises UsageError that names it."""
    point = kept.checkpoint
    where = f"run {source!r} cannot be forked at step {point.step}"
    if not point.nodes and not point.commands:
        raise UsageError(
            f"{where}: it ended there, and nothing follows. Name an earlier step, or a node to begin before"
        )
    if point.commands and not (point.lists and all(str(each.seq) in kept.overlays for each in point.lists)):
        raise UsageError(
            f"{where}: it leads to {point.commands:,} visits with values of their own (commands), which an earlier "
            "release has not kept. Name another checkpoint"
        )
    if len(set(point.nodes)) < len(point.nodes) and not (point.visits and graph.engine == "dag"):
        raise UsageError(f"{where}: a join and an edge open the same node twice. Name another checkpoint")
    missing = [node for node in point.opens if node not in graph.nodes]
    if missing:
        names = ", ".join(map(repr, missing))
        raise UsageError(
            f"{where}: the graph {graph.name!r} lacks the node to go on at: {names}. It has: {', '.join(graph.nodes)}"
        )
    if is_other and (point.arrived or point.deferred):
        what = "a join waits for some of its sources" if point.arrived else "deferred nodes wait"
        raise UsageError(f"{where} with another definition: {what}. Name another checkpoint, or leave out the agent")
    if doubtful := next((node for node in _many_begun(point) if _happens_once(graph, node)), None):
        raise UsageError(
            f"{where}: more than {WIDE} visits of node {doubtful!r} were unfinished, whose effect must happen once, "
            "and some may have done it. Name another checkpoint"
        )


def _many_begun(point: Checkpoint) -> set[str]:
    """The nodes of commands that are too many to ask about each, of which some may have begun."""
    many = (each for each in point.lists if each.begun and sum(map(bool, each.nodes)) > WIDE)
    return {node for each in many for node, _ in each.targets if node}


def _happens_once(graph: Graph, node: str) -> bool:
    found = graph.nodes[node]
    return isinstance(found, ScriptNode | FunctionNode) and found.effect == "once"
