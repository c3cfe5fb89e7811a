"""The execution trace of a run: what its visits did, what opened each of them, and the runs that they started.

A trace has one step per visit: attempts share it, and so do the turns and calls of a loop, which it lists as tools.
Items of a map are steps below the step of the map, a child run is below the step of the visit that started it. What
has not ended is a step without an end, and its run is incomplete.

It is read from journals, page by page. What nodes wrote is bounded (MOST_VALUE, MOST_KEYS); `state --at` has all of it.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from sleipnir.errors import RunNotFound
from sleipnir.graph.template import state_read_by
from sleipnir.messages import Usage
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.checkpoints import several
from sleipnir.runs.predecessors import PredecessorReader, id_of

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph
    from sleipnir.runs.transitions import Step
    from sleipnir.runs.views import ChildInfo, RunInfo, VisitInfo

MOST_VALUE: Final = 2_000
"""The characters of the JSON text of a value that a trace has."""
MOST_KEYS: Final = 50
MOST_PREDECESSORS: Final = 100
MOST_TOOLS: Final = 200
MOST_PAST: Final = 10_000
"""The steps of the sources of a fork that are read for what has opened its first visits."""
MOST_STEPS: Final = 10_000
"""The steps of a trace, unless another limit is given."""
MOST_DEPTH: Final = 16
MOST_ITEMS: Final = 30_000
"""The items of maps whose last step is kept for that of their next body."""

TraceStatus: TypeAlias = Literal["completed", "failed", "cancelled", "incomplete"]
Texts: TypeAlias = Mapping[str, str]


SKILLS: Final = "skill__"
"""What the names of the tools of skills begin with (graph.tools.SKILL_TOOLS)."""


@dataclass(frozen=True)
class ToolUse:
    """A call of a tool that a model made in its turn `turn`, counted from 1."""

    name: str
    turn: int
    ok: bool
    took_ms: int
    error: str | None = None


@dataclass(frozen=True)
class TraceStep:
    """One visit. `id` is `RUN/VISIT`, `path` its node after the nodes that lead to its run, `type` the type of its
    node. `status` is completed, failed, or, of a live visit, its state (views.VisitInfo). `predecessors` are the steps
    that opened it, the first MOST_PREDECESSORS of `predecessor_count`; `parent` is the step of the map whose item
    number `item` it is, else the one that started its run.

    `attempts` is how often it was executed; `took_ms` the time of the last of them, of a loop that of all its turns.
    `reads` are the state keys that its node reads (None: all, or not known), `written` those that it wrote and `output`
    their values, of which too long ones are `{"cut": the beginning of their JSON text, "chars": its length}`. `next`
    are the nodes that it led to, `runs` the runs that it started. `answer` is what a person answered, `by` who did or
    gave the output. `cached`: nothing was executed, its result was in the cache.
    """

    id: str
    run: str
    parent_run: str | None
    agent: str
    node: str
    path: str
    type: str
    status: str
    opened_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    took_ms: int = 0
    attempts: int = 1
    predecessors: tuple[str, ...] = ()
    predecessor_count: int = 0
    parent: str | None = None
    item: int | None = None
    reads: tuple[str, ...] | None = None
    written: tuple[str, ...] = ()
    output: Mapping[str, Any] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    usage: Usage | None = None
    turns: int = 0
    tools: tuple[ToolUse, ...] = ()
    tool_count: int = 0
    runs: tuple[str, ...] = ()
    error: str | None = None
    worker: str = ""
    answer: str | None = None
    by: str = ""
    journal_step: int | None = None
    cached: bool = False

    @property
    def seq(self) -> int:
        """The number of its visit."""
        return int(self.id.rpartition("/")[2])

    @property
    def is_live(self) -> bool:
        return self.ended_ms is None


@dataclass(frozen=True)
class TracedRun:
    """A run of a trace. `parent` is the step that started it, `path` the nodes that lead to it. A fork goes on after
    the journal step `forked_at` of the run `forked_from`, whose trace has what is before. `usage` includes that of
    ended runs below. `status` is `expired` of a run that is gone."""

    run: str
    agent: str
    status: TraceStatus | Literal["expired"]
    parent: str | None = None
    path: tuple[str, ...] = ()
    started_ms: int | None = None
    ended_ms: int | None = None
    usage: Usage = field(default_factory=Usage)
    error: str | None = None
    forked_from: str | None = None
    forked_at: int | None = None
    journal_steps: int = 0


@dataclass(frozen=True)
class Trace:
    """A run with all below it: `runs`, the one at the top first, and the `steps` of each, in the order in which they
    ended, before those of the runs that they started. `input` is the state at the beginning. `is_cut`: the run has more
    steps, or more runs below, than were asked for."""

    run: str
    agent: str
    status: TraceStatus
    started_ms: int | None
    ended_ms: int | None
    thread: str | None
    input: Mapping[str, Any]
    output: str | None
    error: str | None
    usage: Usage
    runs: tuple[TracedRun, ...]
    steps: tuple[TraceStep, ...]
    is_cut: bool = False

    def to_json(self) -> dict[str, Any]:
        """As data for JSON."""
        return {**asdict(self), "runs": [asdict(run) for run in self.runs], "steps": [asdict(s) for s in self.steps]}

    def step(self, id_: str) -> TraceStep:
        """The step with this id. Raises LookupError."""
        for step in self.steps:
            if step.id == id_:
                return step
        raise LookupError(f"the trace of run {self.run!r} has no step {id_!r}")


class TraceSource(Protocol):
    """Where runs are read: the store, or the memory of this process. `graph` is None for a definition that is gone;
    `entries` ends before the journal step `until`."""

    def info(self, run_id: str) -> RunInfo: ...

    def children(self, run_id: str) -> list[ChildInfo]: ...

    def path(self, run_id: str) -> Sequence[str]: ...

    def output(self, run_id: str) -> str | None: ...

    def graph(self, run_id: str) -> Graph | None: ...

    def entries(self, run_id: str, until: int | None = None) -> Iterator[tuple[Step, Texts]]: ...


def status_of(info: RunInfo) -> TraceStatus:
    """The status of a trace: of a run that is not over, `incomplete`."""
    return info.status if info.status in ("completed", "failed", "cancelled") else "incomplete"


def traced(info: RunInfo, path: Sequence[str], parent: str | None = None) -> TracedRun:
    """A run of a trace."""
    return TracedRun(
        info.id,
        info.agent,
        status_of(info),
        parent,
        tuple(path),
        info.started_ms,
        info.ended_ms,
        info.usage,
        info.error,
        info.forked_from,
        info.forked_at,
        info.step,
    )


def trace_of(source: TraceSource, run_id: str, *, depth: int = MOST_DEPTH, limit: int = MOST_STEPS) -> Trace:
    """The trace of a run with `depth` levels of runs below it, and at most `limit` steps in all. Raises RunNotFound."""
    top = source.info(run_id)
    runs, steps, is_cut = [traced(top, source.path(run_id))], list[TraceStep](), False
    level = list(runs)
    for deep in range(depth + 1):
        below: list[TracedRun] = []
        for run in level:
            if run.status == "expired":
                continue
            for step in RunTraceReader(source, run).steps():
                if len(steps) >= limit:
                    is_cut = True
                    break
                steps.append(step)
                if deep < depth and len(runs) + len(below) < limit:
                    below += [started(source, id_, step) for id_ in step.runs]
                elif step.runs:
                    is_cut = True
        level = below
        runs += below
    return Trace(
        run_id,
        top.agent,
        status_of(top),
        top.started_ms,
        top.ended_ms,
        top.thread,
        _input_of(source, run_id),
        source.output(run_id),
        top.error,
        top.usage,
        tuple(runs),
        tuple(steps),
        is_cut,
    )


def started(source: TraceSource, run_id: str, step: TraceStep) -> TracedRun:
    """The run that a step started."""
    try:
        return traced(source.info(run_id), source.path(run_id), step.id)
    except RunNotFound:
        return TracedRun(run_id, "?", "expired", step.id, (step.path,))


def _input_of(source: TraceSource, run_id: str) -> dict[str, Any]:
    for _, written in source.entries(run_id, 1):
        return _values(written)
    return {}


@dataclass
class _Loop:
    """The turns and calls of an llm node's loop so far."""

    usage: Usage | None = None
    turns: int = 0
    took_ms: int = 0
    tools: list[ToolUse] = field(default_factory=list)
    count: int = 0
    started_ms: int = 0
    runs: list[str] = field(default_factory=list)

    def add(self, step: Step, runs: Iterable[str]) -> None:
        part, self.took_ms = step.part, self.took_ms + step.took_ms
        self.usage = _sum(self.usage, _usage(step))
        self.started_ms = self.started_ms or step.started_ms
        self.runs += runs
        if part is not None and part.call is not None and step.role == "tool":
            self._use(ToolUse(part.tool, part.turn + 1, step.ok, step.took_ms, step.error))
        elif part is not None and step.role == "turn":
            self.turns += 1
            for name in step.calls:
                if name.startswith(SKILLS):  # of these, the turn gives the result itself
                    self._use(ToolUse(name, part.turn + 1, True, 0))

    def _use(self, tool: ToolUse) -> None:
        self.count += 1
        if len(self.tools) < MOST_TOOLS:
            self.tools.append(tool)


