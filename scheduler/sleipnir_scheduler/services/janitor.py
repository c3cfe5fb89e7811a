"""Forget what nobody needs. Without it indexes would name expired runs, and bundles would pile up."""

from __future__ import annotations

from collections.abc import Iterable

from sleipnir.store.store import Store

SILENT_MS = 10 * 60_000
BATCH = 1000


def run_once(store: Store, partitions: Iterable[int], now_ms: int, retention_ms: int) -> int:
    """Drop index entries of expired runs, silent fleet members and unused bundles. Returns how many."""
    dropped = sum(store.partitions.forget_expired(partition, now_ms, BATCH) for partition in partitions)
    dropped += store.fleet.forget_silent(now_ms - SILENT_MS)
    before_ms = now_ms - retention_ms
    candidates = store.bundles.unused_since(before_ms)
    if candidates:
        used = store.runs.bundles_in_use()
        dropped += sum(store.bundles.drop(digest, before_ms) for digest in candidates if digest not in used)
    return dropped
