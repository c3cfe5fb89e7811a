"""What a rule about a graph gets to see: the graph, its folder, and where to put what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

from sleipnir.graph.findings import Findings, KeyPath
from sleipnir.graph.model import Edge, Graph, Node, edges_of
from sleipnir.graph.tools import CustomTools, custom_tools

FindAgent: TypeAlias = Callable[[str], Path | None]
"""The folder of an agent by its name, None when there is no such agent."""

ReadTools: TypeAlias = Callable[[Path], CustomTools]
"""The functions of the tools file in a folder."""

Complaint: TypeAlias = Callable[[str], str | None]
"""Why a global tool, or an MCP server, cannot be used on this machine, by its name; None when it can."""

N = TypeVar("N", bound=Node)


@dataclass(frozen=True)
class Case:
    """One graph under examination. `folder` and `find_agent` are None where the caller cannot say."""

    graph: Graph
    findings: Findings
    folder: Path | None
    find_agent: FindAgent | None
    more_tools: tuple[str, ...]
    read_tools: ReadTools = custom_tools
    global_tools: Complaint | None = None
    mcp_servers: Complaint | None = None

    def nodes(self, kind: type[N]) -> Iterator[tuple[N, KeyPath]]:
        """The nodes of one type, in file order, each with its path."""
        for node_id, node in self.graph.nodes.items():
            if isinstance(node, kind):
                yield node, ("nodes", node_id)

    @property
    def is_loki(self) -> bool:
        return self.graph.is_loki

    @cached_property
    def edges(self) -> dict[str, list[Edge]]:
        """Every way that the file declares, by the node it leaves: ends and labels as what they lead to, and joins."""
        nodes = self.graph.nodes
        found = {node_id: [self._led(node, edge) for edge in edges_of(node)] for node_id, node in nodes.items()}
        for source in self.graph.joins.keys() & found.keys():
            found[source] += [Edge(source, target, "wait_for") for target, _ in self.graph.joins[source]]
        return found

    @cached_property
    def entered(self) -> set[str]:
        """What a run can enter by declared edges, the start included; a node behind a join only if that can fire."""
        roots = {self.graph.start} | ({str(self.graph.on_error)} & self.graph.nodes.keys())
        seen, todo = set(roots), list(roots)
        while todo:
            targets = {edge.target for edge in self.edges[todo.pop()] if self._enters(edge, seen)}
            found = (targets & self.edges.keys()) - seen
            todo += found
            seen |= found
        return seen

    @cached_property
    def reachable(self) -> set[str]:
        """What a run can enter, and the bodies of maps that it can enter."""
        bodies = {edge.target for node_id in self.entered for edge in self.edges[node_id] if edge.kind == "body"}
        return self.entered | bodies

    def _led(self, node: Node, edge: Edge) -> Edge:
        if edge.kind not in ("branch", "default"):
            return edge
        return replace(edge, target=self.graph.target_of(node, edge.target) or edge.target)

    def _enters(self, edge: Edge, seen: set[str]) -> bool:
        if edge.kind == "wait_for":
            return any(len(seen & set(join.sources)) >= join.needed for join in self.graph.nodes[edge.target].wait_for)
        return edge.kind != "body" and not self.graph.waits_for(edge.target, edge.source)

    @cached_property
    def custom_tools(self) -> CustomTools:
        return CustomTools() if self.folder is None else self.read_tools(self.folder)


Rule: TypeAlias = Callable[[Case], None]


def edge_path(case: Case, edge: Edge) -> KeyPath:
    """Where an edge stands in the file."""
    path: KeyPath = ("nodes", edge.source)
    node = case.graph.nodes[edge.source]
    match edge.kind:
        case "next":
            return (*path, "next", node.targets.index(edge.target)) if isinstance(node.next, list) else (*path, "next")
        case "routes" | "ends":
            return (*path, edge.kind, edge.label)
        case "body":
            return (*path, "node" if case.findings.has((*path, "node")) else "branch")
        case "branch" if node.branch is not None and edge.label not in node.branch.to:
            index = [choice.when for choice in node.branch.cases].index(edge.label)
            return (*cases_path(case, path), index, "to")
        case "branch":
            return (*path, "branch", "to", edge.label)
        case "default" if node.branch is not None and not case.findings.has((*path, "branch", "default")):
            return (*cases_path(case, path), len(node.branch.cases), "else")
        case "default":
            return (*path, "branch", "default")
        case "wait_for":
            return ("nodes", edge.target, "wait_for")
        case _:
            return (*path, edge.kind)


def cases_path(case: Case, path: KeyPath) -> KeyPath:
    """Where the conditions of a node's branch stand: the list may be the branch itself."""
    inner = (*path, "branch", "cases")
    return inner if case.findings.has(inner) else (*path, "branch")
