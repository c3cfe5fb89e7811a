"""The rows of batches in Redis as people look at them: in cells, in pages by state, and when they ended.

Nothing here reads more than READ_ROWS states in one call of Redis, whatever the size of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from sleipnir.batches.records import ROW_STATES, RowState, row_run_id
from sleipnir.batches.rollups import MOST_CELLS, WORST_FIRST, EndedRows, RowGrid
from sleipnir.store.batches.rows import BYTE_OF, places_of
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.runs.visit_infos import whole_number
from sleipnir.store.scripts import LuaScript, checked, run_batch

_CELLS = LuaScript("batch_cells")

READ_ROWS: Final = 50_000
"""Rows whose states one call reads."""
MOST_LOOKED: Final = 1_000_000
"""Rows whose states are read for one page of rows in a state."""

_ORDER: Final = "".join(BYTE_OF[state] for state in WORST_FIRST)


@dataclass(frozen=True)
class RowPlaces:
    """Rows with their states. `looked` and `after` are as in rollups.BatchRowPage."""

    rows: tuple[tuple[int, RowState], ...]
    looked: int
    after: int | None


class BatchRollups:
    """Reads of the rows of batches."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def grid(self, batch: str, most_cells: int = MOST_CELLS) -> RowGrid:
        """All rows in at most so many cells. One round trip of short calls, one for each 50,000 rows."""
        states = self._keys.of_batch(batch).states
        total = int(self._client.strlen(states))
        if not total:
            return RowGrid(1, ())
        # A cell that is larger than one call may read is read in equal parts.
        parts = _divided(_divided(total, most_cells), READ_ROWS)
        part_rows = _divided(total, most_cells * parts)
        per_call = READ_ROWS // part_rows
        vectors = [
            _CELLS.vector(
                {"states": states}, {"first": first, "per_cell": part_rows, "cells": per_call, "order": _ORDER}
            )
            for first in range(0, total, per_call * part_rows)
        ]
        bytes_ = "".join(str(checked(reply)) for reply in run_batch(self._client, _CELLS, vectors))
        cells = [min(bytes_[at : at + parts], key=_ORDER.index) for at in range(0, len(bytes_), parts)]
        return RowGrid(part_rows * parts, tuple(ROW_STATES[byte] for byte in cells))

    def places(self, batch: str, state: RowState | None, first: int, limit: int) -> RowPlaces:
        """At most so many rows from `first` on in this state (None: in any), in order."""
        states, found, at = self._keys.of_batch(batch).states, list[tuple[int, RowState]](), first
        size = limit if state is None else READ_ROWS
        while len(found) < limit and at - first < MOST_LOOKED:
            page = str(self._client.getrange(states, at, at + size - 1))
            fitting = range(len(page)) if state is None else places_of(page, BYTE_OF[state])
            more = list(islice(fitting, limit - len(found)))
            found += [(at + place, ROW_STATES[page[place]]) for place in more]
            at += more[-1] + 1 if len(found) == limit else len(page)
            if len(page) < size:
                break
        return RowPlaces(tuple(found), at - first, at if at < int(self._client.strlen(states)) else None)

    def ended(self, batch: str, samples: int) -> list[EndedRows]:
        """How many rows had ended at up to so many times, in order, read at equal distances of the ends. A row that was
        retried counts when it ended last."""
        ends = self._keys.of_batch(batch).ends
        total = int(self._client.llen(ends))
        places = sorted({round((total - 1) * at / max(1, samples - 1)) for at in range(samples)}) if total else []
        pipe = self._client.pipeline(transaction=False)
        for place in places:
            pipe.lindex(ends, place)
        rows = pipe.execute() if places else []
        for row in rows:
            pipe.hget(self._keys.of_run(row_run_id(batch, int(row or 0))).run, "ended_ms")
        times = pipe.execute() if rows else []
        points = list[EndedRows]()
        for place, row, time in reversed(list(zip(places, rows, times, strict=True))):
            at_ms = whole_number(time)
            if row is not None and at_ms is not None and (not points or at_ms <= points[-1].at_ms):
                points.append(EndedRows(at_ms, place + 1))
        return points[::-1]


def _divided(number: int, by: int) -> int:
    """Rounded up."""
    return -(-number // by)
