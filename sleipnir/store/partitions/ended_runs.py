"""Ended runs that are archived (services/archiver.py) and that expire (services/janitor.py)."""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import Arg, LuaScript

_ARCHIVED = LuaScript("archived")
_FORGET = LuaScript("forget")


class EndedRuns(PartitionConnection):
    """List ended runs until they are archived, and forget them when they have expired."""

    def unarchived(self, partition: int, before_ms: int, limit: int) -> list[tuple[str, int]]:
        """Finished runs that expire before then and are not marked as archived, with the expiry of each; soonest
        first."""
        expiring = self._client.zrangebyscore(
            self._of(partition).expiring, "-inf", before_ms, start=0, num=limit, withscores=True
        )
        return [(run_id, int(expires_ms)) for run_id, expires_ms in expiring]

    def archived(self, partition: int, runs: Sequence[tuple[str, int]]) -> int:
        """Mark these entries of `unarchived` as archived. Returns how many were marked."""
        part = self._of(partition)
        flat: list[Arg] = [each for run in runs for each in run]
        return int(_ARCHIVED(self._client, {"expiring": part.expiring, "archived": part.archived}, {}, flat))

    def forget_expired(self, partition: int, now_ms: int, limit: int) -> int:
        """Drop the index entries of runs whose keys have expired. Returns how many."""
        return self._forget(partition, self._of(partition).expiring, "later", now_ms, limit)

    def forget_archived(self, partition: int, now_ms: int, limit: int) -> int:
        """Like `forget_expired`, for archived runs. A run that still exists was revived: it stays in the index of
        runs."""
        return self._forget(partition, self._of(partition).archived, "drop", now_ms, limit)

    def _forget(self, partition: int, index: str, revived: str, now_ms: int, limit: int) -> int:
        due = self._client.zrangebyscore(index, "-inf", now_ms, start=0, num=limit, withscores=True)
        if not due:
            return 0
        part = self._of(partition)
        keys = [part.runs, index, part.cards, *(self._keys.of_run(run_id).run for run_id, _ in due)]
        flat: list[Arg] = [each for run_id, expires_ms in due for each in (run_id, int(expires_ms))]
        return int(_FORGET(self._client, keys, {"revived": revived}, flat))
