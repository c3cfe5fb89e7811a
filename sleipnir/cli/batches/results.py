"""A file of results that can be continued: one line of JSON, or one record of CSV, for each ended row.

Rules.
1. A file has whole lines only: an incomplete line after a full disk or a crash is cut off.
2. A file is continued from its contents. A row in it is written again only if its result has changed since (a retry);
if a row appears twice, the last line counts.
3. `row` counts from 1, like the default key of a row. In all other code rows count from 0.
"""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Literal, TypeAlias

from sleipnir.errors import SleipnirError, UsageError

if TYPE_CHECKING:
    from sleipnir.batches.records import RowResult

Format: TypeAlias = Literal["jsonl", "csv"]
RunOf: TypeAlias = Callable[[int], str]

SUFFIXES: Final[dict[str, Format]] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
FIELDS: Final = ("row", "key", "status", "output", "error", "node", "run")
_STATUSES: Final = ("", "completed", "failed", "cancelled")


def format_of(path: Path | None, given: str | None) -> Format:
    """The format by `--format`, else by the name of the file; JSON lines for stdout. Raises UsageError."""
    if given is not None:
        return "csv" if given == "csv" else "jsonl"
    if path is None:
        return "jsonl"
    file_format = SUFFIXES.get(path.suffix.lower())
    if file_format is None:
        raise UsageError(f"the name {str(path)!r} has no known format; end it in .jsonl or .csv, or give --format")
    return file_format


def head(format_: Format) -> str:
    """The beginning of a file."""
    return _csv_line(FIELDS) if format_ == "csv" else ""


def line_of(result: RowResult, format_: Format) -> str:
    """A result, with the end of its line."""
    values = [result.row + 1, *(getattr(result, name) for name in FIELDS[1:])]
    if format_ == "csv":
        return _csv_line(["" if value is None else value for value in values])
    return json.dumps(dict(zip(FIELDS, values, strict=True)), ensure_ascii=False) + "\n"


def _csv_line(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


@dataclass
class ResultFileState:
    """The contents of a file: `size` is the bytes of whole lines, `ends` the _STATUSES index of each row."""

    size: int = 0
    ends: bytearray = field(default_factory=bytearray)

    def note(self, row: int, status: str) -> None:
        if row >= len(self.ends):
            self.ends.extend(bytes(row + 1 - len(self.ends)))
        self.ends[row] = _STATUSES.index(status)

    def has(self, result: RowResult) -> bool:
        return result.row < len(self.ends) and _STATUSES[self.ends[result.row]] == result.status

    @property
    def count(self) -> int:
        """Rows that it has."""
        return len(self.ends) - self.ends.count(0)

    @property
    def next_row(self) -> int:
        """The first row that is missing, or may have continued since."""
        completed = _STATUSES.index("completed")
        return next((row for row, end in enumerate(self.ends) if end != completed), len(self.ends))


def written(file: IO[bytes], format_: Format, path: str, run_of: RunOf) -> ResultFileState:
    """The contents of a results file of a batch whose rows have these runs. Raises UsageError for any other file."""
    state = ResultFileState()
    for number, raw in enumerate(_whole(file, format_), 1):
        is_head = format_ == "csv" and number == 1
        try:
            if is_head:
                if raw.decode() != head(format_):
                    raise ValueError
            else:
                row, status, run = _read(raw.decode(), format_)
                if row >= -1 and run_of(row + 1) == run and (row < 0 or run_of(row) != run):
                    raise UsageError(
                        f"{path} was started by an earlier release, which counted rows from 0; "
                        "use another file, or --overwrite"
                    )
                if row < 0 or run_of(row) != run:
                    raise ValueError
                state.note(row, status)
        except (ValueError, KeyError, TypeError, IndexError):
            raise UsageError(
                f"{path} has other contents than {format_} results of this batch (its record {number}); "
                "use another file, or --overwrite"
            ) from None
        state.size += len(raw)
    return state


def _whole(file: IO[bytes], format_: Format) -> Iterator[bytes]:
    """The complete records. A cell of CSV may have several lines: until its end the number of quotes is odd."""
    pending, quotes = bytearray(), 0
    for raw in file:
        pending += raw
        quotes += raw.count(b'"') if format_ == "csv" else 0
        if raw.endswith(b"\n") and quotes % 2 == 0:
            yield bytes(pending)
            pending, quotes = bytearray(), 0


def _read(text: str, format_: Format) -> tuple[int, str, str]:
    if format_ == "csv":
        [cells] = csv.reader(io.StringIO(text, newline=""))
        data: dict[str, Any] = dict(zip(FIELDS, cells, strict=True))
    else:
        data = json.loads(text)
    return int(data["row"]) - 1, str(data["status"]), str(data["run"])


class ResultFile:
    """A context manager. Opening it cuts off an incomplete line. Raises UsageError for a file that has other contents
    or cannot be opened, SleipnirError if it cannot be written; the file then still has whole lines."""

    def __init__(self, path: Path, format_: Format, run_of: RunOf, *, overwrite: bool = False) -> None:
        self.path, self._format = path, format_
        csv.field_size_limit(2**31 - 1)
        try:
            is_file = not path.exists() or stat.S_ISREG(path.stat().st_mode)
            if is_file and not overwrite and path.exists():
                with path.open("rb") as file:
                    self.held = written(file, format_, str(path), run_of)
            else:
                self.held = ResultFileState()
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            self._is_file = is_file
            if is_file:
                os.truncate(self._fd, self.held.size)
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
        self.added = 0

    def add(self, result: RowResult) -> bool:
        """Write a result unless the file has it. Returns whether it was written."""
        if self.held.has(result):
            return False
        self._write(line_of(result, self._format))
        self.held.note(result.row, result.status)
        self.added += 1
        return True

    def _write(self, text: str) -> None:
        line = text.encode()
        if self.held.size == 0:
            line = head(self._format).encode() + line
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._cut()
            raise self._failure(error) from error
        except BaseException:  # Ctrl-C in the midst of a line
            self._cut()
            raise
        self.held.size += len(line)

    def _cut(self) -> None:
        if self._is_file:
            os.truncate(self._fd, self.held.size)

    def _failure(self, error: OSError) -> SleipnirError:
        return SleipnirError(
            f"{self.path} cannot be written: {error.strerror or error}. The results of {self.held.count:,} rows are in "
            "it; free disk space, and the same command continues from there"
        )

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._is_file and kind is None:
                os.fsync(self._fd)
        except OSError as failed:
            raise self._failure(failed) from failed
        finally:
            os.close(self._fd)
