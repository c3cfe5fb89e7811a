"""Which batches there are. Each partition that has batches has indexes of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from sleipnir.batches.records import BatchInfo
from sleipnir.decoding import read_text
from sleipnir.runs.run import RunSpec
from sleipnir.store.batches.connection import LOOK_PAGE, not_found
from sleipnir.store.batches.rows import BatchRows
from sleipnir.store.namespaced import is_complete, of_namespace
from sleipnir.store.records import PinnedDigests
from sleipnir.store.scripts import LuaScript

_FORGET = LuaScript("batch_forget")

COMPLETED: Final = 10_000
"""The newest batches whose ids complete user input."""

_Place: TypeAlias = tuple[float, str]
"""When a batch began, and its id: the order of a list."""


class BatchLists(BatchRows):
    """Find batches."""

    def recent(self, limit: int, namespace: str | None = None, after: str | None = None) -> list[BatchInfo]:
        """The batches that began last, of one namespace or (None) of all, the newest first: after the batch `after`, if
        it is given. Raises BatchNotFound if that one is not among them any more."""
        indexes, listed = self._indexes(), None
        if namespace is not None and all(is_complete(self._client, indexes)):
            indexes, listed = [of_namespace(index, namespace) for index in indexes], namespace
        place = None if after is None else self._place_of(after, listed)
        found: list[BatchInfo] = []
        while len(found) < limit and (places := self._newest(indexes, limit - len(found), place)):
            infos = self._existing([batch for _, batch in places])
            found += [info for info in infos if namespace in (None, info.namespace)]
            place = places[-1]
        return found

    def ids_starting_with(self, prefix: str, limit: int = 20, namespace: str | None = None) -> list[str]:
        """Ids of batches of a namespace (None: of any) by prefix, among the newest 10,000, to complete user input."""
        indexes = self._indexes()
        if namespace is not None:
            indexes = [of_namespace(index, namespace) for index in indexes]
        ids = [batch for _, batch in self._newest(indexes, COMPLETED, None)]
        return sorted(batch for batch in ids if batch.startswith(prefix))[:limit]

    def forget_expired(self, partitions: Collection[int], before_ms: int, limit: int) -> int:
        """Drop index entries of expired batches of these partitions that began before this; returns how many. Each call
        checks the next `limit` entries of each, so that batches that are kept do not block the others."""
        mine = [partition for partition in self._keys.batch_partitions if partition in partitions]
        return sum(self._forget_some(partition, before_ms, limit) for partition in mine)

    def pinned(self) -> PinnedDigests:
        """The digests pinned by rows that are not runs yet. Raises RecordUnreadable: if the needs of a batch are
        unknown, nothing may be dropped."""
        bundles, knowledge = set[str](), set[str]()
        batches = self._open_ids()
        while page := list(islice(batches, LOOK_PAGE)):
            pipe = self._client.pipeline(transaction=False)
            for batch in page:
                pipe.hget(self._keys.of_batch(batch).batch, "spec")
            specs = [
                read_text(RunSpec, text, "spec", f"batch {batch!r}")
                for batch, text in zip(page, pipe.execute(), strict=True)
                if text
            ]
            bundles |= {digest for spec in specs for digest in (spec.bundle, *spec.agents.values())}
            knowledge |= {digest for spec in specs for digest in spec.knowledge.values()}
        return PinnedDigests(frozenset(bundles), frozenset(knowledge))

    def _indexes(self) -> list[str]:
        return [self._keys.of_partition(partition).batches for partition in self._keys.batch_partitions]

    def _place_of(self, batch: str, namespace: str | None) -> _Place:
        index = self._part_of(batch).batches
        began_ms = self._client.zscore(index if namespace is None else of_namespace(index, namespace), batch)
        if began_ms is None:
            raise not_found(batch)
        return began_ms, batch

    def _newest(self, indexes: Sequence[str], count: int, after: _Place | None) -> list[_Place]:
        """At most so many places that follow this one, the newest first; none only if none follows."""
        pages = min(count, 2 * count // len(indexes) + 10)
        while True:
            pipe = self._client.pipeline(transaction=False)
            for index in indexes:
                top = "+inf" if after is None else after[0]
                pipe.zrevrangebyscore(index, top, "-inf", start=0, num=pages, withscores=True)
            listed = [[(began_ms, batch) for batch, began_ms in page] for page in pipe.execute()]
            # What an index has beyond its page may come before what other pages have after the end of that page.
            read_to = max((page[-1] for page in listed if len(page) == pages), default=None)
            following = (place for page in listed for place in page if after is None or place < after)
            places = sorted(following, reverse=True)
            if read_to is None:
                return places[:count]
            if complete := [place for place in places if place >= read_to]:
                return complete[:count]
            pages *= 2  # so many began in the same millisecond

    def _existing(self, ids: Sequence[str]) -> list[BatchInfo]:
        """Those that exist. The indexes also have some that have expired."""
        infos = [info for at in range(0, len(ids), LOOK_PAGE) for info in self.infos(ids[at : at + LOOK_PAGE])]
        return [info for info in infos if info is not None]

    def _forget_some(self, partition: int, before_ms: int, limit: int) -> int:
        part, first, dropped = self._keys.of_partition(partition), self._looked_at.get(partition, 0), 0
        ids = self._client.zrangebyscore(part.batches, "-inf", before_ms, start=first, num=limit)
        for at in range(0, len(ids), LOOK_PAGE):
            page = ids[at : at + LOOK_PAGE]
            indexes = (part.batches, part.open_batches, part.changed_batches)
            keys = [*indexes, *(self._keys.of_batch(batch).batch for batch in page)]
            dropped += int(_FORGET(self._client, keys, {"count": len(page)}, page))
        self._looked_at[partition] = first + len(ids) - dropped if len(ids) == limit else 0
        return dropped

    def _open_ids(self) -> Iterator[str]:
        """The unfinished batches, of which there can be very many."""
        parts = [self._keys.of_partition(partition) for partition in self._keys.batch_partitions]
        pipe = self._client.pipeline(transaction=False)
        for part in parts:
            pipe.exists(part.open_batches)
        for part, has_some in zip(parts, pipe.execute(), strict=True):
            if has_some:
                yield from self._client.sscan_iter(part.open_batches, count=LOOK_PAGE)
