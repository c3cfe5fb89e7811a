"""Timers that are due: services/timers.py."""

from __future__ import annotations

from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import LuaScript

_FIRE_TIMERS = LuaScript("fire_timers")


class Timers(PartitionConnection):
    """Move due timers into the inbox."""

    def fire_timers(self, partition: int, limit: int) -> int:
        """Move due timers into the inbox. Returns how many."""
        part = self._of(partition)
        fired = _FIRE_TIMERS(self._client, {"timers": part.timers, "inbox": part.inbox}, {"limit": limit})
        return int(fired)
