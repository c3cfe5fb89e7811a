"""Reciprocal rank fusion (spec 8.6 item 3): one ranking from several, of which only the order counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

VECTOR_WEIGHT: Final = 1.125
KEYWORD_WEIGHT: Final = 1.0


def fused(rankings: Iterable[tuple[float, Sequence[int]]], top_k: int) -> dict[int, float]:
    """The scores of all ids, best first; of equal ones, that which was seen first.

    A ranking is its weight and its ids, best first; an id that is in it twice counts twice, as where two pieces of a
    question found the same chunk. `top_k` is how many hits are asked for: the more, the less a high rank counts.
    """
    k = 2 * top_k
    scores: dict[int, float] = {}
    for weight, ids in rankings:
        for rank, each in enumerate(ids):
            scores[each] = scores.get(each, 0.0) + weight / (k + rank + 1)
    return dict(sorted(scores.items(), key=lambda item: -item[1]))
