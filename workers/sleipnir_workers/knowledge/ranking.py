"""The best of many scores, with a limit per source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GROWTH: Final = 4  # of the number of candidates, if too many were dropped by the limit per source


def best(
    scores: NDArray[np.float32], count: int, source_of: NDArray[np.uint32], per_source: int | None = None
) -> list[int]:
    """The rows with the `count` best scores above zero, best first; equal ones in their order.

    `source_of` is the source of each row.
    """
    rows = np.flatnonzero(scores > 0)
    if per_source is None:
        return _best(scores, rows, count)
    candidates = count
    while True:
        selected = limited(_best(scores, rows, candidates), source_of, per_source, count)
        if len(selected) == count or candidates >= len(rows):
            return selected
        candidates *= _GROWTH


def limited(rows: Iterable[int], source_of: NDArray[np.uint32], per_source: int | None, count: int) -> list[int]:
    """The first `count` of `rows`, with at most `per_source` of each source."""
    selected: list[int] = []
    counts: Counter[int] = Counter()
    for row in rows:
        if len(selected) == count:
            break
        source = int(source_of[row])
        counts[source] += 1
        if per_source is None or counts[source] <= per_source:
            selected.append(row)
    return selected


def _best(scores: NDArray[np.float32], rows: NDArray[np.intp], count: int) -> list[int]:
    if len(rows) > count:
        values = scores[rows]
        rows = rows[values >= np.partition(values, -count)[-count]]
    order = np.lexsort((rows, -scores[rows]))
    return [int(row) for row in rows[order[:count]]]
