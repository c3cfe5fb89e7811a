"""Removes unused data. Without it indexes would name expired runs, bundles would accumulate, and a slot of an agent
that was requested too late would never be freed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sleipnir.store.store import Store

SILENT_MS = 10 * 60_000
BATCH = 1000
RUNS_AT_ONCE = 250  # each is in several lists: some ms of Redis


def run_once(
    store: Store,
    partitions: Collection[int],
    now_ms: int,
    retention_ms: int,
    lost: Callable[[int], None] = lambda count: None,
) -> int:
    """Drop index entries of expired runs, slots of finished runs, silent fleet members and unused bundles. Returns how
    many.

    `lost` gets the number of expired runs that were not in the archive.
    """
    dropped = 0
    for partition in partitions:
        unarchived = _all(store.partitions.forget_expired, partition, now_ms)
        lost(unarchived)
        dropped += unarchived + _all(store.partitions.forget_archived, partition, now_ms)
        dropped += store.slots.look(partition, now_ms)
        dropped += store.signals.look(partition, now_ms)
        dropped += store.jobs.forget_expired(partition, now_ms - retention_ms, BATCH)
    dropped += store.fleet.forget_silent(now_ms - SILENT_MS)
    dropped += store.batches.forget_expired(partitions, now_ms - retention_ms, BATCH)
    return dropped + _forget_bundles(store, now_ms, now_ms - retention_ms)


def _all(forget: Callable[[int, int, int], int], partition: int, now_ms: int) -> int:
    """Repeat until there are no more. Returns how many were dropped."""
    dropped = 0
    while (some := forget(partition, now_ms, RUNS_AT_ONCE)) == RUNS_AT_ONCE:
        dropped += some
    return dropped + some


def _forget_bundles(store: Store, now_ms: int, before_ms: int) -> int:
    """Drop bundles that no stored run uses. Bundles in use are checked again after a retention, because a check reads
    all stored runs."""
    candidates = store.bundles.unused_since(before_ms)
    if not candidates:
        return 0
    used = store.pinned().bundles
    store.bundles.keep([digest for digest in candidates if digest in used], now_ms)
    return sum(store.bundles.drop(digest, before_ms) for digest in candidates if digest not in used)
