"""The nodes of a graph that come last."""

from __future__ import annotations

from sleipnir.graph.model import EndNode, Graph, MapNode, edges_of


def terminals(graph: Graph) -> frozenset[str]:
    """The nodes that nothing but end nodes follows, unless they fail."""

    def ends(target: str) -> bool:
        return target not in graph.nodes or isinstance(graph.nodes[target], EndNode)

    waiting = [node for node in graph.nodes.values() if not isinstance(node, EndNode)]
    waited_for = {source for node in waiting for join in node.wait_for for source in join.sources}
    of_maps = {name for node in graph.nodes.values() if isinstance(node, MapNode) for name in node.body}
    followed = {
        name
        for name, node in graph.nodes.items()
        if not all(ends(node.ends.get(edge.target, edge.target)) for edge in edges_of(node) if edge.kind not in _ASIDE)
    }
    return frozenset(graph.nodes.keys() - followed - of_maps - waited_for)


_ASIDE = frozenset(("fallback", "on_error", "tools_node"))
"""The kinds of edges that a node takes only if it fails, and from which it comes back."""
