"""The positions of all parts of a picture: a layered layout, after Sugiyama, without randomness.

Nodes are in rows, from top to bottom (`TB`) or from left to right (`LR`). Links lead from a row to a later one; a link
that closes a cycle is laid out reversed. A link that passes a row occupies a place there, and its label occupies a
place in a row between, so no node overlaps a link or a label. Between two rows a link is one smooth curve, across a
row it is straight. A link from a node to itself is a loop at the node's side; a node has at most one.

Lengths are pixels; the origin is the top left corner. The same input gives the same output.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from sleipnir.graph.draw.layering import layers, turned
from sleipnir.graph.draw.ordering import ordered
from sleipnir.graph.draw.placing import placed

Direction: TypeAlias = Literal["TB", "LR"]

_NODE_GAP = 34.0
_LINE_GAP = 16.0
_LABEL_GAP = 10.0
_LEAST_ROW_GAP = 30.0
_MOST_ROW_GAP = 110.0
_SLOPE = 0.12  # row gap per sideways distance of the widest link in it, so that no link looks horizontal
_PORT = 26.0  # distance of a reversed link from the middle of the node
_LOOP = 20.0  # how far a loop extends
_LOOP_GAP = 5.0


Side: TypeAlias = Literal["top", "bottom", "left", "right"]
Dent: TypeAlias = Callable[[str, Side, float], float]
"""The distance from a node's bounding box to its outline, on a side, at an offset from the middle of the side."""


class Point(NamedTuple):
    x: float
    y: float


class Size(NamedTuple):
    width: float
    height: float


class Curve(NamedTuple):
    """A cubic Bézier curve. A straight piece has its handles at its ends."""

    start: Point
    leave: Point
    arrive: Point
    end: Point

    @property
    def is_straight(self) -> bool:
        return self.start == self.leave and self.arrive == self.end


@dataclass(frozen=True)
class Link:
    """An arrow to lay out, with the size of its label, if it has one.

    `main` links have priority for a straight line. Links of one `bundle` with the same target merge as early as
    possible.
    """

    source: str
    target: str
    label: Size | None = None
    main: bool = True
    bundle: str = ""


@dataclass(frozen=True)
class ArrowRoute:
    """The curve of a link from its source to its target, and the middle of its label. Merged links share pieces."""

    pieces: tuple[Curve, ...]
    label: Point | None = None


@dataclass(frozen=True)
class Layout:
    """`places` are the centres of the nodes, `routes` are in the order of the links."""

    size: Size
    places: Mapping[str, Point]
    routes: tuple[ArrowRoute, ...]


def layout(
    sizes: Mapping[str, Size],
    links: Sequence[Link],
    direction: Direction = "TB",
    *,
    dent: Dent | None = None,
    wide: Collection[str] = (),
) -> Layout:
    """Lay out nodes and links: at least one node; the first is the start. Every end of a link has a size.

    `dent` gives the outlines of nodes; without it they are rectangles. The links of a `wide` node meet it side by side,
    those of other nodes in one point.
    """
    if direction == "TB":
        return _Page(sizes, links, dent or _no_dent, wide).layout()
    lying = {name: _flipped(size) for name, size in sizes.items()}
    turned_links = [replace(link, label=link.label and _flipped(link.label)) for link in links]
    page = _Page(lying, turned_links, _lying_dent(dent or _no_dent), wide).layout()
    return Layout(
        _flipped(page.size),
        {name: Point(place.y, place.x) for name, place in page.places.items()},
        tuple(
            ArrowRoute(
                tuple(Curve(*(Point(point.y, point.x) for point in piece)) for piece in route.pieces),
                route.label and Point(route.label.y, route.label.x),
            )
            for route in page.routes
        ),
    )


def _no_dent(name: str, side: Side, offset: float) -> float:
    return 0.0


def _lying_dent(dent: Dent) -> Dent:
    sides: Mapping[Side, Side] = {"top": "left", "bottom": "right", "left": "top", "right": "bottom"}
    return lambda name, side, offset: dent(name, sides[side], offset)


def _flipped(size: Size) -> Size:
    return Size(size.height, size.width)


@dataclass
class _Vertex:
    """An element of a row: a node, the bend of a link, or a label. `right` includes a node's loop."""

    height: float
    left: float
    right: float
    kind: Literal["node", "bend", "label"]
    ups: list[int] = field(default_factory=list)
    downs: list[int] = field(default_factory=list)


