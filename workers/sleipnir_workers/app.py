"""The Celery app and its one task. `celery -A sleipnir_workers.app worker -Q scripts,functions`.

A process opens its connection when it starts to work: after the fork in prefork, at worker start in the other pools.
"""

from __future__ import annotations

import gc
import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from celery import Celery, bootsteps, signals
from celery.exceptions import Reject
from celery.worker import state as celery_state
from kombu.common import ignore_errors

from sleipnir import failpoints, hardening, tracing
from sleipnir.errors import ConfigError, MachineFailed, SleipnirError
from sleipnir.logs import configure
from sleipnir.messages import TASK_NAME, VisitCall
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.upkeep.work_folders import WorkFolders
from sleipnir_workers import mcp
from sleipnir_workers.callbacks import plugins
from sleipnir_workers.celeryconfig import FLUSH_EVENTS_S, SteadyAMQP, celery_config
from sleipnir_workers.consumer import strategy, unreadable
from sleipnir_workers.consumer.drain import Conductor, Drain, leave_signals_to_main_process
from sleipnir_workers.consumer.health import ConsumerHealth
from sleipnir_workers.consumer.intake import Intake
from sleipnir_workers.consumer.strategy import VisitRequest
from sleipnir_workers.consumer.task_events import MOST, TaskEvents
from sleipnir_workers.consumer.task_summary import MOST_TEXT, TaskSummary
from sleipnir_workers.folders.scratch import sweep
from sleipnir_workers.llm import litellm_compat, summary, turn
from sleipnir_workers.llm import node as llm
from sleipnir_workers.machine import health
from sleipnir_workers.machine.host import this_host
from sleipnir_workers.machine.nice_value import raise_nice_value
from sleipnir_workers.nodes import agent, condition, function, rag, reduction, remote, script, whole_run
from sleipnir_workers.tools import node as tool
from sleipnir_workers.visits.claim import Worker
from sleipnir_workers.visits.solo_groups import SoloGroups

hardening.refuse_inspection()  # the children of a prefork pool inherit it

try:
    settings = Settings.from_env()
    if settings.redis_url is None:
        raise ConfigError("SLEIPNIR_REDIS_URL is not set; a worker needs the Redis of its deployment")
    config = celery_config(settings)
    plugins.activate(settings.names_of_plugins)  # before any fork: all processes have the same
except SleipnirError as error:
    sys.exit(f"error: {error}")

app = Celery("sleipnir", set_as_current=True, amqp=SteadyAMQP)
app.config_from_object(config)

ANNOUNCE_S = 5.0
NEWER_MS = 5_000  # until the next message for a visit whose message this release cannot read
GOODBYE_S = 2.0
SWEEP_TURNS = 12
"""Announcements between two sweeps of the scratch folders of ended runs: a minute."""
SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while others wait for it. With Python's 5 ms the loop that receives
messages waited so often that it became the bottleneck of 64 threads."""
EXECUTORS = (script, function, llm, rag, turn, agent, summary, tool, condition, reduction, remote, whole_run)
"""Importing one registers it. litellm itself is imported only where it is used."""

drain = Drain()  # before any fork: the children of a prefork pool share it
intake = Intake()  # before any fork as well
consumer_health = ConsumerHealth(has_stopped_queues=lambda: bool(intake.stopped()))
_worker: tuple[int, Worker] | None = None
_consumer: Any = None
_lock = threading.Lock()
_main_pid = os.getpid()
_name = f"{socket.gethostname()}:{os.getpid()}"


@app.task(
    name=TASK_NAME, ignore_result=True, acks_late=True, Strategy=staticmethod(strategy.strategy), Request=VisitRequest,
    resultrepr_maxsize=MOST_TEXT,
)  # fmt: skip
def visit(call: dict[str, Any] | VisitCall) -> TaskSummary:
    """Run one visit. The result is for Flower only; the real one was delivered to the store.

    A worker that drains, or whose machine cannot run visits, requeues the message; another worker takes it at once.
    """
    if drain.begun.is_set():
        raise Reject("this worker is stopping", requeue=True)
    try:
        summary = worker().run(call if isinstance(call, VisitCall) else VisitCall.from_json(call))
    except MachineFailed as failure:
        raise Reject(f"this machine cannot run visits: {failure}", requeue=True) from failure
    failpoints.hit("ack.before")
    return TaskSummary(summary)


if "ack.after" in failpoints.ACTIVE:  # a process that listens to signals uses Celery's own path
    signals.task_postrun.connect(lambda **_: failpoints.hit("ack.after"), weak=False)


def worker() -> Worker:
    """This process's worker; a pool child makes its own after the fork, as connections do not survive one."""
    global _worker
    current = _worker
    if current is None or current[0] != os.getpid():
        with _lock:
            if _worker is None or _worker[0] != os.getpid():
                if os.getpid() != _main_pid:
                    leave_signals_to_main_process()
                _worker = (os.getpid(), Worker.open(_name, settings, drain, _report))
            current = _worker
    return current[1]


