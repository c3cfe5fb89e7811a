"""One scheduler instance: its parts, and the round of each of its services."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

import structlog

from sleipnir.errors import SleipnirError
from sleipnir.runs.deployment_holds import NO_HOLDS
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.upkeep.archive import ArchiveWriter
from sleipnir_scheduler.counters.tally import Tally
from sleipnir_scheduler.dispatch import dispatcher
from sleipnir_scheduler.graphs import Graphs
from sleipnir_scheduler.services import archiver as archiving
from sleipnir_scheduler.services import janitor, outstanding, reaper, timers
from sleipnir_scheduler.services.admission import FIRST_PARTITION, Admission
from sleipnir_scheduler.services.advance import Advance
from sleipnir_scheduler.services.deliveries import Deliveries
from sleipnir_scheduler.services.due_times import LOOK_S, DueTimes
from sleipnir_scheduler.services.generation import GenerationWatches
from sleipnir_scheduler.services.jobs import JobPieces
from sleipnir_scheduler.services.listing import Listing
from sleipnir_scheduler.services.loop import ServiceRounds
from sleipnir_scheduler.services.outbox import Outbox
from sleipnir_scheduler.services.outstanding import OutstandingCounts
from sleipnir_scheduler.services.ownership import Ownership
from sleipnir_scheduler.services.redeliveries import Redeliveries
from sleipnir_scheduler.services.resuming import Resuming
from sleipnir_scheduler.services.schedules import ScheduleFires
from sleipnir_scheduler.services.unindexed import UnindexedVisits

ADMIT_S, ADMIT_SOON_S = 0.05, 0.01  # between checks of batches; shorter after a check that admitted rows
ADMIT_REST = 4  # times as long as a check takes, which looks into each partition
ADMIT_IDLE_S = 0.2  # if there are no unfinished batches: the checks were half of the CPU of an idle scheduler
JOB_SOON_S, JOB_IDLE_S = 0.01, 0.25  # between looks at jobs: other services get the interpreter in between
LINGER_S, MOST_LINGER_S = 0.002, 0.010
LARGE = 20  # results: such a round shows that there is load, whatever waits in the queues
STANDBY_S = 0.2  # between checks whether it owns a partition
LIST_SOON_S = 0.5  # between rounds of listing while runs of an earlier release are not listed yet
BLOCK_MS = 500  # the wait on a quiet inbox; also the delay until a stop and a new partition are noticed

Round: TypeAlias = Callable[[], object]


class Instance:
    """Its rounds are called repeatedly, each by a separate thread. `stop` ends their waits."""

    def __init__(self, settings: Settings, store: Store, stop: threading.Event) -> None:
        self.tally, self.rounds = Tally(), ServiceRounds()
        self._settings, self._store, self._stop = settings, store, stop
        self.watches = GenerationWatches(
            store.generations,
            apart=store.keys.of_cluster,
            lease_s=settings.lease_s,
            heartbeat_s=settings.heartbeat_s,
            began=lambda why: self.tally.generations.add(why),
        )
        self.ownership = Ownership(
            store.partitions,
            partitions=store.keys.partitions,
            instance=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
            ttl_ms=int(settings.owner_ttl_s * 1000),
            generations=self.watches.ids,
            loads=self.tally.loads,
        )
        dispatch = dispatcher(settings, store, self.tally.clock.now_ms)
        self._advance = Advance(
            store.partitions,
            self.ownership,
            Graphs(store.bundle, settings.max_unpacked_bytes),
            dispatch,
            max_redeliveries=settings.max_redeliveries,
            max_steps=settings.max_journal_steps,
            tally=self.tally,
            generation=lambda partition: self.watches.of(partition).data,
            pulse=lambda partition: self.watches.of(partition).run_once(),
            instance=self.ownership.instance,
            timer_set=self._timer_set,
        )
        patience_ms = int(settings.redispatch_after_s * 1000)
        self._due = DueTimes(store.partitions)
        self._outbox = Outbox(store.partitions, dispatch, patience_ms=patience_ms)
        self._resuming = Resuming(store.partitions, partitions=store.keys.partitions)
        self._deliveries = Deliveries(
            store.effects,
            Graphs(store.bundle, settings.max_unpacked_bytes),
            max_state_bytes=settings.max_output_bytes,
            redeliveries=self._redeliveries() if store.keys.of_cluster else None,
            loads=self.tally.loads,
        )
        self._delivered_under: Mapping[int, int] = {}
        self._admission = Admission(store, window=settings.batch_window, row_events=lambda: self.tally.row_events)
        self._outstanding = OutstandingCounts(store.outstanding, self.ownership.instance)
        self._forgotten = UnindexedVisits(store.partitions, lease_ms=self.watches.lease_ms)
        self._schedules = ScheduleFires(store.schedules, tally=self.tally)
        self._jobs = JobPieces(store, settings)
        self._listing = Listing(store.partitions)
        self._archiver = _archiver(settings, store)

    def _redeliveries(self) -> Redeliveries:
        return Redeliveries(self._store.effects, self.watches, partitions=self._store.keys.partitions)

    def begin(self) -> None:
        """Take the first partitions. Raises StoreUnavailable."""
        with self._store.errors():
            self.tally.clock.set(self.watches.of(FIRST_PARTITION).run_once().now_ms)
            self.ownership.run_once()

    def services(self) -> Mapping[str, tuple[Round, float]]:
        """The round of each service, and the seconds between two rounds. 0: the round waits itself."""
        services: dict[str, tuple[Round, float]] = {
            "advance": (self._apply, 0.0),
            "ownership": (self._own, 0.0),
            "announce": (self._announce, 5.0),
            "throughput": (self._publish_throughput, 5.0),
            "due_times": (lambda: self._due.run_once(self.ownership.epochs), LOOK_S),
            "reaper": (self._reap, 0.5),
            "timers": (self._fire_timers, 0.25),
            "schedules": (self._fire_schedules, 0.25),
            "jobs": (self._carry_out, 0.0),
            "outbox": (self._publish_again, 1.0),
            "resuming": (self._resume, 0.25),
            "effects": (self._deliver, 0.0),
            "admission": (self._admit, 0.0),
            "janitor": (self._clean, self._clean_s),
            "listing": (self._list, 0.0),
        }
        if self._store.keys.of_cluster:
            services["outstanding"] = (self._publish_outstanding, 0.0)
        if self._archiver is not None:
            services["archiver"] = (self._archive, 0.0)
        return services

    def hand_over(self) -> None:
        """Release the partitions, once no run advances here any more: others go on while the services end."""
        try:
            with self._store.errors():
                self.ownership.give_back()
        except SleipnirError as error:
            structlog.get_logger().warning("the partitions are not given back: their leases must end", error=str(error))

    def end(self) -> None:
        """Leave the fleet, after the services have stopped."""
        log = structlog.get_logger()
        self.hand_over()
        if self._archiver is not None:
            self._archiver.close()
        try:
            with self._store.errors():
                self._publish_throughput()
                self._store.fleet.leave(scheduler=self.ownership.instance)
            log.info("scheduler stopped")
        except SleipnirError as error:
            log.warning("scheduler stopped without leaving the fleet", error=str(error))

    def _apply(self) -> None:
        if not self.ownership.owning.wait(STANDBY_S):
            return
        done = self._advance.run_once(BLOCK_MS)
        if done < 0:
            self._stop.wait(0.2)  # no entry can be applied yet; reading again at once would only use CPU
        elif done > 1:
            self._stop.wait(linger_s(done, self._advance.backlog))

    def _own(self) -> None:
        """Renew three times per lease of the partitions; check twice as often while they are being redistributed."""
        self.ownership.run_once()
        every_s = self._settings.owner_ttl_s / 3
        self.ownership.wait(every_s if self.ownership.is_settled else every_s / 2, self._stop)

    def _announce(self) -> None:
        facts: dict[str, Any] = {"partitions": len(self.ownership.epochs)}
        facts |= {"host": socket.gethostname(), "pid": os.getpid(), "settings": self._settings.shared_digests()}
        if self._archiver is not None:
            facts["archive"] = asdict(self._archiver.state)
        self._store.fleet.announce_scheduler(self.ownership.instance, facts, self._store.now_ms())

    def _publish_throughput(self) -> None:
        minutes, hours = self.tally.throughput.changed(self.tally.clock.now_ms())
        if minutes:
            self._store.throughput.write(self.ownership.instance, minutes, hours)
            self.tally.throughput.stored(minutes)

    def _timer_set(self, partition: int, due_ms: int) -> None:
        self._due.timer_set(partition, due_ms - self.tally.clock.now_ms())

    def _fire_timers(self) -> None:
        timers.run_once(self._store.partitions, self._due.due("timers", self.ownership.epochs))

    def _fire_schedules(self) -> None:
        epochs = self.ownership.epochs
        passed = epochs.keys() - self._due.due("schedules", epochs).keys()
        self._schedules.run_once(epochs, self.ownership.held | passed)

    def _reap(self) -> None:
        watches, epochs, taken = self.watches, self.ownership.epochs, 0
        lapsed = self._due.due("leases", epochs)
        for generation, partitions in watches.pulses(epochs, lapsed):
            self.tally.clock.set(generation.now_ms)
            taken += reaper.run_once(
                self._store.partitions,
                [partition for partition in partitions if partition in lapsed or not generation.is_steady],
                generation,
                lease_ms=watches.lease_ms,
                gap_ms=watches.gap_ms,
            )
        self.tally.leases_expired.add(by=taken)

    def _publish_again(self) -> None:
        held = {partition for partition, holds in self.ownership.holds.items() if holds.holds_everything}
        partitions = self._due.used("outbox", self.ownership.epochs).keys() - held
        self.tally.republished.add(by=self._outbox.run_once(self._store.partitions.clocks_ms(partitions)))

    def _resume(self) -> None:
        if holds := self.ownership.holds:
            self._resuming.run_once(self.ownership.epochs.keys(), holds, self._store.now_ms())

    def _deliver(self) -> None:
        if not self.ownership.owning.wait(STANDBY_S):
            return
        epochs = self.ownership.epochs
        if epochs != self._delivered_under:
            self._deliveries.forget()
            self._delivered_under = epochs
        self.tally.effects.add(by=self._deliveries.run_once(epochs.keys(), BLOCK_MS))

    def _admit(self) -> None:
        began_s = time.monotonic()
        admitted = self._admission.run_once(self.ownership.epochs, self.ownership.holds.get(FIRST_PARTITION, NO_HOLDS))
        pause_s = ADMIT_SOON_S if admitted else ADMIT_IDLE_S if self._admission.is_idle else ADMIT_S
        self._stop.wait(max(pause_s, ADMIT_REST * (time.monotonic() - began_s)))

    def _publish_outstanding(self) -> None:
        began_s, epochs, pause_s = time.monotonic(), self.ownership.epochs, outstanding.LOOK_S
        if epochs and FIRST_PARTITION not in epochs and self._outstanding.run_once(epochs.keys()):
            pause_s = max(outstanding.EVERY_S, outstanding.REST * (time.monotonic() - began_s))
        self._stop.wait(pause_s)

    def _carry_out(self) -> None:
        self._stop.wait(JOB_SOON_S if self._jobs.run_once(self._due.due("jobs", self.ownership.epochs)) else JOB_IDLE_S)

    def _clean(self) -> None:
        retention_ms = int(self._settings.retention_s * 1000)
        lost = self._archiver.lost if self._archiver is not None else lambda count: None
        janitor.run_once(self._store, self.ownership.epochs, self._store.now_ms(), retention_ms, lost)
        self._forgotten.run_once(self.ownership.epochs.keys())

    @property
    def _clean_s(self) -> float:
        return min(60.0, self._settings.retention_s / 4)

    def _list(self) -> None:
        if not self.ownership.epochs:
            self._stop.wait(STANDBY_S)
            return
        is_behind = self._listing.run_once(self.ownership.epochs.keys())
        self._stop.wait(LIST_SOON_S if is_behind else self._clean_s)

    def _archive(self) -> None:
        assert self._archiver is not None, "there is no such service without one"
        if self._archiver.run_once(self.ownership.epochs, self._store.now_ms()) <= 0:
            self._stop.wait(min(10.0, self._archiver.ahead_ms / 4000))


def _archiver(settings: Settings, store: Store) -> archiving.Archiver | None:
    """The archiver; None: no archive is configured."""
    if settings.archive is None:
        return None
    writer = ArchiveWriter(
        settings.archive, socket.gethostname(), file_bytes=settings.archive_file_bytes, compressed=settings.archive_gzip
    )
    return archiving.Archiver(store, writer, ahead_ms=archiving.ahead_of(int(settings.retention_s * 1000)))


def linger_s(done: int, backlog: int) -> float:
    """How long to wait for a larger batch after a round with `done` results: many commits share their round trips.

    Only under load, and no longer than the workers have other work: rounds are at least LINGER_S apart, so a `backlog`
    of ten times the results of a round lasts ten times as long. Halves the scheduler's time per visit. After a small
    round the workers wait for the next one.
    """
    return min(LINGER_S * max(done >= LARGE, backlog // done), MOST_LINGER_S)