class _Page:
    """Computes one layout, with rows from top to bottom."""

    def __init__(self, sizes: Mapping[str, Size], links: Sequence[Link], dent: Dent, wide: Collection[str]) -> None:
        self.sizes, self.links, self.dent, self.wide = sizes, links, dent, wide
        self.names = list(sizes)
        self.number = {name: index for index, name in enumerate(sizes)}
        self.loops = {link.source: link for link in links if _is_loop(link)}
        self.vertices = [self._node(name, size) for name, size in sizes.items()]
        self.rows: list[list[int]] = []
        self.chains: dict[int, list[int]] = {}
        self.bends: dict[tuple[int, str, str, bool], int] = {}
        self.upwards: set[int] = set()

    def layout(self) -> Layout:
        self._fill_rows()
        self._order_rows()
        self._place_along_rows()
        self._place_rows()
        routes = [self._loop(link) if _is_loop(link) else self._route(index) for index, link in enumerate(self.links)]
        places = {name: Point(self.x[index], self.y[self.row_of[index]]) for name, index in self.number.items()}
        width = max(self.x[index] + vertex.right for index, vertex in enumerate(self.vertices))
        return Layout(Size(width, self.bottoms[-1]), places, tuple(routes))

    def _node(self, name: str, size: Size) -> _Vertex:
        loop = self.loops.get(name)
        height = max(size.height, loop.label.height) if loop and loop.label else size.height
        return _Vertex(height, size.width / 2, size.width / 2 + self._loop_room(name), "node")

    # Rows: of nodes, and of labels between them; bends where a link passes a row.

    def _fill_rows(self) -> None:
        straight = [index for index, link in enumerate(self.links) if not _is_loop(link)]
        arcs = [(self.number[self.links[index].source], self.number[self.links[index].target]) for index in straight]
        against = turned(len(self.sizes), arcs)
        self.upwards = {straight[number] for number in against}
        down = [arc[::-1] if number in against else arc for number, arc in enumerate(arcs)]
        layer = layers(len(self.sizes), down)
        label_rows = {
            self._label_layer(index, layer[upper], layer[lower])
            for index, (upper, lower) in zip(straight, down, strict=True)
            if self.links[index].label
        }
        self.rows = [[] for _ in range(max(layer) + 1 + len(label_rows))]
        row_of_layer = [number + sum(above < number for above in label_rows) for number in range(len(self.rows))]
        for node, number in enumerate(layer):
            self.rows[row_of_layer[number]].append(node)
        for index, (upper, lower) in zip(straight, down, strict=True):
            label = self.links[index].label
            label_row = row_of_layer[self._label_layer(index, layer[upper], layer[lower])] + 1 if label else -1
            first, last = row_of_layer[layer[upper]], row_of_layer[layer[lower]]
            chain = [upper]
            for row in range(first + 1, last):
                chain.append(self._label(row, label) if label and row == label_row else self._bend(row, index))
            chain.append(lower)
            for above, below in pairwise(chain):
                if below not in self.vertices[above].downs:
                    self.vertices[above].downs.append(below)
                    self.vertices[below].ups.append(above)
            self.chains[index] = chain
        self.row_of = {vertex: number for number, row in enumerate(self.rows) for vertex in row}

    def _label(self, row: int, size: Size) -> int:
        return self._new(row, _Vertex(size.height, size.width / 2, size.width / 2, "label"))

    def _bend(self, row: int, index: int) -> int:
        """The vertex where a link passes a row; merged links share it."""
        link = self.links[index]
        key = (row, link.target, link.bundle, index in self.upwards)
        if key not in self.bends:
            self.bends[key] = self._new(row, _Vertex(0.0, 0.0, 0.0, "bend"))
        return self.bends[key]

    def _new(self, row: int, vertex: _Vertex) -> int:
        self.vertices.append(vertex)
        self.rows[row].append(len(self.vertices) - 1)
        return len(self.vertices) - 1

    def _label_layer(self, index: int, upper: int, lower: int) -> int:
        """The layer below which a link has its label: next to its source, where a reader decides."""
        return lower - 1 if index in self.upwards else upper

    def _order_rows(self) -> None:
        self.ups = [vertex.ups for vertex in self.vertices]
        self.downs = [vertex.downs for vertex in self.vertices]
        self.rows = ordered(self.rows, self.ups, self.downs)

    # Places: x along a row, then y of each row.

    def _place_along_rows(self) -> None:
        on_line = [vertex.kind != "node" for vertex in self.vertices]
        middles = placed(self.rows, self.ups, self.downs, on_line, self._distance, self._loose_steps())
        leftmost = min(x - self.vertices[index].left for index, x in middles.items())
        self.x = [middles[index] - leftmost for index in range(len(self.vertices))]

    def _loose_steps(self) -> set[tuple[int, int]]:
        """The steps without priority for a straight line: at a node, those of reversed links, and of secondary links
        if there is a main one on the same side; where links merge, all but one."""
        sides: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
        for index, chain in self.chains.items():
            weight = 0 if index in self.upwards else 1 + self.links[index].main
            sides.setdefault((chain[0], "below"), []).append((weight, chain[0], chain[1]))
            sides.setdefault((chain[-1], "above"), []).append((weight, chain[-2], chain[-1]))
        at_nodes = {
            (above, below)
            for steps in sides.values()
            for weight, above, below in steps
            if weight == 0 or weight < max(other for other, _, _ in steps)
        }
        bends = [number for number, vertex in enumerate(self.vertices) if vertex.kind == "bend"]
        joining = {(above, bend) for bend in bends for above in self._all_but_the_trunk(self.ups[bend])}
        parting = {(bend, below) for bend in bends for below in self._all_but_the_trunk(self.downs[bend])}
        return at_nodes | joining | parting

    def _all_but_the_trunk(self, neighbours: list[int]) -> list[int]:
        """The neighbours of a bend in one row, without the bend that continues its bundle."""
        if not any(self.vertices[other].kind == "bend" for other in neighbours):
            return []
        return [other for other in neighbours if self.vertices[other].kind != "bend"]

    def _distance(self, left: int, right: int) -> float:
        first, second = self.vertices[left], self.vertices[right]
        kinds = (first.kind, second.kind)
        gap = _NODE_GAP if kinds == ("node", "node") else _LABEL_GAP if "label" in kinds else _LINE_GAP
        return first.right + gap + second.left

    def _place_rows(self) -> None:
        """The middle, top and bottom of each row."""
        self.y: list[float] = []
        self.tops: list[float] = []
        self.bottoms: list[float] = []
        for number, row in enumerate(self.rows):
            height = max(self.vertices[vertex].height for vertex in row)
            top = self.bottoms[-1] + self._gap_above(number) if number else 0.0
            self.tops.append(top)
            self.y.append(top + height / 2)
            self.bottoms.append(top + height)

    def _gap_above(self, number: int) -> float:
        ways = (abs(self.x[vertex] - self.x[above]) for vertex in self.rows[number] for above in self.ups[vertex])
        return min(max(_LEAST_ROW_GAP, _SLOPE * max(ways, default=0.0)), _MOST_ROW_GAP)

    # Routes.

    def _route(self, index: int) -> ArrowRoute:
        chain = self.chains[index]
        way: list[Curve] = []
        for above, below in pairwise(chain):
            start = self._port(index, above, below, down=True)
            end = self._port(index, below, above, down=False)
            leave = Point(start.x, self.bottoms[self.row_of[above]])
            arrive = Point(end.x, self.tops[self.row_of[below]])
            way += [_straight(start, leave), _curve(leave, arrive), _straight(arrive, end)]
        if index in self.upwards:
            way = [Curve(*piece[::-1]) for piece in reversed(way)]
        label = next((vertex for vertex in chain if self.vertices[vertex].kind == "label"), None)
        middle = None if label is None else Point(self.x[label], self.y[self.row_of[label]])
        return ArrowRoute(tuple(piece for piece in way if piece.start != piece.end), middle)

    def _port(self, index: int, vertex: int, towards: int, *, down: bool) -> Point:
        """The point where a link meets a vertex, on its lower side (`down`) or its upper one."""
        x, y = self.x[vertex], self.y[self.row_of[vertex]]
        if self.vertices[vertex].kind != "node":
            return Point(x, y)
        name = self.names[vertex]
        offset = self._port_offset(index, vertex, towards, down)
        half = self.sizes[name].height / 2 - self.dent(name, "bottom" if down else "top", offset)
        return Point(x + offset, y + half if down else y - half)

    def _port_offset(self, index: int, vertex: int, towards: int, down: bool) -> float:
        """The sideways offset of a port: reversed links meet a node beside its middle, to distinguish them."""
        width = self.sizes[self.names[vertex]].width
        if self.names[vertex] in self.wide:
            others = sorted(self.downs[vertex] if down else self.ups[vertex], key=lambda other: self.x[other])
            return (others.index(towards) - (len(others) - 1) / 2) * width / len(others)
        if index not in self.upwards:
            return 0.0
        offset = min(_PORT, width / 4)
        return offset if self.x[towards] > self.x[vertex] else -offset

    def _loop_room(self, name: str) -> float:
        """The width of the loop at a node's side, with its label."""
        link = self.loops.get(name)
        if link is None:
            return 0.0
        return _LOOP + (_LOOP_GAP + link.label.width if link.label else 0.0)

    def _loop(self, link: Link) -> ArrowRoute:
        """A loop at the right side, with its label to the right of it."""
        node, size = self.number[link.source], self.sizes[link.source]
        x, y = self.x[node] + size.width / 2, self.y[self.row_of[node]]
        port = size.height / 5
        out = Point(x - self.dent(link.source, "right", -port), y - port)
        back = Point(x - self.dent(link.source, "right", port), y + port)
        handle = x + _LOOP / 0.75  # a curve reaches three quarters of the distance to its handles
        bulge = min(size.height / 4, 14.0)
        way = (Curve(out, Point(handle, out.y - bulge), Point(handle, back.y + bulge), back),)
        return ArrowRoute(way, link.label and Point(x + _LOOP + _LOOP_GAP + link.label.width / 2, y))


def _is_loop(link: Link) -> bool:
    return link.source == link.target


def _straight(start: Point, end: Point) -> Curve:
    return Curve(start, start, end, end)


def _curve(start: Point, end: Point) -> Curve:
    if start.x == end.x:
        return _straight(start, end)
    middle = (start.y + end.y) / 2
    return Curve(start, Point(start.x, middle), Point(end.x, middle), end)