def _report(failure: MachineFailed) -> None:
    """Report that the machine failed the visit whose message this thread executes."""
    delivered = visit.request.delivery_info or {}
    intake.report(delivered.get("routing_key") or strategy.taken_from or "", failure)


class FlushEvents(bootsteps.StartStopStep):
    """Send task events in batches every 0.2 s instead of one PUBLISH each, which costs as much as the task itself.

    Flower reads them a moment later. The last events of a crashed worker are lost: they are a view, not a log.
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
        dispatcher.buffer_limit = MOST
        events = TaskEvents(dispatcher)
        dispatcher.send = events.send
        self._timer = consumer.timer.call_repeatedly(FLUSH_EVENTS_S, events.flush)

    def stop(self, consumer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()


class DrainStep(bootsteps.StartStopStep):
    """Runs a drain (consumer/drain.py) before Celery's warm shutdown. Its thread starts after the pool has forked."""

    requires = ("celery.worker.components:Pool",)

    def start(self, worker: Any) -> None:
        Conductor(
            drain,
            grace_s=settings.drain_s,
            running=lambda: len(celery_state.reserved_requests),
            stop_consuming=lambda: worker.consumer.call_soon(stop_consuming, worker.consumer),
            stop_celery=lambda: _stop_celery(worker.consumer),
        ).start()

    def stop(self, worker: Any) -> None:
        """Drain also if the worker is stopped without a signal, as `celery control shutdown` does."""
        drain.begun.set()


class WatchedConsumer(bootsteps.StartStopStep):
    """Watches the consumer of each connection (consumer/health.py). One made while the worker drains must not
    consume."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        global _consumer
        _consumer = consumer
        consumer_health.start(consumer)
        if drain.begun.is_set():
            stop_consuming(consumer)

    def stop(self, consumer: Any) -> None:
        consumer_health.stop()


def stop_consuming(consumer: Any) -> None:
    """Take no more messages. Call it in the consumer's own loop only. Messages that still arrive are sent back."""
    if consumer.task_consumer is not None:
        ignore_errors(consumer, consumer.task_consumer.cancel)


def _stop_queue(queue: str) -> None:
    """Stop consuming a queue. Messages that still arrive from it are sent back."""
    _in_loop(lambda consumer: consumer.cancel_task_queue(queue))


def _take_queue(queue: str) -> None:
    if not drain.begun.is_set():
        _in_loop(lambda consumer: consumer.add_task_queue(queue))


def _in_loop(act: Callable[[Any], None]) -> None:
    """Call `act` in the loop of the current consumer. One made after a reconnection consumes the selected queues."""
    consumer = _consumer
    if consumer is not None:
        consumer.call_soon(ignore_errors, consumer, act, consumer)


def _watch_intake(queues: list[str]) -> None:
    programs = script.NEEDED if "scripts" in queues else ()
    intake.watch_forever(lambda: health.check(settings.home, programs), _stop_queue, _take_queue)


