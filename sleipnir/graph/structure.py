"""The structure of an agent as data: nodes, every possible edge, and what a run may have otherwise (surfaces).

Rules. The graph that a node runs is mounted below it: the ids of its nodes begin with that of the node, as the paths of
overrides do. What runs itself again is mounted once on each way down. The id of a structure is a digest of all of it,
and nothing in it depends on a machine: names, no paths of files. The order is that of the definition.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from sleipnir.errors import UsageError
from sleipnir.graph.model import (
    CONTINUE,
    FAIL,
    AgentNode,
    Edge,
    Graph,
    GraphNode,
    Json,
    LlmNode,
    Node,
    edges_of,
    graph_below,
)
from sleipnir.graph.node_overrides import FEW_SHOT, INSTRUCTION, MODEL, TOOLS, FindGraph

ROOT: Final = "."
"""The id of the agent itself, which leads to its first node, and to its `on_error` node from anywhere."""

END: Final = "__end__"
"""The name of the end of a branch, where it has no end node."""

MOST_NODES: Final = 20_000


@dataclass(frozen=True)
class StructureNode:
    """`id` is the path of a node, `kind` its type, `name` its own name. That of a node that runs an agent again which
    runs it has `again`: nothing is mounted there."""

    id: str
    kind: str
    name: str
    again: bool = False


@dataclass(frozen=True)
class StructureEdge:
    """A way from a node to another one. `kind` is the key that declares it, or `entry` to the first node of a graph;
    `label` the choice that takes it, if it has one."""

    source: str
    target: str
    kind: str
    label: str | None = None


@dataclass(frozen=True)
class Surface:
    """What a patch may replace in a run: `id` is `NODE#TYPE`, as `--patch` names it. `value` None: the default."""

    id: str
    node: str
    type: str
    value: Json = None


@dataclass(frozen=True)
class Structure:
    """`id` is the same on every machine, and another one if anything in it changes."""

    id: str
    agent: str
    entry: str
    nodes: tuple[StructureNode, ...]
    edges: tuple[StructureEdge, ...]
    surfaces: tuple[Surface, ...]

    def to_json(self) -> dict[str, Any]:
        """As data for JSON."""
        return asdict(self)


def structure_of(graph: Graph, find_graph: FindGraph) -> Structure:
    """The structure of a graph with all that its nodes run. Raises UsageError for one of too many nodes."""
    walk = _Walk(find_graph)
    root = StructureNode(ROOT, "agent", graph.name)
    walk.mount(graph, "", ROOT, (graph.name,))
    nodes, edges, surfaces = (root, *walk.nodes), tuple(walk.edges), tuple(walk.surfaces)
    parts = [[asdict(part) for part in each] for each in (nodes, edges, surfaces)]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return Structure(digest, graph.name, graph.start, nodes, edges, surfaces)


class _Walk:
    """Collects the parts of a structure, depth first."""

    def __init__(self, find_graph: FindGraph) -> None:
        self._find_graph = find_graph
        self.nodes: list[StructureNode] = []
        self.edges: list[StructureEdge] = []
        self.surfaces: list[Surface] = []

    def mount(self, graph: Graph, prefix: str, source: str, above: tuple[Hashable, ...]) -> None:
        self.edges.append(StructureEdge(source, prefix + graph.start, "entry"))
        if graph.on_error not in (None, FAIL, CONTINUE):
            self.edges.append(StructureEdge(source, f"{prefix}{graph.on_error}", "on_error"))
        ends = False
        for node in graph.nodes.values():
            own = prefix + node.id
            below = self._below(node, graph)
            key = _key(node, below)
            again = key is not None and key in above
            kind = "graph" if below is not None and not isinstance(node, AgentNode) else node.kind
            self.nodes.append(StructureNode(own, kind, node.id, again))
            if len(self.nodes) > MOST_NODES:
                raise UsageError(f"the agent has more than {MOST_NODES:,} nodes, with those of what its nodes run")
            for edge in _edges(graph, node):
                ends = ends or edge.target == END
                self.edges.append(StructureEdge(own, prefix + edge.target, edge.kind, edge.label or None))
            self.surfaces += _surfaces(graph, node, own)
            if below is not None and not again:
                self.mount(below, f"{own}/", own, (*above, key))
        if ends and END not in graph.nodes:
            self.nodes.append(StructureNode(prefix + END, "end", END))

    def _below(self, node: Node, graph: Graph) -> Graph | None:
        return graph_below(graph, node.graph) if isinstance(node, GraphNode) else self._find_graph(node, graph)


def _key(node: Node, below: Graph | None) -> Hashable:
    """What tells the graph that a node runs apart from others. None: it runs none."""
    if isinstance(node, AgentNode):
        return node.agent
    if isinstance(node, GraphNode):
        return ("graph", node.graph)
    return None if below is None else id(below)


def _edges(graph: Graph, node: Node) -> Iterator[Edge]:
    """The ways on from a node, each once: with names of ends resolved, and to the nodes that wait for it."""
    found = [_resolved(graph, node, edge) for edge in edges_of(node)]
    joins = [Edge(node.id, target, "wait_for") for target, _ in graph.joins.get(node.id, ())]
    joined = {join.target for join in joins}
    kept = [edge for edge in found if edge.target not in joined or edge.kind == "body"]
    yield from dict.fromkeys([*kept, *joins])


def _resolved(graph: Graph, node: Node, edge: Edge) -> Edge:
    target = graph.target_of(node, edge.target) or edge.target
    return Edge(edge.source, target if target in graph.nodes else END, edge.kind, edge.label)


def _surfaces(graph: Graph, node: Node, own: str) -> list[Surface]:
    if not isinstance(node, LlmNode):
        return []
    values: dict[str, Json] = {
        INSTRUCTION: node.instructions,
        FEW_SHOT: node.few_shot,
        MODEL: graph.model if node.model is None else node.model,
        TOOLS: list(node.tools or ()),
    }
    if graph.loop is not None and graph.loop.dynamic_instructions:
        del values[INSTRUCTION]
    if graph.loop is not None or graph.is_loki:
        del values[FEW_SHOT]
    return [Surface(f"{own}#{name}", own, name, value) for name, value in values.items()]
