"""A graph as a Mermaid flowchart, for Markdown pages and chats."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sleipnir.graph.draw.colours import STATES
from sleipnir.graph.draw.layout import Direction
from sleipnir.graph.draw.picture import BAR, FINISH, MISSING, START, Arrow, Picture, RunProgress, Shape, picture
from sleipnir.graph.draw.text import one_line
from sleipnir.graph.model import Graph

_SHAPES: Mapping[str, tuple[str, str]] = {
    START: ("((", "))"),
    "script": ("[", "]"),
    "function": ("{{", "}}"),
    "llm": ("(", ")"),
    "agent": ("[[", "]]"),
    "rag": ("[(", ")]"),
    "approval": ("{", "}"),
    "input": ("[/", "/]"),
    "map": ("[/", "\\]"),
    "router": (">", "]"),
    "join": ("[\\", "/]"),
    "wait": ("[\\", "\\]"),
    "tools": ("[", "]"),
    "end": ("([", "])"),
    FINISH: ("(((", ")))"),
    BAR: ("((", "))"),
    MISSING: ("[", "]"),
}
_ARROWS = {"solid": "-->", "dashed": "-.->", "dotted": "-.->"}
_SPECIAL = re.compile(r"[^\w .,:/()=+-]|^[-+]|(?<=^\d)\.")  # a label like a list item is refused too
_DIRECTIONS: Mapping[Direction, str] = {"TB": "TD", "LR": "LR"}
_LONGEST_LABEL = 40


def mermaid(graph: Graph, *, progress: RunProgress | None = None, direction: Direction = "TB") -> str:
    """A Mermaid flowchart. The same values give the same text."""
    drawn = picture(graph, progress)
    lines = [f"flowchart {_DIRECTIONS[direction]}"]
    lines += [f"    {shape.name}{_node(shape)}" for shape in drawn.shapes]
    lines += [f"    {arrow.source} {_arrow(arrow)} {arrow.target}" for arrow in drawn.arrows]
    lines += _dotted_styles(drawn) + (_run_styles(drawn) if progress is not None else [])
    return "\n".join(lines) + "\n"


def _node(shape: Shape) -> str:
    left, right = _SHAPES[shape.kind]
    if shape.kind == START:
        return f"{left}{shape.title}{right}"
    words = [shape.title, shape.subtitle, shape.mark.note if shape.mark else ""]
    text = "<br/>".join(_text(word) for number, word in enumerate(words) if word or not number)
    return f'{left}"{text}"{right}'


def _arrow(arrow: Arrow) -> str:
    label = _text(one_line(arrow.label, _LONGEST_LABEL))
    shaft = _ARROWS[arrow.style]
    return f'{shaft}|"{label}"|' if label else shaft


def _dotted_styles(drawn: Picture) -> list[str]:
    """The styles of dotted arrows: Mermaid's syntax has only dashed ones."""
    numbers = [str(number) for number, arrow in enumerate(drawn.arrows) if arrow.style == "dotted"]
    return [f"    linkStyle {','.join(numbers)} stroke-dasharray:1 4"] if numbers else []


def _run_styles(drawn: Picture) -> list[str]:
    """The progress of the run, as colours."""
    lines = []
    for state, colour in STATES.items():
        names = [shape.name for shape in drawn.shapes if shape.mark and shape.mark.state == state]
        if names:
            lines.append(f"    classDef {state} fill:{colour.fill},stroke:{colour.line},color:{colour.ink}")
            lines.append(f"    class {','.join(names)} {state}")
    taken = [str(number) for number, arrow in enumerate(drawn.arrows) if arrow.taken]
    return lines + ([f"    linkStyle {','.join(taken)} stroke-width:3px"] if taken else [])


def _text(text: str) -> str:
    """The text with every character that Mermaid could interpret as a character code; letters are unchanged."""
    return _SPECIAL.sub(lambda match: f"#{ord(match[0])};", LINE_BREAKS.sub(" ", text))


LINE_BREAKS = re.compile(r"\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