class RunTraceReader:
    """Makes the steps of one run of a trace, lazily."""

    def __init__(self, source: TraceSource, run: TracedRun) -> None:
        self._source, self._run = source, run
        self._info = source.info(run.run)
        self._graph = source.graph(run.run)
        self._predecessors = PredecessorReader()
        self._loops: dict[int, _Loop] = defaultdict(_Loop)
        self._items: OrderedDict[tuple[int, int], str] = OrderedDict()
        """The last step of each item: that of the next body follows it."""
        self._children: dict[int, list[str]] = defaultdict(list)
        for child in source.children(run.run):
            self._children[child.seq].append(child.id)
        self._reads: dict[str, tuple[str, ...] | None] = {}

    def steps(self) -> Iterator[TraceStep]:
        """The ended visits in the order of the journal, then the live ones."""
        self._read_past()
        live = () if self._info.is_final else self._info.visits
        for entry, written in self._source.entries(self._run.run, self._run.journal_steps + 1):
            if (step := self._step(entry, written)) is not None:
                yield step
        for visit in live:
            if visit.part is None and visit.role == "node" and visit.kind != BUDGET and visit.state != "ended":
                yield self._live(visit)

    def _read_past(self) -> None:
        """Follow what a fork goes on from."""
        pasts: list[tuple[str, int]] = []
        run, until = self._run.forked_from, self._run.forked_at
        while run is not None and until is not None and sum(at for _, at in pasts) + until <= MOST_PAST:
            pasts.append((run, until))
            past = next((step.past for step, _ in self._source.entries(run, 1)), None)
            run, until = past if past is not None else (None, None)
        for run, until in reversed(pasts):
            for step, _ in self._source.entries(run, until + 1):
                self._predecessors.add(run, step)

    def _step(self, entry: Step, written: Texts) -> TraceStep | None:
        """The trace step that ends with a journal step, if one does."""
        opened_by = self._predecessors.add(self._run.run, entry)
        if entry.seq is None or entry.node is None or entry.kind == BUDGET:
            return None
        if entry.part is not None:
            self._loops[entry.part.loop].add(entry, self._children.pop(entry.seq, ()))
            return None
        if entry.role != "node":
            return None
        loop = self._loops.pop(entry.seq, None) or _Loop()
        parent, item = self._run.parent, None
        if entry.item is not None:
            parent, item = id_of(self._run.run, entry.item[0]), entry.item[1]
            before = self._items.pop(entry.item, None)
            opened_by = (parent,) if before is None else (before,)
            self._items[entry.item] = id_of(self._run.run, entry.seq)
            if len(self._items) > MOST_ITEMS:
                self._items.popitem(last=False)
        started_ms = loop.started_ms or entry.started_ms or None
        return TraceStep(
            **self._place(entry.seq, entry.node, entry.kind),
            status="completed" if entry.ok else "failed",
            opened_ms=entry.opened_ms,
            started_ms=started_ms,
            ended_ms=entry.at_ms,
            took_ms=loop.took_ms or entry.took_ms,
            attempts=entry.attempt,
            predecessors=opened_by[:MOST_PREDECESSORS],
            predecessor_count=len(opened_by),
            parent=parent,
            item=item,
            reads=self._reads_of(entry.node),
            written=tuple(written)[:MOST_KEYS],
            output=_values(written),
            next=several(entry.next),
            usage=_sum(loop.usage, _usage(entry)),
            turns=loop.turns,
            tools=tuple(loop.tools),
            tool_count=loop.count,
            runs=(*loop.runs, *self._children.pop(entry.seq, ())),
            error=entry.error,
            worker=entry.worker,
            answer=entry.answer,
            by=entry.by,
            journal_step=entry.step,
            cached=entry.cached,
        )

    def _live(self, visit: VisitInfo) -> TraceStep:
        opened_by = self._predecessors.of_live(visit.node) if visit.item is None else ()
        parent = self._run.parent if visit.item is None else id_of(self._run.run, visit.item[0])
        loop = self._loops.pop(visit.seq, None) or _Loop()
        return TraceStep(
            **self._place(visit.seq, visit.node, visit.kind),
            status=visit.state,
            opened_ms=visit.since_ms,
            started_ms=loop.started_ms or None,
            took_ms=loop.took_ms,
            attempts=visit.attempt,
            predecessors=opened_by[:MOST_PREDECESSORS],
            predecessor_count=len(opened_by),
            parent=parent,
            item=None if visit.item is None else visit.item[1],
            reads=self._reads_of(visit.node),
            usage=loop.usage,
            turns=loop.turns,
            tools=tuple(loop.tools),
            tool_count=loop.count,
            runs=(*loop.runs, *self._children.pop(visit.seq, ())),
            worker=visit.worker or "",
        )

    def _place(self, seq: int, node: str, kind: str) -> dict[str, Any]:
        run = self._run
        return {
            "id": id_of(run.run, seq),
            "run": run.run,
            "parent_run": None if run.parent is None else run.parent.partition("/")[0],
            "agent": run.agent,
            "node": node,
            "path": "/".join((*run.path, node)),
            "type": kind,
        }

    def _reads_of(self, name: str) -> tuple[str, ...] | None:
        if name not in self._reads:
            graph, keys = self._graph, None
            if graph is not None and (node := graph.nodes.get(name)) is not None:
                keys = state_read_by(node, graph.loop, summarises=graph.summary is not None)
            self._reads[name] = None if keys is None else tuple(sorted(keys))
        return self._reads[name]


def _usage(step: Step) -> Usage | None:
    return Usage(**step.usage) if step.usage else None


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    if one is None or other is None:
        return one or other
    cost = None if one.cost_usd is None or other.cost_usd is None else one.cost_usd + other.cost_usd
    return Usage(
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        one.calls + other.calls,
        one.model if one.model == other.model else None,
        cost,
    )


def _values(written: Texts) -> dict[str, Any]:
    return {key: _value(text) for key, text in list(written.items())[:MOST_KEYS]}


def _value(text: str) -> Any:
    if len(text) <= MOST_VALUE:
        return json.loads(text)
    return {"cut": text[:MOST_VALUE], "chars": len(text)}
