"""How much work the fleet has, which bounds how many rows are admitted (services/admission.py).

It is the visits on workers, unplanned events, and admitted rows that are not runs yet; together with the queues the
total outstanding work. On one Redis, one call counts it. In a cluster that takes some commands for each partition, so
the owner of some counts and publishes what these have, as long as somebody wants to know it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.store.connect import Client, time_ms
from sleipnir.store.fast_client import execute_all
from sleipnir.store.keys import Keys
from sleipnir.store.scripts import LuaScript, answers, checked

_COUNT = LuaScript("count_entries")

WANTED_MS: Final = 1_000
"""For how long counts are published after they were last read."""
FORGOTTEN_MS: Final = 60_000

_WANTED: Final = ""
"""The field with the time at which the counts were last read; the others are instances."""


@dataclass(frozen=True)
class PublishedCount:
    """The outstanding work of some partitions, as their owner counted it."""

    at_ms: int
    partitions: tuple[int, ...]
    count: int


class OutstandingWork:
    """Count the work of partitions, publish it, and read what others have published."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def count(self, partitions: Collection[int]) -> int:
        """What nodes of a cluster have that do not answer is not counted, as it does not use the fleet."""
        parts = [self._keys.of_partition(number) for number in partitions]
        admitting = self._keys.batch_partitions
        effects = [self._keys.of_partition(number).effects for number in partitions if number in admitting]
        return self._count([*(part.inbox for part in parts), *effects], [part.leases for part in parts])

    def unclaimed(self) -> int:
        """The number of visits that no worker has claimed, including held ones and those in queues without workers.
        Used if the broker cannot report its queue lengths."""
        return self._count([], [self._keys.of_partition(number).outbox for number in range(self._keys.partitions)])

    def publish(self, instance: str, partitions: Collection[int]) -> bool:
        """Count the work of these partitions and publish it, unless nobody wants to know it. Returns whether it has."""
        commands: list[tuple[str | int, ...]] = [("TIME",), ("HGET", self._key, _WANTED)]
        time, wanted_ms = map(checked, execute_all(self._client, commands))
        now_ms = time_ms(time)
        if not wanted_ms or abs(now_ms - int(wanted_ms)) > WANTED_MS:
            return False
        published = PublishedCount(now_ms, tuple(sorted(partitions)), self.count(partitions))
        self._client.hset(self._key, instance, json.dumps(asdict(published), separators=(",", ":")))
        return True

    def published(self, fresh_ms: int) -> list[PublishedCount]:
        """The counts that are no older than `fresh_ms`. Asks the owners to publish them, also from now on. Raises
        RedisError if the node of the first partition does not answer."""
        pipe = self._client.pipeline(transaction=False)
        pipe.time()
        pipe.hgetall(self._key)
        time, texts = pipe.execute()
        now_ms = time_ms(time)
        if abs(now_ms - int(texts.pop(_WANTED, 0))) > WANTED_MS / 4:
            self._want(now_ms)
        counts, silent = list[PublishedCount](), list[str]()
        for instance, text in texts.items():
            try:
                count = read_text(PublishedCount, text, "count", instance)
            except RecordUnreadable:  # of another release: the reader counts these partitions itself
                continue
            if abs(now_ms - count.at_ms) <= fresh_ms:
                counts.append(count)
            elif abs(now_ms - count.at_ms) > FORGOTTEN_MS:
                silent.append(instance)
        if silent:
            self._client.hdel(self._key, *silent)
        return counts

    def _want(self, now_ms: int) -> None:
        pipe = self._client.pipeline(transaction=False)
        pipe.hset(self._key, _WANTED, now_ms)
        pipe.pexpire(self._key, FORGOTTEN_MS)
        pipe.execute()

    @property
    def _key(self) -> str:
        return self._keys.of_partition(0).outstanding

    def _count(self, streams: Sequence[str], sets: Sequence[str]) -> int:
        """The entries of streams and of sorted sets. Admission asks up to a hundred times a second."""
        if not self._keys.of_cluster:
            return int(_COUNT(self._client, [*streams, *sets], {"streams": len(streams)}))
        lengths = [*(("XLEN", key) for key in streams), *(("ZCARD", key) for key in sets)]
        return sum(map(int, answers(execute_all(self._client, lengths), 0))) if lengths else 0
