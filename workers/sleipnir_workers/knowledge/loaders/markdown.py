"""HTML and tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markdownify import markdownify


def markdown(html: str) -> str:
    """Text, headings, lists, tables and code, without addresses of links and without images."""
    return str(markdownify(html, heading_style="ATX", table_infer_header=True, strip=["a", "img"])).strip()


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table whose first row is its head. All rows have the same length."""
    first, *others = rows
    lines = [first, ["---"] * len(first), *others]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
