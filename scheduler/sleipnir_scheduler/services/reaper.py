"""Take back visits whose worker fell silent. Without it a visit would stay with a dead worker for ever."""

from __future__ import annotations

from collections.abc import Iterable

from sleipnir.store.partitions import Partitions


def run_once(store: Partitions, partitions: Iterable[int], now_ms: int, limit: int = 500) -> int:
    """Report lapsed leases to the inbox; the planner decides what follows. Any number of reapers may run at once."""
    return sum(store.take_back(partition, now_ms, limit) for partition in partitions)
