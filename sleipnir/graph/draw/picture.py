"""The content of a picture of a graph in any format: shapes, arrows, and the progress of a run.

Rules. Every node has a shape of its type. Every edge that a run can take is drawn once, in file order. Not drawn are
edges that are never taken (the `next` of an approval, the edges of an end node and of a node that is only the body of a
map) and the targets of a script's `_next`, which are unknown. A target that does not exist is drawn too, so that a
broken graph can be inspected.

Solid arrows are taken always, or by a person's choice; dashed ones on a condition; dotted ones on demand of the run: a
map for each item, a command for a named end. The sources of one join meet in a bar. Names are never trusted: shapes
are named n0, n1, ..., and the writers escape every text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from sleipnir.graph.model import (
    END,
    AgentNode,
    ApprovalNode,
    Edge,
    EndNode,
    Graph,
    GraphNode,
    Join,
    JoinNode,
    MapNode,
    Node,
    edges_of,
)

Style: TypeAlias = Literal["solid", "dashed", "dotted"]
State: TypeAlias = Literal["queued", "running", "waiting", "failed", "done"]

START: Final = "start"
FINISH: Final = "finish"
BAR: Final = "bar"
MISSING: Final = "missing"

_CONDITIONAL = ("tools_node", "tools", "fallback", "on_error", "on_timeout", "branch", "default", "routers")
_LABELS: Mapping[str, str] = {
    "on_other": "other",
    "fallback": "fallback",
    "tools_node": "tools",
    "tools": "tools",
    "on_error": "error",
    "on_timeout": "no answer",
}


@dataclass(frozen=True)
class Mark:
    """The progress of a run at a node. `note` describes it; `ended`: a visit of the node has ended."""

    state: State
    note: str = ""
    ended: bool = True


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run: a mark for each node that it reached, and the edges it took, as pairs of node ids."""

    caption: str
    marks: Mapping[str, Mark] = field(default_factory=dict)
    ways: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Shape:
    """The source or target of arrows. `kind` is the node's type, or START, FINISH (of a branch), BAR or MISSING."""

    name: str
    kind: str
    title: str
    subtitle: str = ""
    mark: Mark | None = None


@dataclass(frozen=True)
class Arrow:
    """An arrow between two shapes, by name. `taken`: the run took it."""

    source: str
    target: str
    style: Style = "solid"
    label: str = ""
    taken: bool = False


@dataclass(frozen=True)
class Picture:
    """`caption` names a run and its status; None for a graph."""

    title: str
    shapes: tuple[Shape, ...]
    arrows: tuple[Arrow, ...]
    description: str = ""
    caption: str | None = None


def picture(graph: Graph, progress: RunProgress | None = None) -> Picture:
    """The picture of a graph, or of a run of it. The same values give the same picture."""
    return _Sketch(graph, progress).picture()


class _Sketch:
    """Builds one picture."""

    def __init__(self, graph: Graph, progress: RunProgress | None) -> None:
        self.graph, self.progress = graph, progress or RunProgress("")
        self.edges = list(_drawn_edges(graph))
        self.joins = list(_joins(graph))
        joined = [source for meeting in self.joins for source in meeting.join.sources]
        ids = dict.fromkeys([*graph.nodes, graph.start, *(edge.target for edge in self.edges), *joined])
        if any(graph.ends_branch(target) for _, target in self.progress.ways):
            ids[END] = None
        ends = [node_id for node_id in ids if graph.ends_branch(node_id)]
        named = [node_id for node_id in ids if not graph.ends_branch(node_id)]
        self.names = {node_id: f"n{number}" for number, node_id in enumerate(named)} | dict.fromkeys(ends, FINISH)

    def picture(self) -> Picture:
        """The shapes and arrows of the graph, with the progress of a run if there is one."""
        marks = self.progress.marks
        shapes = [Shape(START, START, START)]
        shapes += [replace(self._shape(node_id, name), mark=marks.get(node_id)) for node_id, name in self.names.items()]
        shapes += [Shape(meeting.bar, BAR, _quorum(meeting.join)) for meeting in self.joins if meeting.bar]
        arrows = [Arrow(START, self.names[self.graph.start], taken=self.graph.start in marks)]
        arrows += [self._arrow(edge) for edge in self.edges]
        arrows += [arrow for meeting in self.joins for arrow in self._join_arrows(meeting)]
        arrows += self._undeclared_ways()
        return Picture(
            title=self.graph.name,
            shapes=tuple(dict.fromkeys(shapes)),
            arrows=tuple(dict.fromkeys(arrows)),
            description=self.graph.description,
            caption=self.progress.caption or None,
        )

    def _shape(self, node_id: str, name: str) -> Shape:
        node = self.graph.nodes.get(node_id)
        if node is not None:
            kind = AgentNode.kind if isinstance(node, GraphNode) else node.kind
            return Shape(name, kind, node_id, " · ".join([_subtitle(node), *self._stops(node_id)]))
        return Shape(FINISH, FINISH, END) if name == FINISH else Shape(name, MISSING, node_id, MISSING)

    def _arrow(self, edge: Edge) -> Arrow:
        reached = edge.target in self.progress.marks
        taken = reached if edge.kind == "body" else (edge.source, edge.target) in self.progress.ways
        label = _LABELS.get(edge.kind, edge.label)
        return Arrow(self.names[edge.source], self.names[edge.target], _style(self.graph, edge), label, taken)

    def _join_arrows(self, meeting: _Meeting) -> Iterator[Arrow]:
        marks, target = self.progress.marks, self.names[meeting.target]
        for source in meeting.join.sources:
            ended = source in marks and marks[source].ended
            yield Arrow(self.names[source], meeting.bar or target, taken=ended)
        if meeting.bar:
            yield Arrow(meeting.bar, target, taken=meeting.target in marks)

    def _stops(self, node_id: str) -> Iterator[str]:
        """`stops before and after`: the breakpoint of a node."""
        if phases := [phase for phase, nodes in self.graph.breakpoints.items() if node_id in nodes]:
            yield f"stops {' and '.join(phases)}"

    def _undeclared_ways(self) -> Iterator[Arrow]:
        """The edges that the run took and the file does not declare."""
        declared = {(edge.source, edge.target) for edge in self.edges}
        declared |= {(source, meeting.target) for meeting in self.joins for source in meeting.join.sources}
        for source, target in sorted(self.progress.ways - declared):
            if source in self.names and target in self.names:
                yield Arrow(self.names[source], self.names[target], "dotted", taken=True)


