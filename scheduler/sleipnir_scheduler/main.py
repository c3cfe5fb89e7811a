"""Start the services of one scheduler instance and stop them together."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial

import structlog

from sleipnir.errors import SleipnirError
from sleipnir.logs import configure
from sleipnir.runs import Pause
from sleipnir.settings import Settings
from sleipnir.store.connect import safe_url
from sleipnir.store.store import Store
from sleipnir_scheduler.dispatch import dispatcher
from sleipnir_scheduler.graphs import Graphs
from sleipnir_scheduler.services import janitor, reaper, timers
from sleipnir_scheduler.services.advance import Advance
from sleipnir_scheduler.services.effects import Deliveries
from sleipnir_scheduler.services.loop import run_forever
from sleipnir_scheduler.services.outbox import Outbox
from sleipnir_scheduler.services.ownership import Ownership

LINGER_S, MOST_LINGER_S = 0.002, 0.010
BLOCK_MS = 500  # how long a quiet inbox is waited on; also how soon a stop and a new partition are noticed


def main() -> None:
    """Read settings, serve until told to stop. Exit code 1 with a message when the store cannot be used."""
    try:
        settings = Settings.from_env()
        configure(settings)
        store = Store.open(settings, client_name="sleipnir-scheduler")
        if "--paused" in sys.argv[1:]:
            _hold(store)
    except SleipnirError as error:
        sys.exit(f"error: {error}")
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    serve(settings, store, stop)


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
    dispatch = dispatcher(settings, store)
    advance = Advance(
        store.partitions, ownership, Graphs(store.bundle), dispatch, max_redeliveries=settings.max_redeliveries
    )
    patience_ms = int(settings.redispatch_after_s * 1000)
    outbox = Outbox(store.partitions, store.fleet, dispatch, patience_ms=patience_ms)
    deliveries = Deliveries(store.effects, Graphs(store.bundle), max_state_bytes=settings.max_output_bytes)
    log.info("scheduler starts", instance=instance, redis=safe_url(store.url), **settings.to_log())
    with store.errors():
        ownership.run_once()
    gc.freeze()  # what exists now lives as long as the process; the collector need not look at it again

    def announce() -> None:
        facts = {"partitions": len(ownership.epochs), "host": socket.gethostname(), "pid": os.getpid()}
        store.fleet.announce_scheduler(instance, facts, store.now_ms())

    def clean() -> None:
        janitor.run_once(store, ownership.epochs, store.now_ms(), int(settings.retention_s * 1000))

    def deliver() -> None:
        if not ownership.epochs:
            stop.wait(0.2)
        else:
            deliveries.run_once(ownership.epochs.keys(), BLOCK_MS)

    services: dict[str, tuple[Callable[[], object], float]] = {
        "ownership": (ownership.run_once, settings.owner_ttl_s / 3),
        "announce": (announce, 5.0),
        "reaper": (lambda: reaper.run_once(store.partitions, ownership.epochs, store.now_ms()), 0.5),
        "timers": (lambda: timers.run_once(store.partitions, ownership.epochs), 0.25),
        "outbox": (lambda: outbox.run_once(ownership.epochs.keys() - ownership.held, store.now_ms()), 1.0),
        "effects": (deliver, 0.0),
        "janitor": (clean, 60.0),
    }
    threads = [
        threading.Thread(
            target=run_forever, args=(name, once), kwargs={"every_s": every_s, "stop": stop, "store": store}, name=name
        )
        for name, (once, every_s) in services.items()
    ]
    for thread in threads:
        thread.start()
    run_forever("advance", partial(_advance, advance, ownership, stop), every_s=0, stop=stop, store=store)
    for thread in threads:
        thread.join()
    _goodbye(store, ownership, log)


def _advance(advance: Advance, ownership: Ownership, stop: threading.Event) -> None:
    if not ownership.epochs:
        stop.wait(0.2)  # a standby: nothing to read until a partition is ours
        return
    done = advance.run_once(BLOCK_MS)
    if done < 0:
        stop.wait(0.2)  # what is there cannot be applied yet; reading it again at once would only burn a core
    elif done > 1:
        stop.wait(linger_s(done, advance.backlog))


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
