"""Reciprocal rank fusion (spec 8.6 item 3): one ranking from the orders of several. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

VECTOR_WEIGHT: Final = 1.125
KEYWORD_WEIGHT: Final = 1.0


def fused(rankings: Iterable[tuple[float, Sequence[int]]], top_k: int) -> dict[int, float]:
    """The scores of all ids, best first; ids with equal scores in the order of their first occurrence.

    A ranking is its weight and its ids, best first; an id that is in it twice counts twice, for example if two pieces
    of a question found the same chunk. `top_k` is the number of requested hits: the larger it is, the less a high rank
    counts.
    """
    k = 2 * top_k
    scores: dict[int, float] = {}
    for weight, ids in rankings:
        for rank, id_ in enumerate(ids):
            scores[id_] = scores.get(id_, 0.0) + weight / (k + rank + 1)
    return dict(sorted(scores.items(), key=lambda item: -item[1]))
