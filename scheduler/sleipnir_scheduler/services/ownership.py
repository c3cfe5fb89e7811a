"""Partition leases. Without them two schedulers would plan the same run concurrently.

The owner hash in Redis, with its epoch, is authoritative. commit.lua compares the epoch, so a scheduler that was frozen
while another took over cannot commit. Local time is used only to wait between renewals. If a renewal fails, nothing
changes until the lease lapses; then another instance takes the partition, this one's commits are refused, and it drops
the partition at its next renewal.

Instances share the partitions: each takes up to the number of partitions divided by the live instances, rounded up, and
releases the rest, those with parked runs first. It stops working on these in one round and releases them in the next,
when all started work is committed: the runs of a partition that changes its owner wait for a moment, and none of their
commits are refused. An instance never releases part of its fair share, so partitions do not move back and forth.

An epoch identifies one history: a new owner and a new generation (generation.py) give the partition a new epoch. So
everything that an instance caches of a partition is valid for one epoch, and dropped with it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Mapping

import structlog

from sleipnir.runs.deployment_holds import DeploymentHolds
from sleipnir.store.partitions import Partitions
from sleipnir.store.partitions.ownership import OwnedPartition


class Ownership:
    """The partitions that this instance owns, with their epochs. All services read it; mainly `run_once` writes it."""

    def __init__(
        self,
        store: Partitions,
        *,
        partitions: int,
        instance: str,
        ttl_ms: int,
        generation: Callable[[], str] = lambda: "",
    ) -> None:
        self._store, self._all, self.instance, self._ttl_ms = store, range(partitions), instance, ttl_ms
        self._generation = generation
        self._epochs: dict[int, int] = {}
        self._leaving: frozenset[int] = frozenset()
        """Owned in Redis but no longer worked on: released in the next round."""
        self._share = len(self._all)
        self._holds: Mapping[int, DeploymentHolds] = {}
        self._lock = threading.Lock()
        self._log = structlog.get_logger().bind(service="ownership", instance=instance)

    @property
    def epochs(self) -> Mapping[int, int]:
        """Partition -> epoch, as of the last renewal."""
        with self._lock:
            return dict(self._epochs)

    @property
    def partitions(self) -> int:
        """The number of partitions of the deployment."""
        return len(self._all)

    @property
    def holds(self) -> Mapping[int, DeploymentHolds]:
        """What is held, by partition, as of the last renewal; partitions without holds are left out. It only saves
        work: claim.lua refuses visits that are published anyway."""
        return self._holds

    @property
    def held(self) -> frozenset[int]:
        """Partitions whose deployment is held, also if part of it was resumed."""
        return frozenset(partition for partition, holds in self._holds.items() if holds.is_deployment_held)

    @property
    def is_settled(self) -> bool:
        """Whether it has nothing to release and its full share, so that the next check can wait."""
        return not self._leaving and len(self._epochs) >= min(self._share, len(self._all))

    def run_once(self) -> int:
        """Renew owned partitions, take free ones, release surplus ones. Returns how many partitions it owns."""
        alive = self._store.join(self.instance, self._ttl_ms)
        owned = self._own(self._epochs.keys() | self._leaving)
        others = self._store.owners(set(self._all) - owned.keys(), self._ttl_ms)
        alive |= {self.instance, *others.values()}  # includes instances of earlier releases, which do not register
        self._share = -(-len(self._all) // len(alive))
        leaving = self._leaving & owned.keys()
        if leaving and len(owned) > self._share:
            self._store.own(leaving, self.instance, 0)
            owned = {partition: lease for partition, lease in owned.items() if partition not in leaving}
        if (room := self._share - len(owned)) > 0:
            free = [partition for partition in self._all if partition not in owned and partition not in others]
            owned |= self._own(random.sample(free, min(room, len(free))))
        self._leaving = self._surplus(owned.keys())
        self._holds = {partition: lease.holds for partition, lease in owned.items() if lease.holds.scopes}
        epochs = {partition: lease.epoch for partition, lease in owned.items() if partition not in self._leaving}
        with self._lock:
            gained, lost = epochs.keys() - self._epochs.keys(), self._epochs.keys() - epochs.keys()
            self._epochs = epochs
        if gained or lost:
            self._log.info(
                "partitions changed",
                owned=len(epochs),
                gained=sorted(gained),
                lost=sorted(lost),
                instances=len(alive),
            )
        return len(epochs)

    def _own(self, partitions: Collection[int]) -> dict[int, OwnedPartition]:
        return self._store.own(sorted(partitions), self.instance, self._ttl_ms, self._generation())

    def _surplus(self, owned: Collection[int]) -> frozenset[int]:
        """The partitions beyond the share: first those with parked runs, which another release may be able to read."""
        if (count := len(owned) - self._share) <= 0:
            return frozenset()
        parked = self._store.count_parked(sorted(owned))
        return frozenset(sorted(owned, key=lambda partition: (-parked[partition], -partition))[:count])

    def lost(self, partition: int) -> None:
        """Drop a partition after a refused commit: another instance owns it now."""
        with self._lock:
            self._epochs.pop(partition, None)

    def give_back(self) -> None:
        """Release all partitions at a clean stop, so that others take over at once."""
        owned = {*self.epochs, *self._leaving}
        with self._lock:
            self._epochs = {}
        self._store.own(owned, self.instance, 0)
        self._store.join(self.instance, 0)
