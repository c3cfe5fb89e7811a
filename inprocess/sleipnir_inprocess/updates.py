"""update_state of a compiled graph: a new checkpoint, as if a node had returned the values (spec/langgraph-api.md 7).

An update begins a run: with one visit of the node, which is not called. The planner applies what is written, by the
reducers and joins of the graph, and opens what the node leads to. There the run stays until a call goes on with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from sleipnir.commands import END, START, Overwrite
from sleipnir.graph.findings import suggestion
from sleipnir.graph.model import FunctionNode
from sleipnir.memory.values import Texts
from sleipnir.messages import VisitResult
from sleipnir.python_graph import calling
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import EmptyInputError, InvalidUpdateError
from sleipnir.python_graph.schema import Key, without_none
from sleipnir.python_graph.snapshots import UpdateMode
from sleipnir.runs import arrivals
from sleipnir.runs.run import Checkpoint
from sleipnir_inprocess.creation import ThreadCreation
from sleipnir_inprocess.states import empty_state, ended_visits, state_of, texts_of_values
from sleipnir_inprocess.threads import ThreadPoint, ThreadRun, texts_of
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.functions import state_graph

UPDATED: Final = 1
"""The number of the visit that an update stands for."""

_MODES: Final = ("reduce", "set")
_RESERVED: Final = frozenset({"", "thread_id", "checkpoint_id", "checkpoint_ns", "lineage_id"})


@dataclass(frozen=True)
class StateUpdate:
    """The values of an update, as those of `as_node` (None: of the node that wrote last)."""

    values: Any
    as_node: str | None = None
    mode: UpdateMode = "reduce"

    def begin(self, creation: ThreadCreation, base: ThreadPoint | None, *, is_newest: bool) -> ThreadRun:
        """The run that the update begins, after the checkpoint `base` (None: the thread has none). Of the newest one,
        what has ended in the open super-step counts. Raises InvalidUpdateError and EmptyInputError."""
        graph = creation.graph
        writes = self._writes(graph)
        parent = None if base is None else base.place
        texts = empty_state(graph) if base is None else texts_of(base, empty_state(graph))
        node, checkpoint = self.as_node, Checkpoint(0, ()) if base is None else base.checkpoint
        if node is None and self.values is None:
            if base is None:
                raise EmptyInputError("the thread has no state, and the update has no values")
            return self._noted(creation.of_point(base, texts, "update"), base, writes)
        if base is not None and is_newest:
            texts, checkpoint = _with_ended(graph, base, texts)
        node = node or _last_writer(base, is_newest=is_newest)
        if node == END:
            if writes:
                raise InvalidUpdateError("as_node=END ends what is to run next; it takes no values")
            run = creation.in_the_middle("update", parent, texts, replace(checkpoint, nodes=(), commands=0))
        elif node == START:
            texts = creation.state_of_input(self.update(graph), texts)
            run = creation.in_the_middle("update", parent, texts, Checkpoint(0, (graph.model.start,)))
            run.hides = graph.model.start == START
        else:
            _check_node(graph, node)
            here = replace(checkpoint, nodes=(node,), commands=0)
            run = creation.in_the_middle("update", parent, texts, here, writers=(node,))
            run.hides = True
        return self._noted(run, base, writes)

    def _noted(self, run: ThreadRun, base: ThreadPoint | None, writes: list[tuple[str, Any]]) -> ThreadRun:
        keys = sorted({name for name, _ in writes})
        run.metadata = {**run.metadata, "base_checkpoint_id": base and base.id, "updated_keys": keys}
        return run

    def update(self, graph: CompiledGraph) -> Any:
        """What the node returns."""
        return None if self.values is None else dict(self._writes(graph))

    def result(self, graph: CompiledGraph, execution: Execution) -> VisitResult:
        """The result of the visit that the update stands for. Raises what the routers of its node raise."""
        node = execution.node
        assert isinstance(node, FunctionNode)
        return state_graph.run_update(node, execution, self.update(graph))

    def _writes(self, graph: CompiledGraph) -> list[tuple[str, Any]]:
        if self.mode not in _MODES:
            raise ValueError(f"the mode of an update is 'reduce' or 'set', not {self.mode!r}")
        return list(self._fitting(graph))

    def _fitting(self, graph: CompiledGraph) -> Iterator[tuple[str, Any]]:
        keys = graph.parts.keys
        for name, value in calling.pairs(self.values):
            if name in keys:
                yield name, self._written(keys[name], value)
            elif name in _RESERVED or str(name).startswith("__"):
                raise InvalidUpdateError(f"the key {name!r} is no key of the state, and reserved: it cannot be written")
            else:
                calling.warn_of_unknown(str(name), keys, "the update")

    def _written(self, key: Key, value: Any) -> Any:
        if isinstance(value, float) and value.is_integer() and without_none(key.type) is int:
            value = int(value)
        replaces = self.mode == "set" and key.reducer is not None and not isinstance(value, Overwrite)
        return Overwrite(value) if replaces else value


def _with_ended(graph: CompiledGraph, base: ThreadPoint, texts: Texts) -> tuple[Texts, Checkpoint]:
    """The state and the checkpoint, with the writes and arrivals of what has ended in the super-step after it."""
    record, held = base.run.record, ended_visits(base.run)
    if record is None or not held:
        return texts, base.checkpoint
    arrived, _ = arrivals.arrive(graph.model, base.checkpoint.arrived, [(visit.node, visit.group) for visit in held])
    return texts_of_values(graph, state_of(graph, record)), replace(base.checkpoint, arrived=arrived)


def _last_writer(base: ThreadPoint | None, *, is_newest: bool) -> str:
    """The node that wrote last before a checkpoint. Raises InvalidUpdateError if there are several."""
    if base is None:
        return START
    ended = dict.fromkeys(visit.node for visit in ended_visits(base.run)) if is_newest else ()
    writers = tuple(ended) or base.writers
    if len(writers) > 1:
        names = ", ".join(f"'{name}'" for name in writers)
        raise InvalidUpdateError(f"Ambiguous update, specify as_node: {names} wrote last")
    return writers[0]


def _check_node(graph: CompiledGraph, node: str) -> None:
    """Raises InvalidUpdateError for a node that an update cannot stand for."""
    nodes = graph.model.nodes
    if node not in nodes:
        hint = suggestion(node, graph.parts.nodes, "nodes")
        raise InvalidUpdateError(f"Node {node} does not exist" + (f". {hint}" if hint else ""))
    if not isinstance(nodes[node], FunctionNode):
        raise InvalidUpdateError(
            f"Node {node} is of type {nodes[node].kind}: an update stands for functions, graphs, START and END. Name "
            "one of them by as_node"
        )
