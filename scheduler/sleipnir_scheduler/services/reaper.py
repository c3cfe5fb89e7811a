"""Redelivers visits whose lease was lost. Without it a visit would stay with a dead worker forever.

A lapsed lease indicates a dead worker only if the worker was able to renew it. So each round pulses first, which is a
write like a renewal: if Redis is unreachable, full or read-only, the reaper does nothing. After a new generation, or
after a time without any pulse, it waits one lease, so that live workers can renew. Its decision is valid only for a
short time (`until_ms`), because Redis may become unreachable between the pulse and the call.
"""

from __future__ import annotations

from collections.abc import Collection

from sleipnir.runs.views import Generation
from sleipnir.store.partitions.leases import Leases


def run_once(
    store: Leases,
    partitions: Collection[int],
    generation: Generation,
    *,
    lease_ms: int,
    gap_ms: int,
    limit: int = 500,
) -> int:
    """Report lapsed leases to the inbox; the planner decides the consequences. Any number of reapers may run at once.

    `generation` is the reply of a pulse just before, for these partitions. Returns how many leases were lost.
    """
    now_ms = generation.now_ms
    if not generation.is_steady:
        store.shorten_leases(partitions, now_ms + 2 * lease_ms, limit)
        return 0
    lapsed = store.with_lapsed(partitions, dict.fromkeys(partitions, now_ms))
    return sum(store.take_back(partition, now_ms, now_ms + gap_ms, limit) for partition in lapsed)
