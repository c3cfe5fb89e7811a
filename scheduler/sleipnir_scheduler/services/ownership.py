"""Partition leases. Without them two schedulers would plan the same run side by side.

What is authoritative: the owner hash in Redis, with its epoch. commit.lua compares the epoch, so a scheduler that was
frozen while another took over commits nothing, whatever it believes. Local time is used only to wait between
renewals. If a renewal fails, nothing changes until the lease lapses; then another instance takes the partition, this
one's commits are refused, and it drops the partition at its next renewal.

Instances share the partitions: each takes up to the number of partitions divided by the instances that are alive,
rounded up, and gives back what it has beyond that, those with parked runs first. It stops working on these in one
round and gives them back in the next, when whatever it had begun is committed: the runs of a partition that changes its
owner wait for a moment and nothing of theirs is refused. Nobody gives back a fair share, so nothing moves to and fro.

An epoch stands for one past: a gain of a partition and a new generation (generation.py) give it another one. So
whatever an instance keeps in memory of a partition holds for an epoch, and is dropped with it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Mapping

import structlog

from sleipnir.store.partitions import OwnedPartition, Partitions


class Ownership:
    """The partitions that this instance owns, with their epochs. Read by all services; written by `run_once` alone."""

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
        """Owned in Redis, and not worked on any more: given back in the next round."""
        self._share = len(self._all)
        self._held: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._log = structlog.get_logger().bind(service="ownership", instance=instance)

    @property
    def epochs(self) -> Mapping[int, int]:
        """Partition -> epoch, as of the last renewal."""
        with self._lock:
            return dict(self._epochs)

    @property
    def partitions(self) -> int:
        """How many there are in the deployment."""
        return len(self._all)

    @property
    def held(self) -> frozenset[int]:
        """Partitions in which nothing may start, as of the last renewal: the deployment is paused. A saving, no fence:
        what is published all the same is refused by claim.lua."""
        return self._held

    @property
    def is_settled(self) -> bool:
        """Whether it has nothing to give back, and no less than it may have: the next look can wait."""
        return not self._leaving and len(self._epochs) >= min(self._share, len(self._all))

    def run_once(self) -> int:
        """Renew what it owns, take what is free, give back what is too much. Returns how many partitions it owns."""
        alive = self._store.join(self.instance, self._ttl_ms)
        owned = self._own(self._epochs.keys() | self._leaving)
        others = self._store.owners(set(self._all) - owned.keys(), self._ttl_ms)
        alive |= {self.instance, *others.values()}  # also those of an earlier release, which do not say that they live
        self._share = -(-len(self._all) // len(alive))
        leaving = self._leaving & owned.keys()
        if leaving and len(owned) > self._share:
            self._store.own(leaving, self.instance, 0)
            owned = {partition: found for partition, found in owned.items() if partition not in leaving}
        if (room := self._share - len(owned)) > 0:
            free = [partition for partition in self._all if partition not in owned and partition not in others]
            owned |= self._own(random.sample(free, min(room, len(free))))
        self._leaving = self._surplus(owned.keys())
        self._held = frozenset(partition for partition, found in owned.items() if found.held)
        epochs = {partition: found.epoch for partition, found in owned.items() if partition not in self._leaving}
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
        """What is more than our share: first what has parked runs, which another release may be able to read."""
        if (count := len(owned) - self._share) <= 0:
            return frozenset()
        parked = self._store.count_parked(sorted(owned))
        return frozenset(sorted(owned, key=lambda partition: (-parked[partition], -partition))[:count])

    def lost(self, partition: int) -> None:
        """A commit was refused: somebody else owns it now."""
        with self._lock:
            self._epochs.pop(partition, None)

    def give_back(self) -> None:
        """Let others take over at once, at a clean stop."""
        owned = {*self.epochs, *self._leaving}
        with self._lock:
            self._epochs = {}
        self._store.own(owned, self.instance, 0)
        self._store.join(self.instance, 0)
