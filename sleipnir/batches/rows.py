"""Rows of a batch, read from JSONL and CSV files one by one: a file may be larger than the memory.

A row's `prompt` becomes `{{initial_prompt}}`, its other columns are seeded into the state. A problem of one row is
reported for that row, with its file and line, and the following rows are still read.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from sleipnir.errors import UsageError

MAX_ROW_BYTES: Final = 10 * 2**20
"""A larger row is refused without being read."""

PROMPT: Final = "prompt"

_TOO_LARGE = f"the row has more than {MAX_ROW_BYTES // 2**20} MB; store the data in a file and give its path in the row"
_NO_UTF8 = "the row is not valid UTF-8 text; convert the file, for example with iconv -f ISO-8859-1 -t UTF-8"
_NO_FILE_UTF8 = "{path} is encoded as {encoding}; convert it, for example with iconv -f {encoding} -t UTF-8"
_NOT_CLOSED = "the row is not CSV: a quote that is opened in it is not closed; the following text belongs to it"


@dataclass(frozen=True)
class Row:
    """One row. `place` is its origin, for messages (`rows.jsonl:7`). `key` identifies it within its batch. `as_text`:
    its values are strings (cells of a CSV file); those of state keys with another declared type are read as JSON."""

    place: str
    key: str
    prompt: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    as_text: bool = False


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be run, and the reason."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def read(path: Path, key: str | None = None) -> Iterator[Row | BadRow]:
    """The rows of a file, `.csv` or JSON lines, in order. `key` names the column that identifies rows; None: their
    numbers identify them, counted from 1.

    Raises UsageError for a file that cannot be read or has no such column (CSV).
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    with file:
        yield from read_from(file, str(path), key, as_csv=path.suffix.lower() == ".csv")


def read_from(
    file: BufferedReader, path: str, key: str | None = None, *, as_csv: bool = False
) -> Iterator[Row | BadRow]:
    """The same for an open file, from its beginning; it may be a pipe. `path` is for messages."""
    try:
        first = file.peek(4)
        if encoding := _other_encoding(first):
            raise UsageError(_NO_FILE_UTF8.format(path=path, encoding=encoding))
        if first.startswith(b"\xef\xbb\xbf"):
            file.read(3)
        yield from _csv_rows(file, path, key) if as_csv else _json_rows(file, path, key)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _other_encoding(first: bytes) -> str | None:
    """The encoding of a file by its first bytes, if it is not UTF-8: no row has a zero byte."""
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    if b"\0" in first[:2]:
        return "UTF-16BE" if first[0] == 0 else "UTF-16LE"
    return None


def row_of(place: str, number: int, columns: Any, key: str | None, *, as_text: bool = False) -> Row | BadRow:
    """The row of these columns; `number` is its number among all, counted from 1."""
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
        return BadRow(place, 'the row must be an object of columns, as {"prompt": "..."}')
    prompt = columns.get(PROMPT, "")
    if not isinstance(prompt, str):
        return BadRow(place, f"the column {PROMPT!r} must be a text, not {json.dumps(prompt)[:40]}")
    name: Any = str(number)
    if key is not None:
        if key not in columns:
            return BadRow(place, f"the row has no column {key!r}, which identifies it")
        name = columns[key]
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if not isinstance(name, str) or not name or len(name) > 500:
            return BadRow(place, f"the column {key!r} must identify the row: a text or a whole number")
    state = {column: value for column, value in columns.items() if column != PROMPT}
    return Row(place, name, prompt, state, as_text)


# JSON lines


def _json_rows(file: IO[bytes], path: str, key: str | None) -> Iterator[Row | BadRow]:
    number = 0
    for line, raw in _lines(file):
        place = f"{path}:{line}"
        if raw is not None and not raw.strip():
            continue
        number += 1
        try:
            yield BadRow(place, _TOO_LARGE) if raw is None else row_of(place, number, _object(raw), key)
        except UnicodeDecodeError:
            yield BadRow(place, _NO_UTF8)
        except json.JSONDecodeError as error:
            yield BadRow(f"{place}:{error.colno}", f"the row is not JSON: {error.msg}")
        except (ValueError, RecursionError) as error:
            yield BadRow(place, f"the row is not JSON: {error}")


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """The lines of a file with their numbers; None for one that is too large."""
    number = 0
    while raw := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(raw) <= MAX_ROW_BYTES or raw.endswith(b"\n"):
            yield number, raw
            continue
        while (rest := file.readline(2**20)) and not rest.endswith(b"\n"):
            pass
        yield number, None


def _object(raw: bytes) -> Any:
    return json.loads(raw.decode(), parse_constant=_refuse_constant, object_pairs_hook=_once)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} occurs twice in an object")
    return row


# CSV


class _Text:
    """The lines of a file as strings for the CSV reader; collects the problems of lines that were read since."""

    def __init__(self, file: IO[bytes]) -> None:
        self._lines, self.problem, self.line = _lines(file), "", 0

    def __iter__(self) -> Iterator[str]:
        for number, raw in self._lines:
            self.line = number
            if raw is None:
                self.problem = _TOO_LARGE
                yield "\n"
                continue
            try:
                yield raw.decode()
            except UnicodeDecodeError:
                self.problem = _NO_UTF8
                yield raw.decode(errors="replace")


def _csv_rows(file: IO[bytes], path: str, key: str | None) -> Iterator[Row | BadRow]:
    csv.field_size_limit(MAX_ROW_BYTES)  # of characters; a text that goes on over lines has no other bound
    text = _Text(file)
    reader = csv.reader(text, strict=True)
    header = _header(reader, path, key)
    number = 0
    while True:
        place, text.problem = f"{path}:{text.line + 1}", ""
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            number += 1
            yield BadRow(place, _wrong_csv(error))
            continue
        if not cells and not text.problem:
            continue
        number += 1
        if text.problem:
            yield BadRow(place, text.problem)
        elif len(cells) != len(header):
            columns = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
            yield BadRow(place, f"the row has {columns}, the header has {len(header)}")
        else:
            yield row_of(place, number, dict(zip(header, cells, strict=True)), key, as_text=True)


def _wrong_csv(error: csv.Error) -> str:
    if "field larger" in str(error):
        return _TOO_LARGE
    return _NOT_CLOSED if "unexpected end" in str(error) else f"the row is not CSV: {error}"


def _header(reader: Any, path: str, key: str | None) -> list[str]:
    try:
        header = [name.strip() for name in next(reader)]
    except StopIteration:
        raise UsageError(f"{path} is empty; its first line must name the columns") from None
    except csv.Error as error:
        raise UsageError(f"{path}:1: the header is not CSV: {error}") from None
    if len(header) == 1 and (separator := next((each for each in ";\t|" if each in header[0]), None)):
        raise UsageError(f"{path}:1: the columns are separated by {separator!r}; separate them by commas")
    if not all(header) or len(set(header)) < len(header):
        raise UsageError(f"{path}:1: the header must name each column once, not {','.join(header)!r}")
    if key is not None and key not in header:
        raise UsageError(f"{path}:1: there is no column {key!r}; the header has {', '.join(header)}")
    return header
