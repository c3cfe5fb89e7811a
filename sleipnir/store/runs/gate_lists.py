"""Pages of open questions, by cursor: each reads a bounded number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sleipnir.runs.gate_filters import (
    MOST_LOOKED,
    GateCounts,
    GateFilter,
    GatePosition,
    GateView,
    PageOfGates,
)
from sleipnir.runs.views import GateInfo
from sleipnir.store.connect import clock_ms
from sleipnir.store.runs.connection import PAGE
from sleipnir.store.runs.gates import Gates


class GateLists(Gates):
    """Find open questions."""

    def gate_page(
        self, wanted: GateFilter, namespace: str | None, after: GatePosition | None, limit: int
    ) -> PageOfGates:
        """At most `limit` questions after a position, of one namespace or (None) of all."""
        now_ms = clock_ms(self._client)
        until_ms = wanted.overdue_since_ms if wanted.view == "overdue" else None
        snoozed = self._snoozed(wanted.person.name, now_ms)
        found: list[GateInfo] = []
        looked = 0
        while looked < MOST_LOOKED:
            names = self._names_after(namespace, after, PAGE, until_ms)
            for at, gate in self._named(names, namespace):
                if wanted.fits(gate, now_ms, is_snoozed=at.name in snoozed):
                    found.append(gate)
                    if len(found) == limit:
                        return PageOfGates(tuple(found), str(at), looked + names.index(at) + 1)
            looked += len(names)
            if len(names) < PAGE:
                return PageOfGates(tuple(found), None, looked)
            after = names[-1]
        return PageOfGates(tuple(found), str(after), looked)

    def gate_counts(self, wanted: GateFilter, namespace: str | None) -> GateCounts:
        """The numbers of the views of a person; `wanted` says who it is, and what is overdue."""
        now_ms = clock_ms(self._client)
        snoozed = self._snoozed(wanted.person.name, now_ms)
        indexes, is_listed = self._gate_indexes(namespace)
        pipe = self._client.pipeline(transaction=False)
        for index in indexes:
            pipe.zcard(index)
            pipe.zcount(index, "-inf", wanted.overdue_since_ms)
        replies = pipe.execute()
        names = self._names_after(namespace, None, MOST_LOOKED, None)
        gates = self._named(names, namespace)

        def count(view: GateView) -> int:
            seen = replace(wanted, view=view)
            return sum(seen.fits(gate, now_ms, is_snoozed=at.name in snoozed) for at, gate in gates)

        return GateCounts(
            sum(replies[::2]) if is_listed else count("all"),
            sum(replies[1::2]) if is_listed else count("overdue"),
            count("mine"),
            count("role"),
            count("snoozed"),
            len(names),
            len(names) < MOST_LOOKED,
        )

    def _snoozed(self, person: str, now_ms: int) -> set[str]:
        pipe = self._client.pipeline(transaction=False)
        for number in range(self._keys.partitions):
            pipe.zrangebyscore(self._keys.of_partition(number).snoozed_gates(person), now_ms + 1, "+inf")
        return {name for names in pipe.execute() for name in names}

    def _named(self, names: Sequence[GatePosition], namespace: str | None) -> list[tuple[GatePosition, GateInfo]]:
        """The questions with these names, as far as they are open, in this order."""
        wanted = {each.name: each for each in names}
        runs = list(dict.fromkeys(name.rsplit("/", 1)[0] for name in wanted))
        read = (gate for at in range(0, len(runs), PAGE) for gate in self._gates(runs[at : at + PAGE], namespace))
        found = {name: gate for gate in read if (name := f"{gate.run}/{gate.seq}") in wanted}
        return [(at, found[name]) for name, at in wanted.items() if name in found]

    def _names_after(
        self, namespace: str | None, after: GatePosition | None, count: int, until_ms: int | None
    ) -> list[GatePosition]:
        """The first `count` of the list after a position. Those that were opened in one ms are in order of their names,
        in each partition, so as many as there are of the ms of the position are read beside."""
        indexes, _ = self._gate_indexes(namespace)
        begin_ms: int | str = after.opened_ms if after else "-inf"
        beside = [0] * len(indexes)
        if after is not None:
            pipe = self._client.pipeline(transaction=False)
            for index in indexes:
                pipe.zcount(index, begin_ms, begin_ms)
            beside = pipe.execute()
        pipe = self._client.pipeline(transaction=False)
        end_ms = "+inf" if until_ms is None else until_ms
        for index, more in zip(indexes, beside, strict=True):
            pipe.zrangebyscore(index, begin_ms, end_ms, start=0, num=count + more, withscores=True)
        found = (GatePosition(int(at_ms), name) for names in pipe.execute() for name, at_ms in names)
        return sorted(each for each in found if after is None or each > after)[:count]