@dataclass(frozen=True)
class _Meeting:
    """A join, its waiting node, and the name of its bar; an empty name means no bar."""

    target: str
    join: Join
    bar: str


def _joins(graph: Graph) -> Iterator[_Meeting]:
    bars = 0
    for node_id, node in graph.nodes.items():
        for join in node.wait_for:
            bar = _needs_bar(node, join)
            yield _Meeting(node_id, join, f"j{bars}" if bar else "")
            bars += bar


def _needs_bar(node: Node, join: Join) -> bool:
    """Whether a join is drawn with a bar: not for a join node, which is its own bar, nor for a single source."""
    return len(join.sources) > 1 and not (isinstance(node, JoinNode) and len(node.wait_for) == 1)


def _drawn_edges(graph: Graph) -> Iterator[Edge]:
    """The edges that a run can take, with the names of ends resolved."""
    only_bodies = _only_bodies(graph)
    for node in graph.nodes.values():
        if isinstance(node, EndNode) or node.id in only_bodies:
            continue
        covered = {edge.label for edge in edges_of(node) if edge.kind in ("branch", "routers")}
        covered |= {edge.target for edge in edges_of(node) if edge.kind in ("branch", "default", "routers")}
        for edge in edges_of(node):
            ignored = edge.kind == "next" and isinstance(node, ApprovalNode)
            if edge.kind == "body" or ignored or (edge.kind == "ends" and edge.label in covered):
                continue
            if edge.kind == "next" and graph.waits_for(edge.target, node.id):
                continue  # drawn as a join
            label = _default_label(node) if edge.kind == "default" else edge.label
            yield replace(edge, target=graph.target_of(node, edge.target) or edge.target, label=label)
        if isinstance(node, MapNode):
            yield from _chain(node)


def _chain(node: MapNode) -> Iterator[Edge]:
    """A map leads to its first body, and each body to the next."""
    before = node.id
    for body in node.body:
        yield Edge(before, body, "body", f"each {node.item}" if before == node.id else "")
        before = body


def _only_bodies(graph: Graph) -> set[str]:
    """The nodes that only maps lead to: their own edges are never taken."""
    maps = [node for node in graph.nodes.values() if isinstance(node, MapNode)]
    bodies = {body for node in maps for body in node.body if body in graph.nodes}
    others = {
        graph.target_of(node, edge.target)
        for node in graph.nodes.values()
        if node.id not in bodies
        for edge in edges_of(node)
        if edge.kind != "body"
    }
    return {body for body in bodies - others - {graph.start} if not graph.nodes[body].wait_for}


def _default_label(node: Node) -> str:
    return "else" if node.branch is not None and node.branch.cases else "default"


def _style(graph: Graph, edge: Edge) -> Style:
    """Names of ends are the labels of a conditional edge that declares none itself; else only commands use them."""
    if edge.kind in _CONDITIONAL:
        return "dashed"
    if edge.kind == "ends":
        branch = graph.nodes[edge.source].branch
        return "dashed" if branch is not None and not branch.cases and not branch.to else "dotted"
    return "dotted" if edge.kind == "body" else "solid"


def _subtitle(node: Node) -> str:
    if isinstance(node, JoinNode) and len(node.wait_for) == 1:
        return f"join {_quorum(node.wait_for[0])}"
    return node.kind


def _quorum(join: Join) -> str:
    count = len(join.sources)
    return "all" if join.needed >= count else f"{join.needed} of {count}"
