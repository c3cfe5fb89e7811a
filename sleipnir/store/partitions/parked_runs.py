"""Runs that are set aside because one of their records is unreadable: services/parking.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import Arg, LuaScript

_PARK = LuaScript("park")


class ParkedRuns(PartitionConnection):
    """Mark runs as parked, and read the marks."""

    def parked(self, partition: int) -> dict[str, str]:
        """The parked runs of a partition with the reasons stored by `park`."""
        return dict(self._client.hscan_iter(self._of(partition).parked, count=1000))

    def park(self, partition: int, runs: Mapping[str, str], epoch: int) -> bool:
        """Mark runs as parked, with the reason (`parked_text`); an empty text removes the mark. Safe to repeat. False:
        another scheduler owns the partition."""
        part = self._of(partition)
        flat: list[Arg] = [each for pair in runs.items() for each in pair]
        return bool(_PARK(self._client, {"parked": part.parked, "owner": part.owner}, {"epoch": epoch}, flat) == 1)

    def count_parked(self, partitions: Collection[int]) -> dict[int, int]:
        """The number of parked runs in each of these partitions."""
        pipe = self._client.pipeline(transaction=False)
        for partition in partitions:
            pipe.hlen(self._of(partition).parked)
        return dict(zip(partitions, pipe.execute(), strict=True))
