"""Fires due timers. Without it deadlines would not take effect, and failed visits would not be retried."""

from __future__ import annotations

from collections.abc import Iterable

from sleipnir.store.partitions.timers import Timers


def run_once(store: Timers, partitions: Iterable[int], limit: int = 500) -> int:
    """Move due timers into the inbox. A timer fires once, even if several services run."""
    return sum(store.fire_timers(partition, limit) for partition in store.with_due_timers(partitions))
