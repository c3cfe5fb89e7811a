"""Start the services of one scheduler instance and stop them together."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from functools import partial
from typing import Any

import structlog

from sleipnir import hardening, tracing
from sleipnir.errors import ConfigError, SleipnirError
from sleipnir.logs import configure
from sleipnir.models.limits import load
from sleipnir.runs.run import Hold
from sleipnir.settings import Settings
from sleipnir.store.address import safe_url
from sleipnir.store.gauges import Gauges
from sleipnir.store.keys import Keys
from sleipnir.store.store import Store
from sleipnir_scheduler.instance import Instance
from sleipnir_scheduler.metrics.collector import SchedulerCollector, registry_of
from sleipnir_scheduler.metrics.endpoint import MetricsEndpoint
from sleipnir_scheduler.services.loop import run_forever

LOOK_S = 3.0  # how long metrics wait for a reply of Redis; Prometheus waits 10 s for a scrape


def main() -> None:
    """Read settings, serve until a stop signal. Exit code 1 with a message if the store cannot be used."""
    hardening.refuse_inspection()
    try:
        settings = Settings.from_env()
        configure(settings)
        tracing.configure("sleipnir-scheduler")
        store = Store.open(settings, client_name="sleipnir-scheduler")
        if "--paused" in sys.argv[1:]:
            holder = f"scheduler {socket.gethostname()}:{os.getpid()}"
            with store.errors():
                store.runs.pause_all(Hold(holder, store.now_ms(), "started paused"))
    except SleipnirError as error:
        sys.exit(f"error: {error}")
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    try:
        serve(settings, store, stop)
    except SleipnirError as error:
        sys.exit(f"error: {error}")


def serve(settings: Settings, store: Store, stop: threading.Event) -> None:
    """Run all services until `stop`. `advance` runs in the main thread; the others are threads that mostly wait."""
    instance = Instance(settings, store, stop)
    log = structlog.get_logger()
    facts = settings.to_log() | {"partitions": store.keys.partitions, "redis": safe_url(store.url)}
    log.info("scheduler starts", instance=instance.ownership.instance, **facts)
    endpoint = _endpoint(settings, instance, store.keys)
    instance.begin()
    with store.errors():
        if not store.fleet.has_appendonly():
            log.warning("Redis has no append-only file: its restart loses runs", command="CONFIG SET appendonly yes")
    gc.freeze()  # existing objects live as long as the process; the collector need not visit them again
    gc.set_threshold(20_000, 10, 10)  # a visit's objects are rarely in cycles: halves the time of collections
    forever = {
        name: partial(run_forever, name, once, every_s=every_s, stop=stop, store=store, rounds=instance.rounds)
        for name, (once, every_s) in instance.services().items()
    }
    advance = forever.pop("advance")
    threads = [threading.Thread(target=run, name=name) for name, run in forever.items()]
    for thread in threads:
        thread.start()
    advance()
    instance.hand_over()
    for thread in threads:
        thread.join()
    if endpoint is not None:
        endpoint.close()
    instance.end()
    store.close()
    tracing.flush()


def _endpoint(settings: Settings, instance: Instance, keys: Keys) -> MetricsEndpoint | None:
    """/metrics and /health, if the settings enable them. Raises ConfigError."""
    if settings.metrics_port is None:
        return None
    log = structlog.get_logger()
    try:
        limits = load(settings)[0].limits
    except ConfigError as error:  # the workers use the file and report its errors too
        log.warning("metrics of the limits of models are missing", error=str(error))
        limits = ()
    gauges = Gauges(settings, keys, timeout_s=LOOK_S)
    collector = SchedulerCollector(gauges, instance.ownership, instance.tally, instance.rounds, limits)
    health = partial(_health, instance)
    endpoint = MetricsEndpoint(settings.metrics_host, settings.metrics_port, registry_of(collector), health)
    log.info("metrics are served", host=settings.metrics_host, port=endpoint.port)
    return endpoint


def _health(instance: Instance) -> tuple[bool, dict[str, Any]]:
    stuck = instance.rounds.stuck()
    ownership = instance.ownership
    facts = {"instance": ownership.instance, "redis": instance.rounds.redis, "partitions": len(ownership.epochs)}
    return not stuck, {"status": "stuck" if stuck else "ok", "stuck": stuck, **facts}
