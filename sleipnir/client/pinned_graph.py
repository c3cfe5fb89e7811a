"""The graph of stored runs: that of the bundle that they are pinned to, independent of the agent's current folder."""

from __future__ import annotations

from typing import Final

from sleipnir.agents.bundle import graph_in
from sleipnir.errors import BundleError
from sleipnir.graph.model import Graph
from sleipnir.graph.overrides import overridden
from sleipnir.runs.run import RunSpec
from sleipnir.store.store import Store

KEPT: Final = 16

_graphs: dict[tuple[str, str], Graph] = {}
"""The graphs that were read last, by the digest of their bundle, which identifies its content, and their agent. To
parse one of a thousand nodes takes 35 ms."""


def pinned_graph(store: Store, spec: RunSpec) -> Graph:
    """Raises BundleError if the bundle is no longer in Redis."""
    graph = overridden(_written(store, spec.bundle, spec.agent), spec.overrides.get(spec.agent, {}))
    return graph if spec.by_version else graph.of_earlier_release


def _written(store: Store, digest: str, agent: str) -> Graph:
    graph = _graphs.get((digest, agent))
    if graph is not None and store.bundles.size(digest):
        return graph
    packed = store.bundles.get(digest)
    if packed is None:
        raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is not in Redis; was it flushed?")
    graph = graph_in(packed, agent)
    for oldest in [*_graphs][: max(0, len(_graphs) - KEPT + 1)]:
        _graphs.pop(oldest, None)
    _graphs[digest, agent] = graph
    return graph
