"""XLSX, by openpyxl: each sheet with content as a heading and a table. Of formulas, their last results."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import openpyxl

from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, LoadedText, limit
from sleipnir_workers.knowledge.loaders.markdown import table


def read(content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
    workbook = openpyxl.load_workbook(content.archive(), read_only=True, data_only=True)
    try:
        sheets = [
            (sheet.title, _rows(sheet.iter_rows(values_only=True), content.limit)) for sheet in workbook.worksheets
        ]
    finally:
        workbook.close()
    text = "\n\n".join(f"## {title}\n\n{table(rows)}" for title, rows in sheets if rows)
    if not text:
        notice("has no text")
    return LoadedText(text, "md")


def _rows(rows: Iterable[Sequence[Any]], at_most: int) -> list[list[str]]:
    """The rows with content, without empty columns. Raises UnreadableContent for a sheet that is small only in the
    file: one string may fill a million cells."""
    filled: list[dict[int, str]] = []
    characters = 0
    for row in rows:
        cells = {column: text for column, value in enumerate(row) if (text := _text(value))}
        if cells:
            filled.append(cells)
            characters += sum(map(len, cells.values()))
    used = sorted(set().union(*filled))
    if characters + len(filled) * len(used) > at_most:
        raise UnreadableContent(f"has a sheet of {len(filled)} rows and {len(used)} columns; {limit(at_most)}")
    return [[row.get(column, "") for column in used] for row in filled]


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case datetime.datetime() if value.time() == datetime.time():
            return value.date().isoformat()
        case float() if value.is_integer():
            return str(int(value))
        case _:
            return str(value).strip()
