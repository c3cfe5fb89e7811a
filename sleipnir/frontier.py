"""The live visits of a run, counted as they come and go by what may hold others back.

A run may have thousands of them, and each event asks who is on a worker and who may come: counting along makes that a
matter of what the event changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from sleipnir.budgets import BUDGET
from sleipnir.runs import Visit


class Frontier(dict[int, Visit]):
    """Visits by number. `put` and `drop` are the only ways to change one.

    `ready` are the numbers of those that wait for a slot, `maps` of the maps that wait for their items. `branches`
    counts visits on workers and loops, and `items_of`, by map, the items that have been started; `nodes`, by node, the
    visits under way, those of lists of commands and items apart; `failed` those that failed, items apart.
    """

    __slots__ = ("branches", "failed", "items_of", "maps", "nodes", "ready")

    def __init__(self) -> None:
        super().__init__()
        self.ready: set[int] = set()
        self.maps: set[int] = set()
        self.branches = self.failed = 0
        self.items_of: dict[int, int] = {}
        self.nodes: dict[str, int] = {}

    @classmethod
    def of(cls, visits: Mapping[int, Visit]) -> Frontier:
        """A frontier of its own with these visits."""
        new = cls()
        if isinstance(visits, Frontier):
            new.update(visits)
            new.ready, new.maps = set(visits.ready), set(visits.maps)
            new.branches, new.failed = visits.branches, visits.failed
            new.items_of, new.nodes = dict(visits.items_of), dict(visits.nodes)
        else:
            for visit in visits.values():
                new.put(visit)
        return new

    def put(self, visit: Visit) -> None:
        """A new visit, or one as it is from now on."""
        if (before := self.get(visit.seq)) is not None:
            self._count(before, -1)
        self[visit.seq] = visit
        self._count(visit, 1)

    def drop(self, seq: int) -> None:
        self._count(self.pop(seq), -1)

    def _count(self, visit: Visit, by: int) -> None:
        if visit.failed:
            self.failed += 0 if visit.item else by
        elif visit.ready:
            (self.ready.add if by > 0 else self.ready.discard)(visit.seq)
        elif visit.part is not None or visit.kind == BUDGET:
            return  # its loop has the slot; a question about the run is of no node
        elif visit.item is not None:
            of = visit.item.map
            self.items_of[of] = self.items_of.get(of, 0) + by
        elif visit.ended is None:
            if visit.fan is not None:
                (self.maps.add if by > 0 else self.maps.discard)(visit.seq)
            elif visit.state == "queued" or visit.loop is not None:
                self.branches += by
            if visit.batch is None:
                self.nodes[visit.node] = self.nodes.get(visit.node, 0) + by
