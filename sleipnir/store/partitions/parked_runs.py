"""Runs that are set aside because one of their records is unreadable: services/parking.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sleipnir.errors import RecordUnreadable
from sleipnir.runs.events import SIGNALLED, Event, Told
from sleipnir.runs.signals import Signalled
from sleipnir.runs.transitions import PassSignal, effect_fields
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.partitions.entries import Entry
from sleipnir.store.record_text import dumps
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch

_PARK = LuaScript("park")
_WITHDRAW = LuaScript("withdraw")

OFFERED_MS: Final = 30_000
"""How long a signal that was offered to a visit of a parked run stays with it."""


class ParkedRuns(PartitionConnection):
    """Mark runs as parked, and read the marks."""

    def parked(self, partition: int) -> dict[str, str]:
        """The parked runs of a partition with the reasons stored by `park`."""
        return dict(self._client.hscan_iter(self._of(partition).parked, count=1000))

    def park(self, partition: int, runs: Mapping[str, str], epoch: int) -> bool:
        """Mark runs as parked, with the reason (`parked_text`); an empty text removes the mark. Safe to repeat. False:
        another scheduler owns the partition."""
        part = self._of(partition)
        flat: list[Arg] = [each for pair in runs.items() for each in pair]
        return bool(_PARK(self._client, {"parked": part.parked, "owner": part.owner}, {"epoch": epoch}, flat) == 1)

    def withdraw(self, entries: Sequence[Entry], epochs: Mapping[int, int]) -> int:
        """Withdraw the signals that the `entries` of parked runs offer, if these are older than OFFERED_MS: others are
        asked. Safe to repeat. Returns how many were withdrawn."""
        vectors = []
        for entry in entries:
            if (offer := _offer(entry.event)) is None:
                continue
            part, effect = self._of(entry.partition), PassSignal(offer.name, offer.seq, offer.attempt, offer.number)
            keys = {"inbox": part.inbox, "effects": part.effects, "owner": part.owner}
            args: dict[str, Arg] = {"epoch": epochs[entry.partition], "entry": entry.id, "age_ms": OFFERED_MS}
            args |= {"run": entry.run, "seq": offer.seq, "attempt": offer.attempt, "name": offer.name}
            vectors.append(_WITHDRAW.vector(keys, args | {"effect": dumps(effect_fields(effect))}))
        return sum(checked(reply) == 1 for reply in run_batch(self._client, _WITHDRAW, vectors))

    def count_parked(self, partitions: Collection[int]) -> dict[int, int]:
        """The number of parked runs in each of these partitions."""
        pipe = self._client.pipeline(transaction=False)
        for partition in partitions:
            pipe.hlen(self._of(partition).parked)
        return dict(zip(partitions, pipe.execute(), strict=True))


def _offer(event: Event) -> Signalled | None:
    """The signal that an event offers to one visit only."""
    if not isinstance(event, Told) or event.what != SIGNALLED:
        return None
    try:
        signal = Signalled.of(event.data)
    except RecordUnreadable:
        return None
    return signal if signal.one else None
