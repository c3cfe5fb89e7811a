"""Redeliver visits whose lease was lost. Without it a visit would stay with a dead worker for ever.

A lease that has lapsed says that its worker is dead only if the worker could have renewed it. So each round pulses
first, which is a write as a renewal is: where Redis is away, full or read-only, the reaper stands still. After a new
generation, or a time in which nobody reached Redis, it waits one lease: workers that live have renewed by then. What it
decides holds for a moment only (`until_ms`), as Redis may be away between the pulse and the call.
"""

from __future__ import annotations

from collections.abc import Iterable

from sleipnir.runs.views import Generation
from sleipnir.store.partitions import Partitions


def run_once(
    store: Partitions,
    partitions: Iterable[int],
    generation: Generation,
    *,
    lease_ms: int,
    gap_ms: int,
    limit: int = 500,
) -> int:
    """Report lapsed leases to the inbox; the planner decides what follows. Any number of reapers may run at once.

    `generation` is that of a pulse just now. Returns how many leases were lost.
    """
    now_ms = generation.now_ms
    if not generation.is_steady:
        for partition in partitions:
            store.shorten_leases(partition, now_ms + 2 * lease_ms, limit)
        return 0
    return sum(store.take_back(partition, now_ms, now_ms + gap_ms, limit) for partition in partitions)
