"""Write finished runs into the archive before they expire. Without it, where an archive is set, history would end with
the retention.

Who wins when the archive cannot be written: the retention. That runs expire is a promise to the memory of Redis, on
which every live run depends, so a run is never kept longer for the archive's sake. Writing begins `ahead_ms` before a
run expires, so that there is time to mend a disk; while it fails, that is logged as an error and `doctor` says so, and
runs that expire meanwhile are counted as lost, and logged.

A run is noted as archived once it is on the disk: who dies in between leaves it to be written again. What is due is
taken soonest to expire first. The service has a thread of its own: a disk that hangs holds up nothing else.
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
    """How long before a run expires it is archived: as late as is safe, as a failed run may be retried until then."""
    return min(retention_ms // 2, MOST_AHEAD_MS)


class Archiver:
    """`state` is what it says of itself. `run_once` is for one thread; `lost` may be called by another."""

    def __init__(self, store: Store, writer: ArchiveWriter, *, ahead_ms: int) -> None:
        self._store, self._writer, self.ahead_ms = store, writer, ahead_ms
        self._log = structlog.get_logger().bind(service="archiver", folder=str(writer.folder))
        self._said_ms = 0
        self.state = ArchiveState(str(writer.folder))

    def run_once(self, partitions: Iterable[int], now_ms: int) -> int:
        """Archive some of what is due. Returns how many runs, or -1 when the archive cannot be written."""
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
        """Each run as its lines. One that was revived or has expired meanwhile is left out, or cut."""
        for run_id, expires_ms in due:
            record = self._store.records.read(run_id)
            if record is not None and record.is_final:
                yield self._lines(record, (run_id, expires_ms), done)

    def _lines(self, record: StoredRun, run: tuple[str, int], done: list[tuple[str, int]]) -> Iterator[str]:
        with contextlib.suppress(RunNotFound):
            yield from lines_of_record(self._store.records, record)
            done.append(run)

    def lost(self, count: int) -> None:
        """So many runs have expired that were not noted as archived."""
        if count:
            self.state = replace(self.state, lost=self.state.lost + count)
            self._log.error("runs have expired that were not archived", runs=count, so_far=self.state.lost)

    def close(self) -> None:
        """End the file that is written to."""
        with contextlib.suppress(OSError):
            self._writer.close()

    def _failed(self, error: OSError, now_ms: int) -> None:
        text = f"{error.filename or self._writer.folder}: {error.strerror or error}"
        if self.state.error is None or now_ms - self._said_ms >= REMIND_MS:
            self._said_ms = now_ms
            hint = "finished runs expire all the same, and are lost from then on"
            self._log.error("the archive cannot be written", error=text, meaning=hint)
        self.state = replace(self.state, error=text)

    def _went_well(self, archived: int) -> None:
        if self.state.error is not None:
            self._log.info("the archive can be written again")
        self.state = replace(self.state, error=None, written=self.state.written + archived)
        self._log.debug("archived", runs=archived)
