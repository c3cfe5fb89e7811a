"""Partition leases. Without them two schedulers would plan the same run concurrently.

The owner hash in Redis, with its epoch, is authoritative. commit.lua compares the epoch, so a scheduler that was frozen
while another took over cannot commit. Local time is used only to wait between renewals. If a renewal fails, nothing
changes until the lease lapses; then another instance takes the partition, this one's commits are refused, and it drops
the partition at its next renewal.

Instances share the partitions: each takes up to the number of partitions divided by the live instances, rounded up, and
releases the rest, those with parked runs first. It stops working on these, lets `advance` commit what it has begun, and
releases them, so that none of their commits are refused. An instance never releases part of its fair share, so
partitions do not move back and forth.

An instance that starts, releases partitions or stops cleanly says so, and the others look at once: the runs of a
partition that changes its owner wait for some milliseconds. Who misses that looks within a third of the lease.

An epoch identifies one history: a new owner and a new generation (generation.py) give the partition a new epoch. So
everything that an instance caches of a partition is valid for one epoch, and dropped with it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from sleipnir.runs.deployment_holds import DeploymentHolds
from sleipnir.store.partitions import Partitions
from sleipnir.store.partitions.ownership import OwnedPartition
from sleipnir.store.scripts import SILENT

LISTEN_MS: Final = 500  # how long one wait for a change lasts; also how late a stop is noticed
COMMIT_S: Final = 0.5  # nearly all rounds take milliseconds


class Ownership:
    """The partitions that this instance owns, with their epochs. All services read it; mainly `run_once` writes it."""

    def __init__(
        self,
        store: Partitions,
        *,
        partitions: int,
        instance: str,
        ttl_ms: int,
        generations: Callable[[Collection[int]], Mapping[int, str]] = lambda partitions: dict.fromkeys(partitions, ""),
    ) -> None:
        """`generations` are those of partitions; partitions of nodes that do not answer are left out."""
        self._store, self._all, self.instance, self._ttl_ms = store, range(partitions), instance, ttl_ms
        self._generations = generations
        self._alive = {instance}
        self._epochs: dict[int, int] = {}
        self._leaving: frozenset[int] = frozenset()
        """Owned in Redis but no longer worked on: released when what was begun is committed."""
        self._share = len(self._all)
        self._holds: Mapping[int, DeploymentHolds] = {}
        self._lock, self._round = threading.Lock(), threading.Lock()
        self.working = threading.Lock()
        """Held by `advance` from its look at the epochs to its last commit: no partition is released meanwhile."""
        self._has_joined = self._stops = self._has_left = False
        self.owning = threading.Event()
        """Set while it owns a partition."""
        self._heard = "0-0"
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

    def wait(self, timeout_s: float, stop: threading.Event) -> None:
        """Until the next round is due: after a change of the instances, or the time."""
        end_s = time.monotonic() + timeout_s
        while not stop.is_set() and (left_s := end_s - time.monotonic()) > 0:
            try:
                heard = self._store.await_change(self._heard, min(LISTEN_MS, max(1, int(left_s * 1000))))
            except SILENT:
                if not self._store.has_nodes:
                    raise
                stop.wait(left_s)
                return
            if heard is not None:
                self._heard = heard
                return

    def run_once(self) -> int:
        """Renew owned partitions, take free ones, release surplus ones. Returns how many partitions it owns."""
        with self._round:
            return 0 if self._stops else self._run_once()

    def _run_once(self) -> int:
        alive = self._join()
        owned = self._own(self._epochs.keys() | self._leaving)
        others = self._store.owners(set(self._all) - owned.keys(), self._ttl_ms)
        alive |= {self.instance, *others.values()}  # includes instances of earlier releases, which do not register
        self._share = -(-len(self._all) // len(alive))
        if not self._has_joined:
            self._tell_change()
            self._has_joined = True
        free = [partition for partition in self._all if partition not in owned and partition not in others]
        random.shuffle(free)
        while free and (room := self._share - len(owned)) > 0:  # others take some at the same moment
            wanted, free = free[:room], free[room:]
            owned |= self._take(wanted)
        self._leaving = self._surplus(owned.keys())
        self._holds = {partition: lease.holds for partition, lease in owned.items() if lease.holds.scopes}
        epochs = {partition: lease.epoch for partition, lease in owned.items() if partition not in self._leaving}
        with self._lock:
            gained, lost = epochs.keys() - self._epochs.keys(), self._epochs.keys() - epochs.keys()
            self._epochs = epochs
            (self.owning.set if epochs else self.owning.clear)()
        if self._leaving and self._has_committed():
            self._store.own(dict.fromkeys(self._leaving, ""), self.instance, 0)
            self._tell_change()
            self._leaving = frozenset()
        if gained or lost:
            self._log.info(
                "partitions changed",
                owned=len(epochs),
                gained=len(gained),
                lost=len(lost),
                instances=len(alive),
            )
        return len(epochs)

    def _has_committed(self) -> bool:
        """Whether the round of `advance` that had begun is over. One that plans for long does not hold up renewals: the
        partitions are released in a later round."""
        if not self.working.acquire(timeout=COMMIT_S):
            return False
        self.working.release()
        return True

    def _join(self) -> set[str]:
        """The instances that are alive; those of the last time, if only the node of a cluster that has them does not
        answer."""
        try:
            self._alive = self._store.join(self.instance, self._ttl_ms)
        except SILENT:
            if not self._store.has_nodes:
                raise
        return set(self._alive)

    def _tell_change(self) -> None:
        """Only a hint: the others look again after a while."""
        try:
            self._store.tell_change(self.instance)
        except SILENT:
            if not self._store.has_nodes:
                raise

    def _take(self, partitions: Collection[int]) -> dict[int, OwnedPartition]:
        """Take free partitions, without those of a cluster's nodes that do not answer."""
        try:
            return self._own(partitions)
        except SILENT:
            if not self._store.has_nodes:
                raise
            return {}

    def _own(self, partitions: Collection[int]) -> dict[int, OwnedPartition]:
        return self._store.own(self._generations(sorted(partitions)), self.instance, self._ttl_ms)

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
            if not self._epochs:
                self.owning.clear()

    def give_back(self) -> None:
        """Release all partitions at a clean stop, so that others take over at once. It takes none any more. Calling
        twice is safe, and repeats what failed."""
        with self._round:
            self._stops = True
            with self._lock:
                self._leaving |= self._epochs.keys()
                self._epochs = {}
                self.owning.clear()
            if not self._has_left:
                self._store.own(dict.fromkeys(self._leaving, ""), self.instance, 0)
                self._store.join(self.instance, 0)
                self._tell_change()
                self._has_left = True
