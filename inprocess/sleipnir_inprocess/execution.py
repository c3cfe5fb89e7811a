"""Execute a claimed visit of a graph in this process, with the executors of the workers."""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sleipnir.errors import MachineFailed, NodeFailed
from sleipnir.graph.model import FunctionNode, JoinNode, RouterNode
from sleipnir.graph.node_overrides import NodeOverrides, of_child
from sleipnir.messages import VisitCall, VisitResult
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.interrupts import answering
from sleipnir.python_graph.run_config import remaining_steps
from sleipnir.python_graph.runtime import Call, ExecutionInfo, Runtime, current
from sleipnir.python_graph.snapshots import TASKS
from sleipnir.runs.cached_results import CachedResult
from sleipnir.runs.claims import Claim
from sleipnir.runs.memory_cache import MemoryCache
from sleipnir.runs.node_streams import NodeStreams
from sleipnir.runs.run import RunSpec, changed
from sleipnir.settings import Settings
from sleipnir_inprocess.runner import Executed
from sleipnir_inprocess.streams import Chunk, Stream
from sleipnir_inprocess.threads import ThreadRun
from sleipnir_workers.execution.execution import DirectoryMissing, Execution
from sleipnir_workers.execution.lazy_state import StoredState
from sleipnir_workers.machine.host import Host, executing_for
from sleipnir_workers.nodes import condition, function, reduction  # noqa: F401  (they register their executors)
from sleipnir_workers.results.encoding import encoded
from sleipnir_workers.visits import callbacks, guard, node_streams
from sleipnir_workers.visits.caching import VisitCache, executed


@dataclass(frozen=True)
class CalledRun:
    """A run of a graph that a node has called: it waits for an answer, or has ended. It has got so many `answers`."""

    graph: CompiledGraph
    run: ThreadRun
    answers: int


class CalledRuns:
    """The runs of graphs that one execution of a visit calls, told apart by their order. When the node is executed
    again with an answer, they go on where they were."""

    def __init__(self, runs: dict[tuple[int, int], CalledRun], seq: int) -> None:
        self._runs, self._seq, self._numbers = runs, seq, itertools.count()

    def next_number(self) -> int:
        return next(self._numbers)

    def get(self, number: int) -> CalledRun | None:
        return self._runs.get((self._seq, number))

    def keep(self, number: int, run: CalledRun) -> None:
        self._runs[self._seq, number] = run

    def forget(self) -> None:
        """The visit is over, or is executed from its beginning."""
        for name in [name for name in self._runs if name[0] == self._seq]:
            del self._runs[name]


@dataclass(frozen=True)
class NodeEnvironment:
    """What nodes find around them: their working directory, environment variables above those of this process, and
    settings. None: those of this process."""

    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    settings: Settings | None = None