def _stop_celery(consumer: Any) -> None:
    celery_state.should_stop = 0  # the exit code
    consumer.call_soon(lambda: None)  # wakes the loop, which checks should_stop


app.steps["worker"].add(DrainStep)
app.steps["consumer"].add(FlushEvents)
app.steps["consumer"].add(WatchedConsumer)


@signals.worker_init.connect
def _start(sender: Any = None, **_: Any) -> None:
    global _name
    _name = str(getattr(sender, "hostname", None) or _name)
    unreadable.dropped.newer = _publish_soon
    strategy.group_runner = SoloGroups(worker).run
    configure(settings)
    raise_nice_value(settings.worker_nice)  # before threads and the children of a prefork pool, which inherit it
    sys.setswitchinterval(SWITCH_S)
    if "llm" in app.amqp.queues.consume_from:
        _check_models()
    if settings.warm_llm and settings.replay is None and "llm" in app.amqp.queues.consume_from:
        litellm_compat.warm_up()  # imports for seconds, before the first visit; starts no thread, so forks are safe
    if "rag" in app.amqp.queues.consume_from:
        # A single search is quick; a thread pool of BLAS per thread of this worker would only wait for the cores.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        rag.warm_up()


def _check_models() -> None:
    """Log at the start what would fail every llm visit. Not fatal: the worker may have other work."""
    try:
        llm.check_configuration(this_host())
    except ConfigError as error:
        structlog.get_logger().error("llm nodes will fail: the configuration of models is wrong", reason=str(error))


@signals.worker_ready.connect
def _ready(sender: Any, **_: Any) -> None:
    gc.freeze()  # what exists now lives as long as the process, so the collector can skip it
    gc.set_threshold(20_000, 10, 10)  # visits hardly ever create cycles; this halves the time of collections
    announcer = threading.Thread(target=_announce, args=(_queues(sender),), name="announce", daemon=True)
    announcer.start()
    threading.Thread(target=_watch_intake, args=(_queues(sender),), name="intake", daemon=True).start()

    @signals.worker_shutdown.connect(weak=False)
    def _stopped(**_: Any) -> None:
        drain.begun.set()
        announcer.join(GOODBYE_S)


@signals.worker_shutdown.connect
@signals.worker_process_shutdown.connect
def _leave(**_: Any) -> None:
    """No visit runs in this process any more. Each child of a prefork pool has its own MCP servers and unsent spans.

    The servers of a worker that is killed die with it (mcp/server_process.py).
    """
    mcp.close()
    tracing.flush()


def _queues(consumer: Any) -> list[str]:
    return sorted(consumer.app.amqp.queues.consume_from)


def _announce(queues: list[str]) -> None:
    """Announce this worker and its condition to the fleet registry until it drains."""
    folders = WorkFolders(settings.home, settings.work_retention_s)
    for number in itertools.count():
        _update_fleet(lambda store: store.fleet.announce_worker(_name, _consumed(queues), _facts(store)))
        if number % SWEEP_TURNS == 0:  # also at the start: private workers may live for less than a minute
            _update_fleet(partial(sweep, folders))
        if drain.begun.wait(ANNOUNCE_S):
            return _update_fleet(lambda store: store.fleet.leave(worker=_name))


def _consumed(queues: list[str]) -> list[str]:
    stopped = intake.stopped()
    return [queue for queue in queues if queue not in stopped]


def _facts(store: Store) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **consumer_health.facts(store.visits.count_leased),
        "stopped": intake.stopped(),
        "dropped": unreadable.dropped.count,
    }


def _publish_soon(run: str, seq: int, attempt: int) -> None:
    """Have a visit published again whose message only a newer release can read: another worker may have that one."""
    _update_fleet(lambda store: store.visits.publish_soon(run, seq, attempt, within_ms=NEWER_MS))


def _update_fleet(update: Callable[[Store], object]) -> None:
    try:
        update(worker().store)
    except Exception as error:
        structlog.get_logger().debug("cannot write to the fleet registry", error=str(error))
