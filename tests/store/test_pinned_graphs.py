"""The graph of a stored run, read from the bundle that it is pinned to."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.agents.bundle import pack
from sleipnir.client import pinned_graph as pinned
from sleipnir.client.pinned_graph import KEPT, pinned_graph
from sleipnir.errors import BundleError
from sleipnir.graph.model import Graph
from sleipnir.runs.run import RunSpec
from sleipnir.store.store import Store
from tests.processes import write_agent

GRAPH = "name: {name}\nstart: a\nmodel: openai:one\nnodes:\n  a: {{type: end, output: ok}}\n"


def stored(store: Store, folder: Path, name: str) -> RunSpec:
    """The spec of a run of this agent, whose bundle is in Redis."""
    bundle = pack(write_agent(folder / name, GRAPH.format(name=name)), limit_bytes=1_000_000)
    store.bundles.put(bundle.digest, bundle.packed, 1)
    return RunSpec(name, bundle.digest)


def test_a_graph_that_was_read_is_not_read_again_unless_its_bundle_is_gone(store: Store, tmp_path: Path) -> None:
    spec = stored(store, tmp_path, "known")
    graph = pinned_graph(store, spec)
    assert isinstance(graph, Graph) and graph.name == "known"
    assert pinned_graph(store, spec) is graph
    other = RunSpec("known", spec.bundle, overrides={"known": {"model": "openai:two"}})
    assert (pinned_graph(store, other).model, graph.model) == ("openai:two", "openai:one")
    store._client.delete(store.keys.bundle(spec.bundle))
    with pytest.raises(BundleError, match="is not in Redis"):
        pinned_graph(store, spec)


def test_only_the_graphs_that_were_read_last_are_kept(store: Store, tmp_path: Path) -> None:
    specs = [stored(store, tmp_path, f"one{number}") for number in range(KEPT + 3)]
    for spec in specs:
        pinned_graph(store, spec)
    assert len(pinned._graphs) == KEPT
    assert pinned_graph(store, specs[-1]) is pinned_graph(store, specs[-1])
    assert pinned_graph(store, specs[0]).name == "one0"
