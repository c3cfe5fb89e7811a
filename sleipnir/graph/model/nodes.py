"""All types of nodes, and the edges that any of them declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sleipnir.graph.model.control_nodes import (
    ApprovalNode,
    EndNode,
    InputNode,
    JoinNode,
    MapNode,
    RouterNode,
    WaitNode,
)
from sleipnir.graph.model.edges import CONTINUE, FAIL
from sleipnir.graph.model.remotes import RemoteNode
from sleipnir.graph.model.work_nodes import (
    AgentNode,
    FunctionNode,
    GraphNode,
    LlmNode,
    RagNode,
    ScriptNode,
    ToolNode,
    ToolsNode,
)

Node: TypeAlias = (
    AgentNode
    | ScriptNode
    | ApprovalNode
    | InputNode
    | LlmNode
    | RagNode
    | EndNode
    | MapNode
    | FunctionNode
    | GraphNode
    | RouterNode
    | JoinNode
    | WaitNode
    | ToolNode
    | ToolsNode
    | RemoteNode
)

NODE_TYPES: Mapping[str, type[Node]] = {
    "agent": AgentNode,
    "script": ScriptNode,
    "approval": ApprovalNode,
    "input": InputNode,
    "llm": LlmNode,
    "rag": RagNode,
    "end": EndNode,
    "map": MapNode,
    "function": FunctionNode,
    "router": RouterNode,
    "join": JoinNode,
    "wait": WaitNode,
    "graph": GraphNode,
    "tools": ToolsNode,
}

LOKI_NODE_TYPES: Mapping[str, type[Node]] = {
    kind: node for kind, node in NODE_TYPES.items() if node not in (WaitNode, GraphNode, ToolsNode)
}
"""The node types of a graph of version 1.0: Loki's, and those that were added before sleipnir/1."""


EdgeKind: TypeAlias = Literal[
    "next",
    "routes",
    "on_other",
    "fallback",
    "tools_node",
    "tools",
    "body",
    "on_timeout",
    "branch",
    "default",
    "routers",
    "ends",
    "wait_for",
    "on_error",
]


@dataclass(frozen=True, slots=True)
class Edge:
    """A declared edge. `label` selects it: the option of an approval route, the label of a branch or a router, the
    condition of a branch, the name of an end; else the empty string."""

    source: str
    target: str
    kind: EdgeKind
    label: str = ""


def edges_of(node: Node) -> list[Edge]:
    """Declared edges in the validator's order (spec 2.12, check 2): next, routes, on_other, fallback, body; then the
    added ones.

    Targets are as written: a name in the node's `ends` is not resolved (see Graph.target_of).
    """
    edges = [Edge(node.id, target, "next") for target in node.targets]
    if isinstance(node, ApprovalNode):
        edges += [Edge(node.id, target, "routes", option) for option, target in node.routes.items()]
        edges.append(Edge(node.id, node.on_other, "on_other"))
    if isinstance(node, ScriptNode | FunctionNode | LlmNode) and node.fallback is not None:
        edges.append(Edge(node.id, node.fallback, "fallback"))
    if isinstance(node, LlmNode) and node.tools_node is not None:
        edges.append(Edge(node.id, node.tools_node, "tools_node"))
    if node.on_error not in (None, FAIL, CONTINUE):
        edges.append(Edge(node.id, str(node.on_error), "on_error"))
    if isinstance(node, MapNode):
        edges += [Edge(node.id, body, "body") for body in node.body]
    if isinstance(node, ApprovalNode | InputNode | WaitNode) and node.on_timeout is not None:
        edges.append(Edge(node.id, node.on_timeout, "on_timeout"))
    return (
        edges + _conditional_edges(node) + [Edge(node.id, target, "ends", name) for name, target in node.ends.items()]
    )


def _conditional_edges(node: Node) -> list[Edge]:
    routers = node.routers if isinstance(node, FunctionNode) else []
    chosen = [Edge(node.id, target, "routers", label) for router in routers for label, target in router.to.items()]
    return chosen + _branch_edges(node)


def _branch_edges(node: Node) -> list[Edge]:
    if node.branch is None:
        return []
    edges = [Edge(node.id, choice.to, "branch", choice.when) for choice in node.branch.cases]
    edges += [Edge(node.id, target, "branch", label) for label, target in node.branch.to.items()]
    if node.branch.tools is not None:
        edges.append(Edge(node.id, node.branch.tools, "tools"))
    if node.branch.default is not None:
        edges.append(Edge(node.id, node.branch.default, "default"))
    return edges
