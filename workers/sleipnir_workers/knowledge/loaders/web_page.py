"""HTML: the main content of a page as Markdown, with its tables and without navigation and the like.

A page without a recognised main content is taken whole, without scripts and styles.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable
from configparser import ConfigParser
from typing import Any

import trafilatura
from lxml import etree, html  # type: ignore[import-untyped]
from trafilatura.settings import DEFAULT_CONFIG

from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, LoadedText
from sleipnir_workers.knowledge.loaders.markdown import markdown

logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it logs each page without a main content

MOST_ATTRIBUTES = 5_000  # of one element
_NO_CONTENT = ("script", "style", "template", "noscript", "head", "svg")


def read(content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
    tree = parse(content)
    text = "" if tree is None else page_text(tree)
    if not text:
        notice("has no text")
    return LoadedText(text, "md")


def parse(content: Content) -> Any | None:
    """The page's tree; None for an empty page. Raises UnreadableContent."""
    kind = content.kind()
    if kind is not None and "UTF-16" not in kind:
        raise UnreadableContent(f"is {kind}, not HTML")
    if not content.data.strip():
        return None
    _check_elements(content.data)
    try:
        return html.document_fromstring(content.data, parser=html.HTMLParser(encoding=_encoding(content)))
    except (etree.ParserError, etree.XMLSyntaxError):  # only comments
        return None
    except LookupError:  # libxml2 supports fewer
        raise UnreadableContent(f"is in an unsupported encoding, {content.charset!r}") from None


def _check_elements(data: bytes) -> None:
    """The time of libxml2 grows with the square of an element's attributes. Raises UnreadableContent."""
    start = data.find(b"<")
    while start >= 0:
        end = data.find(b">", start)
        if end < 0:
            end = len(data)
        if end - start > 2 * MOST_ATTRIBUTES:
            element = data[start:end]
            if max(len(element.split()), element.count(b"=")) > MOST_ATTRIBUTES:
                raise UnreadableContent(f"has an element of more than {MOST_ATTRIBUTES:,} attributes")
        start = data.find(b"<", end)


def page_text(tree: Any) -> str:
    """Markdown of a page. The tree is modified."""
    main = trafilatura.extract(
        copy.deepcopy(tree),
        output_format="markdown",
        include_comments=False,
        include_formatting=True,
        include_tables=True,
        config=_config(),
    )
    return (main or whole(tree)).strip()


def part_text(tree: Any, part: str) -> str:
    """Markdown of the whole element with this id; empty if there is none. The tree is modified."""
    element = tree.get_element_by_id(part, None)
    return "" if element is None else whole(element)


def whole(tree: Any) -> str:
    """Markdown of all visible text of a page or an element. The tree is modified."""
    for element in list(tree.iter(*_NO_CONTENT)):
        if element.getparent() is not None:
            element.drop_tree()
    return markdown(html.tostring(tree, encoding="unicode"))


def _encoding(content: Content) -> str | None:
    """The server's charset, or UTF-8 if the page is valid UTF-8; None: the page's own declaration counts."""
    if content.encoding() is not None:
        return content.charset
    try:
        content.data.decode()
    except UnicodeDecodeError:
        return None
    return "utf-8"


@functools.cache
def _config() -> ConfigParser:
    """Short pages are processed like long ones; by default their tables and headings would be lost."""
    config: ConfigParser = copy.deepcopy(DEFAULT_CONFIG)
    config["DEFAULT"]["MIN_EXTRACTED_SIZE"] = "1"
    return config
