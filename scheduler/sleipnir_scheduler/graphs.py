"""Graphs by bundle digest, parsed once and kept: a run's graph never changes."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping

from sleipnir.agents.bundle import graph_in
from sleipnir.errors import BundleError, GraphError
from sleipnir.graph.model import Graph, Json
from sleipnir.graph.overrides import overridden
from sleipnir.settings import MOST_UNPACKED_BYTES

KEPT = 512  # graphs are a few kB each
REFUSED_S = 10.0  # how long the error of a bundle is cached: a thousand parked runs may have the same bundle


class Graphs:
    """`fetch` returns a bundle's bytes, or None."""

    def __init__(self, fetch: Callable[[str], bytes | None], unpacked_bytes: int = MOST_UNPACKED_BYTES) -> None:
        self._fetch, self._unpacked_bytes = fetch, unpacked_bytes
        self._written = functools.lru_cache(maxsize=KEPT)(self._read)
        self._variant = functools.lru_cache(maxsize=KEPT)(self._overridden)
        self._refused: dict[tuple[str, str, str], tuple[float, BundleError | GraphError]] = {}

    def get(self, digest: str, agent: str, overrides: Mapping[str, Json] | None = None) -> Graph:
        """`overrides` are those of the run. Raises BundleError if the bundle is missing or damaged, GraphError if its
        graph does not load."""
        text = json.dumps(overrides) if overrides else ""
        if self._refused and (refused := self._refused.get((digest, agent, text))) is not None:
            if time.monotonic() < refused[0]:
                raise refused[1]
            del self._refused[digest, agent, text]
        try:
            return self._variant(digest, agent, text) if text else self._written(digest, agent)
        except (BundleError, GraphError) as error:
            if len(self._refused) >= KEPT:
                self._refused.clear()
            self._refused[digest, agent, text] = time.monotonic() + REFUSED_S, error.with_traceback(None)
            raise

    def _read(self, digest: str, agent: str) -> Graph:
        packed = self._fetch(digest)
        if packed is None:
            raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is not in Redis; was it flushed?")
        try:
            return graph_in(packed, agent, unpacked_bytes=self._unpacked_bytes)
        except BundleError as error:
            raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is damaged: {error}") from error

    def _overridden(self, digest: str, agent: str, overrides: str) -> Graph:
        return overridden(self._written(digest, agent), json.loads(overrides))
