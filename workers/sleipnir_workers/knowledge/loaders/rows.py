"""CSV and TSV: each value after the name of its column, so that each chunk contains the names of its values.

Lines keep their numbers, for citations. A file whose first row does not name columns is not converted.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Final

from sleipnir_workers.knowledge.loaders.content import Content, LoadedText

_SAMPLE: Final = 64 * 1024
_LONGEST: Final = 128 * 1024  # characters of a value; a longer one is most likely not CSV, but a lone quote
_NUMBER = re.compile(r"[-+]?[\d.,]+%?")


def read(content: Content, extension: str, notice: Callable[[str], None]) -> LoadedText:
    text = content.text()
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text, extension)))
    except csv.Error:  # a value that exceeds the limit of the csv module
        return LoadedText(text, extension)
    if len(rows) < 2 or not _names_columns(rows[0]) or any(len(value) > _LONGEST for row in rows for value in row):
        return LoadedText(text, extension)
    columns = [name.strip() for name in rows[0]]
    return LoadedText("\n".join([", ".join(columns), *(_line(columns, row) for row in rows[1:])]) + "\n", extension)


def _delimiter(text: str, extension: str) -> str:
    if extension == "tsv":
        return "\t"
    try:
        return csv.Sniffer().sniff(text[:_SAMPLE], delimiters=",;\t|").delimiter
    except csv.Error:
        return ","


def _names_columns(row: Sequence[str]) -> bool:
    names = [name.strip() for name in row]
    return len(names) > 1 and all(names) and len(set(names)) == len(names) and not any(map(_NUMBER.fullmatch, names))


def _line(columns: Sequence[str], row: Sequence[str]) -> str:
    """Values beyond the columns have no name; empty ones are left out."""
    pairs = [
        f"{columns[index]}: {value}" if index < len(columns) else value for index, value in enumerate(row) if value
    ]
    return "; ".join(pairs)
