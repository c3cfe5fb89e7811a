"""Partition leases. Without them two schedulers would plan the same run concurrently.

The owner hash in Redis, with its epoch, is authoritative. commit.lua compares the epoch, so a scheduler that was frozen
while another took over cannot commit. Local time is used only to wait between renewals. If a renewal fails, nothing
changes until the lease lapses; then another instance takes the partition, this one's commits are refused, and it drops
the partition at its next renewal.

Instances share the partitions by their loads (partition_shares.py), which each records with its leases. It stops
working on what it releases, lets `advance` commit what it has begun, and releases it, so that none of their commits are
refused.

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
from sleipnir.store.partitions.ownership import OwnedPartition, PartitionState
from sleipnir.store.scripts import SILENT
from sleipnir_scheduler.counters.loads import PartitionLoads
from sleipnir_scheduler.partition_shares import PartitionShares, weight

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
        loads: PartitionLoads | None = None,
    ) -> None:
        """`generations` are those of partitions; partitions of nodes that do not answer are left out."""
        self._store, self._all, self.instance, self._ttl_ms = store, range(partitions), instance, ttl_ms
        self._generations, self._loads = generations, loads or PartitionLoads()
        self._alive = {instance}
        self._epochs: Mapping[int, int] = {}
        """Replaced, never changed: who has read it before compares it by its identity, a hundred times a second."""
        self._leaving: frozenset[int] = frozenset()
        """Owned in Redis but no longer worked on: released when what was begun is committed."""
        self._is_balanced = False
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
        """Partition -> epoch, as of the last renewal. The same object as long as nothing changes."""
        return self._epochs

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
        """Whether it has nothing to release and a fair share, so that the next check can wait."""
        return not self._leaving and self._is_balanced

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
        before = self._epochs.keys() | self._leaving
        rates = self._loads.rates(before)
        owned = self._own(before, rates)
        others = self._store.states(set(self._all) - owned.keys(), self._ttl_ms)
        owners = {partition: state.owner for partition, state in others.items() if state.owner is not None}
        alive |= {self.instance, *owners.values()}  # includes instances of earlier releases, which do not register
        if not self._has_joined:
            self._tell_change()
            self._has_joined = True
        loads = {partition: state.load for partition, state in others.items()} | dict(rates)
        shares = PartitionShares(_weights(loads, others), owners, alive)
        free = [partition for partition in others if partition not in owners]
        random.shuffle(free)
        while wanted := shares.having(self.instance, owned).wanted(self.instance, free):  # others take some as well
            owned |= self._take(wanted, loads)
            free = free[len(wanted) :]
        shares = shares.having(self.instance, owned)
        self._leaving = self._surplus(shares)
        self._is_balanced = shares.is_balanced(self.instance)
        self._holds = {partition: lease.holds for partition, lease in owned.items() if lease.holds.scopes}
        epochs = {partition: lease.epoch for partition, lease in owned.items() if partition not in self._leaving}
        with self._lock:
            gained, lost = epochs.keys() - self._epochs.keys(), self._epochs.keys() - epochs.keys()
            if epochs != self._epochs:
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

    def _take(self, partitions: Collection[int], loads: Mapping[int, float]) -> dict[int, OwnedPartition]:
        """Take free partitions, without those of a cluster's nodes that do not answer."""
        try:
            taken = self._own(partitions, loads)
        except SILENT:
            if not self._store.has_nodes:
                raise
            return {}
        self._loads.begin({partition: loads[partition] for partition in taken})
        return taken

    def _own(self, partitions: Collection[int], loads: Mapping[int, float]) -> dict[int, OwnedPartition]:
        return self._store.own(self._generations(sorted(partitions)), self.instance, self._ttl_ms, loads)

    def _surplus(self, shares: PartitionShares) -> frozenset[int]:
        if shares.is_balanced(self.instance):
            return frozenset()
        owned = sorted(partition for partition, owner in shares.owners.items() if owner == self.instance)
        return shares.surplus(self.instance, self._store.count_parked(owned))

    def lost(self, partition: int) -> None:
        """Drop a partition after a refused commit: another instance owns it now."""
        with self._lock:
            self._epochs = {number: epoch for number, epoch in self._epochs.items() if number != partition}
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


def _weights(loads: Mapping[int, float], others: Mapping[int, PartitionState]) -> Mapping[int, float]:
    """By the number of partitions alone if one is owned by a scheduler of an earlier release, which divides them so."""
    if any(state.owner is not None and not state.has_load for state in others.values()):
        return dict.fromkeys(loads, 1.0)
    return {partition: weight(load) for partition, load in loads.items()}
