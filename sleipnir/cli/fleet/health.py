"""`sleipnir worker --health`: does a worker consume? For liveness probes: quick, and about the worker alone.

Rules. Exit code 0: it consumes; or it has stopped consuming a queue because its machine cannot run visits, which it
reports, and which a restart does not fix; or its state is unknown because Redis or the broker is away: a restart would
not help then, and would only interrupt running visits. 1: it does not consume, with the reason in one line. A worker
reports its state in its announcement; a worker that is stopped or hangs makes none.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sleipnir.cli import exit_codes
from sleipnir.cli.terminal import terminal
from sleipnir.errors import ConfigError, StoreUnavailable
from sleipnir.runs.worker_health import why_not

if TYPE_CHECKING:
    from sleipnir.runs.views import WorkerInfo
    from sleipnir.settings import Settings
    from sleipnir.store.fleet import Fleet

LOOK_TIMEOUT_S = 2.0  # a Redis that hangs must not make the probe hang


def report(settings: Settings, name: str | None, within_s: float) -> int:
    """Print the state of the worker `name` (None: all active ones of this host) and return the exit code."""
    from sleipnir.store.connect import store_errors
    from sleipnir.store.fleet import Fleet

    url = str(settings.redis_url)
    try:
        with store_errors(url):
            fleet = Fleet.of(settings, timeout_s=LOOK_TIMEOUT_S)
            workers, now_ms = fleet.workers()
    except StoreUnavailable as error:
        terminal.note(f"cannot tell: {error}")
        return exit_codes.COMPLETED
    chosen = choose(workers, name, socket.gethostname(), now_ms, within_s)
    if not chosen:
        silent = f"no worker of {socket.gethostname()} has announced itself in the last {within_s:g} s"
        return _unhealthy(fleet, f"{silent}{_why_none_starts(settings)}")
    for worker in chosen:
        if reason := why_not(worker, now_ms, within_s):
            return _unhealthy(fleet, f"{worker.name} {reason}")
        terminal.result(
            f"{worker.name} consumes {', '.join(worker.queues)}: {worker.busy} of {worker.slots} slots busy"
        )
        for queue, reason in sorted(worker.stopped.items()):
            terminal.note(f"{worker.name} does not take queue {queue} now: {reason}; it tries again automatically")
    return exit_codes.COMPLETED


def _why_none_starts(settings: Settings) -> str:
    """What keeps a worker with these settings from its start, as text that follows a reason; empty: nothing known."""
    from sleipnir.plugin_points import plugin_point

    try:
        for name in settings.names_of_plugins:
            plugin_point(name)
    except ConfigError as error:
        return f": {error}"
    return ""


def _unhealthy(fleet: Fleet, reason: str) -> int:
    if not fleet.broker_answers():
        terminal.note(f"cannot tell: {reason}; but the broker does not answer here either")
        return exit_codes.COMPLETED
    terminal.error(reason)
    return exit_codes.FAILED


def choose(
    workers: Sequence[WorkerInfo], name: str | None, host: str, now_ms: int, within_s: float
) -> list[WorkerInfo]:
    """The worker of that name, active or not; without a name those of the host that were recently active."""
    if name is not None:
        return [worker for worker in workers if worker.name in (name, f"{name}@{host}")]
    return [worker for worker in workers if worker.host == host and worker.seen_ms > now_ms - within_s * 1000]
