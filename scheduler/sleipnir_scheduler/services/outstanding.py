"""Publishes how much work this instance's partitions have, and adds up what all have, for admission. In a cluster a
count of all partitions costs the one scheduler that admits rows some milliseconds, up to a hundred times a second, so
each owner counts its own.

Partitions of which nothing was published lately are counted by admission itself: those of an instance that has just
come, has died, or is of an earlier release.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from sleipnir.store.outstanding import OutstandingWork
from sleipnir.store.scripts import SILENT

FRESH_MS = 500  # publications are 20 ms apart; some may be late
EVERY_S, REST = 0.02, 19  # a twentieth of a core at most
LOOK_S = 0.1  # between looks whether somebody wants to know it


class OutstandingCounts:
    """Publishes the counts of an instance that does not admit rows itself."""

    def __init__(self, store: OutstandingWork, instance: str) -> None:
        self._store, self._instance = store, instance

    def run_once(self, partitions: Collection[int]) -> bool:
        """Returns whether somebody wants to know it: nobody does while the node of the first partition is away."""
        try:
            return self._store.publish(self._instance, partitions)
        except SILENT:
            return False


class OutstandingTotal:
    """The outstanding work of all partitions."""

    def __init__(self, store: OutstandingWork, *, partitions: int, published: bool) -> None:
        """`published`: whether owners publish their counts, as in a cluster."""
        self._store, self._all, self._published = store, frozenset(range(partitions)), published
        self._admitted: deque[tuple[int, int]] = deque()
        """When rows were admitted, and how many, as far as counts may not include them yet."""

    def admitted(self, rows: int, now_ms: int) -> None:
        if rows and self._published:
            self._admitted.append((now_ms, rows))

    def look(self, owned: Collection[int]) -> int:
        """`owned` are the partitions of this instance, which it counts itself."""
        if not self._published:
            return self._store.count(self._all)
        others, total = self._all.difference(owned), 0
        counted = set[int]()
        since_ms: int | None = None
        for count in self._store.published(FRESH_MS) if others else ():
            if others.issuperset(count.partitions) and counted.isdisjoint(count.partitions):
                counted.update(count.partitions)
                total += count.count
                since_ms = count.at_ms if since_ms is None else min(since_ms, count.at_ms)
        while self._admitted and (since_ms is None or self._admitted[0][0] < since_ms):
            self._admitted.popleft()
        unseen = sum(rows for _, rows in self._admitted) * len(counted) // len(self._all)
        return total + unseen + self._store.count(self._all - counted)
