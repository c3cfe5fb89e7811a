"""Knows in which partitions something is due. Without it each service would look into all of them several times a
second, and an idle scheduler with hundreds of partitions would be busy.

Partitions are looked at in turn, LOOKS_AT_ONCE in a round: 64 or fewer in each round, more within one second for each
256. A timer that this instance sets is known without a look. Others write to the other indexes at any time, but what
they write is due seconds later, except for new schedules and jobs, which wait for the look. What is due stays so until
the next round has looked again, so a service asks Redis about few partitions, until there is nothing left.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

from sleipnir.store.partitions.due_times import PartitionDueTimes

LOOK_S: Final = 0.25
LOOKS_AT_ONCE: Final = 64

Index: TypeAlias = Literal["timers", "leases", "outbox", "schedules", "jobs"]
INDEXES: Final[tuple[Index, ...]] = ("timers", "leases", "outbox", "schedules", "jobs")


class DueTimes:
    """`run_once` is for one thread; others ask. `clock` gives seconds and is never set."""

    def __init__(self, store: PartitionDueTimes, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._epochs: dict[int, int] = {}
        """Under which partitions were looked at."""
        self._at_s: Mapping[Index, Mapping[int, float]] = {index: {} for index in INDEXES}
        """When the first entry of an index of a partition is due, as of the last look."""
        self._timers_s: dict[int, float] = {}
        """The first timers that were set after the last look."""
        self._last = -1
        self._setting = threading.Lock()

    def run_once(self, epochs: Mapping[int, int]) -> int:
        """Look at the next partitions in turn, at those that are new here, and at those in which something was due.
        Returns how many."""
        chosen = self._chosen(epochs)
        with self._setting:  # the look sees what was set before it
            for partition in chosen:
                self._timers_s.pop(partition, None)
        looked_s = self._clock()
        try:
            found = self._store.first_due(chosen)
        except BaseException:
            self._epochs, self._at_s = {}, {index: {} for index in INDEXES}
            raise
        self._at_s = {
            index: {partition: at_s for partition, at_s in self._at_s[index].items() if partition in epochs}
            | {partition: looked_s + getattr(first, index) / 1000 for partition, first in found.items()}
            for index in INDEXES
        }
        self._epochs = {partition: epoch for partition, epoch in epochs.items() if partition in self._at_s["timers"]}
        return len(found)

    def timer_set(self, partition: int, in_ms: float) -> None:
        """Note a timer in a partition that this instance owns."""
        due_s = self._clock() + in_ms / 1000
        with self._setting:
            self._timers_s[partition] = min(due_s, self._timers_s.get(partition, math.inf))

    def due(self, index: Index, epochs: Mapping[int, int]) -> dict[int, int]:
        """The partitions with their epochs in which something of the index is due, or may be so."""
        return self._first_before(self._clock(), index, epochs)

    def used(self, index: Index, epochs: Mapping[int, int]) -> dict[int, int]:
        """The partitions with their epochs in which the index has entries, or may have some."""
        return self._first_before(sys.float_info.max, index, epochs)

    def _first_before(self, most_s: float, index: Index, epochs: Mapping[int, int]) -> dict[int, int]:
        at_s = self._at_s[index]
        found = {partition for partition, first_s in at_s.items() if first_s <= most_s}
        if index == "timers":
            with self._setting:
                found |= {partition for partition, first_s in self._timers_s.items() if first_s <= most_s}
        found |= epochs.keys() - at_s.keys()
        return {partition: epochs[partition] for partition in sorted(found & epochs.keys())}

    def _chosen(self, epochs: Mapping[int, int]) -> set[int]:
        in_turn = sorted(epochs, key=lambda partition: (partition <= self._last, partition))[:LOOKS_AT_ONCE]
        self._last = in_turn[-1] if in_turn else -1
        new = {partition for partition, epoch in epochs.items() if self._epochs.get(partition) != epoch}
        return new.union(in_turn, *(self.due(index, epochs) for index in INDEXES))
