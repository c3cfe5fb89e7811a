"""Remains of missing runs in Redis, for `gc`. A healthy deployment has none: keys of finished runs expire
automatically, and the janitor removes their index entries. Remains are caused by keys that were deleted by hand or
evicted by Redis.

Existing runs are never touched, including runs that are created meanwhile: a removal WATCHes the run, and
create_run.lua creates all of a run atomically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import redis

from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys

PAGE = 1000


@dataclass(frozen=True)
class OrphanedKeys:
    """The remains of one missing run: its keys that do not expire, with their size. Without keys: an index lists it."""

    run: str
    keys: tuple[str, ...] = ()
    bytes_: int = 0


class Garbage:
    """Safe in a running deployment."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def listed(self) -> Iterator[OrphanedKeys]:
        """Runs that an index lists and that do not exist."""
        for partition in range(self._keys.partitions):
            part = self._keys.of_partition(partition)
            names = {name: None for name in self._client.zrange(part.runs, 0, -1)}
            names |= {name.rsplit("/", 1)[0]: None for name in self._client.zrange(part.gates, 0, -1)}
            yield from map(OrphanedKeys, self._gone(list(names)))

    def orphans(self) -> Iterator[OrphanedKeys]:
        """Keys of missing runs that do not expire. Scans every key of the deployment: minutes for a million runs."""
        keys_by_run: dict[str, list[str]] = {}
        for key in self._client.scan_iter(f"{self._keys.prefix}:{{p*}}:run:*", count=PAGE):
            run_id, _, rest = key.partition(":run:")[2].partition(":")
            if rest:
                keys_by_run.setdefault(run_id, []).append(key)
            if len(keys_by_run) >= PAGE:
                yield from self._orphans(keys_by_run)
                keys_by_run = {}
        yield from self._orphans(keys_by_run)

    def _orphans(self, keys_by_run: dict[str, list[str]]) -> Iterator[OrphanedKeys]:
        for run_id in self._gone(list(keys_by_run)):
            pipe = self._client.pipeline(transaction=False)
            for key in keys_by_run[run_id]:
                pipe.pttl(key)
                pipe.memory_usage(key, samples=0)
            replies = pipe.execute()
            sizes = zip(keys_by_run[run_id], replies[::2], replies[1::2], strict=True)
            lasting = [(key, size or 0) for key, ttl_ms, size in sizes if ttl_ms == -1]
            if lasting:
                yield OrphanedKeys(run_id, tuple(key for key, _ in lasting), sum(size for _, size in lasting))

    def _gone(self, run_ids: Sequence[str]) -> Iterator[str]:
        for at in range(0, len(run_ids), PAGE):
            page = run_ids[at : at + PAGE]
            pipe = self._client.pipeline(transaction=False)
            for run_id in page:
                pipe.exists(self._keys.of_run(run_id).run)
            yield from (run_id for run_id, exists in zip(page, pipe.execute(), strict=True) if not exists)

    def remove(self, remains: OrphanedKeys) -> bool:
        """Remove the remains. False: the run exists now, and nothing was removed."""
        run = self._keys.of_run(remains.run).run
        part = self._keys.of_partition(self._keys.partition_of(remains.run))
        gates = [name for name in self._client.zrange(part.gates, 0, -1) if name.rsplit("/", 1)[0] == remains.run]
        with self._client.pipeline() as pipe:
            try:
                pipe.watch(run)
                if pipe.exists(run):
                    return False
                pipe.multi()
                for index in (part.runs, part.expiring, part.archived):
                    pipe.zrem(index, remains.run)
                if gates:
                    pipe.zrem(part.gates, *gates)
                if remains.keys:
                    pipe.delete(*remains.keys)
                pipe.execute()
            except redis.exceptions.WatchError:
                return False
        return True
