"""A graph as lines of text, for terminals: a line for each node, from the start down, followed by one for each arrow.

The text has no colours or other escape sequences, so that it can be piped, pasted and read by a screen reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from sleipnir.graph.draw.layering import layers, turned
from sleipnir.graph.draw.picture import BAR, START, Arrow, Picture, RunProgress, Shape, State, picture
from sleipnir.graph.draw.text import one_line
from sleipnir.graph.model import Graph

_MARKS: Mapping[State, str] = {"queued": "…", "running": "▶", "waiting": "?", "failed": "✗", "done": "✓"}
_NOT_REACHED = "○"
_TAKEN = "━▶"
_ARROWS = {"solid": "─▷", "dashed": "╌▷", "dotted": "┈▷"}
_LONGEST_NAME = 40
_LONGEST_LABEL = 40


def outline(graph: Graph, *, progress: RunProgress | None = None) -> str:
    """Lines of text. The same values give the same text."""
    drawn = picture(graph, progress)
    shapes = _from_the_start_down(drawn)
    name_width = max(len(_name(shape)) for shape in shapes)
    kind_width = max(len(shape.subtitle) for shape in shapes)
    arrows = _arrows_by_source(drawn)
    lines = [one_line(f"{drawn.title}: {drawn.caption}" if drawn.caption else drawn.title, 200), ""]
    for shape in shapes:
        mark = _MARKS[shape.mark.state] if shape.mark else _NOT_REACHED
        note = shape.mark.note if shape.mark else ""
        lines.append(f"{mark} {_name(shape):<{name_width}}  {shape.subtitle:<{kind_width}}  {note}".rstrip())
        lines += [f"    {arrow}" for arrow in arrows[shape.name]]
    return "\n".join(lines) + "\n"


def _from_the_start_down(drawn: Picture) -> list[Shape]:
    """The nodes row by row, within a row in file order, without the start and the bars of joins."""
    number = {shape.name: index for index, shape in enumerate(drawn.shapes)}
    arcs = [(number[arrow.source], number[arrow.target]) for arrow in drawn.arrows]
    loops = turned(len(number), arcs)
    rows = layers(len(number), [arc[::-1] if index in loops else arc for index, arc in enumerate(arcs)])
    listed = [shape for shape in drawn.shapes if shape.kind not in (START, BAR)]
    return sorted(listed, key=lambda shape: rows[number[shape.name]])


def _arrows_by_source(drawn: Picture) -> Mapping[str, list[str]]:
    """The arrows as text. An arrow to a bar is shown with the target of the bar."""
    shapes = {shape.name: shape for shape in drawn.shapes}
    target_of_bar = {arrow.source: arrow.target for arrow in drawn.arrows if shapes[arrow.source].kind == BAR}
    lines: dict[str, list[str]] = defaultdict(list)
    for arrow in drawn.arrows:
        bar = shapes[arrow.target] if arrow.target in target_of_bar else None
        target = shapes[target_of_bar[bar.name]] if bar else shapes[arrow.target]
        words = ["" if arrow.label == target.title else arrow.label, f"waits for {bar.title}" if bar else ""]
        lines[arrow.source].append(" ".join(_arrow(arrow, target, words)))
    return lines


def _arrow(arrow: Arrow, target: Shape, words: list[str]) -> Iterator[str]:
    yield _TAKEN if arrow.taken else _ARROWS[arrow.style]
    yield _name(target)
    if text := ", ".join(one_line(word, _LONGEST_LABEL) for word in words if word):
        yield f"({text})"


def _name(shape: Shape) -> str:
    return one_line(shape.title, _LONGEST_NAME)
