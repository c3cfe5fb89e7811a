"""Put back visits that are queued and in no index. Without it such a visit would wait for ever.

Every queued visit is in its partition's outbox or under a lease. All scripts keep that so; an eviction, a key deleted
by hand or a bug may not. The runs of a partition are looked through in pieces, by the cursor of a scan: what is not
seen in this round is seen in a later one. What is put back is decided by one script.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from sleipnir.store.partitions import Partitions

AT_ONCE = 500  # runs of a partition that are looked at in a round, about


class UnindexedVisits:
    """Remembers how far it has come in each partition."""

    def __init__(self, store: Partitions, *, lease_ms: int) -> None:
        self._store, self._lease_ms = store, lease_ms
        self._cursors: dict[int, int] = {}
        self._log = structlog.get_logger().bind(service="janitor")

    def run_once(self, partitions: Collection[int]) -> int:
        """Look at some runs of each partition. Returns how many visits were put back; several may run at once."""
        self._cursors = {partition: self._cursors.get(partition, 0) for partition in partitions}
        count = 0
        for partition, cursor in self._cursors.items():
            self._cursors[partition], runs = self._store.some_runs(partition, cursor, AT_ONCE)
            for name in self._store.put_back(partition, runs, self._lease_ms):
                self._log.warning("a queued visit was in no index, and is put back", visit=name)
                count += 1
        return count
