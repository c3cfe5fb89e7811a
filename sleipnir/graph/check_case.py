"""What a rule about a graph gets to see: the graph, its folder, and where to put what it finds."""

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
from sleipnir.graph.source import Document
from sleipnir.graph.tools import CustomTools, custom_tools

FindAgent: TypeAlias = Callable[[str], Path | None]
"""The folder of an agent by its name, None when there is no such agent."""

ReadTools: TypeAlias = Callable[[Path], CustomTools]
"""The functions of the tools file in a folder."""

Complaint: TypeAlias = Callable[[str], str | None]
"""Why a global tool, or an MCP server, cannot be used on this machine, by its name; None when it can."""

N = TypeVar("N", bound=Node)


@dataclass(frozen=True)
class Clients:
    """The clients of models that are configured here. `complete`: the workers are here too, and have no others."""

    names: frozenset[str]
    complete: bool = False


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
    clients: Clients | None = None
    skills: Complaint | None = None
    document: Document | None = None
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
        """Every way that the file declares, by the node it leaves: ends and labels as what they lead to, and joins."""
        nodes = self.graph.nodes
        found = {node_id: [self._led(node, edge) for edge in edges_of(node)] for node_id, node in nodes.items()}
        for source in self.graph.joins.keys() & found.keys():
            found[source] += [Edge(source, target, "wait_for") for target, _ in self.graph.joins[source]]
        return found

    @cached_property
    def entered(self) -> set[str]:
        """What a run can enter by declared edges, the start included; a node behind a join only if that can fire."""
        return self._entered(self._enters)

    @cached_property
    def reachable(self) -> set[str]:
        """What edges lead to, and the bodies of maps there. A join counts if one of its sources does: whether it can
        fire is a rule of its own."""
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
            found = (targets & self.edges.keys()) - seen
            todo += found
            seen |= found
        return seen

    def _led(self, node: Node, edge: Edge) -> Edge:
        target = edge.target
        if edge.kind in ("branch", "default"):
            target = self.graph.target_of(node, target) or target
        if not self.graph.is_node_or_end(target):  # what is behind a slip is reached: the slip is reported, not that
            target = closest(target, self.graph.nodes) or target
        return edge if target == edge.target else replace(edge, target=target)

    def _enters(self, edge: Edge, seen: set[str]) -> bool:
        if edge.kind == "wait_for":
            can_end = seen | {name for name in self.graph.joins if name not in self.graph.nodes}  # reported for itself
            return any(
                len(can_end & set(join.sources)) >= join.needed for join in self.graph.nodes[edge.target].wait_for
            )
        return edge.kind != "body" and not self.graph.waits_for(edge.target, edge.source)

    @cached_property
    def code_files(self) -> list[Path]:
        """The files of code in an agent's folder. In another folder, where only the graph file is known to be part of
        an agent, there may be anything."""
        folder = self.folder
        is_agent = folder is not None and any((folder / name).is_file() for name in ("graph.yaml", "config.yaml"))
        return code_files(folder) if folder is not None and is_agent else []

    @cached_property
    def _words_of_code(self) -> frozenset[str]:
        """Every word in the agent's code."""
        if self.folder is None:
            return frozenset()
        scripts = (self.folder / node.script for node, _ in self.nodes(ScriptNode))
        calls = (self.folder / node.call.rpartition(":")[0] for node, _ in self.nodes(FunctionNode))
        files = dict.fromkeys([*self.code_files, *(path for path in (*scripts, *calls) if path.suffix in RUNTIMES)])
        return frozenset(word for file in files for word in _WORD.findall(text_of(file) or ""))

    def code_mentions(self, name: str) -> bool:
        """Whether a name of a node or of a key stands in the agent's code, which may then go there or write it."""
        return set(_WORD.findall(name)) <= self._words_of_code and bool(self._words_of_code)

    @cached_property
    def custom_tools(self) -> CustomTools:
        return CustomTools() if self.folder is None else self.read_tools(self.folder)


_WORD = re.compile(r"\w+")

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
