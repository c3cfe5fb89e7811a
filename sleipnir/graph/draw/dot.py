"""A graph in DOT, for Graphviz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sleipnir.graph.draw.colours import STATES
from sleipnir.graph.draw.layout import Direction
from sleipnir.graph.draw.mermaid import LINE_BREAKS
from sleipnir.graph.draw.picture import BAR, FINISH, MISSING, START, Arrow, RunProgress, Shape, picture
from sleipnir.graph.model import Graph

_SHAPES: Mapping[str, tuple[str, str]] = {
    "script": ("box", ""),
    "function": ("hexagon", ""),
    "llm": ("box", "rounded"),
    "agent": ("component", ""),
    "rag": ("cylinder", ""),
    "approval": ("diamond", ""),
    "input": ("parallelogram", ""),
    "map": ("trapezium", ""),
    "router": ("cds", ""),
    "join": ("invtrapezium", ""),
    "wait": ("octagon", ""),
    "tools": ("tab", ""),
    "end": ("box", "rounded,bold"),
    FINISH: ("doublecircle", ""),
    BAR: ("underline", ""),
    MISSING: ("box", "dashed"),
}


@dataclass(frozen=True)
class DotContent:
    """What a digraph has: the circles of the start and of the ends of branches (without them, the first node has a
    double border), dotted arrows, and a title above it (None: none)."""

    start_end: bool = True
    dotted: bool = True
    label: str | None = None


ALL: Final = DotContent()


def dot(
    graph: Graph, *, progress: RunProgress | None = None, direction: Direction = "TB", content: DotContent = ALL
) -> str:
    """A Graphviz digraph. The same values give the same text."""
    drawn = picture(graph, progress)
    hidden = () if content.start_end else (START, FINISH)
    first = {arrow.target for arrow in drawn.arrows if arrow.source in hidden}
    arrows = [arrow for arrow in drawn.arrows if content.dotted or arrow.style != "dotted"]
    lines = [f"digraph {_text(graph.name)} {{"]
    lines += [f"    rankdir={direction};"] if direction != "TB" else []
    lines += [f'    labelloc="t"; label={_text(content.label)};'] if content.label is not None else []
    for shape in drawn.shapes:
        if shape.kind not in hidden:
            lines.append(f"    {shape.name} [{_node(shape)}{', peripheries=2' if shape.name in first else ''}];")
    for arrow in arrows:
        if arrow.source not in hidden and arrow.target not in hidden:
            lines.append(f"    {arrow.source} -> {arrow.target}{_edge(arrow)};")
    return "\n".join([*lines, "}"]) + "\n"


def _node(shape: Shape) -> str:
    if shape.kind == START:
        return f"shape=circle, label={START}"
    form, style = _SHAPES[shape.kind]
    styles = [style] if style else []
    styles += ["filled"] if shape.mark else []
    words = [shape.title, shape.subtitle, shape.mark.note if shape.mark else ""]
    attributes = [f'shape="{form}"']
    attributes += [f'style="{",".join(styles)}"'] if styles else []
    attributes.append(f"label={_text(*(word for number, word in enumerate(words) if word or not number))}")
    if shape.mark:
        colour = STATES[shape.mark.state]
        attributes.append(f'fillcolor="{colour.fill}", color="{colour.line}", fontcolor="{colour.ink}"')
    return ", ".join(attributes)


def _edge(arrow: Arrow) -> str:
    attributes = [f"label={_text(arrow.label)}"] if arrow.label else []
    attributes += [f'style="{arrow.style}"'] if arrow.style != "solid" else []
    attributes += ["penwidth=3"] if arrow.taken else []
    return f" [{', '.join(attributes)}]" if attributes else ""


def _text(*lines: str) -> str:
    """A quoted DOT string of several lines."""
    shown = [LINE_BREAKS.sub(" ", line).replace("\\", "\\\\").replace('"', '\\"').replace("\0", "") for line in lines]
    return '"' + "\\n".join(shown) + '"'
