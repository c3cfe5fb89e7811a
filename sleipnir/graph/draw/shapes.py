"""The outlines of nodes in an SVG: the size that fits a text, and the border.

Outlines are centred at (0, 0). All are polygons; round ones have many corners.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from sleipnir.graph.draw.layout import Point, Side, Size
from sleipnir.graph.draw.picture import BAR, FINISH, START

Polygon: TypeAlias = list[Point]

_SLANTS: Mapping[str, float] = {
    "function": 9.0, "approval": 18.0, "input": 12.0, "router": 14.0, "join": 14.0, "wait": 12.0,
}  # fmt: skip
_PADDING = 14.0
SHEETS: Final = 5.0  # the offset of a map's second sheet behind its first
_CAP = 5.0  # half the height of a cylinder's lid
_ROUND = (START, FINISH)


def size_around(kind: str, text: Size) -> Size:
    """The size of an outline that fits a text of that size."""
    slant = _SLANTS.get(kind, 0.0)
    width, height = text.width + 2 * _PADDING + 1.3 * slant, text.height + 14.0
    if kind == "rag":
        height += 2 * _CAP
    if kind == "map":
        width, height = width + SHEETS, height + SHEETS
    if kind == "agent":
        width += 10.0
    return Size(max(width, 76.0), height)


def outline(kind: str, size: Size) -> Polygon:
    """The corners, clockwise from the top left."""
    x, y, slant = size.width / 2, size.height / 2, _SLANTS.get(kind, 0.0)
    match kind:
        case "function" | "approval":
            corners = [(slant - x, -y), (x - slant, -y), (x, 0.0), (x - slant, y), (slant - x, y), (-x, 0.0)]
        case "input":
            corners = [(slant - x, -y), (x, -y), (x - slant, y), (-x, y)]
        case "wait":
            corners = [(-x, -y), (x - slant, -y), (x, y), (slant - x, y)]
        case "router":
            corners = [(-x, -y), (x - slant, -y), (x, 0.0), (x - slant, y), (-x, y)]
        case "join":
            corners = [(-x, -y), (x, -y), (x - slant, y), (slant - x, y)]
        case "rag":
            corners = [*_arc(x, _CAP, y - _CAP, upper=True), *_arc(x, _CAP, y - _CAP, upper=False)]
        case _ if kind in _ROUND:
            corners = [*_arc(x, y, 0.0, upper=True), *_arc(x, y, 0.0, upper=False)]
        case _:
            corners = [(-x, -y), (x, -y), (x, y), (-x, y)]
    return [Point(*corner) for corner in corners]


def dent(kind: str, size: Size, side: Side, offset: float) -> float:
    """The distance from the bounding box to the outline, on a side, at an offset from the middle of the side."""
    if side in ("left", "right"):
        corners, half = outline(kind, size), size.width / 2
    else:
        corners, half = [Point(corner.y, corner.x) for corner in outline(kind, size)], size.height / 2
    crossings = [x for pair in zip(corners, corners[1:] + corners[:1], strict=True) for x in _at(offset, *pair)]
    if not crossings:
        return 0.0
    return half + min(crossings) if side in ("left", "top") else half - max(crossings)


def corner_radius(kind: str) -> float:
    return {"llm": 14.0, "end": 20.0, BAR: 3.0}.get(kind, 4.0)


def _at(y: float, start: Point, end: Point) -> list[float]:
    """The x coordinates of a polygon's side at a height."""
    if not min(start.y, end.y) <= y <= max(start.y, end.y):
        return []
    if start.y == end.y:
        return [start.x, end.x]
    return [start.x + (end.x - start.x) * (y - start.y) / (end.y - start.y)]


def _arc(x: float, y: float, middle: float, *, upper: bool) -> list[tuple[float, float]]:
    """Half an ellipse around (0, -middle) from left to right, or around (0, middle) back."""
    sign = -1.0 if upper else 1.0
    angles = [math.pi * step / 24 for step in range(25)]
    return [(sign * x * math.cos(angle), sign * (y * math.sin(angle) + middle)) for angle in angles]
