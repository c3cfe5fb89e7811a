"""Drain: how a worker stops without losing the time of a lease.

The first SIGTERM (or SIGINT) begins it: no visit is claimed any more, running visits may finish. It is over after the
grace period, at the second signal, or at SIGQUIT: the visits that still run are told to stop, and each is handed back
as soon as its executor has stopped, never before, so that no two workers run it at once. The lease of a visit that does
not stop lapses. Celery's own warm shutdown waits for running tasks without limit, and its soft and cold ones do not
work with threads. So Celery is stopped when no visit runs any more, and has nothing to wait for.

The main process gets the signals; in a prefork pool its children run the visits. Both share the same two latches.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

STOP_S = 4.0  # for executors to stop after the grace period: a kill takes 0.1 s, a hand-back a round trip
EXIT_S = 4.0  # for Celery to close its pool and its connections, with nothing left to do
CHECK_S = 0.05

_log = structlog.get_logger().bind(part="drain")


class Latch:
    """A flag that is set once. All processes that are forked later share it; a signal handler may set it.

    It has a byte of shared memory, because it is read before every claim, and for `wait` a pipe that stays readable
    once the flag is set. It has no lock, which a signal could interrupt.
    """

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)
        self._read, self._write = os.pipe()

    def set(self) -> None:
        if not self.is_set():
            self._flag[0] = 1
            os.write(self._write, b"!")

    def is_set(self) -> bool:
        return self._flag[0] == 1

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set (True), at most `timeout_s` (None: without limit)."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


class Drain:
    """The progress of stopping a worker. Create it before the pool forks.

    `begun`: claim no more visits. `over`: stop running visits, and hand them back.
    """

    def __init__(self) -> None:
        self.begun = Latch()
        self.over = Latch()

    def when_over(self, stop_visits: Callable[[], None]) -> None:
        """After the grace period, call `stop_visits` repeatedly in a thread, as a visit may just be starting."""
        threading.Thread(target=self._repeat, args=(stop_visits,), name="drain-over", daemon=True).start()

    def _repeat(self, act: Callable[[], None]) -> None:
        self.over.wait()
        pause = threading.Event()
        while True:
            act()
            pause.wait(CHECK_S)


def leave_signals_to_main_process() -> None:
    """For a pool child: a signal to the whole process group must not end the visit that it runs.

    Billiard's handler would raise SystemExit in the node's code. SIG_IGN would be inherited by scripts.
    """
    for signum in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(signum, lambda *_: None)


class Conductor:
    """Runs the drain in the main process, in a thread of its own: the main thread may be in a task (solo)."""

    def __init__(
        self, drain: Drain, *, grace_s: float, running: Callable[[], int], stop_consuming: Callable[[], None],
        stop_celery: Callable[[], None],
    ) -> None:  # fmt: skip
        self._drain, self._grace_s = drain, grace_s
        self._running, self._stop_consuming, self._stop_celery = running, stop_consuming, stop_celery

    def start(self) -> None:
        """Take over the signals that stop a worker. Main thread only."""
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(signum, self._on_signal)
        threading.Thread(target=self._conduct, name="drain", daemon=True).start()

    def _on_signal(self, signum: int, _: Any) -> None:
        if signum == signal.SIGQUIT or self._drain.begun.is_set():
            self._drain.over.set()
        self._drain.begun.set()

    def _conduct(self) -> None:
        self._drain.begun.wait()
        try:
            self._stop_consuming()
            remaining = self._wait_for_visits()
        except Exception:
            _log.exception("draining failed; stopping at once")
            remaining = self._running()
        if remaining:
            # Their leases lapse, and other workers take over. Pool children and scripts die with the main process.
            _log.error(f"{_visits(remaining)} did not stop; exiting, other workers take over when the leases lapse")
            os._exit(1)
        self._stop_celery()
        time.sleep(EXIT_S)
        _log.warning("Celery does not stop; exiting, as no visit runs any more")
        os._exit(0)

    def _wait_for_visits(self) -> int:
        """Returns how many run even after the grace period and STOP_S."""
        if self._running():
            _log.warning(
                f"draining: {_visits(self._running())} running, up to {self._grace_s:g} s; "
                "signal again to hand them back now"
            )
        if self._none_runs_before(self._grace_s, or_when=self._drain.over):
            return 0
        self._drain.over.set()
        _log.warning(f"draining: handing back {_visits(self._running())}")
        return 0 if self._none_runs_before(STOP_S) else self._running()

    def _none_runs_before(self, timeout_s: float, or_when: Latch | None = None) -> bool:
        """Wait until no visit runs (True), the time is up, or the latch is set (False)."""
        deadline = time.monotonic() + timeout_s
        while self._running():
            if time.monotonic() >= deadline or (or_when and or_when.is_set()):
                return False
            time.sleep(CHECK_S)
        return True


def _visits(count: int) -> str:
    return "1 visit" if count == 1 else f"{count} visits"
