"""A graph as a picture, or a run of it: Mermaid for pages, DOT for Graphviz, SVG, which needs neither, and text.

`picture` says what is shown, the writers how: `mermaid`, `dot`, `outline`, and `svg` with a layout of its own
(`layout` and, below it, `layering`, `ordering` and `placing`). Pure: values in, text out, the same for the same values.
"""

from sleipnir.graph.draw.dot import dot
from sleipnir.graph.draw.layout import Direction
from sleipnir.graph.draw.mermaid import mermaid
from sleipnir.graph.draw.outline import outline
from sleipnir.graph.draw.picture import Mark, RunProgress, State
from sleipnir.graph.draw.svg import Theme, svg

__all__ = ["Direction", "Mark", "RunProgress", "State", "Theme", "dot", "mermaid", "outline", "svg"]
