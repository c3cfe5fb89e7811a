"""Lists runs that the scripts have not listed. Without it runs of an earlier release would be found only by walking the
index of all runs, and runs whose keys were deleted by hand would be listed for ever.

Every script that creates a run, moves it or removes it changes its card and its lists (runs/cards.py). An earlier
release does not, and a backup may be older. The runs of a partition, and the cards, are compared in pieces, with the
cursors of scans, over several rounds. When the first pass over the runs of a partition is done, that is recorded, and
queries rely on the lists. The same for open questions and batches, which are also listed by namespace.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import structlog

from sleipnir.store.partitions import Partitions
from sleipnir.store.partitions.listed_names import NamesPosition

AT_ONCE = 500  # approximate number of runs of a partition that are compared per round


@dataclass
class _Pass:
    """How far the pass over a partition is: cursors of its runs and of its cards, its questions, and its
    batches."""

    runs: int = 0
    cards: int = 0
    gates: NamesPosition = field(default_factory=NamesPosition)
    batches: NamesPosition = field(default_factory=NamesPosition)


class Listing:
    """Keeps the cursors of each partition. Several may run at once."""

    def __init__(self, store: Partitions) -> None:
        self._store = store
        self._passes: dict[int, _Pass] = {}
        self._log = structlog.get_logger().bind(service="listing")

    def run_once(self, partitions: Collection[int]) -> bool:
        """Compare some runs of each partition. Returns whether anything of any partition may still not be
        listed."""
        self._passes = {partition: self._passes.get(partition, _Pass()) for partition in partitions}
        found_missing = False
        for partition, at in self._passes.items():
            known = self._store.all_listed(partition)
            at.runs, runs = self._store.some_runs(partition, at.runs, AT_ONCE)
            wrong = self._store.wrongly_listed(partition, runs)
            at.cards, with_cards = self._store.some_cards(partition, at.cards, AT_ONCE)
            wrong += self._store.gone_among(with_cards)
            listed = self._store.list_again(partition, wrong) if wrong else 0
            if listed and known:
                self._log.warning("runs were not listed as they are", partition=partition, runs=listed)
            if at.runs == 0 and not known:
                self._store.note_all_listed(partition)
            is_behind = self._store.list_gates(partition, at.gates, AT_ONCE)
            is_behind = self._store.list_batches(partition, at.batches, AT_ONCE) or is_behind
            found_missing = found_missing or is_behind or (at.runs != 0 and not known)
        return found_missing
