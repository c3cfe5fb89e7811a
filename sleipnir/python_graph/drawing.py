"""Drawings of a compiled graph: those of `sleipnir draw`, and LangGraph's names for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sleipnir.graph.model import Graph

Form: TypeAlias = Literal["mermaid", "dot", "svg", "text"]


def drawn(graph: Graph, form: Form = "mermaid") -> str:
    """The graph as text in one of the forms. Raises ValueError for another one."""
    from sleipnir.graph import draw

    match form:
        case "mermaid":
            return draw.mermaid(graph)
        case "dot":
            return draw.dot(graph)
        case "svg":
            return draw.svg(graph)
        case "text":
            return draw.outline(graph)
    raise ValueError(f"unknown form {form!r}: there are mermaid, dot, svg and text")


@dataclass(frozen=True)
class GraphDrawing:
    """What `get_graph()` returns. `options` of LangGraph are about looks, and have no effect."""

    graph: Graph

    def draw_mermaid(self, **options: Any) -> str:
        """A Mermaid flowchart."""
        return drawn(self.graph, "mermaid")

    def draw_ascii(self) -> str:
        """The graph as indented text."""
        return drawn(self.graph, "text")

    def draw_png(self, output_file_path: str | Path | None = None) -> bytes:
        """A PNG by Graphviz, which is also written to a file. Raises UsageError if Graphviz is not installed."""
        from sleipnir.python_graph.rendering import rendered

        picture = rendered(drawn(self.graph, "dot"), "png")
        if output_file_path is not None:
            Path(output_file_path).write_bytes(picture)
        return picture
