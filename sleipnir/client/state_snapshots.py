"""get_state and get_state_history of runs and threads of a deployment: checkpoints as LangGraph's snapshots.

A checkpoint is named `<run>:<journal step>`. All of it is read from the journal, which never changes; where the run is
now, its live visits and its open questions belong to its last checkpoint.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.errors import RunNotFound, UsageError
from sleipnir.python_graph.interrupts import Interrupt
from sleipnir.python_graph.snapshots import (
    CHECKPOINT,
    NAMESPACE,
    THREAD,
    PregelTask,
    StateSnapshot,
    StepVisit,
    checkpoint_id,
    config_of,
    in_order,
    snapshot_of,
)
from sleipnir.runs.checkpoints import CheckpointReader, is_of_node
from sleipnir.runs.interrupts import INTERRUPT
from sleipnir.runs.run import Checkpoint, RunSpec
from sleipnir.runs.threads import ThreadName, checked
from sleipnir.runs.views import GateInfo, RunInfo

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph
    from sleipnir.python_graph.objects import GraphObjects
    from sleipnir.runs.transitions import Step
    from sleipnir.store.store import Store

_FIRST_PAGE, _PAGE = 8, 32
"""How many snapshots have their states held at once, at first and at most: the journal is folded for each page."""


class NamedCheckpoint(NamedTuple):
    """What names a checkpoint: a thread, for its newest one, or (`run` and `step`) a checkpoint of one of its runs."""

    thread: ThreadName
    run: str | None = None
    step: int | None = None


def place_of(agent: str, config: Mapping[str, Any] | str, namespace: str) -> NamedCheckpoint:
    """What a configuration, or the name of a thread, names in a namespace. Raises UsageError."""
    if isinstance(config, str):
        return NamedCheckpoint(ThreadName(agent, checked(config), namespace))
    named = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(named, Mapping) or named.get(THREAD) in (None, ""):
        raise UsageError('the configuration names no thread: {"configurable": {"thread_id": "ann"}}')
    if named.get(NAMESPACE):
        raise UsageError(f"{NAMESPACE} {named[NAMESPACE]!r:.60}: the run of a graph below is a run of its own")
    thread = ThreadName(agent, checked(str(named[THREAD])), namespace)
    return (
        NamedCheckpoint(thread)
        if named.get(CHECKPOINT) is None
        else NamedCheckpoint(thread, *checkpoint_named(named[CHECKPOINT]))
    )


def checkpoint_named(name: Any) -> tuple[str, int]:
    """The run and the step of a checkpoint_id. Raises UsageError."""
    run, _, step = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if not run or not step.isdecimal():
        raise UsageError(f"{name!r:.80} names no checkpoint: a {CHECKPOINT} is a run and one of its steps, RUN:STEP")
    return run, int(step)


@dataclass(frozen=True)
class _Point:
    """A checkpoint of a run, the nodes that come next, and the visits that ended between it and the next one. `after`
    None: it is the last one."""

    at: int
    number: int
    at_ms: int
    checkpoint: Checkpoint
    values: dict[str, Any]
    before: int | None
    after: int | None
    ended: dict[int, tuple[Step, dict[str, str]]] = field(default_factory=dict)
    """By the number of the visit."""

    def add(self, step: Step, texts: dict[str, str]) -> None:
        """A visit has ended after it. One that had failed was not the last of its node."""
        for seq, (earlier, _) in list(self.ended.items()):
            if earlier.node == step.node and not earlier.ok:
                del self.ended[seq]
        self.ended[step.seq or 0] = (step, texts)


class RunSnapshots:
    """The snapshots of one run. With `objects` values are those that its nodes see, else they are in their stored
    form. Raises UsageError for a run of the engine `dag`, RunNotFound."""

    def __init__(self, store: Store, run_id: str, objects: GraphObjects | None = None) -> None:
        self._store, self._runs, self._run, self._objects = store, store.runs, run_id, objects
        self._spec = store.runs.spec(run_id)
        self._graph: Graph = pinned_graph(store, self._spec)
        if self._graph.engine != "bsp":
            raise UsageError(
                f"run {run_id!r} is of the engine {self._graph.engine!r}, where nothing comes next as a whole: "
                "`state_at` reads its states"
            )

    @property
    def spec(self) -> RunSpec:
        return self._spec

    def one(self, at: int | None = None) -> StateSnapshot:
        """The snapshot after a step (None: of the last checkpoint). Raises UsageError for a step that is none."""
        info = self._runs.info(self._run)
        steps = self._checkpoints(info.step)
        if at is None:
            at = steps[-1]
        elif at not in steps:
            raise UsageError(
                f"step {at:,} of run {self._run!r} is no checkpoint; `sleipnir history {self._run}` marks them"
            )
        index = steps.index(at)
        return next(self._made(steps, index, index + 1, info))

    def newest_first(self, until: int | None = None) -> Iterator[StateSnapshot]:
        """All of them, those before the step `until`. The journal is read once for each page."""
        info = self._runs.info(self._run)
        steps = self._checkpoints(info.step)
        last = len(steps) if until is None else sum(step < until for step in steps)
        size = _FIRST_PAGE
        while last > 0:
            first = max(0, last - size)
            yield from reversed(list(self._made(steps, first, last, info)))
            last, size = first, min(size * 2, _PAGE)

    def _checkpoints(self, last: int) -> array[int]:
        """The checkpoints up to a step."""
        entries = takewhile(lambda entry: entry[0].step <= last, self._runs.entries(self._run))
        return array("q", (step.step for step, _ in entries if step.is_checkpoint))

    def _made(self, steps: array[int], first: int, last: int, info: RunInfo) -> Iterator[StateSnapshot]:
        """The snapshots of some checkpoints, by their numbers in the run, which was read before."""
        for point in list(self._points(steps, first, last, info.step)):
            visits = [StepVisit(str(step.node), step.seq, texts) for step, texts in point.ended.values()]
            if point.after is not None:
                yield self._snapshot(point, visits)
                continue
            gates = [] if info.is_final else self._runs.gates_below(self._run)
            yield self._snapshot(point, [*visits, *_pending(point, info, visits)], info, gates)

    def _points(self, steps: array[int], first: int, last: int, end: int) -> Iterator[_Point]:
        start = Checkpoint(0, (self._graph.start,))
        reader = CheckpointReader(start if self._spec.fork is None else replace(self._spec.fork.checkpoint, step=0))
        wanted = set(steps[first:last])
        until = steps[last] if last < len(steps) else end
        fold, point, before, number = self._runs.fold_of_past(self._run, self._spec), None, None, -1
        for step, texts in self._runs.written(self._run, until + 1):
            fold.add(step, texts)
            if point is not None and is_of_node(step):
                point.add(step, texts)
            if not (reader.add(step) or step.step == 0):
                continue
            number += 1
            if point is not None:
                yield replace(point, after=step.step)
                point = None
            if step.step in wanted:
                point = _Point(step.step, number, step.at_ms, reader.last, fold.state(), before, None)
            before = step.step
        if point is not None:
            yield point

    def _snapshot(
        self, point: _Point, visits: list[StepVisit], info: RunInfo | None = None, gates: Sequence[GateInfo] = ()
    ) -> StateSnapshot:
        failed = {seq: step.error for seq, (step, _) in point.ended.items() if not step.ok}
        if info is not None:
            failed |= {visit.seq: visit.error for visit in info.kept if visit.again}
        name, visits = checkpoint_id(self._run, point.at), in_order(visits, self._graph.nodes)
        tasks = [
            PregelTask(
                visit.task_id(self._run, name),
                visit.node,
                visit.path,
                failed.get(visit.seq or 0),
                tuple(_interrupt(gate) for gate in gates if self._asks(visit, gate)),
                None,
                visit.result(self._keys(visit), self._objects),
            )
            for visit in visits
        ]
        ended = [visit.written is not None and info is not None and visit.seq not in failed for visit in visits]
        values = point.values if self._objects is None else self._decoded(self._objects, point.values)
        return snapshot_of(
            values, tasks, ended, config_of(self._spec.thread, name), self._metadata(point), point.at_ms,
            self._parent(point),
        )  # fmt: skip

    def _asks(self, visit: StepVisit, gate: GateInfo) -> bool:
        """Whether a question is that of a visit, or of a run that it waits for."""
        if gate.run == self._run:
            return gate.seq == visit.seq
        return bool(gate.path) and gate.path[0].partition("[")[0] == visit.node and visit.written is None

    def _keys(self, visit: StepVisit) -> Mapping[str, Any]:
        return (visit.written or {}) if self._objects is None else self._objects.keys

    def _decoded(self, objects: GraphObjects, values: dict[str, Any]) -> dict[str, Any]:
        return objects.decoded({name: values[name] for name in objects.keys if name in values})

    def _metadata(self, point: _Point) -> dict[str, Any]:
        """`step` counts the super-steps that have closed; a fork counts on from its source."""
        fork = self._spec.fork
        source = "loop" if point.at else "input" if fork is None else "fork"
        if fork is not None and fork.update is not None and point.number == 1:
            source = "update"
        return {"source": source, "step": point.checkpoint.steps, "parents": {}, "run_id": self._run}

    def _parent(self, point: _Point) -> dict[str, Any] | None:
        if point.before is not None:
            return config_of(self._spec.thread, checkpoint_id(self._run, point.before))
        if (fork := self._spec.fork) is not None:
            return config_of(self._spec.thread, checkpoint_id(fork.run, fork.checkpoint.step))
        if (previous := self._spec.previous) is None:
            return None
        try:
            last = self._runs.checkpoint(previous, self._runs.last_step(previous))
        except RunNotFound:
            return None
        return config_of(self._spec.thread, checkpoint_id(previous, last))


def _pending(point: _Point, info: RunInfo, ended: list[StepVisit]) -> list[StepVisit]:
    """The visits of the open super-step that have not ended; of a run that was cancelled those that it left."""
    if info.status == "completed":
        return []
    done = {visit.seq for visit in ended}  # a failed visit is among them
    live = [
        StepVisit(visit.node, visit.seq)
        for visit in info.visits
        if visit.role == "node" and visit.part is None and visit.item is None and visit.seq not in done
    ]
    kept = [
        StepVisit(visit.node, visit.seq)
        for visit in info.kept
        if visit.again and visit.role == "node" and visit.item is None and visit.seq not in done
    ]
    if found := [*live, *kept]:
        return found
    nodes = {visit.node for visit in ended}
    return [StepVisit(node) for node in dict.fromkeys(point.checkpoint.nodes) if node not in nodes]


def _interrupt(gate: GateInfo) -> Interrupt:
    """A question, with the name that `answer` and `answer_all` know it by."""
    if gate.kind == INTERRUPT:
        return Interrupt(gate.payload, gate.address, response_schema=gate.schema)
    shown = {"node": gate.node, "question": gate.question, "options": list(gate.options), "default": gate.default}
    return Interrupt(shown, gate.address)


@dataclass(frozen=True)
class ThreadSnapshots:
    """The snapshots of a thread: of all its runs that are still stored, also of lines that were left."""

    store: Store
    objects: GraphObjects | None = None

    def one(self, place: NamedCheckpoint) -> StateSnapshot:
        """The newest one, or the one that the place names; an empty one of a thread that does not exist."""
        run = self.run_of(place)
        if run is None:
            config = {"configurable": {THREAD: place.thread.name}}
            return StateSnapshot({}, (), config, None, None, None, (), ())
        return RunSnapshots(self.store, run, self.objects).one(place.step)

    def newest_first(self, place: NamedCheckpoint, before: NamedCheckpoint | None = None) -> Iterator[StateSnapshot]:
        """All of them; those before the checkpoint `before`, or only the one that the place names."""
        if place.step is not None:
            yield self.one(place)
            return
        run = self.run_of(place) if before is None else self.run_of(before)
        until = None if before is None else before.step
        while run is not None:
            try:
                snapshots = RunSnapshots(self.store, run, self.objects)
            except RunNotFound:
                return  # it has expired
            yield from snapshots.newest_first(until)
            run, until = snapshots.spec.previous, None

    def run_of(self, place: NamedCheckpoint) -> str | None:
        """The run of a place. None: there is no such thread. Raises UsageError and RunNotFound for a checkpoint."""
        thread = place.thread
        if place.run is None:
            info = self.store.threads.info(thread)
            return None if info is None else info.run
        spec = self.store.runs.spec(place.run)
        if ThreadName.of(spec) != thread:
            raise UsageError(f"run {place.run!r} is no run of the thread '{thread.agent}/{thread.name}'")
        return place.run


def chosen(
    snapshots: Iterator[StateSnapshot], filter: Mapping[str, Any] | None, limit: int | None
) -> Iterator[StateSnapshot]:
    """Those whose metadata has the values of `filter`, at most `limit`."""
    wanted = (filter or {}).items()
    fitting = (each for each in snapshots if all((each.metadata or {}).get(name) == value for name, value in wanted))
    return islice(fitting, limit if limit is None else max(0, limit))
