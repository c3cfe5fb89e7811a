"""A graph recovered from a file with errors, so that the rules about the whole graph are applied in the same pass.

Rules. A value with an error is removed or replaced by a stand-in; its path is kept, and nothing more is
reported below it. Such a graph is only checked, it never runs. If too much is broken, there is no graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from sleipnir.graph.findings import Findings, KeyPath, closest
from sleipnir.graph.model import Graph, Json
from sleipnir.graph.source import YamlDocument

Build: TypeAlias = Callable[[YamlDocument, Findings], Graph | None]
"""Reads a graph from a document."""

ROUNDS: Final = 8  # a repair may show the next mistake behind it, seldom more than two

_EDGE_KEYS: Final = frozenset(
    {
        "next",
        "branch",
        "routers",
        "routes",
        "options",
        "on_other",
        "on_error",
        "ends",
        "wait_for",
        "fallback",
        "on_timeout",
        "node",
        "tools_node",
    }
)
_EMPTY: Final[Mapping[str, Json]] = {"routes": {}, "options": [], "documents": [], "from": [], "limit": 1, "for": 1}
"""The stand-ins for missing values that are not text."""


@dataclass(frozen=True)
class Salvaged:
    """A graph with stand-ins at the paths that are `broken`. `edges_known` False: edges may be missing."""

    graph: Graph
    broken: frozenset[KeyPath]
    edges_known: bool


def salvaged(document: YamlDocument, file: str, build: Build) -> Salvaged | None:
    """The readable part of a document with errors; None: too much is broken."""
    if not document.readable or not isinstance(document.data, dict):
        return None
    data = copy.deepcopy(document.data)
    broken: set[KeyPath] = set()
    for _ in range(ROUNDS):
        findings = Findings(file, document.positions)
        graph = build(replace(document, data=data), findings)
        if not findings.error_paths:
            return None if graph is None else Salvaged(graph, frozenset(broken), not any(map(_is_edge, broken)))
        for path in dict.fromkeys(findings.error_paths):
            repaired = _repair(data, path)
            if repaired is None:
                return None
            broken.add(repaired)
    return None


def _repair(data: dict[str, Json], path: KeyPath) -> KeyPath | None:
    """Remove the value at the path of an error, or fill it in where it is missing; return the repaired path. A stand-in
    that is still wrong is removed together with its parent. None: no repair is possible."""
    while path and (isinstance(path[-1], int) or not isinstance(_at(data, path[:-1]), dict)):
        path = path[:-1]  # removing an entry of a list would shift the entries after it
    if path == ("start",):
        return _mend_start(data)
    if not path or path == ("nodes",):
        return None
    if path[0] == "nodes" and (len(path) == 2 or path[2] == "type"):
        node_id = path[1]
        data["nodes"][node_id] = _stand_in(data["nodes"].get(node_id))
        return ("nodes", node_id)
    parent, key = _at(data, path[:-1]), str(path[-1])
    filling = _EMPTY.get(key, "?")
    if parent.get(key) is None:
        parent[key] = copy.copy(filling)
    elif parent[key] == filling:
        return _repair(data, path[:-1])
    else:
        del parent[key]
    return path


def _mend_start(data: dict[str, Json]) -> KeyPath | None:
    nodes, start = data.get("nodes"), data.get("start")
    if not isinstance(nodes, dict) or not nodes:
        return None
    meant = closest(start, nodes) if isinstance(start, str) else None
    data["start"] = meant or next(iter(nodes))
    return ("start",) if meant else ("start", "")  # the second: no node has a similar name


def _stand_in(node: Json) -> Json:
    """A replacement for a node of any type, which keeps its `next`."""
    target = node.get("next") if isinstance(node, dict) else None
    return {"type": "llm", "prompt": "?", **({"next": target} if isinstance(target, str) else {})}


def _is_edge(path: KeyPath) -> bool:
    if path[0] != "nodes":
        return path == ("start", "")
    return len(path) == 2 or path[2] in _EDGE_KEYS


def _at(data: Json, path: KeyPath) -> Json:
    for part in path:
        if isinstance(data, dict):
            data = data.get(str(part))
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data
