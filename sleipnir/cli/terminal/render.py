"""Formats values for people and programs: moments, sizes, tables, JSON.

Rule. A table on a terminal is drawn by rich and fits its width; otherwise it is plain aligned columns, never truncated
and without colour, for `grep` and `awk`. rich is imported only to draw.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.terminal.terminal import as_json_text, wants_colour
from sleipnir.runs.plain_text import one_line, printable

if TYPE_CHECKING:
    from sleipnir.runs.actor import Change

STATUS_STYLE = {
    "completed": "green",
    "running": "cyan",
    "waiting": "yellow",
    "paused": "yellow",
    "parked": "red",
    "failed": "red",
    "cancelled": "magenta",
    "ok": "green",
    "warn": "yellow",
    "fail": "red",
    "broken": "red",
    "accepting": "cyan",
    "done": "green",
    "canary": "yellow",
    "over_budget": "yellow",
    "unreadable": "red",
    "cancelling": "magenta",
}


def size(count: int) -> str:
    """`812 B`, `3.4 kB`, `16.0 MB`; thousands are 1000."""
    if count < 1000:
        return f"{count} B"
    if count < 1_000_000:
        return f"{count / 1000:.1f} kB"
    return f"{count / 1_000_000:.1f} MB"


def moment(ms: int | None) -> str:
    """The local date and time, to the second; `-` for None."""
    if ms is None:
        return "-"
    from datetime import datetime

    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def as_json(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, paths as text: ready for json.dumps."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def print_json(value: Any) -> None:
    """One JSON document on stdout, for programs."""
    click.echo(as_json_text(as_json(value), indent=2))


def print_json_line(value: Any) -> None:
    """One JSON object on one line of stdout, for programs that read a stream."""
    click.echo(as_json_text(as_json(value)))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout. A cell is one line; words of STATUS_STYLE are coloured."""
    clean = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, clean)
    else:
        for line in plain_table(columns, clean):
            click.echo(line)


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Named values on stdout, one under the other; lines after the first are indented to the value."""
    width = 10
    for name, value in fields:
        first, *rest = printable(value).splitlines() or [""]
        click.echo(f"{name + ' ':<{width}}{_styled(first)}")
        for line in rest:
            click.echo(" " * width + line)


def _styled(word: str) -> str:
    style = STATUS_STYLE.get(word)
    return click.style(word, fg=style) if style and wants_colour(sys.stdout) else word


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, two spaces apart, headings in capitals; an empty cell is `-`."""
    cells = [[column.upper() for column in columns], *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        # The last column holds the free text: it gives way, the identifiers before it do not.
        last = index == len(columns) - 1
        table.add_column(column, no_wrap=not last, overflow="fold" if last else "ellipsis")
    for row in rows:
        table.add_row(*(Text(cell or "-", style=STATUS_STYLE.get(cell, "")) for cell in row))
    Console(color_system="auto" if wants_colour(sys.stdout) else None).print(table)


def change_in_words(change: Change) -> str:
    """`by ann@desk (cli) at 10:20:01: costs`, `'yes' by ann@desk (cli) at ...`; of older releases without `by ...`."""
    answer = "" if change.answer is None else f"{one_line(change.answer, 60)!r} "
    answer = answer if change.node is None else f"{one_line(change.node, 60)} "
    by = f"by {change.by} " if change.by else ""
    return f"{answer}{by}at {moment(change.at_ms)}" + (f": {change.reason}" if change.reason else "")
