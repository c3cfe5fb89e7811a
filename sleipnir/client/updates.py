"""update_state of a run or a thread: a fork that begins as if a node had written the values (docs/history.md).

What a run has committed is never changed. The fork goes on after a checkpoint; its first visit stands for the node,
which is not called, and the run stops after it. All that can be wrong is refused before anything is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sleipnir.client.texts import refuse_text
from sleipnir.commands import END, START, Overwrite
from sleipnir.errors import UsageError
from sleipnir.graph.findings import suggestion
from sleipnir.graph.model import ApprovalNode, EndNode
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.graph.reducers import OVERWRITE
from sleipnir.graph.state import problem, to_json, update_problem
from sleipnir.messages import MOST_KEYS

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph
    from sleipnir.python_graph.snapshots import UpdateMode
    from sleipnir.runs.run import Fork

_MODES: Final = ("reduce", "set")
_RUNTIME: Final = frozenset({"_next", "_error", "last_error"})
"""Keys that the runtime writes."""


@dataclass(frozen=True)
class WantedUpdate:
    """The `values` of an update, as those of the node `as_node` (None: of the one that wrote last). `mode` as in
    snapshots.UpdateMode."""

    values: Mapping[str, Any]
    as_node: str | None = None
    mode: UpdateMode = "reduce"
    most_bytes: int = 0

    def begin(self, fork: Fork, graph: Graph, writers: Sequence[str]) -> Fork:
        """The fork, with this update as its first visit; the nodes `writers` wrote last. Raises UsageError."""
        node = self.as_node or _only(writers, graph)
        if node == END:
            if self.values:
                raise UsageError("as_node=END ends what is to run next; it takes no values")
            return replace(fork, checkpoint=replace(fork.checkpoint, nodes=(), commands=0, lists=()), update={})
        _check_node(graph, node)
        values = self._written(graph)
        refuse_text("the values", compact_json(values), self.most_bytes)
        return replace(fork, checkpoint=replace(fork.checkpoint, nodes=(node,), commands=0, lists=()), update=values)

    def _written(self, graph: Graph) -> dict[str, Any]:
        """The values in their stored form. Raises UsageError with all that do not fit."""
        if self.mode not in _MODES:
            raise UsageError(f"the mode of an update is 'reduce' or 'set', not {self.mode!r}")
        if not isinstance(self.values, Mapping):
            raise UsageError(f"the values of an update are a mapping of state keys, not {self.values!r:.60}")
        if len(self.values) > MOST_KEYS:
            raise UsageError(f"an update writes at most {MOST_KEYS:,} state keys, not {len(self.values):,}")
        values, wrong = dict[str, Any](), list[str]()
        for key, value in self.values.items():
            if (why := _wrong_key(graph, key)) is not None:
                wrong.append(why)
                continue
            values[key], why = self._stored(graph, key, value)
            if why is not None:
                wrong.append(f"state key {key!r} {why}")
        if wrong:
            raise UsageError(
                "the state cannot be updated with these values:" + "".join(f"\n  - {why}" for why in wrong)
            )
        return values

    def _stored(self, graph: Graph, key: str, value: Any) -> tuple[Any, str | None]:
        """A value in its stored form, and why it does not fit."""
        field, has_reducer = graph.state.get(key), graph.reducer_of(key) is not None
        replaces = isinstance(value, Overwrite) or (self.mode == "set" and has_reducer)
        if isinstance(value, Overwrite):
            value = value.value
        if field is not None:
            value = to_json(field, value)
            if field.type == "int" and isinstance(value, float) and value.is_integer():
                value = int(value)
        if why := first_not_json({key: value}):
            return value, f"is not JSON: {why}"
        if replaces and graph.is_loki and has_reducer:
            return value, "has a reducer of version 1.0, which no write can pass; fork the run with another value"
        if field is not None and (why := (problem if replaces else update_problem)(field, value)):
            return value, why
        return ({OVERWRITE: value} if replaces and has_reducer else value), None


def _wrong_key(graph: Graph, key: Any) -> str | None:
    """Why an update cannot write a key."""
    if not isinstance(key, str):
        return f"{key!r:.60} is no text, so it is no state key"
    if key in _RUNTIME or key.startswith("__"):
        return f"state key {key!r} is written by the runtime"
    declared = graph.state.keys()
    if key in declared or not (graph.is_state_graph or (declared and not graph.is_loki)):
        return None
    hint = suggestion(key, declared, "keys")
    return f"the graph has no state key {key!r}" + (f". {hint}" if hint else "")


def _only(writers: Sequence[str], graph: Graph) -> str:
    """The node that wrote last. Raises UsageError if there are several, or none."""
    if len(writers) > 1:
        names = ", ".join(map(repr, writers))
        raise UsageError(f"Ambiguous update, specify as_node: {names} wrote last")
    if writers:
        return writers[0]
    if START in graph.nodes:
        return START
    raise UsageError("no node has written yet: specify as_node, the node that the values are of")


def _check_node(graph: Graph, name: str) -> None:
    """Raises UsageError for a node that an update cannot stand for."""
    node = graph.nodes.get(name)
    if node is None:
        if name == START:
            raise UsageError("as_node=START is a new input: submit the next turn of the thread instead")
        hint = suggestion(name, graph.nodes, "nodes")
        raise UsageError(f"the graph {graph.name!r} has no node {name!r}" + (f". {hint}" if hint else ""))
    if isinstance(node, EndNode):
        raise UsageError(f"node {name!r} is an end node, and leads nowhere: name another node by as_node, or END")
    if isinstance(node, ApprovalNode):
        raise UsageError(
            f"approval node {name!r} chooses its way on by an answer: name a node that it leads to, or answer it"
        )
    if graph.is_loki and not (node.targets or node.branch or name in graph.joins):
        raise UsageError(
            f"node {name!r} has no `next`: what it writes chooses its way on, which an update does not. Name another "
            "node by as_node"
        )
