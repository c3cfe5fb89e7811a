"""Detects restarts, restores, fail-overs and clock changes of Redis. Without it visits would be taken from live
workers, and runs would be planned on obsolete views.

The hashes in Redis are authoritative (store/generations.py): one, or one per partition of a cluster. Local time is used
only to detect a step of Redis' clock: between two pulses it must advance like the local monotonic clock. If a pulse
fails, the reaper, which pulses before each round, does nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial

import structlog

from sleipnir.runs.views import Generation
from sleipnir.store.generations import Generations, LastPulse, gap_ms
from sleipnir.store.scripts import SILENT


class GenerationWatches:
    """One scheduler's knowledge of the generation of each partition: on one Redis, all have the same."""

    def __init__(
        self,
        store: Generations,
        *,
        apart: bool,
        lease_s: float,
        heartbeat_s: float,
        began: Callable[[str], None] = lambda why: None,
    ) -> None:
        """`apart`: each partition has its own."""
        self.lease_ms, self.gap_ms = int(lease_s * 1000), gap_ms(lease_s, heartbeat_s)
        self._store, self._apart = store, apart
        self._watches, self._making = dict[int, GenerationWatch](), threading.Lock()
        self._make = partial(GenerationWatch, store, lease_s=lease_s, heartbeat_s=heartbeat_s, began=began)

    def of(self, partition: int) -> GenerationWatch:
        place = partition if self._apart else 0
        with self._making:
            if place not in self._watches:
                self._watches[place] = self._make(partition=place)
            return self._watches[place]

    def ids(self, partitions: Collection[int]) -> dict[int, str]:
        """The ids of their generations, which are read if they are not known yet. Those of nodes of a cluster that do
        not answer are left out; raises the error of one if none does."""
        found, failure = dict[int, str](), None
        for partition in partitions:
            watch = self.of(partition)
            try:
                found[partition] = watch.id or watch.run_once().id
            except SILENT as error:
                failure = error
        if failure is not None and not found:
            raise failure
        return found

    def fresh(self, partitions: Collection[int], every_ms: float) -> dict[int, str]:
        """The ids of their generations, which are pulsed if that was so long ago. Those of nodes of a cluster that do
        not answer are left out."""
        found = dict[int, str]()
        for partition in partitions:
            watch = self.of(partition)
            with suppress(*SILENT):
                found[partition] = watch.run_once().id if watch.is_due(every_ms) else watch.id
        return found

    def last(self) -> dict[int, LastPulse]:
        """What is stored of all generations, by partition, without those of nodes that do not answer."""
        return self._store.last()

    def pulses(self, partitions: Collection[int], urgent: Collection[int]) -> Iterator[tuple[Generation, list[int]]]:
        """Pulse, and yield the generations with the partitions that have them. In a cluster those of partitions that
        are `urgent`, or were not pulsed for a quarter of the gap."""
        if not self._apart:
            yield self.of(0).run_once(), list(partitions)
            return
        for partition in partitions:
            watch = self.of(partition)
            if partition in urgent or watch.is_due(self.gap_ms / 4):
                yield watch.run_once(), [partition]


class GenerationWatch:
    """One scheduler's knowledge of a generation. Any thread may call `run_once`, and read `id` and `data`.

    `monotonic_ms` is a local clock that is never set."""

    def __init__(
        self,
        store: Generations,
        *,
        lease_s: float,
        heartbeat_s: float,
        began: Callable[[str], None] = lambda why: None,
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
        partition: int = 0,
    ) -> None:
        self._store, self._began, self._monotonic_ms, self._partition = store, began, monotonic_ms, partition
        self.lease_ms, self.gap_ms = int(lease_s * 1000), gap_ms(lease_s, heartbeat_s)
        self._pulsing = threading.Lock()
        self._seen: Generation | None = None
        self._asked_ms = self._answered_ms = 0.0
        self._log = structlog.get_logger().bind(service="generation")

    @property
    def id(self) -> str:
        """The id of the generation, as of the last pulse; '' before the first."""
        return self._seen.id if self._seen else ""

    @property
    def data(self) -> str:
        """The stamp of visits with `effect: once`."""
        return self._seen.data if self._seen else ""

    def is_due(self, every_ms: float) -> bool:
        """Whether the last pulse was so long ago, or nothing may be taken back yet."""
        seen = self._seen
        return seen is None or not seen.is_steady or self._monotonic_ms() - self._asked_ms >= every_ms

    def run_once(self) -> Generation:
        """Pulse. Raises if Redis does not answer, or refuses to write."""
        with self._pulsing:
            return self._run_once()

    def _run_once(self) -> Generation:
        before, asked_ms = self._seen, self._monotonic_ms()
        now = self._pulse(before)
        answered_ms = self._monotonic_ms()
        if before is not None and before.id == now.id and self._has_stepped(before, now, asked_ms, answered_ms):
            asked_ms, now = self._monotonic_ms(), self._pulse(now, stepped=True)
            answered_ms = self._monotonic_ms()
        self._seen, self._asked_ms, self._answered_ms = now, asked_ms, answered_ms
        if before is None or before.id != now.id:
            self._tell(before, now)
        elif not now.is_steady and before.is_steady:
            self._log.warning(
                "no scheduler reached Redis for a while; nothing is taken back from workers for a lease",
                silent_ms=now.now_ms - now.pulse_ms,
                lease_ms=self.lease_ms,
            )
        return now

    def _pulse(self, seen: Generation | None, *, stepped: bool = False) -> Generation:
        of = self._partition
        return self._store.pulse(seen, lease_ms=self.lease_ms, gap_ms=self.gap_ms, stepped=stepped, partition=of)

    def _has_stepped(self, before: Generation, now: Generation, asked_ms: float, answered_ms: float) -> bool:
        """Whether Redis' clock has advanced by more or less than the local one, beyond the duration of the two
        calls."""
        passed_ms, tolerance_ms = now.now_ms - before.now_ms, self.gap_ms / 2
        most_ms, least_ms = answered_ms - self._asked_ms, asked_ms - self._answered_ms
        return not least_ms - tolerance_ms <= passed_ms <= most_ms + tolerance_ms

    def _tell(self, before: Generation | None, now: Generation) -> None:
        if before is None and now.pulse > 1 and now.pulse_ms and now.since_ms != now.now_ms:
            self._log.info("generation", generation=now.id, why=now.why, since_ms=now.since_ms)
            return
        self._began(now.why)
        level = self._log.info if now.why in ("first", "stopped_cleanly") else self._log.warning
        level(
            f"a new generation begins: {now.meaning}; views of runs are read again, and nothing is taken back from "
            "workers until leases can be trusted",
            generation=now.id,
            why=now.why,
            steady_in_ms=max(0, now.steady_ms - now.now_ms),
        )
