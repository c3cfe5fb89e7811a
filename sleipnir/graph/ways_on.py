"""Where each answer to a question leads, as far as the graph alone decides it. Pure.

What the code of a node or the state decides is not known before: a way ends there, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sleipnir.graph.model import ApprovalNode, EndNode, FunctionNode, Graph, InputNode, Node, ScriptNode

Then: TypeAlias = Literal["end", "question", "join", "code", "more"]
MOST_STEPS: Final = 5
"""The nodes of one way that are named."""


@dataclass(frozen=True)
class NextNode:
    """A node on a way. `once`: its work is not repeated (`effect: once`)."""

    node: str
    type: str
    once: bool = False


@dataclass(frozen=True)
class WayOn:
    """What runs after an answer. `answer` None: any other answer, or one to a question without options. `steps` are the
    nodes that run first, one after the other; with `together` they run at once. `then` is how it goes on: `end` of the
    branch, `question` (the last step asks again), `join` (it waits for others), `code` decides, `more` nodes follow.
    `may_differ`: the code of a step that is not the last one may lead elsewhere (`_next`)."""

    answer: str | None
    steps: tuple[NextNode, ...]
    then: Then
    together: bool = False
    may_differ: bool = False


def ways_on(graph: Graph, node: str, kind: str, options: tuple[str, ...]) -> list[WayOn]:
    """The ways on from a question that a node asks: for each option, then for any other answer. An answer to what is
    not an approval or input node goes back to its node, whose code decides."""
    asking = graph.nodes.get(node)
    if asking is None or kind not in ("approval", "input") or asking.kind != kind:
        first = (_named(asking),) if asking is not None else ()
        return [WayOn(option, first, "code") for option in options] or [WayOn(None, first, "code")]
    if isinstance(asking, ApprovalNode):
        found = [_way(graph, asking, option, asking.target_of_answer(option)) for option in options]
        return [*found, _way(graph, asking, None, asking.on_other)]
    targets = asking.targets
    if asking.branch is not None:
        return [WayOn(None, (), "code")]
    if len(targets) != 1:
        return [_several(graph, asking, targets)]
    return [_way(graph, asking, None, targets[0])]


def _several(graph: Graph, asking: Node, targets: list[str]) -> WayOn:
    nodes = [graph.nodes[name] for target in targets if (name := _resolved(graph, asking, target)) is not None]
    return WayOn(None, tuple(map(_named, nodes[:MOST_STEPS])), "more" if nodes else "end", together=len(nodes) > 1)


def _way(graph: Graph, asking: Node, answer: str | None, target: str) -> WayOn:
    steps, then = _followed(graph, asking, target)
    may_differ = any(isinstance(node, ScriptNode | FunctionNode) for node in steps[:-1])
    return WayOn(answer, tuple(map(_named, steps)), then, may_differ=may_differ)


def _followed(graph: Graph, source: Node, target: str) -> tuple[list[Node], Then]:
    """The nodes along the plain edges, and how it goes on."""
    steps: list[Node] = []
    while True:
        name = _resolved(graph, source, target)
        if name is None:
            return steps, "end"
        node = graph.nodes[name]
        is_known = node in steps
        steps.append(node)
        if graph.waits_for(name, source.id):
            return steps, "join"
        if isinstance(node, ApprovalNode | InputNode):
            return steps, "question"
        if _decides(node):
            return steps, "code"
        if isinstance(node, EndNode) or not node.targets:
            return steps, "end"
        if len(node.targets) > 1 or is_known or len(steps) == MOST_STEPS:
            return steps, "more"
        source, target = node, node.targets[0]


def _decides(node: Node) -> bool:
    """Whether more than the graph decides what follows a node: its branch, its routers, or named ends."""
    return node.branch is not None or bool(node.ends) or (isinstance(node, FunctionNode) and bool(node.routers))


def _resolved(graph: Graph, source: Node, target: str) -> str | None:
    """The node of a target; None: the end of the branch."""
    name = source.ends.get(target, target)
    return name if name in graph.nodes else None


def _named(node: Node) -> NextNode:
    return NextNode(node.id, node.kind, isinstance(node, ScriptNode | FunctionNode) and node.effect == "once")
