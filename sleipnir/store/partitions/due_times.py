"""When something is due in a partition: services/due_times.py."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import LuaScript, answers, run_batch

_FIRST_DUE = LuaScript("first_due")


@dataclass(frozen=True)
class FirstTimes:
    """The ms until the first entry of each index is due; infinity: the index is empty."""

    timers: float
    leases: float
    outbox: float
    schedules: float
    jobs: float


class PartitionDueTimes(PartitionConnection):
    def first_due(self, partitions: Iterable[int]) -> dict[int, FirstTimes]:
        """Of these partitions. Those of a cluster's nodes that do not answer are left out; raises the error of one if
        none does. One round trip."""
        wanted = list(partitions)
        vectors = []
        for part in map(self._of, wanted):
            keys = {"timers": part.timers, "leases": part.leases, "outbox": part.outbox}
            keys |= {"schedules": part.schedules, "jobs": part.jobs_due}
            vectors.append(_FIRST_DUE.vector(keys, {}))
        replies = answers(run_batch(self._client, _FIRST_DUE, vectors), None)
        return {
            partition: FirstTimes(*(math.inf if ms == "" else float(ms) for ms in reply))
            for partition, reply in zip(wanted, replies, strict=True)
            if reply is not None
        }
