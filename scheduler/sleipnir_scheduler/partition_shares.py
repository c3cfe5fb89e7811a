"""Divides the partitions among schedulers by their load. As pure as the planner.

A partition weighs 1, which is what it costs its owner without events (0.25 ms of CPU per second), and 1 more for each
event per second (0.28 ms; both measured, docs/performance.md). So idle partitions are divided by their number, and
busy ones by what they have to do: whoever owns the partition of a run with thousands of items owns fewer others.

Nothing moves back and forth: an instance releases only what leaves it at the average at least, and takes partitions
only while it is below the average. Together they always take all: while a partition is free, one of them is below.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

TOLERANCE = 0.1
"""Part of the average: while all are as close to it, nothing moves."""


@dataclass(frozen=True)
class PartitionShares:
    """`weights` by partition, of all of them; `owners` by owned partition; `instances` are those that are alive."""

    weights: Mapping[int, float]
    owners: Mapping[int, str]
    instances: Collection[str]

    def having(self, instance: str, owned: Collection[int]) -> PartitionShares:
        """The same with what the instance owns now."""
        others = {partition: owner for partition, owner in self.owners.items() if owner != instance}
        return replace(self, owners=others | dict.fromkeys(owned, instance))

    @property
    def average(self) -> float:
        """What each instance should have."""
        return sum(self.weights.values()) / len(self.instances)

    def has(self) -> Mapping[str, float]:
        """The weight of what each instance owns."""
        loads = dict.fromkeys(self.instances, 0.0)
        for partition, owner in self.owners.items():
            loads[owner] += self.weights[partition]
        return loads

    def wanted(self, instance: str, free: Collection[int]) -> list[int]:
        """The first of the `free` ones that the instance takes. The one that has least takes some in any case: others
        may have seen other loads."""
        loads, average, taken = self.has(), self.average, list[int]()
        has = loads[instance]
        for partition in free:
            if has >= average and (taken or has > min(loads.values())):
                break
            taken.append(partition)
            has += self.weights[partition]
        return taken

    def is_balanced(self, instance: str) -> bool:
        """Whether the instance, and the one that has least, are close to the average."""
        loads, average = self.has(), self.average
        return loads[instance] <= (1 + TOLERANCE) * average and min(loads.values()) >= (1 - TOLERANCE) * average

    def surplus(self, instance: str, parked: Mapping[int, int]) -> frozenset[int]:
        """What the instance releases: first partitions with parked runs, which another release may be able to read,
        then the heaviest that are not too heavy, so that few move."""
        if self.is_balanced(instance):
            return frozenset()
        excess = self.has()[instance] - self.average
        owned = [partition for partition, owner in self.owners.items() if owner == instance]
        released = set[int]()
        for partition in sorted(owned, key=lambda number: (-parked.get(number, 0), -self.weights[number], -number)):
            if self.weights[partition] <= excess:
                released.add(partition)
                excess -= self.weights[partition]
        return frozenset(released)


def weight(events_per_s: float) -> float:
    return 1 + events_per_s
