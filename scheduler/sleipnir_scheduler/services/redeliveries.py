"""Delivers effects again to partitions that may have lost them. Without it a parent would wait forever for a child that
its node had lost, and a batch for the end of a row.

The nodes of a cluster fail over one by one. A node that goes back does again what it had done to others, and that is
recognised there; but what others had told it, they have done with. So they keep it for a while (store/effects.py). When
the target of an effect has begun a new generation since, the effect is delivered again, before any later effect is: its
number is the same, so a run that still has it, or a later one, takes it for a repetition.

The generation of a target is pulsed before it gets an effect, unless it was within FRESH_MS: a fail-over takes longer.
So a target that goes back is noticed before it gets what would make earlier effects look late. The generations of all
partitions are read every LOOK_S, for targets that get nothing. An effect is forgotten KEPT_MS after its delivery, and
not while its target does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

import structlog

from sleipnir.store.effects import KEPT_MS, Effects, OwedEffect
from sleipnir.store.generations import LastPulse

LOOK_S: Final = 5.0
FRESH_MS: Final = 2_000


class TargetGenerations(Protocol):
    def fresh(self, partitions: Collection[int], every_ms: float) -> Mapping[int, str]:
        """The ids of generations, pulsed if the last pulse was so long ago, of partitions that answer."""
        ...

    def last(self) -> Mapping[int, LastPulse]:
        """What was stored of all partitions that answer."""
        ...


class Redeliveries:
    """For one thread. `again` delivers effects that were delivered before."""

    def __init__(
        self,
        store: Effects,
        generations: TargetGenerations,
        *,
        partitions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._generations, self._all, self._clock = store, generations, partitions, clock
        self._known: dict[int, str] = {}
        """The generations whose partitions have everything that the partitions here have told them."""
        self._look_s = 0.0
        self._log = structlog.get_logger().bind(service="effects")

    def forget(self) -> None:
        """Other partitions are owned now, of which it is not known what they have told others."""
        self._known, self._look_s = {}, 0.0

    def look(self, partitions: Collection[int], again: Callable[[Sequence[OwedEffect]], int]) -> None:
        """Now and then: deliver the effects of these partitions again that others may have lost, and forget those that
        they have not."""
        if self._clock() < self._look_s:
            return
        pulses = self._generations.last()
        self._meet({partition: pulse.generation for partition, pulse in pulses.items()}, partitions, again)
        if len(pulses) == self._all:
            self._store.forget_kept(partitions, min(pulse.at_ms for pulse in pulses.values()) - KEPT_MS)
        self._look_s = self._clock() + LOOK_S

    def before(
        self, targets: Collection[int], partitions: Collection[int], again: Callable[[Sequence[OwedEffect]], int]
    ) -> Mapping[int, str]:
        """Before these targets get an effect: the ids of their generations, as far as they answer."""
        self._meet(self._generations.fresh(targets, FRESH_MS), partitions, again)
        return self._known

    def _meet(
        self, ids: Mapping[int, str], partitions: Collection[int], again: Callable[[Sequence[OwedEffect]], int]
    ) -> None:
        new = {partition: id_ for partition, id_ in ids.items() if self._known.get(partition) != id_}
        if new:
            count = sum(again(owed) for owed in self._store.kept(partitions, new))
            self._known |= new
            if count:
                self._log.warning("effects are delivered again to partitions that may have lost them", effects=count)
