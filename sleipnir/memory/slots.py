"""The slots of agents with a limit of concurrent runs (`concurrency:`), in memory: as store/lua/slots.lua has them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

SlotSet = tuple[str, str]
"""An agent, and the key that its runs share."""

Holder = tuple[str, int]
"""A run, and the ticket of its slot."""


@dataclass
class _Set:
    limit: int = 0
    holders: list[Holder] = field(default_factory=list)
    waiters: list[Holder] = field(default_factory=list)

    def granted(self) -> list[Holder]:
        """Give free slots to waiting runs, in order of arrival. Returns these."""
        free = max(0, self.limit - len(self.holders))
        granted, self.waiters = self.waiters[:free], self.waiters[free:]
        self.holders += granted
        return granted


class MemorySlots:
    """Holders and waiters by set. Each method returns the runs that have got a slot by it."""

    def __init__(self) -> None:
        self._sets: dict[SlotSet, _Set] = defaultdict(_Set)

    def ask(self, name: SlotSet, holder: Holder, limit: int) -> list[Holder]:
        """Let a run have a slot, or wait for one. A known run keeps its place, and changes no limit."""
        slots = self._sets[name]
        if holder not in slots.holders and holder not in slots.waiters:
            slots.waiters.append(holder)
            slots.limit = limit
        return slots.granted()

    def free(self, name: SlotSet, holder: Holder) -> list[Holder]:
        """Give up the slot that a run holds or waits for."""
        slots = self._sets[name]
        slots.holders = [each for each in slots.holders if each != holder]
        slots.waiters = [each for each in slots.waiters if each != holder]
        return slots.granted()
