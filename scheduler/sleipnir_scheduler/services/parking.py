"""Parks runs that this scheduler cannot read or plan, so that no other run waits for them.

1. A run is parked if its record, its graph or an inbox entry of it cannot be read. The inbox is authoritative: the
   entries stay there, in order. The partition's hash `parked` has the runs and the reasons, for people.
2. A cursor per partition skips entries of parked runs, so that they block no other run. After AGAIN_S, after an error
   and when a partition is gained, reading begins at the first entry again, and runs that are readable by then continue.
   Many parked entries make the pause longer, because each pass reads all of them.
3. A mark is removed when an entry of the run was applied or dropped, or when a pass over the whole inbox found none.

Only the thread of `advance` uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final, Protocol

import structlog

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.runs.run import Parked
from sleipnir.store.partitions.entries import NO_RUN, Entry
from sleipnir.store.record_text import record

AGAIN_S = 30.0
PER_PAUSE = 1_000  # skipped entries that extend the pause by AGAIN_S
AT_ONCE = 500  # marks that are written by one script
MOST_REASON = 2_000  # stored characters of a reason
FIRST = "0-0"
RELEASE: Final = version("sleipnir")


class Marks(Protocol):
    """The part of the store that keeps marks."""

    def parked(self, partition: int) -> Mapping[str, str]: ...
    def park(self, partition: int, runs: Mapping[str, str], epoch: int) -> bool: ...


@dataclass
class _Partition:
    epoch: int
    marks: dict[str, str]
    """The reason of each run's mark in Redis."""
    began_s: float
    after: str = FIRST
    held: set[str] = field(default_factory=set)
    """Runs whose entries are skipped in this pass."""
    passed: int = 0
    is_read: bool = False
    """Whether this pass has reached the end of the inbox."""
    changes: dict[str, str] = field(default_factory=dict)
    """Marks to write, in the form of `Partitions.park`."""

    @property
    def is_busy(self) -> bool:
        return bool(self.held or self.marks or self.changes)


class Parking:
    """`by` is the name of this scheduler. `clock` counts seconds; it is only used to wait."""

    def __init__(self, store: Marks, by: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._by, self._clock = store, by, clock
        self._epochs: Mapping[int, int] = {}
        """Those of `_partitions`. A mapping of epochs does not change."""
        self._partitions: dict[int, _Partition] = {}
        self._logged: set[tuple[int, str, str]] = set()
        self._is_busy = False
        self._log = structlog.get_logger().bind(service="advance")

    def cursors(self, epochs: Mapping[int, int]) -> Mapping[int, str]:
        """The entries after which to continue reading, by partition; other partitions are read from their first one."""
        if epochs is not self._epochs:
            self._follow(epochs)
            self._epochs = epochs
        if not self._is_busy:
            return {}
        now_s = self._clock()
        for number, partition in self._partitions.items():
            if (partition.held or partition.marks) and now_s - partition.began_s >= AGAIN_S * (
                1 + partition.passed // PER_PAUSE
            ):
                self._look_again(number, partition, now_s)
        self._is_busy = any(partition.is_busy for partition in self._partitions.values())
        return {number: partition.after for number, partition in self._partitions.items() if partition.held}

    def holds(self, entry: Entry) -> bool:
        """Whether to skip the entry in this pass."""
        return self._is_busy and entry.run in self._partitions[entry.partition].held

    def park(self, entry: Entry, reason: str) -> None:
        """Park a run, from this entry on."""
        partition = self._partitions.get(entry.partition)
        if partition is None:
            return  # the partition was lost; its new owner decides
        self._is_busy = True
        partition.held.add(entry.run)
        reason = reason.encode(errors="replace").decode()[:MOST_REASON]
        if (warning := (entry.partition, entry.id, reason)) not in self._logged:
            if len(self._logged) > 10_000:
                self._logged.clear()
            self._logged.add(warning)
            text = "inbox entry without a run is skipped" if entry.run == NO_RUN else "run is parked"
            self._log.warning(text, run=entry.run, entry=entry.id, reason=reason)
        if partition.marks.get(entry.run) != reason:
            partition.marks[entry.run] = reason
            partition.changes[entry.run] = record(Parked(reason, entry.at_ms, self._by, RELEASE, entry.id))

    def went_on(self, entry: Entry) -> None:
        """Remove the mark of a run whose entry was applied or dropped."""
        if not self._is_busy:
            return
        partition = self._partitions.get(entry.partition)
        if partition is not None and entry.run in partition.marks and entry.run not in partition.held:
            self._log.info("parked run continues", run=entry.run, entry=entry.id)
            self._unmark(partition, [entry.run])

    def passed(self, entries: Sequence[Entry], limit: int) -> bool:
        """Advance the cursors over leading entries of parked runs among the entries read, of which there are up to
        `limit` per partition. Returns whether there were any."""
        if not self._is_busy:
            return False
        by_partition: dict[int, list[Entry]] = {number: [] for number in self._partitions}
        for entry in entries:
            if entry.partition in by_partition:
                by_partition[entry.partition].append(entry)
        moved = False
        for number, read in by_partition.items():
            partition = self._partitions[number]
            partition.is_read = partition.is_read or len(read) < limit
            for entry in read:
                if entry.run not in partition.held:
                    break
                partition.after, moved = entry.id, True
                partition.passed += 1
        return moved

    def flush(self) -> None:
        """Write changed marks."""
        if not self._is_busy:
            return
        for number, partition in self._partitions.items():
            while partition.changes:
                some = dict(list(partition.changes.items())[:AT_ONCE])
                if not self._store.park(number, some, partition.epoch):
                    partition.changes.clear()  # another scheduler owns it now and writes its own marks
                    break
                for run in some:
                    del partition.changes[run]

    def forget(self) -> None:
        """Forget everything after an error, because entries may have disappeared. All are read again."""
        self._partitions.clear()
        self._epochs = {}
        self._is_busy = False

    def _follow(self, epochs: Mapping[int, int]) -> None:
        """Drop lost partitions, and load newly owned ones."""
        for number in [each for each, known in self._partitions.items() if epochs.get(each) != known.epoch]:
            del self._partitions[number]
        for number, epoch in epochs.items():
            if number not in self._partitions:
                marks = {run: _reason(text) for run, text in self._store.parked(number).items()}
                self._partitions[number] = _Partition(epoch, marks, self._clock())
        self._is_busy = any(each.is_busy for each in self._partitions.values())

    def _look_again(self, number: int, partition: _Partition, now_s: float) -> None:
        if partition.is_read and not partition.changes and (gone := partition.marks.keys() - partition.held):
            self._unmark(partition, gone)
        partition.after, partition.passed, partition.began_s, partition.is_read = FIRST, 0, now_s, False
        partition.held.clear()

    def _unmark(self, partition: _Partition, runs: Iterable[str]) -> None:
        for run in list(runs):
            del partition.marks[run]
            partition.changes[run] = ""


def _reason(text: str) -> str:
    """Why the previous owner has parked a run; '' if another release wrote an unreadable mark."""
    try:
        return read_text(Parked, text).reason
    except RecordUnreadable:
        return ""
