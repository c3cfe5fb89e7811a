"""Rules about the keys that a graph written in Python compiles to: function nodes with `protocol: state_graph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.findings import suggestion
from sleipnir.graph.model import STATE_GRAPH, FunctionNode, Graph, GraphNode, RagNode

_KEYS: Final = ("reads", "state_class", "routers")
"""The keys of a function node that only this protocol reads."""


def every_key_of_the_protocol_has_an_effect(case: Case) -> None:
    hint = f"Add `protocol: {STATE_GRAPH}`, or remove the key."
    for node, path in case.nodes(FunctionNode):
        for key in _KEYS if node.protocol != STATE_GRAPH else ():
            if getattr(node, key):
                message = f"'{key}' has no effect without `protocol: {STATE_GRAPH}`"
                case.findings.error((*path, key), message, hint)


def every_state_graph_has_state_classes(case: Case) -> None:
    """Without them the graph has no keys for these nodes: all that they write would be dropped."""
    if _uses_protocol(case) and not case.graph.state_classes:
        message = f"nodes with `protocol: {STATE_GRAPH}` write only keys of `state_classes`, and the graph has none"
        hint = 'Name the classes that declare the state: `state_classes: ["graph.py:State"]`.'
        case.findings.graph_error(("nodes",), message, hint)


def every_key_that_a_node_reads_is_declared(case: Case) -> None:
    for node, path in case.nodes(FunctionNode):
        for index, key in enumerate(node.reads or ()):
            if key not in case.graph.state:
                message = f"'reads' names '{key}', which `state:` does not declare"
                case.findings.error(
                    (*path, "reads", index), message, suggestion(key, case.graph.state, "declared keys")
                )


def every_graph_of_a_node_exists(case: Case) -> None:
    for node, path in case.nodes(GraphNode):
        if node.graph not in case.graph.graphs:
            message = f"'{node.graph}' is not one of the `graphs` of this document"
            hint = (
                suggestion(node.graph, case.graph.graphs, "graphs") or "A graph.py writes them: add_node(name, graph)."
            )
            case.findings.error((*path, "graph"), message, hint)


def no_graph_runs_itself(case: Case) -> None:
    """Each run of such a graph would start another one, without end."""
    for node, path in case.nodes(GraphNode):
        way = _way_back(node.graph, case.graph.graphs, (), set())
        if way is not None:
            names = " -> ".join(f"'{name}'" for name in way)
            case.findings.error((*path, "graph"), f"Graph '{node.graph}' leads to a graph that runs itself: {names}")


def _way_back(name: str, graphs: Mapping[str, Graph], above: tuple[str, ...], seen: set[str]) -> tuple[str, ...] | None:
    """The graphs on a way from a graph to itself, below `name`; None: there is none. `seen` have none below them, or
    are `above`."""
    if name in above:
        return (*above[above.index(name) :], name)
    if name not in graphs or name in seen:
        return None
    seen.add(name)
    nodes = (node for node in graphs[name].nodes.values() if isinstance(node, GraphNode))
    ways = (_way_back(node.graph, graphs, (*above, name), seen) for node in nodes)
    return next((way for way in ways if way is not None), None)


def no_graph_of_a_node_searches(case: Case) -> None:
    """Knowledge bases belong to the nodes of an agent's folder, and have their names."""
    if case.graph.output_keys is None:
        return
    for _, path in case.nodes(RagNode):
        message = "A graph that is a node cannot have nodes of type rag yet"
        case.findings.error(path, message, "Put the search into the graph above, or into an agent of its own.")


RULES: Sequence[Rule] = (
    no_graph_of_a_node_searches,
    every_graph_of_a_node_exists,
    no_graph_runs_itself,
    every_key_of_the_protocol_has_an_effect,
    every_state_graph_has_state_classes,
    every_key_that_a_node_reads_is_declared,
)


def _uses_protocol(case: Case) -> bool:
    return any(node.protocol == STATE_GRAPH for node, _ in case.nodes(FunctionNode))
