"""The rows of a batch as people look at them: all of them in cells, pages of them, and how many had ended when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sleipnir.batches.records import RowState
from sleipnir.runs.views import RunInfo

MOST_CELLS: Final = 1_240
WORST_FIRST: Final[tuple[RowState, ...]] = ("failed", "active", "cancelled", "waiting", "completed")
"""A cell has the first of these states that one of its rows is in: what a person should see of it."""


@dataclass(frozen=True)
class RowGrid:
    """All rows of a batch, in their order, in at most MOST_CELLS cells of `rows_per_cell` rows; the last one may have
    fewer. `cells` has the worst state in each."""

    rows_per_cell: int
    cells: tuple[RowState, ...]


@dataclass(frozen=True)
class BatchRow:
    """A row, counted from 0. `info` is its run; None: it has none yet, has never had one, or it has expired. `error`:
    why it failed without one."""

    row: int
    key: str
    run: str
    state: RowState
    info: RunInfo | None = None
    error: str | None = None


@dataclass(frozen=True)
class BatchRowPage:
    """A page of rows in their order. `looked` rows were read for it; `after` is where the next page starts, None: there
    is none. A page may have fewer rows than asked for, also none, and a next page: it stops after many rows that do not
    fit."""

    rows: tuple[BatchRow, ...]
    looked: int
    after: int | None


@dataclass(frozen=True)
class EndedRows:
    """How many rows had ended at a time (ms since the epoch, Redis' clock)."""

    at_ms: int
    ended: int


def rows_per_minute(points: Sequence[EndedRows], bins: int) -> list[float]:
    """Rows that ended per minute in so many equal parts of the time from the first point to the last. Empty: the points
    span no time. Between two points the rate is taken as constant."""
    if len(points) < 2 or bins < 1 or points[-1].at_ms <= points[0].at_ms:
        return []
    first, span_ms = points[0].at_ms, points[-1].at_ms - points[0].at_ms
    edges = [first + span_ms * edge / bins for edge in range(bins + 1)]
    counts, at = [], 0
    for edge in edges:
        while at < len(points) - 2 and points[at + 1].at_ms <= edge:
            at += 1
        counts.append(_between(points[at], points[at + 1], edge))
    minutes = span_ms / bins / 60_000
    return [max(0.0, after - before) / minutes for before, after in pairwise(counts)]


def _between(before: EndedRows, after: EndedRows, at_ms: float) -> float:
    part = min(1.0, max(0.0, (at_ms - before.at_ms) / max(1, after.at_ms - before.at_ms)))
    return before.ended + (after.ended - before.ended) * part
