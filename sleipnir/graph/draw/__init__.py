"""Draws a graph, or a run of it: Mermaid for web pages, DOT for Graphviz, self-contained SVG, and text.

`picture` defines the content, the writers its form: `mermaid`, `dot`, `outline`, and `svg` with its own layout
(`layout`, which uses `layering`, `ordering` and `placing`). Pure: the same values give the same text.
"""

from sleipnir.graph.draw.dot import DotContent, dot
from sleipnir.graph.draw.layout import Direction
from sleipnir.graph.draw.mermaid import mermaid
from sleipnir.graph.draw.outline import outline
from sleipnir.graph.draw.picture import Mark, RunProgress, State
from sleipnir.graph.draw.svg import Theme, page_svg, svg

__all__ = [
    "Direction", "DotContent", "Mark", "RunProgress", "State", "Theme", "dot", "mermaid", "outline", "page_svg", "svg",
]  # fmt: skip
