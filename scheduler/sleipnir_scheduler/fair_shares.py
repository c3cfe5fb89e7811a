"""Divides the fleet among batches by weight, with stride scheduling.

Each batch has a virtual time, which advances by 1 / its weight with each row that it gets; the batch with the lowest
time gets the next row. So of two batches with weights 3 and 1 that both have rows, one gets three rows for each row of
the other, regardless of their sizes. A batch without rows for a while is not compensated: it continues at the
virtual time of the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchDemand:
    """A batch with up to `most` rows to admit now, at least one. `idle`: it has no active row."""

    id: str
    weight: int
    most: int
    idle: bool = False


@dataclass(frozen=True)
class Shares:
    """The number of rows that each batch gets now, and the virtual times afterwards."""

    rows: Mapping[str, int]
    times: Mapping[str, float]


def share(claims: Iterable[BatchDemand], capacity: int, times: Mapping[str, float]) -> Shares:
    """Divide `capacity` rows. `times` are those of the last call; batches that are not in `claims` are dropped.

    An idle batch gets a row even without capacity, so that no batch is blocked by another one.
    """
    wanted = {claim.id: claim for claim in claims}
    known = {id_: times[id_] for id_ in wanted if id_ in times}
    start = min(known.values(), default=0.0)
    after = {id_: max(known.get(id_, start), start) for id_ in wanted}
    rows = dict.fromkeys(wanted, 0)
    line = [(after[id_], number, id_) for number, id_ in enumerate(wanted)]
    heapq.heapify(line)
    while line and capacity > 0:
        time, number, id_ = heapq.heappop(line)
        rows[id_] += 1
        capacity -= 1
        after[id_] = time + 1 / wanted[id_].weight
        if rows[id_] < wanted[id_].most:
            heapq.heappush(line, (after[id_], number, id_))
    for claim in wanted.values():
        if claim.idle and not rows[claim.id]:
            rows[claim.id] = 1
            after[claim.id] += 1 / claim.weight
    return Shares(rows, after)


def one_each(idle: Iterable[BatchDemand], times: Mapping[str, float]) -> Shares:
    """Without capacity: a row for each idle batch. The others keep their times."""
    claims = list(idle)
    moved = {claim.id: times[claim.id] + 1 / claim.weight for claim in claims if claim.id in times}
    return Shares({claim.id: 1 for claim in claims}, {**times, **moved})
