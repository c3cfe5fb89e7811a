"""The input of a rule about a graph: the graph, its folder, and the findings to add to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

from sleipnir.graph.code_files import RUNTIMES, code_files, text_of
from sleipnir.graph.findings import Findings, KeyPath, closest
from sleipnir.graph.model import CONTINUE, FAIL, Edge, FunctionNode, Graph, Node, ScriptNode, edges_of
from sleipnir.graph.source import YamlDocument
from sleipnir.graph.tools import CustomTools, custom_tools

FindAgent: TypeAlias = Callable[[str], Path | None]
"""The folder of an agent by its name; None if there is no such agent."""

ReadTools: TypeAlias = Callable[[Path], CustomTools]
"""The functions of the tools file in a folder."""

Complaint: TypeAlias = Callable[[str], str | None]
"""Why a global tool, an MCP server or a skill cannot be used on this machine, by its name; None if it can."""

N = TypeVar("N", bound=Node)


@dataclass(frozen=True)
class KnownClients:
    """The model clients that are configured here. `complete`: the workers run here too and have no others."""

    names: frozenset[str]
    complete: bool = False


@dataclass(frozen=True)
class Case:
    """One graph to check. `folder` and `find_agent` are None if the caller does not know them."""

    graph: Graph
    findings: Findings
    folder: Path | None
    find_agent: FindAgent | None
    more_tools: tuple[str, ...]
    read_tools: ReadTools = custom_tools
    global_tools: Complaint | None = None
    mcp_servers: Complaint | None = None
    clients: KnownClients | None = None
    skills: Complaint | None = None
    document: YamlDocument | None = None
    parsed: dict[Path, list[ast.stmt] | None] = field(default_factory=dict)
    """Python files that rules have read; None for one that cannot be read."""

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
        """Every declared edge, by its source node: with ends and labels resolved, and with joins."""
        nodes = self.graph.nodes
        edges = {node_id: [self._led(node, edge) for edge in edges_of(node)] for node_id, node in nodes.items()}
        for source in self.graph.joins.keys() & edges.keys():
            edges[source] += [Edge(source, target, "wait_for") for target, _ in self.graph.joins[source]]
        return edges

    @cached_property
    def entered(self) -> set[str]:
        """The nodes that a run can enter by declared edges, with the start; a join's node only if the join can fire."""
        return self._entered(self._enters)

    @cached_property
    def reachable(self) -> set[str]:
        """The nodes that edges lead to, and the bodies of maps there. A join counts if one of its sources does: another
        rule checks whether it can fire."""
        entered = self._entered(lambda edge, _: edge.kind != "body")
        return entered | {edge.target for node_id in entered for edge in self.edges[node_id] if edge.kind == "body"}

    def _entered(self, enters: Callable[[Edge, set[str]], bool]) -> set[str]:
        on_error = self.graph.on_error
        roots = {self.graph.start}
        if on_error not in (None, FAIL, CONTINUE):
            roots |= {str(on_error), closest(str(on_error), self.graph.nodes) or ""} & self.graph.nodes.keys()
        seen, todo = set(roots), list(roots)
        while todo:
            targets = {edge.target for edge in self.edges[todo.pop()] if enters(edge, seen)}
            new = (targets & self.edges.keys()) - seen
            todo += new
            seen |= new
        return seen

    def _led(self, node: Node, edge: Edge) -> Edge:
        target = edge.target
        if edge.kind in ("branch", "default", "routers"):
            target = self.graph.target_of(node, target) or target
        if not self.graph.is_node_or_end(target):  # only the misspelling is reported, not the nodes after it
            target = closest(target, self.graph.nodes) or target
        return edge if target == edge.target else replace(edge, target=target)

    def _enters(self, edge: Edge, seen: set[str]) -> bool:
        if edge.kind == "wait_for":
            can_end = seen | {name for name in self.graph.joins if name not in self.graph.nodes}  # reported separately
            return any(
                len(can_end & set(join.sources)) >= join.needed for join in self.graph.nodes[edge.target].wait_for
            )
        return edge.kind != "body" and not self.graph.waits_for(edge.target, edge.source)

    @cached_property
    def code_files(self) -> list[Path]:
        """The code files in an agent's folder. Empty for another folder: its files may not belong to the agent."""
        folder = self.folder
        is_agent = folder is not None and any(
            (folder / name).is_file() for name in ("graph.yaml", "config.yaml", "graph.py")
        )
        return code_files(folder) if folder is not None and is_agent else []

    @cached_property
    def _words_of_code(self) -> frozenset[str]:
        """Every word in the agent's code."""
        if self.folder is None:
            return frozenset()
        scripts = (self.folder / node.script for node, _ in self.nodes(ScriptNode))
        functions = [node for node, _ in self.nodes(FunctionNode)]
        called = [call for node in functions for call in (node.call, *(router.call for router in node.routers))]
        calls = (self.folder / call.rpartition(":")[0] for call in called)
        files = dict.fromkeys([*self.code_files, *(path for path in (*scripts, *calls) if path.suffix in RUNTIMES)])
        return frozenset(word for file in files for word in _WORD.findall(text_of(file) or ""))

    def code_mentions(self, name: str) -> bool:
        """Whether the agent's code contains the name of a node or key, so that it may route to it or write it."""
        return set(_WORD.findall(name)) <= self._words_of_code and bool(self._words_of_code)

    @cached_property
    def may_go_anywhere(self) -> bool:
        """Whether a run may reach a router without `to` whose code is not in the folder."""
        nodes = (self.graph.nodes[name] for name in self.reachable if name in self.graph.nodes)
        routers = (router for node in nodes if isinstance(node, FunctionNode) for router in node.routers)
        return any(not router.to and not router.call.rpartition(":")[0].endswith(".py") for router in routers)

    @cached_property
    def custom_tools(self) -> CustomTools:
        return CustomTools() if self.folder is None else self.read_tools(self.folder)


_WORD = re.compile(r"\w+")

Rule: TypeAlias = Callable[[Case], None]


def edge_path(case: Case, edge: Edge) -> KeyPath:
    """The path of an edge in the file."""
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
        case "routers":
            return (*path, "routers", _router_of(node, edge), "to", edge.label)
        case "default" if node.branch is not None and not case.findings.has((*path, "branch", "default")):
            return (*cases_path(case, path), len(node.branch.cases), "else")
        case "default" | "tools":
            return (*path, "branch", edge.kind)
        case "wait_for":
            return ("nodes", edge.target, "wait_for")
        case _:
            return (*path, edge.kind)


def _router_of(node: Node, edge: Edge) -> int:
    """The position of the router that an edge is of: two routers may have the same label."""
    routers = node.routers if isinstance(node, FunctionNode) else []
    return next((index for index, router in enumerate(routers) if router.to.get(edge.label) == edge.target), 0)


def cases_path(case: Case, path: KeyPath) -> KeyPath:
    """The path of the conditions of a node's branch: the list may be the branch itself."""
    inner = (*path, "branch", "cases")
    return inner if case.findings.has(inner) else (*path, "branch")
