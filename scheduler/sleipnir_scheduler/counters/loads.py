"""How many events per second each partition of this instance has: the shares of schedulers follow them
(partition_shares.py)."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

OVER_S = 30.0
"""The time over which rates are averaged: the shares follow loads that last, not each burst."""


class PartitionLoads:
    """`count` is called by the services that do the work, `rates` by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked_s = clock, clock()
        self._counts: Counter[int] = Counter()
        self._rates: dict[int, float] = {}

    def count(self, partitions: Iterable[int]) -> None:
        """One event for each of these partitions."""
        self._counts.update(partitions)

    def rates(self, owned: Collection[int]) -> Mapping[int, float]:
        """Events per second of the owned partitions, each averaged since it is owned."""
        now_s = self._clock()
        took_s, self._looked_s = now_s - self._looked_s, now_s
        counts, self._counts = self._counts, Counter()
        new = 1 - math.exp(-took_s / OVER_S)
        rates = {partition: self._rates.get(partition, 0.0) for partition in owned}
        if took_s > 0:
            rates = {number: rate + (counts[number] / took_s - rate) * new for number, rate in rates.items()}
        self._rates = rates
        return rates

    def begin(self, rates: Mapping[int, float]) -> None:
        """Partitions that are owned from now on, with the rates that their last owners had measured."""
        self._rates |= rates
