"""What all operations on batches use: the connection, the names of keys and the actor."""

from __future__ import annotations

from sleipnir.access.audit import KEEP_MS
from sleipnir.errors import BatchNotFound
from sleipnir.store.connect import Client, clock_ms
from sleipnir.store.keys import Keys, PartitionKeys
from sleipnir.store.scripts import Arg

LOOK_PAGE = 100
"""Batches that are read in one round trip: reading a thousand must not block Redis or this process."""


class BatchConnection:
    """`by` is the actor, as text (runs/actor.py). `retention_ms` is how long a batch is kept after its last row is
    over, `audit_ms` an entry of the audit."""

    def __init__(self, client: Client, keys: Keys, *, retention_ms: int, by: str = "", audit_ms: int = KEEP_MS) -> None:
        self._client, self._keys, self._retention_ms, self._by = client, keys, retention_ms, by
        self._audit_ms = audit_ms
        self._looked_at: dict[int, int] = {}

    def now_ms(self, batch: str) -> int:
        """By the clock of the Redis that has the batch."""
        return clock_ms(self._client, self._keys.of_batch(batch).batch)

    def _part_of(self, batch: str) -> PartitionKeys:
        return self._keys.of_partition(self._keys.partition_of_batch(batch))

    def _changing(self, batch: str) -> dict[str, str]:
        """The keys of scripts that change a batch."""
        part = self._part_of(batch)
        return {**self._keys.of_batch(batch).all(), "open": part.open_batches, "changed": part.changed_batches}

    def _ending(self, batch: str) -> dict[str, Arg]:
        return {"now_ms": self.now_ms(batch), "retention_ms": self._retention_ms}


def not_found(batch: str) -> BatchNotFound:
    return BatchNotFound(f"no batch {batch!r}: never submitted here, or finished longer ago than the retention")
