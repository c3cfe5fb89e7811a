"""The shared values that runs of a graph begin with (spec/graph-package.md F51)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sleipnir.graph import placeholders
from sleipnir.graph.key_scopes import OF_AGENT, OF_USER
from sleipnir.graph.model import Graph, Json, LlmNode


def scopes_of(graph: Graph, user: str | None) -> tuple[str, ...]:
    """The scopes whose shared values a run begins with, and writes back: all of them with a user, else those of its
    agent if the graph names one."""
    if user is not None:
        return (OF_USER, OF_AGENT)
    return (OF_AGENT,) if any(key.startswith(OF_AGENT) for key in _named(graph)) else ()


def _named(graph: Graph) -> set[str]:
    """The keys that a graph declares, and those in placeholders of its instructions."""
    texts = (
        node.instructions or ""
        for node in graph.nodes.values()
        if isinstance(node, LlmNode) and node.placeholders is not None
    )
    return {*graph.state, *(key for text in texts for key in placeholders.keys_read(text))}


def with_shared(graph: Graph, shared: Mapping[str, Json]) -> Graph:
    """A graph whose runs begin with shared values. Given ones replace them."""
    return replace(graph, initial_state={**graph.initial_state, **shared}) if shared else graph
