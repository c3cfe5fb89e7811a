"""Timers that are due: services/timers.py."""

from __future__ import annotations

from collections.abc import Iterable

from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import LuaScript

_FIRE_TIMERS = LuaScript("fire_timers")


class Timers(PartitionConnection):
    """Move due timers into the inbox."""

    def with_due_timers(self, partitions: Iterable[int]) -> list[int]:
        """Those of the partitions that have a due timer."""
        clocks = self.clocks_ms(partitions)
        firsts = self._first_ms([self._of(number).timers for number in clocks])
        return [number for (number, now_ms), first_ms in zip(clocks.items(), firsts, strict=True) if first_ms <= now_ms]

    def fire_timers(self, partition: int, limit: int) -> int:
        """Move due timers into the inbox. Returns how many."""
        part = self._of(partition)
        fired = _FIRE_TIMERS(self._client, {"timers": part.timers, "inbox": part.inbox}, {"limit": limit})
        return int(fired)
