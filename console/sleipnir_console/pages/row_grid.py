"""The rows of a batch as a grid of cells: lines of cells as SVG paths, which are links to their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sleipnir.batches.records import RowState
from sleipnir.batches.rollups import RowGrid
from sleipnir_console.pages.batch_states import ROW_FILLS, ROW_WORDS
from sleipnir_console.pages.formats import count

WIDTH: Final = 1_240
STEP: Final = 10
"""The height of a line of cells, in the units of the drawing."""
GAP: Final = 1.4
COLUMNS: Final = (31, 62, 124)
LINES_AT_LEAST: Final = 5
"""A batch with few rows has wide cells, so that they fill about so many lines."""


@dataclass(frozen=True)
class GridLine:
    """A line of cells. `first` is its first row, counted from 1. `paths` have the cells in each colour, `crosses` marks
    failed ones, so that they are seen without colours; `label` says in words what is in them."""

    first: int
    y: int
    width: float
    paths: Sequence[tuple[str, str]]
    crosses: str
    label: str


@dataclass(frozen=True)
class GridDrawing:
    """The drawing of all rows."""

    rows_per_cell: int
    columns: int
    height: int
    lines: Sequence[GridLine]


def drawing_of(grid: RowGrid, total: int) -> GridDrawing:
    """The grid of a batch of so many rows."""
    columns = next((each for each in COLUMNS if len(grid.cells) <= each * LINES_AT_LEAST), COLUMNS[-1])
    lines = [
        _line(grid, total, at, columns, STEP * number) for number, at in enumerate(range(0, len(grid.cells), columns))
    ]
    return GridDrawing(grid.rows_per_cell, columns, STEP * len(lines), lines)


def _line(grid: RowGrid, total: int, at: int, columns: int, y: int) -> GridLine:
    step = WIDTH / columns
    cells = grid.cells[at : at + columns]
    side, size = step - GAP, STEP - GAP
    squares: dict[str, list[str]] = {}
    crosses = []
    for place, state in enumerate(cells):
        x = round(place * step, 2)
        squares.setdefault(ROW_FILLS[state], []).append(f"M{x:g} {y}h{side:g}v{size:g}h-{side:g}z")
        if state == "failed":
            middle = x + side / 2
            crosses.append(f"M{middle - 2:g} {y + 2.3:g}l4 4m0-4l-4 4")
    first = at * grid.rows_per_cell + 1
    last = min(total, (at + len(cells)) * grid.rows_per_cell)
    paths = [(fill, "".join(parts)) for fill, parts in squares.items()]
    return GridLine(first, y, len(cells) * step, paths, "".join(crosses), _label(first, last, cells))


def _label(first: int, last: int, cells: Sequence[RowState]) -> str:
    counts: Mapping[RowState, int] = {state: cells.count(state) for state in ROW_WORDS}
    words = ", ".join(f"{ROW_WORDS[state].lower()} in {number}" for state, number in counts.items() if number)
    return f"Rows {count(first)} to {count(last)}. Cells by their worst row: {words}"
