"""The graphs that are nodes of a graph that travels: documents in the `graphs` of its document.

A graph has one document, however many nodes run it. Its functions are found by the references of the graph at the top.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

from sleipnir.graph.findings import KeyPath
from sleipnir.python_graph.document import GraphDocument, problem_at
from sleipnir.python_graph.errors import GraphBuildError
from sleipnir.python_graph.parts import GraphParts, NodeSpec, Place
from sleipnir.python_graph.references import References
from sleipnir.python_graph.schema import keys_of


class SubGraphs:
    """The documents of the graphs that are nodes, by name. Call it for the name of a node's graph."""

    def __init__(self, references: References) -> None:
        self.documents: dict[str, GraphDocument] = {}
        self._references = references
        self._names: dict[int, str] = {}
        self._unfinished: set[str] = set()

    def __call__(self, node: NodeSpec) -> str:
        """Raises GraphBuildError for a graph that is a node of itself, or has a configuration of its own."""
        graph = node.action
        if graph.config:
            message = f"Node `{node.name}`: what with_config gives to a graph that is a node does not travel yet"
            raise GraphBuildError.of([problem_at(node.place, message)])
        name = self._names.get(id(graph.parts))
        if name is None:
            name = self._names[id(graph.parts)] = self._unused(graph.given_name or node.name)
            self._unfinished.add(name)
            document = graph.translated(self._references, self)
            self.documents[name] = replace(document, data={**document.data, **self._head(graph.parts)})
            self._unfinished.remove(name)
        elif name in self._unfinished:
            message = f"Node `{node.name}` runs the graph '{name}', which runs this node: it would never end"
            raise GraphBuildError.of([problem_at(node.place, message)])
        return name

    def _unused(self, wanted: str) -> str:
        """A name that can be part of an agent's name."""
        base = re.sub(r"[^A-Za-z0-9_.-]+", "-", wanted)
        names = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in self._names.values())

    def _head(self, parts: GraphParts) -> dict[str, Any]:
        """What only the document of a graph that is a node has: the keys that it takes and returns, as `invoke` does.
        Its classes are always there, for these."""
        takes_all = parts.input_schema is parts.state_schema
        returns_all = parts.output_schema is parts.state_schema and len(parts.classes) == 1
        return {
            "input_keys": list(parts.keys if takes_all else keys_of(parts.input_schema)),
            "output_keys": list(parts.keys if returns_all else keys_of(parts.output_schema)),
            "state_classes": [self._references.to(declared) for declared in parts.classes],
        }


def joined(own: GraphDocument, graphs: dict[str, GraphDocument]) -> GraphDocument:
    """A document with those of the graphs that its nodes run."""
    if not graphs:
        return own
    places: dict[KeyPath, Place] = dict(own.places)
    data: dict[str, Any] = {**own.data, "graphs": {name: each.data for name, each in graphs.items()}}
    for name, each in graphs.items():
        places |= {("graphs", name, *path): place for path, place in each.places.items()}
    return replace(own, data=data, places=places)
