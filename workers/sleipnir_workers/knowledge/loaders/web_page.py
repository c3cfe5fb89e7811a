"""HTML: what the page is about, as Markdown, with its tables and without what stands around it on every page.

A page in which no such part is found is taken whole, without scripts and styles.
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

logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it logs each page in which it finds nothing

MOST_ATTRIBUTES = 5_000  # of one element
_AROUND = ("script", "style", "template", "noscript", "head", "svg")


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
    except (etree.ParserError, etree.XMLSyntaxError):  # nothing but comments
        return None
    except LookupError:  # libxml2 knows fewer
        raise UnreadableContent(f"is in an encoding that is not read, {content.charset!r}") from None


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
    """Markdown of a page. The tree is used up."""
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
    """Markdown of the element of that id, all of it; empty when there is none. The tree is used up."""
    element = tree.get_element_by_id(part, None)
    return "" if element is None else whole(element)


def whole(tree: Any) -> str:
    """Markdown of all that a page or a part of it shows. The tree is used up."""
    for element in list(tree.iter(*_AROUND)):
        if element.getparent() is not None:
            element.drop_tree()
    return markdown(html.tostring(tree, encoding="unicode"))


def _encoding(content: Content) -> str | None:
    """None leaves it to the page's own declaration, which a server's word goes before."""
    if content.encoding() is not None:
        return content.charset
    try:
        content.data.decode()
    except UnicodeDecodeError:
        return None
    return "utf-8"


@functools.cache
def _config() -> ConfigParser:
    """A page of few words is split up like a long one; by default its tables and headings would be lost."""
    config: ConfigParser = copy.deepcopy(DEFAULT_CONFIG)
    config["DEFAULT"]["MIN_EXTRACTED_SIZE"] = "1"
    return config
