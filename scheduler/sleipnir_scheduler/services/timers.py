"""Fire timers that are due. Without it a deadline would pass unseen, and a failed visit never be tried again."""

from __future__ import annotations

from collections.abc import Iterable

from sleipnir.store.partitions import Partitions


def run_once(store: Partitions, partitions: Iterable[int], limit: int = 500) -> int:
    """Move due timers into the inbox. A timer fires once, however many services run."""
    return sum(store.fire_timers(partition, limit) for partition in partitions)
