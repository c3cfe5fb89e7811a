"""The forms in which `compare` writes a comparison: a JSON document, a CSV file, a page.

Each takes the rows one by one and the summary at the end; none holds the rows.
"""

from __future__ import annotations

import csv
import shutil
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from sleipnir.cli.runs import comparison_page
from sleipnir.cli.terminal.render import as_json
from sleipnir.cli.terminal.terminal import as_json_text, result

if TYPE_CHECKING:
    from sleipnir.runs.comparison import ComparedRun, Comparison, ComparisonSummary

PATH_SIGN: Final = " > "
CSV_FIELDS: Final = (
    "key", "outcome", "verdict", "changed", "keys", "run_a", "run_b", "status_a", "status_b", "output_a", "output_b",
    "error_a", "error_b", "path_a", "path_b", "tokens_a", "tokens_b", "cost_usd_a", "cost_usd_b", "took_ms_a",
    "took_ms_b",
)  # fmt: skip


@dataclass(frozen=True)
class ComparedNames:
    """What is compared: two runs or two batches, with the names by which people know them."""

    kind: str
    a: str
    b: str
    name_a: str
    name_b: str


class ComparisonSink(Protocol):
    """Takes the rows of a comparison, then its summary."""

    def add(self, row: Comparison) -> None: ...
    def end(self, summary: ComparisonSummary) -> None: ...


class JsonDocument:
    """One JSON document on stdout, a row on a line; the summary follows the rows."""

    def __init__(self, pair: ComparedNames) -> None:
        self._head = f'{{"kind": "{pair.kind}", "a": "{pair.a}", "b": "{pair.b}", "rows": ['
        self._before = "\n"

    def add(self, row: Comparison) -> None:
        self._write(f"{self._head}{self._before}{as_json_text(row_data(row))}")
        self._head, self._before = "", ",\n"

    def end(self, summary: ComparisonSummary) -> None:
        result(f'{self._head}\n], "summary": {as_json_text(as_json(summary))}}}')

    def _write(self, text: str) -> None:
        if sys.stdout.isatty():
            result(text, end="")
        else:
            sys.stdout.write(text)


def row_data(row: Comparison) -> dict[str, Any]:
    """A row for programs."""
    state = row.state
    return {
        "key": row.key,
        "outcome": row.outcome,
        "changed": list(row.changed),
        "verdict": row.verdict,
        "why": row.why,
        "a": _side_data(row.a),
        "b": _side_data(row.b),
        "state": {
            "changed": {name: {"a": before, "b": after} for name, (before, after) in state.changed.items()},
            "only_a": state.removed,
            "only_b": state.added,
        },
    }


def _side_data(side: ComparedRun | None) -> dict[str, Any] | None:
    return None if side is None else {name: value for name, value in as_json(side).items() if name != "state"}


class CsvFile:
    """A record for each row."""

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._writer.writerow(CSV_FIELDS)

    def add(self, row: Comparison) -> None:
        sides = (row.a, row.b)
        names = [*row.state.changed, *row.state.removed, *row.state.added]
        begin = [row.key, row.outcome, row.verdict, " ".join(row.changed), " ".join(sorted(names))]
        columns = [_cells(side) for side in sides]
        pairs = [cell for cells in zip(*columns, strict=True) for cell in cells]
        self._writer.writerow(["" if cell is None else cell for cell in [*begin, *pairs]])

    def end(self, summary: ComparisonSummary) -> None:
        """The summary is no record."""


def _cells(side: ComparedRun | None) -> list[Any]:
    if side is None:
        return [None] * 8
    path = PATH_SIGN.join(side.path)
    return [side.id, side.status, side.output, side.error, path, side.tokens, side.cost_usd, side.took_ms]


class HtmlFile:
    """A page. Its rows are kept in a temporary file until the summary above them is known."""

    def __init__(self, file: TextIO, pair: ComparedNames) -> None:
        self._file, self._pair = file, pair
        self._rows: TextIO = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  (closed by `close`)
        self._written = 0

    def add(self, row: Comparison) -> None:
        self._written += 1
        if self._written <= comparison_page.MOST_ROWS:
            self._rows.write(comparison_page.row_text(row))

    def end(self, summary: ComparisonSummary) -> None:
        pair = self._pair
        left_out = max(0, self._written - comparison_page.MOST_ROWS)
        self._file.write(comparison_page.head_text(pair.kind, pair.name_a, pair.name_b, summary, left_out))
        self._rows.seek(0)
        shutil.copyfileobj(self._rows, self._file)
        self._file.write(comparison_page.END)

    def close(self) -> None:
        self._rows.close()
