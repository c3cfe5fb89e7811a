"""Start the services of one scheduler instance and stop them together."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog

from sleipnir import tracing
from sleipnir.archive import Writer
from sleipnir.errors import ConfigError, SleipnirError
from sleipnir.limits import load
from sleipnir.logs import configure
from sleipnir.runs import Pause
from sleipnir.settings import Settings
from sleipnir.store.address import safe_url
from sleipnir.store.gauges import Gauges
from sleipnir.store.store import Store
from sleipnir_scheduler.dispatch import dispatcher
from sleipnir_scheduler.graphs import Graphs
from sleipnir_scheduler.metrics.collector import SchedulerCollector, registry_of
from sleipnir_scheduler.metrics.endpoint import Endpoint
from sleipnir_scheduler.metrics.tally import Tally
from sleipnir_scheduler.services import archiver as archiving
from sleipnir_scheduler.services import janitor, reaper, timers
from sleipnir_scheduler.services.admission import Admission
from sleipnir_scheduler.services.advance import Advance
from sleipnir_scheduler.services.effects import Deliveries
from sleipnir_scheduler.services.loop import Turns, run_forever
from sleipnir_scheduler.services.outbox import Outbox
from sleipnir_scheduler.services.ownership import Ownership

ADMIT_S, ADMIT_SOON_S = 0.05, 0.01  # between looks at batches; sooner while the last one let rows begin
LINGER_S, MOST_LINGER_S = 0.002, 0.010
LOOK_S = 3.0  # how long metrics wait for an answer of Redis; Prometheus waits 10 s for all of them
BLOCK_MS = 500  # how long a quiet inbox is waited on; also how soon a stop and a new partition are noticed


def main() -> None:
    """Read settings, serve until told to stop. Exit code 1 with a message when the store cannot be used."""
    try:
        settings = Settings.from_env()
        configure(settings)
        tracing.configure("sleipnir-scheduler")
        store = Store.open(settings, client_name="sleipnir-scheduler")
        if "--paused" in sys.argv[1:]:
            _hold(store)
    except SleipnirError as error:
        sys.exit(f"error: {error}")
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    try:
        serve(settings, store, stop)
    except SleipnirError as error:
        sys.exit(f"error: {error}")


def _hold(store: Store) -> None:
    with store.errors():
        store.runs.pause_all(Pause(f"scheduler {socket.gethostname()}:{os.getpid()}", store.now_ms(), "started paused"))


def serve(settings: Settings, store: Store, stop: threading.Event) -> None:
    """Run all services until `stop`. `advance` has the main thread; the others are threads that mostly wait."""
    log = structlog.get_logger()
    instance = f"{socket.gethostname()}:{os.getpid()}"
    ownership = Ownership(
        store.partitions,
        partitions=settings.partitions,
        instance=instance,
        ttl_ms=int(settings.owner_ttl_s * 1000),
    )
    dispatch, tally, turns = dispatcher(settings, store), Tally(), Turns()
    advance = Advance(
        store.partitions,
        ownership,
        Graphs(store.bundle),
        dispatch,
        max_redeliveries=settings.max_redeliveries,
        tally=tally,
    )
    retention_ms = int(settings.retention_s * 1000)
    patience_ms = int(settings.redispatch_after_s * 1000)
    outbox = Outbox(store.partitions, store.fleet, dispatch, patience_ms=patience_ms)
    deliveries = Deliveries(store.effects, Graphs(store.bundle), max_state_bytes=settings.max_output_bytes)
    archiver = _archiver(settings, store)
    log.info("scheduler starts", instance=instance, redis=safe_url(store.url), **settings.to_log())
    endpoint = _endpoint(settings, ownership, tally, turns)
    with store.errors():
        ownership.run_once()
        tally.clock.told(store.now_ms())
    gc.freeze()  # what exists now lives as long as the process; the collector need not look at it again

    admission = Admission(store, window=settings.batch_window)

    def admit() -> None:
        admitted = admission.run_once(ownership.epochs, ownership.held, store.now_ms)
        stop.wait(ADMIT_SOON_S if admitted else ADMIT_S)

    def announce() -> None:
        facts: dict[str, Any] = {"partitions": len(ownership.epochs), "host": socket.gethostname(), "pid": os.getpid()}
        if archiver is not None:
            facts["archive"] = asdict(archiver.state)
        store.fleet.announce_scheduler(instance, facts, store.now_ms())

    def clean() -> None:
        lost = archiver.lost if archiver is not None else lambda count: None
        janitor.run_once(store, ownership.epochs, store.now_ms(), retention_ms, lost)

    def deliver() -> None:
        if not ownership.epochs:
            stop.wait(0.2)
            return
        tally.effects.add(by=deliveries.run_once(ownership.epochs.keys(), BLOCK_MS))

    def reap() -> None:
        now_ms = store.now_ms()
        tally.clock.told(now_ms)
        tally.leases_expired.add(by=reaper.run_once(store.partitions, ownership.epochs, now_ms))

    def publish_again() -> None:
        tally.republished.add(by=outbox.run_once(ownership.epochs.keys() - ownership.held, store.now_ms()))

    services: dict[str, tuple[Callable[[], object], float]] = {
        "ownership": (ownership.run_once, settings.owner_ttl_s / 3),
        "announce": (announce, 5.0),
        "reaper": (reap, 0.5),
        "timers": (lambda: timers.run_once(store.partitions, ownership.epochs), 0.25),
        "outbox": (publish_again, 1.0),
        "effects": (deliver, 0.0),
        "admission": (admit, 0.0),
        "janitor": (clean, min(60.0, settings.retention_s / 4)),
    }
    if archiver is not None:
        services["archiver"] = (partial(_archive, archiver, ownership, store, stop), 0.0)
    threads = [
        threading.Thread(
            target=run_forever,
            args=(name, once),
            kwargs={"every_s": every_s, "stop": stop, "store": store, "turns": turns},
            name=name,
        )
        for name, (once, every_s) in services.items()
    ]
    for thread in threads:
        thread.start()
    run_forever("advance", partial(_advance, advance, ownership, stop), every_s=0, stop=stop, store=store, turns=turns)
    for thread in threads:
        thread.join()
    if archiver is not None:
        archiver.close()
    if endpoint is not None:
        endpoint.close()
    _goodbye(store, ownership, log)
    tracing.flush()


def _endpoint(settings: Settings, ownership: Ownership, tally: Tally, turns: Turns) -> Endpoint | None:
    """/metrics and /health, if the settings ask for them. Raises ConfigError."""
    if settings.metrics_port is None:
        return None

    def health() -> tuple[bool, dict[str, Any]]:
        stuck = turns.stuck()
        facts = {"instance": ownership.instance, "redis": turns.redis, "partitions": len(ownership.epochs)}
        return not stuck, {"status": "stuck" if stuck else "ok", "stuck": stuck, **facts}

    log = structlog.get_logger()
    try:
        limits = load(settings)[0].limits
    except ConfigError as error:  # the file is for the workers, who say so too
        log.warning("metrics of the limits of models are missing", error=str(error))
        limits = ()
    collector = SchedulerCollector(Gauges(settings, timeout_s=LOOK_S), ownership, tally, turns, limits)
    endpoint = Endpoint(settings.metrics_host, settings.metrics_port, registry_of(collector), health)
    log.info("metrics are served", host=settings.metrics_host, port=endpoint.port)
    return endpoint


def _advance(advance: Advance, ownership: Ownership, stop: threading.Event) -> None:
    if not ownership.epochs:
        stop.wait(0.2)  # a standby: nothing to read until a partition is ours
        return
    done = advance.run_once(BLOCK_MS)
    if done < 0:
        stop.wait(0.2)  # what is there cannot be applied yet; reading it again at once would only burn a core
    elif done > 1:
        stop.wait(linger_s(done, advance.backlog))


def _archiver(settings: Settings, store: Store) -> archiving.Archiver | None:
    """None: no archive is set."""
    if settings.archive is None:
        return None
    writer = Writer(
        settings.archive, socket.gethostname(), file_bytes=settings.archive_file_bytes, compressed=settings.archive_gzip
    )
    return archiving.Archiver(store, writer, ahead_ms=archiving.ahead_of(int(settings.retention_s * 1000)))


def _archive(archiver: archiving.Archiver, ownership: Ownership, store: Store, stop: threading.Event) -> None:
    done = archiver.run_once(ownership.epochs, store.now_ms())
    if done <= 0:
        stop.wait(min(10.0, archiver.ahead_ms / 4000))


def linger_s(done: int, backlog: int) -> float:
    """How long to let a batch gather after a round with `done` results: many commits share their round trips.

    Under load only, and no longer than the workers have work without us: rounds are LINGER_S or more apart, so a
    `backlog` of ten times what a round gets done lasts ten times that. Halves the scheduler's time per visit.
    """
    return min(LINGER_S * max(1, backlog // done), MOST_LINGER_S)


def _goodbye(store: Store, ownership: Ownership, log: structlog.stdlib.BoundLogger) -> None:
    try:
        with store.errors():
            ownership.give_back()
            store.fleet.leave(scheduler=ownership.instance)
        log.info("scheduler stopped")
    except SleipnirError as error:
        log.warning("scheduler stopped without giving its partitions back", error=str(error))
    store.close()
