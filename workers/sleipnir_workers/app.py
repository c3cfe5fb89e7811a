"""The Celery app and its one task. `celery -A sleipnir_workers.app worker -Q scripts,functions`.

A process opens its connection when it starts to work: after the fork in prefork, at worker start in the other pools.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from typing import Any

import structlog
from celery import Celery, bootsteps, signals

from sleipnir import failpoints
from sleipnir.errors import ConfigError, SleipnirError
from sleipnir.logs import configure
from sleipnir.messages import TASK_NAME, VisitCall
from sleipnir.settings import Settings
from sleipnir_workers import function, llm, script
from sleipnir_workers.celeryconfig import FLUSH_EVENTS_S, celery_config
from sleipnir_workers.visit import Worker

try:
    settings = Settings.from_env()
    if settings.redis_url is None:
        raise ConfigError("SLEIPNIR_REDIS_URL is not set; a worker needs the Redis of its deployment")
except SleipnirError as error:
    sys.exit(f"error: {error}")

app = Celery("sleipnir", set_as_current=True)
app.config_from_object(celery_config(settings))

ANNOUNCE_S = 5.0
EXECUTORS = (script, function, llm)  # importing one registers it; litellm itself is imported only where it is used

_worker: tuple[int, Worker] | None = None
_lock = threading.Lock()
_name = f"{socket.gethostname()}:{os.getpid()}"


@app.task(name=TASK_NAME, ignore_result=True, acks_late=True)
def visit(call: dict[str, Any]) -> dict[str, Any]:
    """Run one visit. The result is for Flower only; the real one was delivered to the store."""
    summary = worker().run(VisitCall.from_json(call))
    failpoints.hit("ack.before")
    return summary


if failpoints.ACTIVE:
    signals.task_postrun.connect(lambda **_: failpoints.hit("ack.after"), weak=False)


def worker() -> Worker:
    """This process's worker; a pool child makes its own after the fork, as connections do not survive one."""
    global _worker
    known = _worker
    if known is None or known[0] != os.getpid():
        with _lock:
            if _worker is None or _worker[0] != os.getpid():
                _worker = (os.getpid(), Worker.open(_name, settings))
            known = _worker
    return known[1]


class FlushEvents(bootsteps.StartStopStep):
    """Send task events in batches every 0.2 s instead of one PUBLISH each, which costs as much as the task itself.

    Flower reads them a moment later; events of a crashed worker are gone, and they are a view, not a log.
    """

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        dispatcher = consumer.event_dispatcher
        if dispatcher is None:
            return
        dispatcher.on_send_buffered = None
        dispatcher.buffer_limit = 500
        self._timer = consumer.timer.call_repeatedly(FLUSH_EVENTS_S, dispatcher.flush)

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()


app.steps["consumer"].add(FlushEvents)


@signals.worker_init.connect
def _start(sender: Any = None, **_: Any) -> None:
    global _name
    _name = str(getattr(sender, "hostname", None) or _name)
    configure(settings)
    if settings.warm_llm and "llm" in app.amqp.queues.consume_from:
        llm.warm_up()  # seconds of imports, now instead of in the first visit; starts no thread, so forks are safe


@signals.worker_ready.connect
def _ready(sender: Any, **_: Any) -> None:
    gc.freeze()  # what exists now lives as long as the process; the collector need not look at it again
    threading.Thread(target=_announce_forever, args=(_queues(sender),), name="announce", daemon=True).start()


@signals.worker_shutdown.connect
def _stopped(**_: Any) -> None:
    try:
        worker().store.fleet.leave(worker=_name)
    except Exception as error:
        structlog.get_logger().warning("could not say goodbye", error=str(error))


def _queues(consumer: Any) -> list[str]:
    return sorted(consumer.app.amqp.queues.consume_from)


def _announce_forever(queues: list[str]) -> None:
    """Tell the fleet registry that this worker is there; only `doctor` and `show` read it."""
    facts = {"host": socket.gethostname(), "pid": os.getpid()}
    pause = threading.Event()
    while True:
        try:
            worker().store.fleet.announce_worker(_name, queues, facts)
        except Exception as error:
            structlog.get_logger().debug("announcement failed", error=str(error))
        pause.wait(ANNOUNCE_S)
