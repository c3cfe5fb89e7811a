"""Forget what nobody needs. Without it indexes would name expired runs, bundles would pile up, and a slot of an agent
that was asked for too late would never be free again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sleipnir.store.store import Store

SILENT_MS = 10 * 60_000
BATCH = 1000


def run_once(
    store: Store,
    partitions: Iterable[int],
    now_ms: int,
    retention_ms: int,
    lost: Callable[[int], None] = lambda count: None,
) -> int:
    """Drop index entries of expired runs, slots of runs that are over, silent fleet members and unused bundles. Returns
    how many.

    `lost` is told how many of the runs were not in the archive.
    """
    dropped = 0
    for partition in partitions:
        unarchived = _all(store.partitions.forget_expired, partition, now_ms)
        lost(unarchived)
        dropped += unarchived + _all(store.partitions.forget_archived, partition, now_ms)
        dropped += store.slots.look(partition, now_ms)
    dropped += store.fleet.forget_silent(now_ms - SILENT_MS)
    dropped += store.batches.forget_expired(now_ms - retention_ms, BATCH)
    return dropped + _forget_bundles(store, now_ms, now_ms - retention_ms)


def _all(forget: Callable[[int, int, int], int], partition: int, now_ms: int) -> int:
    """Until there are no more."""
    dropped = 0
    while (some := forget(partition, now_ms, BATCH)) == BATCH:
        dropped += some
    return dropped + some


def _forget_bundles(store: Store, now_ms: int, before_ms: int) -> int:
    """All kept runs are looked at, so those bundles that are still in use are not asked about again for a retention."""
    candidates = store.bundles.unused_since(before_ms)
    if not candidates:
        return 0
    used = store.pinned().bundles
    store.bundles.keep([digest for digest in candidates if digest in used], now_ms)
    return sum(store.bundles.drop(digest, before_ms) for digest in candidates if digest not in used)
