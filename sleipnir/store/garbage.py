"""What is left in Redis of runs that are gone, for `gc`. In a healthy deployment there is nothing: keys of finished
runs expire by themselves, and the janitor follows. Left-overs come from keys that were deleted by hand, or by a Redis
that evicts.

Nothing of a run that is there is touched, nor of one that is created meanwhile: a removal WATCHes the run, and
create_run.lua makes all of a run in one step.
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
    """Of one run that is gone: its keys that do not expire, with their size, and whether an index still lists it."""

    run: str
    keys: tuple[str, ...] = ()
    bytes_: int = 0


class Garbage:
    """Safe while everything runs."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def listed(self) -> Iterator[OrphanedKeys]:
        """Runs that an index lists, and that are not there."""
        for partition in range(self._keys.partitions):
            part = self._keys.of_partition(partition)
            names = {name: None for name in self._client.zrange(part.runs, 0, -1)}
            names |= {name.rsplit("/", 1)[0]: None for name in self._client.zrange(part.gates, 0, -1)}
            yield from map(OrphanedKeys, self._gone(list(names)))

    def orphans(self) -> Iterator[OrphanedKeys]:
        """Keys of runs that are not there, which do not expire. Looks at every key of the deployment: minutes for a
        million runs."""
        seen: dict[str, list[str]] = {}
        for key in self._client.scan_iter(f"{self._keys.prefix}:{{p*}}:run:*", count=PAGE):
            run_id, _, rest = key.partition(":run:")[2].partition(":")
            if rest:
                seen.setdefault(run_id, []).append(key)
            if len(seen) >= PAGE:
                yield from self._orphans(seen)
                seen = {}
        yield from self._orphans(seen)

    def _orphans(self, seen: dict[str, list[str]]) -> Iterator[OrphanedKeys]:
        for run_id in self._gone(list(seen)):
            pipe = self._client.pipeline(transaction=False)
            for key in seen[run_id]:
                pipe.pttl(key)
                pipe.memory_usage(key, samples=0)
            replies = pipe.execute()
            sizes = zip(seen[run_id], replies[::2], replies[1::2], strict=True)
            lasting = [(key, size or 0) for key, ttl_ms, size in sizes if ttl_ms == -1]
            if lasting:
                yield OrphanedKeys(run_id, tuple(key for key, _ in lasting), sum(size for _, size in lasting))

    def _gone(self, run_ids: Sequence[str]) -> Iterator[str]:
        for at in range(0, len(run_ids), PAGE):
            page = run_ids[at : at + PAGE]
            pipe = self._client.pipeline(transaction=False)
            for run_id in page:
                pipe.exists(self._keys.of_run(run_id).run)
            yield from (run_id for run_id, there in zip(page, pipe.execute(), strict=True) if not there)

    def remove(self, remains: OrphanedKeys) -> bool:
        """False: the run is there now, and nothing was removed."""
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
