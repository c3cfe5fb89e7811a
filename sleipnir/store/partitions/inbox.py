"""What happened to the runs of a partition: services/advance.py reads it. The commit of an event deletes its entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from sleipnir.errors import RecordUnreadable
from sleipnir.runs.events import Unreadable
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.partitions.entries import NO_RUN, Entry, event_of
from sleipnir.store.partitions.run_records import check_text
from sleipnir.store.stream_watch import StreamWatch

READ_AHEAD = 2_000  # entries after those of a run that has hundreds: more than its workers deliver at once


class Inbox(PartitionConnection):
    """Read the events that are not applied yet."""

    _streams: tuple[Collection[int], Mapping[str, int], Mapping[str, str]] = ((), MappingProxyType({}), {})
    """The partitions that were read last, their inboxes, and where all of these begin: a busy scheduler reads the same
    ones a hundred times a second."""

    @cached_property
    def _watch(self) -> StreamWatch:
        return StreamWatch(self._client)

    def read(
        self,
        partitions: Collection[int],
        *,
        limit: int,
        block_ms: int | None,
        after: Mapping[int, str] | None = None,
        share: int | None = None,
    ) -> list[Entry]:
        """The oldest unapplied entries, up to `limit` per partition; waits up to `block_ms` (None: not) for the first.
        `partitions` is a collection that does not change.

        If there are more and one run has more than `share` of them, entries beyond its share are replaced by entries of
        other runs among the next READ_AHEAD.

        An entry stays until a commit or a discard deletes it. `after` maps partitions to the last entry of parked runs
        to skip. An unreadable entry has the event Unreadable, and the run NO_RUN if it does not name a run of its
        partition.
        """
        if partitions is not self._streams[0]:
            names = {self._of(partition).inbox: partition for partition in partitions}
            self._streams = partitions, names, dict.fromkeys(names, "0-0")
        _, streams, start = self._streams
        if not streams:
            return []
        if after:
            start = {name: after.get(partition, "0-0") for name, partition in streams.items()}
        inbox: list[Entry] = []
        for stream, batches in self._watch.read(start, count=limit, block_ms=block_ms).items():
            raw = list(_flat(batches))
            if share is not None and len(raw) == limit:
                raw = self._shared(stream, raw, limit, share)
            inbox += (self._entry(id_, streams[stream], fields) for id_, fields in raw)
        return inbox

    def _shared(
        self, stream: str, raw: list[tuple[str, dict[str, str]]], limit: int, share: int
    ) -> list[tuple[str, dict[str, str]]]:
        """Up to `limit` entries; at most `share` of each run as long as there are others."""
        counts: Counter[str] = Counter(fields.get("run", "") for _, fields in raw)
        if max(counts.values()) <= share:
            return raw
        more: Any = self._client.xread({stream: raw[-1][0]}, count=READ_AHEAD)
        ahead = [entry for batches in dict(more or {}).values() for entry in _flat(batches)]
        kept: list[tuple[str, dict[str, str]]] = []
        beyond: list[tuple[str, dict[str, str]]] = []
        counts.clear()
        for entry in (*raw, *ahead):
            run = entry[1].get("run", "")
            counts[run] += 1
            (kept if counts[run] <= share else beyond).append(entry)
        # As many as were read first: a smaller batch would indicate the end of the inbox.
        return kept[:limit] + beyond[: max(0, limit - len(kept))]

    def _entry(self, id_: str, partition: int, fields: Mapping[str, str]) -> Entry:
        run_id = fields.get("run", "")
        try:
            if not run_id or self._keys.partition_of(run_id) != partition:
                return Entry(id_, partition, NO_RUN, Unreadable(fields.get("t", ""), "damaged: its run is missing"))
            check_text(fields.values())
            return Entry(id_, partition, run_id, event_of(fields))
        except UnicodeError:  # the id: of a value RecordUnreadable is raised
            return Entry(id_, partition, NO_RUN, Unreadable("", "damaged: its run's id is not UTF-8"))
        except RecordUnreadable as error:
            unreadable = Unreadable(fields.get("t", ""), error.why, newer=error.newer)
        except KeyError as missing:
            unreadable = Unreadable(fields.get("t", ""), f"damaged: it lacks {missing.args[0]}")
        return Entry(id_, partition, run_id, unreadable)


def _flat(batches: Any) -> Iterable[tuple[str, dict[str, str]]]:
    """RESP3 nests the entries of a stream once more than RESP2."""
    for batch in batches:
        if batch and isinstance(batch[0], tuple | list):
            yield from batch
        else:
            yield batch
