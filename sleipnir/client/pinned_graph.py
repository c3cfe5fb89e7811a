"""The graph of stored runs: that of the bundle that they are pinned to, independent of the agent's current folder."""

from __future__ import annotations

from sleipnir.agents.bundle import graph_in
from sleipnir.errors import BundleError
from sleipnir.graph.model import Graph
from sleipnir.graph.overrides import overridden
from sleipnir.runs.run import RunSpec
from sleipnir.store.store import Store


def pinned_graph(store: Store, spec: RunSpec) -> Graph:
    """Raises BundleError if the bundle is no longer in Redis."""
    packed = store.bundles.get(spec.bundle)
    if packed is None:
        raise BundleError(f"bundle {spec.bundle[:12]} of agent {spec.agent!r} is not in Redis; was it flushed?")
    graph = overridden(graph_in(packed, spec.agent), spec.overrides.get(spec.agent, {}))
    return graph if spec.by_version else graph.of_earlier_release
