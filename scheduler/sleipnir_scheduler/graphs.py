"""Graphs by bundle digest, parsed once and kept: a run's graph never changes."""

from __future__ import annotations

from collections.abc import Callable

from sleipnir.bundle import GRAPH_FILE, graph_text
from sleipnir.errors import BundleError
from sleipnir.graph.load import load_graph
from sleipnir.graph.model import Graph

KEPT = 512  # graphs are a few kB each


class Graphs:
    """`fetch` returns a bundle's bytes, or None."""

    def __init__(self, fetch: Callable[[str], bytes | None]) -> None:
        self._fetch = fetch
        self._graphs: dict[str, Graph] = {}

    def get(self, digest: str, agent: str) -> Graph:
        """Raises BundleError when the bundle is gone, GraphError when its graph does not load."""
        graph = self._graphs.get(digest)
        if graph is None:
            packed = self._fetch(digest)
            if packed is None:
                raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is not in Redis; was it flushed?")
            graph = load_graph(graph_text(packed), GRAPH_FILE, agent)
            while len(self._graphs) >= KEPT:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[digest] = graph
        return graph
