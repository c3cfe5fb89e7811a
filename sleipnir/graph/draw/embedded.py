"""A picture inside a web page, such as a notebook.

The SVG is the data of an `<img>`: a browser runs nothing in it and loads nothing for it, and the page's styles do not
reach it, nor its styles the page. Cleaners of HTML, which take `<svg>` and `<style>` away, let it pass.
"""

from __future__ import annotations

import base64
from html import escape

from sleipnir.graph.draw.outline import outline
from sleipnir.graph.draw.picture import RunProgress
from sleipnir.graph.draw.svg import svg
from sleipnir.graph.model import Graph

MOST_NODES = 300  # a drawing of more takes seconds, and is not readable
MOST_CHARS = 20_000


def embedded(graph: Graph, progress: RunProgress | None = None) -> str:
    """HTML without scripts and addresses; every text is escaped. A graph of more than MOST_NODES nodes is text."""
    if len(graph.nodes) > MOST_NODES:
        text = outline(graph, progress=progress)
        return f"<pre>{html_text(text[:MOST_CHARS] + ('…' if len(text) > MOST_CHARS else ''))}</pre>"
    data = base64.b64encode(_bytes(svg(graph, progress=progress))).decode("ascii")
    about = html_text(f"{graph.name}: {progress.caption}" if progress else graph.name)
    return f'<img alt="{about}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


def html_text(text: str) -> str:
    """The text for HTML, in an element or in an attribute in quotes."""
    return escape(_bytes(text).decode())


def _bytes(text: str) -> bytes:
    """UTF-8; half a character, which JSON can hold and UTF-8 cannot, becomes `?`."""
    return text.encode("utf-8", errors="replace")
