"""Partition leases. Without them two schedulers would plan the same run side by side.

What is authoritative: the owner hash in Redis, with its epoch. commit.lua compares the epoch, so a scheduler that was
frozen while another took over commits nothing, whatever it believes. Local time is used only to wait between
renewals. If a renewal fails, nothing changes until the lease lapses; then another instance takes the partition, this
one's commits are refused, and it drops the partition at its next renewal.

An epoch stands for one past: a gain of a partition and a new generation (generation.py) give it another one. So
whatever an instance keeps in memory of a partition holds for an epoch, and is dropped with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import structlog

from sleipnir.store.partitions import Partitions


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

    def run_once(self) -> int:
        """Renew what is ours and take what is free. Returns how many partitions are ours."""
        owned = self._store.own(self._all, self.instance, self._ttl_ms, self._generation())
        epochs = {partition: found.epoch for partition, found in owned.items()}
        self._held = frozenset(partition for partition, found in owned.items() if found.held)
        with self._lock:
            gained, lost = epochs.keys() - self._epochs.keys(), self._epochs.keys() - epochs.keys()
            self._epochs = epochs
        if gained or lost:
            self._log.info("partitions changed", owned=len(epochs), gained=sorted(gained), lost=sorted(lost))
        return len(epochs)

    def lost(self, partition: int) -> None:
        """A commit was refused: somebody else owns it now."""
        with self._lock:
            self._epochs.pop(partition, None)

    def give_back(self) -> None:
        """Let others take over at once, at a clean stop."""
        owned = list(self.epochs)
        with self._lock:
            self._epochs = {}
        self._store.own(owned, self.instance, 0)
