"""get_state and get_state_history of a compiled graph: checkpoints as snapshots (spec/langgraph-api.md 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.commands import START
from sleipnir.memory.store import MemoryRun
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.interrupts import Interrupt
from sleipnir.python_graph.runtime import merged_config
from sleipnir.python_graph.snapshots import (
    CHECKPOINT,
    NAMESPACE,
    THREAD,
    PregelTask,
    StateSnapshot,
    StepVisit,
    config_of,
    in_order,
    snapshot_of,
)
from sleipnir.runs.visits import Branch, Ended
from sleipnir_inprocess.execution import CalledRun
from sleipnir_inprocess.questions import name_below, open_questions
from sleipnir_inprocess.run import Run, interrupt_of, is_breakpoint, point_of, refuse_dag
from sleipnir_inprocess.states import decoded_state, empty_state, ended_visits, state_of
from sleipnir_inprocess.threads import (
    BEFORE_INPUT,
    JournalState,
    Thread,
    ThreadPoint,
    ThreadRun,
    journal_states,
    points,
)

_PAGE: Final = 256
"""The most snapshots for which a journal is read at once."""


def get_state(graph: CompiledGraph, config: Mapping[str, Any] | None, *, subgraphs: bool = False) -> StateSnapshot:
    """The newest checkpoint of a thread, or the one that the configuration names. Raises ValueError."""
    named, thread_id = addressed(graph, config)
    thread = graph.threads.get(thread_id)
    if thread is None:
        return StateSnapshot({}, (), {"configurable": named}, None, None, None, (), ())
    if namespace := named.get(NAMESPACE):
        return _below(graph, thread, thread_id, str(namespace))
    name = named.get(CHECKPOINT)
    point = point_of(graph, thread, name) if name else points(thread.newest, graph.model.start)[-1]
    return _ThreadView(graph, thread_id, subgraphs=subgraphs).snapshot(point, is_newest=not name)


def new_snapshots(graph: CompiledGraph, run: Run, after: str | None) -> Iterator[tuple[str, StateSnapshot]]:
    """The checkpoints of a run that is executed, after the one with this id, each as it was when it was made. None: all
    of a run that begins, or the newest of one that goes on, with the questions that were answered."""
    found = points(run.kept, graph.model.start)
    if after is None:
        found = found[-1:] if run.goes_on else found
    else:
        found = found[next(number for number, point in enumerate(found, 1) if point.id == after) :]
    view = _ThreadView(graph, run.thread or run.run_id, with_answered=after is None)
    for point in found:
        yield point.id, view.snapshot(point._replace(after=None), is_newest=True)


def get_state_history(
    graph: CompiledGraph,
    config: Mapping[str, Any] | None,
    *,
    filter: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> Iterator[StateSnapshot]:
    """The checkpoints of a thread, newest first. `filter` are values of their metadata; those from that of the
    configuration `before` on are left out; at most `limit`. Raises ValueError."""
    named, thread_id = addressed(graph, config)
    thread, view = graph.threads.get(thread_id), _ThreadView(graph, thread_id)
    if thread is None:
        return
    start, only, left = graph.model.start, named.get(CHECKPOINT), limit
    before_id = (before or {}).get("configurable", {}).get(CHECKPOINT)
    if before_id is not None:
        point_of(graph, thread, before_id)  # raises for one that does not exist
    begins = before_id is None
    for run in reversed(thread.runs):
        wanted = []
        for point in reversed(points(run, start)):
            if begins and (not only or point.id == only) and _has(metadata_of(point), filter or {}):
                wanted.append(point)
            begins = begins or point.id == before_id
        if left is not None:
            wanted = wanted[: max(0, left)]
            left -= len(wanted)
        yield from view.snapshots(run, wanted)


def _has(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(name) == value for name, value in wanted.items())


def addressed(graph: CompiledGraph, config: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """The `configurable` of a call, and its thread. Raises ValueError."""
    if not graph.remembers:
        raise ValueError("No checkpointer set")
    refuse_dag(graph)
    named = merged_config(graph.config, config or {}).get("configurable") or {}
    if named.get(THREAD) in (None, ""):
        raise ValueError('the configuration names no thread: {"configurable": {"thread_id": "1"}}')
    return named, str(named[THREAD])


def metadata_of(point: ThreadPoint) -> dict[str, Any]:
    return {"source": point.source, "step": point.step, "parents": {}, **point.run.metadata}


@dataclass(frozen=True)
class _ThreadView:
    """Makes the snapshots of a thread of a graph; of a graph that a visit calls with its `namespace`, and
    the `name` that those of its questions begin with."""

    graph: CompiledGraph
    thread_id: str
    namespace: str = ""
    subgraphs: bool = False
    name: str = ""
    with_answered: bool = False
    """Whether questions that have got an answer count, until the visit goes on."""

    def snapshot(self, point: ThreadPoint, *, is_newest: bool) -> StateSnapshot:
        """With `is_newest` as the thread is now: the writes of ended visits count, and questions with an answer are
        over."""
        record = point.run.record
        if not is_newest or point.after is not None or record is None or point.at == BEFORE_INPUT:
            return next(self.snapshots(point.run, [point]))
        counts = bool(ended_visits(point.run))
        state = state_of(self.graph, record) if counts else decoded_state(self.graph, record.values.state)
        return self._snapshot(point, state, _live(point, record), is_newest=True)

    def snapshots(self, run: ThreadRun, wanted: list[ThreadPoint]) -> Iterator[StateSnapshot]:
        """Those of one run, in pages: a caller may need only the first of thousands."""
        keys, size = self.graph.parts.keys, 1
        while wanted:
            page, wanted, size = wanted[:size], wanted[size:], min(size * 2, _PAGE)
            found = journal_states(page)
            for point in page:
                if (past := found.pop(point.at, None)) is None:
                    state = decoded_state(self.graph, empty_state(self.graph) if run.before is None else run.before)
                    yield self._snapshot(point, state, _before_journal(point), is_newest=False)
                    continue
                values = {name: past.values[name] for name in keys if name in past.values}
                visits = _visits_after(point, past)
                yield self._snapshot(point, self.graph.objects.decoded(values), visits, is_newest=False)

    def _snapshot(
        self, point: ThreadPoint, values: dict[str, Any], visits: list[StepVisit], *, is_newest: bool
    ) -> StateSnapshot:
        visits = in_order(visits, self.graph.parts.nodes)
        return snapshot_of(
            values,
            [self._task(point, visit, is_newest=is_newest) for visit in visits],
            [is_newest and visit.written is not None and visit.seq not in point.run.errors for visit in visits],
            config_of(self.thread_id, point.id, self.namespace),
            metadata_of(point),
            point.at_ms,
            None if point.parent is None else config_of(self.thread_id, point.parent, self.namespace),
        )

    def _task(self, point: ThreadPoint, visit: StepVisit, *, is_newest: bool) -> PregelTask:
        run, seq = point.run, visit.seq
        called = None if seq is None or visit.written is not None else _called_by(run, seq)
        return PregelTask(
            visit.task_id(run.run_id, point.id),
            visit.node,
            visit.path,
            None if seq is None else run.errors.get(seq),
            self._asked(run, visit, is_newest=is_newest),
            None if called is None else self._state_below(point, visit, *called),
            visit.result(self.graph.parts.keys, self.graph.objects),
        )

    def _asked(self, run: ThreadRun, visit: StepVisit, *, is_newest: bool) -> tuple[Interrupt, ...]:
        """What a visit asks, or asked before it was left or (in the history) answered."""
        seq, record = visit.seq, run.record
        if seq is None or (is_newest and visit.written is not None):
            return ()
        if self.with_answered:
            return run.asked.get(seq, ())
        if record is not None and run.store is not None and seq in record.gates:
            asked = open_questions(run.store, run.run_id, name=self.name)
            own = (question for question in asked if question.visit == seq and not is_breakpoint(question.gate))
            return tuple(map(interrupt_of, own))
        return run.asked.get(seq, ())

    def _state_below(self, point: ThreadPoint, visit: StepVisit, call: int, called: CalledRun) -> Any:
        """The state of a graph that a visit calls, or the configuration that names it. Its questions have the ids by
        which the caller answers them."""
        namespace = f"{visit.node}:{visit.task_id(point.run.run_id, point.id)}"
        if not self.subgraphs:
            return {"configurable": {THREAD: self.thread_id, NAMESPACE: namespace}}
        name = name_below(self.name, point.run.run_id, visit.seq or 0, call)
        below = _ThreadView(called.graph, self.thread_id, namespace, self.subgraphs, name)
        return below.snapshot(points(called.run, called.graph.model.start)[-1], is_newest=True)


def _called_by(run: ThreadRun, seq: int) -> tuple[int, CalledRun] | None:
    """The run of a graph that a visit calls, and that has not ended, and the number of the call."""
    called = {} if run.store is None else run.store.called.get(run.run_id, {})
    waiting = [(call, each) for (by, call), each in called.items() if by == seq and each.run.store is not None]
    return waiting[-1] if waiting else None


def _before_journal(point: ThreadPoint) -> list[StepVisit]:
    """The visit of START, which writes the input."""
    return [StepVisit(START, written=None if point.after is None else point.run.input)]


def _visits_after(point: ThreadPoint, past: JournalState) -> list[StepVisit]:
    """The visits of the super-step that follows a checkpoint, with what they have written."""
    record = point.run.record
    if point.after is None and record is not None:
        return _live(point, record)
    plain, found = set(point.nodes), []
    for step, texts in past.ended:
        node = str(step.node)
        found.append(StepVisit(node, step.seq, texts, node not in plain))
        plain.discard(node)
    if point.after is None:
        found += [StepVisit(visit.node, visit.seq, is_sent=visit.is_sent) for visit in point.run.left]
    return found


def _live(point: ThreadPoint, record: MemoryRun) -> list[StepVisit]:
    """The visits of the open super-step, by number."""
    if record.view.status == "submitted":
        return [StepVisit(node) for node in point.nodes]
    found: list[StepVisit] = []
    for visit in sorted(record.view.frontier.values(), key=lambda visit: visit.seq):
        if isinstance(visit.place, Branch):
            step = visit.body.step if isinstance(visit.body, Ended) else 0
            written = record.values.journal[step][1] if step else None
            found.append(StepVisit(visit.node, visit.seq, written, visit.place.batch is not None))
    return found


def _below(graph: CompiledGraph, thread: Thread, thread_id: str, namespace: str) -> StateSnapshot:
    """The state of a graph that a visit calls, at any depth, by its namespace. Raises ValueError."""
    point = points(thread.newest, graph.model.start)[-1]
    snapshots = [_ThreadView(graph, thread_id, subgraphs=True).snapshot(point, is_newest=True)]
    while snapshots:
        below = [task.state for each in snapshots for task in each.tasks if task.state is not None]
        for snapshot in below:
            if isinstance(snapshot, StateSnapshot) and snapshot.config["configurable"][NAMESPACE] == namespace:
                return snapshot
        snapshots = below
    raise ValueError(f"no graph of the namespace {namespace!r} waits in this thread")
