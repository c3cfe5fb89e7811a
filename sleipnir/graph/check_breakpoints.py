"""Rules about breakpoints: `interrupt` of nodes, `interrupt_before` and `interrupt_after` of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from sleipnir.commands import START
from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.findings import suggestion
from sleipnir.graph.model import EndNode, Graph, MapNode, Phase

ALL_NODES: Final = "*"
"""In the place of names: every node."""

Breakpoints: TypeAlias = Sequence[str] | None
"""Names of nodes, or ALL_NODES. None or no names: those of the graph."""


def every_breakpoint_names_a_node(case: Case) -> None:
    graph = case.graph
    for key, names in (("interrupt_before", graph.interrupt_before), ("interrupt_after", graph.interrupt_after)):
        for index, name in enumerate(names):
            if name not in graph.nodes:
                hint = suggestion(name, graph.nodes, "nodes")
                case.findings.error((key, index), f"References non-existent node '{name}' in '{key}'", hint)


def no_breakpoint_is_at_an_item_of_a_map(case: Case) -> None:
    """A run stops between super-steps; the items of a map are part of the visit of the map."""
    graph = case.graph
    bodies = {body: name for name, node in graph.nodes.items() if isinstance(node, MapNode) for body in node.body}
    for name, map_node in bodies.items():
        node = graph.nodes.get(name)
        hint = f"Set it at the map: `interrupt` of '{map_node}'."
        if node is not None and node.interrupt is not None:
            message = f"'interrupt' has no effect on '{name}', which the map '{map_node}' runs for each item"
            case.findings.error(("nodes", name, "interrupt"), message, hint)
        for key, names in (("interrupt_before", graph.interrupt_before), ("interrupt_after", graph.interrupt_after)):
            if name in names:
                message = f"'{key}' has no effect on '{name}', which the map '{map_node}' runs for each item"
                case.findings.error((key, names.index(name)), message, hint)


def breakpoint_nodes(graph: Graph, names: Breakpoints, phase: Phase) -> list[str] | None:
    """The nodes that a submission or a call names. None: it names none, and those of the graph apply. Raises
    ValueError, with LangGraph's text, for a name that is no node at which a run can stop. Neither items of maps are,
    nor, after it, an end node of version 1.0, with which the run is over."""
    if not names:
        return None
    never = {START, *(body for node in graph.nodes.values() if isinstance(node, MapNode) for body in node.body)}
    if phase == "after" and graph.is_loki:
        never |= {name for name, node in graph.nodes.items() if isinstance(node, EndNode)}
    nodes = [name for name in graph.nodes if name not in never]
    if names == ALL_NODES:
        return nodes
    given = [names] if isinstance(names, str) else list(names)
    for name in given:
        if name not in nodes:
            hint = suggestion(name, nodes, "nodes")
            raise ValueError(f"Interrupt node `{name}` not found" + (f". {hint}" if hint else ""))
    return list(dict.fromkeys(given))


RULES: Sequence[Rule] = (every_breakpoint_names_a_node, no_breakpoint_is_at_an_item_of_a_map)
