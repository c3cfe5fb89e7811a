"""A group: several short visits that a worker claims in one round trip, and executes one after another. Their results
are delivered in one round trip, which also claims the next group.

A visit that is longer than it was known to be does not hold up the others: a thread then delivers the results so far,
and hands back the visits that have not begun, so that other workers take them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import structlog

from sleipnir.logs import handling
from sleipnir.messages import VisitCall
from sleipnir.runs.claims import Claim, ClaimRefused
from sleipnir_workers.visits.claim import PreparedVisit, Worker
from sleipnir_workers.visits.delivery import LATE, PreparedDelivery

TURN_S: Final = 0.005
"""For so long a worker takes more visits; then Celery's loop looks at other queues, timers and commands."""
DELIVER_S: Final = 0.01
"""A result waits for so long at most while other visits of its group are executed."""
LONG_S: Final = 0.02
"""A visit that runs for so long holds up its group."""

Outcome: TypeAlias = dict[str, Any] | Exception
"""The summary of a visit, or why it was not executed: its message may go to another worker, or is published again."""


class VisitGroup:
    """One group. One thread calls `run`, another one `relieve`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        """For what both threads change: the visits that have not begun, and the results that are not delivered."""
        self._waiting: deque[tuple[PreparedVisit, Claim]] = deque()
        self._ended: list[PreparedDelivery] = []
        self._relieving = threading.Lock()
        self._begun_at: float | None = None
        self._kept: dict[str, Any] | None = None
        self._outcomes: deque[tuple[VisitCall, Outcome]] = deque()

    def run(
        self,
        calls: Sequence[VisitCall],
        more: Callable[[], Sequence[VisitCall]],
        end: Callable[[VisitCall, Outcome], None],
    ) -> None:
        """Execute visits, and for a while those that `more` returns. `end` is called with the outcome of each."""
        until = time.monotonic() + TURN_S
        while calls or self._ended:
            with ExitStack() as used:
                for digest in {call.bundle for call in calls}:
                    used.enter_context(self._worker.bundles.used(digest))
                self._exchange(calls)
                self._execute()
            self._report(end)
            calls = more() if time.monotonic() < until and not self._worker.drain.begun.is_set() else ()
        with self._relieving:
            self._report(end)

    def relieve(self) -> None:
        """If the current visit takes long, deliver the results so far, and hand back what has not begun."""
        begun_at = self._begun_at
        if begun_at is None or time.monotonic() - begun_at < LONG_S:
            return
        with self._relieving:
            with self._lock:
                ended, self._ended = self._ended, []
                waiting, self._waiting = self._waiting, deque()
            self._deliver_singly(ended)
            self._hand_back(waiting)

    def _execute(self) -> None:
        delivered_at = time.monotonic()
        while (claimed := self._next()) is not None:
            visit, claim = claimed
            call = visit.request.call
            try:
                with handling(call.run, call.node, call.seq, call.attempt):
                    summary = self._worker.execute(visit, claim, self._keep)
            except Exception as error:
                self._finish(call, error)
            else:
                if summary is not self._kept:
                    self._finish(call, summary)
            if time.monotonic() - delivered_at > DELIVER_S:
                self._exchange(())
                delivered_at = time.monotonic()
        self._begun_at = None

    def _next(self) -> tuple[PreparedVisit, Claim] | None:
        with self._lock:
            if not self._worker.drain.begun.is_set():
                self._begun_at = time.monotonic()
                return self._waiting.popleft() if self._waiting else None
            waiting, self._waiting = self._waiting, deque()
        self._hand_back(waiting)
        return None

    def _keep(self, prepared: PreparedDelivery) -> dict[str, Any]:
        with self._lock:
            self._ended.append(prepared)
        self._kept = prepared.summary
        return prepared.summary

    def _exchange(self, calls: Sequence[VisitCall]) -> None:
        """Deliver the results so far, and claim these visits."""
        worker, visits = self._worker, self._prepared(calls)
        with self._lock:
            ended, self._ended = self._ended, []
        if not ended and not visits:
            return
        try:
            with worker.store.errors():
                delivered, claims = worker.store.visits.exchange(
                    [each.delivery for each in ended],
                    [visit.request for visit in visits],
                    worker=worker.name,
                    lease_ms=worker.lease_ms,
                )
        except Exception as error:
            self._deliver_singly(ended)
            for visit in visits:
                self._finish(visit.request.call, error)
            return
        for each, reply in zip(ended, delivered, strict=True):
            if isinstance(reply, Exception):
                self._deliver_singly([each])
            else:
                self._finish(each.delivery.call, each.summary if reply else LATE)
        for visit, answer in zip(visits, claims, strict=True):
            self._take(visit, answer)

    def _prepared(self, calls: Sequence[VisitCall]) -> list[PreparedVisit]:
        visits = []
        for call in calls:
            try:
                visits.append(self._worker.prepared(call))
            except Exception as error:
                self._finish(call, error)
        return visits

    def _take(self, visit: PreparedVisit, answer: Claim | ClaimRefused | Exception) -> None:
        call = visit.request.call
        if isinstance(answer, ClaimRefused):
            self._finish(call, self._worker.refused(call, answer))
        elif isinstance(answer, Exception):
            self._finish(call, answer)
        else:
            self._worker.heartbeat.hold(call, visit.lost)
            with self._lock:
                self._waiting.append((visit, answer))

    def _deliver_singly(self, ended: Sequence[PreparedDelivery]) -> None:
        for prepared in ended:
            call = prepared.delivery.call
            try:
                self._finish(call, self._worker.delivery.deliver(prepared))
            except Exception as error:
                self._finish(call, error)

    def _hand_back(self, waiting: Iterable[tuple[PreparedVisit, Claim]]) -> None:
        for visit, _ in waiting:
            call = visit.request.call
            with handling(call.run, call.node, call.seq, call.attempt):
                self._finish(call, self._worker.delivery.end_without_result(call, visit.request.token, "machine"))

    def _finish(self, call: VisitCall, outcome: Outcome) -> None:
        self._worker.heartbeat.release(call)
        self._outcomes.append((call, outcome))

    def _report(self, end: Callable[[VisitCall, Outcome], None]) -> None:
        while self._outcomes:
            end(*self._outcomes.popleft())


class Groups:
    """Runs the groups of a worker process, one after another, and watches for long visits."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._current: VisitGroup | None = None
        self._watched = threading.Event()
        threading.Thread(target=self._watch, name="groups", daemon=True).start()

    def run(
        self,
        calls: Sequence[VisitCall],
        more: Callable[[], Sequence[VisitCall]],
        end: Callable[[VisitCall, Outcome], None],
    ) -> None:
        """As VisitGroup.run."""
        self._current = group = VisitGroup(self._worker)
        if not self._watched.is_set():
            self._watched.set()
        try:
            group.run(calls, more, end)
        finally:
            self._current = None

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            self._watched.wait()
            pause.wait(LONG_S)
            group = self._current
            if group is None:
                self._watched.clear()
                if self._current is not None:  # it began meanwhile
                    self._watched.set()
                continue
            try:
                group.relieve()
            except Exception:
                # The thread must outlive any single failure: without it a long visit holds up its group.
                structlog.get_logger().exception("a group cannot be relieved; repeating")
