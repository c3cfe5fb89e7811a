"""Questions as Markdown: HTML of a few elements. HTML in the text stays text; links lead to http, https or mail."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from markdown_it import MarkdownIt
from markupsafe import Markup

from sleipnir_console.pages.formats import beginning, visible

_LINK: Final = re.compile(r"(?:https?:|mailto:|/(?!/))", re.IGNORECASE)
_MARKS: Final = re.compile(r"^[\s#>*_`-]+|[\s*_`]+$")
MOST_TITLE: Final = 200


@cache
def _reader() -> MarkdownIt:
    """No HTML, no pictures (a browser would load them from elsewhere, and tell who looks), no automatic links."""
    made = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    made.validateLink = lambda url: _LINK.match(url) is not None  # type: ignore[method-assign]
    return made


def markdown_html(text: str) -> Markup:
    """The HTML of a text, for pages. The library escapes what is text. Its headings begin at the second level: the
    first is the page's own."""
    tokens = _reader().parse(beginning(visible(text)))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + 1)}"
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer nofollow")
    return Markup(_reader().renderer.render(tokens, _reader().options, {}))


def title_of(text: str) -> str:
    """The first line with words in it, without the marks of Markdown."""
    lines = (_MARKS.sub("", line) for line in beginning(text).splitlines())
    return next((line for line in lines if line), "A question without words")[:MOST_TITLE]
