"""Writes finished runs to the archive before they expire, if an archive is configured. Without it, history would end
with the retention.

If the archive cannot be written, runs still expire: every live run depends on free memory in Redis, so a run is never
kept longer for the archive. Writing begins `ahead_ms` before a run expires, so that there is time to repair a disk;
meanwhile the failure is logged as an error and reported by `doctor`, and expired runs are counted as lost and logged.

A run is marked as archived after it is on disk: after a crash in between it is written again. Runs are archived in the
order of their expiry. The service has its own thread, so that a disk that hangs blocks nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import structlog

from sleipnir.errors import RunNotFound
from sleipnir.runs.views import ArchiveState
from sleipnir.store.records import StoredRun
from sleipnir.store.store import Store
from sleipnir.upkeep.archive import ArchiveWriter
from sleipnir.upkeep.export import lines_of_record

BATCH = 100
MOST_AHEAD_MS = 24 * 3600 * 1000
REMIND_MS = 10 * 60_000


def ahead_of(retention_ms: int) -> int:
    """How long before its expiry a run is archived: as late as is safe, because a failed run may still be retried."""
    return min(retention_ms // 2, MOST_AHEAD_MS)


class Archiver:
    """`state` is its announced state. `run_once` is for one thread; `lost` may be called by another."""

    def __init__(self, store: Store, writer: ArchiveWriter, *, ahead_ms: int) -> None:
        self._store, self._writer, self.ahead_ms = store, writer, ahead_ms
        self._log = structlog.get_logger().bind(service="archiver", folder=str(writer.folder))
        self._logged_ms = 0
        self.state = ArchiveState(str(writer.folder))

    def run_once(self, partitions: Iterable[int], now_ms: int) -> int:
        """Archive some due runs. Returns how many, or -1 if the archive cannot be written."""
        archived = 0
        for partition in partitions:
            due = self._store.partitions.unarchived(partition, now_ms + self.ahead_ms, BATCH)
            if not due:
                continue
            done: list[tuple[str, int]] = []
            try:
                self._writer.write(self._runs(due, done), now_ms)
            except OSError as error:
                self._failed(error, now_ms)
                return -1
            archived += self._store.partitions.archived(partition, done)
        if archived:
            self._went_well(archived)
        return archived

    def _runs(self, due: Iterable[tuple[str, int]], done: list[tuple[str, int]]) -> Iterator[Iterator[str]]:
        """The lines of each run. A run that was revived or has expired meanwhile is left out, or cut."""
        for run_id, expires_ms in due:
            record = self._store.records.read(run_id)
            if record is not None and record.is_final:
                yield self._lines(record, (run_id, expires_ms), done)

    def _lines(self, record: StoredRun, run: tuple[str, int], done: list[tuple[str, int]]) -> Iterator[str]:
        with contextlib.suppress(RunNotFound):
            yield from lines_of_record(self._store.records, record)
            done.append(run)

    def lost(self, count: int) -> None:
        """Count expired runs that were not marked as archived."""
        if count:
            self.state = replace(self.state, lost=self.state.lost + count)
            self._log.error("runs have expired that were not archived", runs=count, so_far=self.state.lost)

    def close(self) -> None:
        """Close the current file."""
        with contextlib.suppress(OSError):
            self._writer.close()

    def _failed(self, error: OSError, now_ms: int) -> None:
        text = f"{error.filename or self._writer.folder}: {error.strerror or error}"
        if self.state.error is None or now_ms - self._logged_ms >= REMIND_MS:
            self._logged_ms = now_ms
            hint = "finished runs still expire, and are lost from then on"
            self._log.error("the archive cannot be written", error=text, meaning=hint)
        self.state = replace(self.state, error=text)

    def _went_well(self, archived: int) -> None:
        if self.state.error is not None:
            self._log.info("the archive can be written again")
        self.state = replace(self.state, error=None, written=self.state.written + archived)
        self._log.debug("archived", runs=archived)
