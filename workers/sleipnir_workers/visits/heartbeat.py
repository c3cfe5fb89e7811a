"""Keep the leases of running visits, and learn which of them were lost.

One daemon thread per worker process (per pool child in prefork), started with the first visit after a fork. It beats
for all visits of the process in one round trip. A visit that was cancelled or redelivered has lost its lease: its
`lost` event is set, and the executor stops. If Redis is away or refuses to write, nothing is lost: the beat is repeated
soon, and after such an outage schedulers wait the time of a lease before they take leases back (services/reaper.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.logs import handling
from sleipnir.messages import VisitCall
from sleipnir.store.store import Store

AGAIN_S = (0.1, 0.3, 1.0)
"""Between tries while Redis does not take a beat, then every second: well below what a reaper waits after an outage."""


class Heartbeat:
    """`every_s` between beats; `lease_ms` is what each beat grants. `also` is called with each beat."""

    def __init__(self, store: Store, *, every_s: float, lease_ms: int, also: Callable[[], None] = lambda: None) -> None:
        self._store, self._every_s, self._lease_ms, self._also = store, every_s, lease_ms, also
        self._running: dict[str, tuple[VisitCall, threading.Event]] = {}
        self._lock = threading.Lock()
        self._thread_pid: int | None = None
        self._log = structlog.get_logger().bind(part="heartbeat")

    def hold(self, call: VisitCall, lost: threading.Event) -> None:
        """Renew the lease of `call` from now on; `lost` is set when the visit was lost."""
        with self._lock:
            self._running[call.task_id] = (call, lost)
            self._ensure_thread()

    def release(self, call: VisitCall) -> None:
        """Stop renewing the lease of `call`: the visit is over."""
        with self._lock:
            self._running.pop(call.task_id, None)

    def beat(self) -> int:
        """One round for all running visits. Returns how many were found lost."""
        with self._lock:
            running = dict(self._running)
        if not running:
            return 0
        lost = self._store.visits.heartbeat([call for call, _ in running.values()], self._lease_ms)
        for task_id in lost:
            call, lost_event = running[task_id]
            with handling(call.run, call.node, call.seq, call.attempt):
                self._log.warning("visit was lost; stopping it")
            lost_event.set()
        self._also()
        return len(lost)

    def stop_all(self) -> None:
        """Tell all running visits to stop, as if they were lost."""
        with self._lock:
            running = [lost for _, lost in self._running.values()]
        for lost in running:
            lost.set()

    def _ensure_thread(self) -> None:
        """Threads do not survive a fork, so a pool child starts its own."""
        if self._thread_pid == os.getpid():
            return
        self._thread_pid = os.getpid()
        threading.Thread(target=self._beat_forever, name="heartbeat", daemon=True).start()

    def _beat_forever(self) -> None:
        pause = threading.Event()
        failures = 0
        while not pause.wait(
            min(self._every_s, AGAIN_S[min(failures, len(AGAIN_S)) - 1]) if failures else self._every_s
        ):
            try:
                with self._store.errors():
                    self.beat()
            except StoreUnavailable as error:
                if failures == 0:
                    self._log.warning("heartbeat failed; repeating", error=str(error))
                failures += 1
                continue
            except Exception:
                # The thread must outlive any single failure: without it every visit of this process loses its lease.
                self._log.exception("heartbeat failed; repeating")
            if failures:
                self._log.info("heartbeats succeed again", failures=failures)
            failures = 0