@dataclass
class Executor:
    """Executes the visits of one run. `updates` and `errors` are what nodes returned and raised, by visit; `called` are
    the runs of graphs that live visits have called, by visit and number of the call. `limited_from` is as in RunView: a
    call that goes on with a run has a limit of super-steps of its own. `of_nodes` are the overrides of nodes."""

    graph: CompiledGraph
    config: Mapping[str, Any]
    runtime: Runtime[Any]
    stream: Stream
    thread: str | None = None
    environment: NodeEnvironment = field(default_factory=NodeEnvironment)
    updates: dict[int, Sequence[Mapping[str, Any] | None]] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)
    called: dict[tuple[int, int], CalledRun] = field(default_factory=dict)
    limited_from: int = 0
    of_nodes: NodeOverrides = field(default_factory=dict)
    stand_ins: dict[int, Callable[[Execution], VisitResult]] = field(default_factory=dict)
    """By visit, what is called in the place of its node."""
    streams: NodeStreams | None = None
    """The node streams of the run."""
    _first: Execution | None = None
    """The first execution, which has the fields that all of the run share."""

    def __call__(self, call: VisitCall, claim: Claim, lost: threading.Event) -> Executed:
        """The result of a visit, and the JSON texts that it writes. None: it was lost."""
        self._first = self._first or self._execution_of(call)
        execution = changed(
            self._first,
            run=call.run,
            node=self.graph.model.nodes[call.node],
            seq=call.seq,
            attempt=call.attempt,
            state=StoredState(claim.state),
            lost=lost,
            role=call.role,
            item=claim.item,
            part=claim.part,
            failures=claim.failures,
            input_changed=claim.input_changed,
            talk=claim.talk,
            observer=_Observer(self, call),
        )
        called = CalledRuns(self.called, call.seq)
        token = current.set(self._call(call, called, claim.step))
        asker = answering.set(None)  # that of the node which has called this graph is not for its nodes
        try:
            if call.seq in self.stand_ins:
                result: VisitResult | None = self.stand_ins[call.seq](execution)
            else:
                has_cache = self.graph.model.cache_of(execution.node) is not None
                cached = self._caching.result if has_cache else executed
                result = callbacks.around(execution, cached, lambda each: self._connected(each, claim.spec))
        finally:
            answering.reset(asker)
            current.reset(token)
        if result is None or result.interrupt is None:
            called.forget()
        return None if result is None else encoded(result, call.node, 2**31)

    def _call(self, call: VisitCall, called: CalledRuns, step: int) -> Call:
        remaining = remaining_steps(self.config, self.graph.model, step, self.limited_from)
        below = of_child(self.of_nodes, call.node) if self.of_nodes else {}
        return Call(self.config, self._runtime(call), _Below(self.stream, call), called, remaining, below)

    def _connected(self, execution: Execution, spec: RunSpec) -> VisitResult | None:
        with node_streams.connected(execution, spec, self._given_streams) as joined:
            result = self._executed(joined)
            node_streams.close(joined, result)
        return result

    def _executed(self, execution: Execution) -> VisitResult | None:
        return guard.execute(execution) if execution.node.id in self._functions else self._elsewhere(execution)

    def _given_streams(self) -> NodeStreams:
        if self.streams is None:
            raise TypeError("the executor was given no node streams")
        return self.streams

    @cached_property
    def _caching(self) -> VisitCache:
        """The graph's cache, or one for this run alone if only nodes of other types have policies."""
        return replace(
            VisitCache.in_process(self.graph.cache or MemoryCache(), self.environment.settings or Settings()),
            code=self._code_of,
            updates=self._updates_of,
            found=self._found,
        )

    def _code_of(self, execution: Execution) -> str:
        """Graphs share the results of functions that their references tell apart; others are of one graph."""
        node = execution.node
        references = self.graph.references.unreachable
        named = (node.call, *(router.call for router in node.routers)) if isinstance(node, FunctionNode) else ()
        return f"graph {self.graph.number}" if any(name in references for name in named) else ""

    def _updates_of(self, seq: int) -> tuple[Any, ...] | None:
        updates = self.updates.get(seq)
        if updates is None:
            return None
        known, encoded = self.graph.objects.keys, self.graph.objects.encoded
        return tuple(
            None if update is None else encoded({key: update[key] for key in update if key in known})
            for update in updates
        )

    def _found(self, execution: Execution, found: CachedResult) -> None:
        """What the node has returned, again, for the stream."""
        updates = (found.delta,) if found.updates is None else found.updates
        decoded = self.graph.objects.decoded
        self.updates[execution.seq] = [None if update is None else decoded(update) for update in updates]

    @cached_property
    def _functions(self) -> frozenset[str]:
        """The nodes that only call Python functions."""
        nodes = self.graph.model.nodes.items()
        return frozenset(name for name, node in nodes if isinstance(node, FunctionNode | RouterNode | JoinNode))

    @cached_property
    def _host(self) -> Host:
        """What nodes that are no functions use of this machine: its environment and settings."""
        from sleipnir_inprocess import executors  # noqa: F401  (it imports what calls models)

        return Host({**os.environ, **self.environment.env}, self.environment.settings or Settings.from_env())

    def _elsewhere(self, execution: Execution) -> VisitResult | None:
        """Execute a node that calls a model, a script or a search."""
        with executing_for(self._host):
            try:
                return guard.execute(execution)
            except (MachineFailed, DirectoryMissing) as error:  # there is no other machine that could take it
                return guard.failed(execution, str(error), "machine")

    def _execution_of(self, call: VisitCall) -> Execution:
        model, directory = self.graph.model, Path.cwd()
        return Execution(
            run=call.run,
            node=model.nodes[call.node],
            seq=call.seq,
            attempt=call.attempt,
            agent=call.agent,
            graph=model,
            folder=Path(self.graph.parts.place[0]).parent,
            cwd=self.environment.cwd or directory,
            caller_dir=directory,
            state=StoredState({}),
            objects=self.graph.objects,
        )

    def _runtime(self, call: VisitCall) -> Runtime[Any]:
        info = ExecutionInfo(call.run, self.thread, call.task_id, call.attempt)
        return changed(self.runtime, execution_info=info)


@dataclass(frozen=True)
class _Observer:
    executor: Executor
    call: VisitCall

    def returned(self, updates: Sequence[Mapping[str, Any] | None]) -> None:
        self.executor.updates[self.call.seq] = updates
        self.executor.errors.pop(self.call.seq, None)

    def failed(self, error: NodeFailed) -> None:
        cause = error.__cause__ or error
        cause.add_note(f"During task with name '{self.call.node}' and id '{uuid.uuid5(TASKS, self.call.task_id)}'")
        self.executor.errors[self.call.seq] = cause


@dataclass(frozen=True)
class _Below:
    """Takes the chunks of a graph that a visit calls, if the caller wants those of graphs below."""

    stream: Stream
    call: VisitCall

    @property
    def modes(self) -> frozenset[str]:
        form = self.stream.form
        return (frozenset(form.modes) if form.subgraphs else frozenset()) | self.stream.wanted

    def __call__(self, chunk: Chunk) -> None:
        if chunk.mode in self.modes:
            self.stream.take(chunk._replace(ns=(f"{self.call.node}:{uuid.uuid5(TASKS, self.call.task_id)}", *chunk.ns)))
