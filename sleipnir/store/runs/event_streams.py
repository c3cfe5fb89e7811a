"""What watchers read: the events of a run, and the ends of all runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sleipnir.runs.views import RunEvent
from sleipnir.store.fast_client import execute_all
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.scripts import checked
from sleipnir.store.streams import before, entries, ms_of


class EventStreams(RunConnection):
    """Follow runs."""

    def events(self, run_id: str, after: str, block_ms: int | None = None) -> list[RunEvent]:
        """Events of a run after an event id ("0": all stored ones), oldest first; waits up to `block_ms` for some.

        The events of one commit are returned together. All but the last have an id from which a new read repeats all of
        them: a reader that stops in the middle misses none.
        """
        reply: Any = self._client.xread({self._keys.of_run(run_id).events: after}, block=block_ms)
        run_events: list[RunEvent] = []
        for id_, fields in entries(reply):
            batch = json.loads(fields["e"])
            ids = [before(id_)] * (len(batch) - 1) + [id_]
            run_events += [RunEvent(i, ms_of(id_), type_, data) for i, (type_, data) in zip(ids, batch, strict=True)]
        return run_events

    def last_event(self, run_id: str) -> str:
        """The id of the newest event of a run; "0": it has none."""
        reply: Any = self._client.xrevrange(self._keys.of_run(run_id).events, count=1)
        return reply[0][0] if reply else "0"

    def ended_position(self, run_ids: Iterable[str]) -> dict[str, str]:
        """The current ends of the streams of ended runs that these runs will be in, for `ended_since`."""
        partitions = sorted({self._keys.partition_of(run_id) for run_id in run_ids})
        streams = [self._keys.of_partition(partition).ended for partition in partitions]
        replies = execute_all(self._client, [("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream in streams])
        last = [reply[0][0] if reply else "0" for reply in map(checked, replies)]
        return dict(zip(streams, last, strict=True))

    def ended_since(self, position: dict[str, str], block_ms: int) -> set[str]:
        """The runs that ended after `position`, which is advanced; waits up to `block_ms` for the first."""
        after: dict[Any, Any] = dict(position)
        reply: Any = self._client.xread(after, block=block_ms)
        ended = set()
        for name, batches in dict(reply or {}).items():
            for id_, fields in entries({name: batches}):
                position[name] = id_
                ended.add(fields["run"])
        return ended
