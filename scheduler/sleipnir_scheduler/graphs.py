"""Graphs by bundle digest, parsed once and kept: a run's graph never changes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping

from sleipnir.bundle import graph_in
from sleipnir.errors import BundleError
from sleipnir.graph.model import Graph, Json
from sleipnir.graph.overrides import overridden

KEPT = 512  # graphs are a few kB each


class Graphs:
    """`fetch` returns a bundle's bytes, or None."""

    def __init__(self, fetch: Callable[[str], bytes | None]) -> None:
        self._fetch = fetch
        self._written = functools.lru_cache(maxsize=KEPT)(self._read)
        self._variant = functools.lru_cache(maxsize=KEPT)(self._overridden)

    def get(self, digest: str, agent: str, overrides: Mapping[str, Json] | None = None) -> Graph:
        """`overrides` are those of the run. Raises BundleError when the bundle is gone, GraphError when its graph does
        not load."""
        return self._variant(digest, agent, json.dumps(overrides)) if overrides else self._written(digest, agent)

    def _read(self, digest: str, agent: str) -> Graph:
        packed = self._fetch(digest)
        if packed is None:
            raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is not in Redis; was it flushed?")
        return graph_in(packed, agent)

    def _overridden(self, digest: str, agent: str, overrides: str) -> Graph:
        return overridden(self._written(digest, agent), json.loads(overrides))
