"""Restores queued visits that are in no index. Without it such a visit would wait forever.

Every queued visit is in its partition's outbox or under a lease. All scripts preserve this; an eviction, a key deleted
by hand or a bug may break it. The runs of a partition are checked in pieces, with the cursor of a scan, over several
rounds. A script decides which visits are restored.
"""

from __future__ import annotations

from collections.abc import Collection

import structlog

from sleipnir.store.partitions.outbox import QueuedVisits

AT_ONCE = 500  # approximate number of runs of a partition that are checked per round


class UnindexedVisits:
    """Keeps the cursor of each partition."""

    def __init__(self, store: QueuedVisits, *, lease_ms: int) -> None:
        self._store, self._lease_ms = store, lease_ms
        self._cursors: dict[int, int] = {}
        self._log = structlog.get_logger().bind(service="janitor")

    def run_once(self, partitions: Collection[int]) -> int:
        """Check some runs of each partition. Returns how many visits were restored; several may run at once."""
        self._cursors = {partition: self._cursors.get(partition, 0) for partition in partitions}
        count = 0
        for partition, cursor in self._cursors.items():
            self._cursors[partition], runs = self._store.some_runs(partition, cursor, AT_ONCE)
            for name in self._store.put_back(partition, runs, self._lease_ms):
                self._log.warning("a queued visit was in no index, and is put back", visit=name)
                count += 1
        return count
