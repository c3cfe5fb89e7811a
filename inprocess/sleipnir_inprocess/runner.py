"""Drives one run to its end, or to its open questions: plan an event, commit it, execute the visits that it starts.

The planner and the executors are those of the fleet. One visit is executed in the caller's thread; several visits of
one commit are executed in threads.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from sleipnir.graph.model import Graph
from sleipnir.memory.store import Entry, MemoryRun, MemoryStore
from sleipnir.messages import ResultHeader, VisitCall, VisitResult
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Visit
from sleipnir_scheduler.planner.plan import IgnoredEvent, NeedValues, plan

Execute = Callable[[VisitCall, dict[str, str]], tuple[VisitResult, dict[str, str]]]
"""Executes a claimed visit with its state: the result, and the JSON texts that it writes."""

Committed = Callable[[Entry, Transition, MemoryRun], None]
"""Called after each commit."""


@dataclass
class Runner:
    """One run. `watch` is called after each commit, in the caller's thread."""

    store: MemoryStore
    run_id: str
    graph: Graph
    execute: Execute
    watch: Committed | None = None
    threads: int = 8
    _pool: ThreadPoolExecutor | None = None
    _running: dict[Future[Any], VisitCall] = field(default_factory=dict)

    @property
    def run(self) -> MemoryRun:
        return self.store.runs[self.run_id]

    def drive(self) -> None:
        """Go on until the run is over or only waits for answers. An interrupt of the process passes through."""
        try:
            for _ in self.steps():
                pass
        finally:
            self.close()

    def steps(self) -> Iterator[None]:
        """The same, one commit at a time."""
        while True:
            if self.store.inbox:
                self._start(self._apply(self.store.inbox.popleft()))
                yield
            elif self._running:
                self._collect()
            elif not self._wait_for_timer():
                return

    def close(self) -> None:
        """Let running visits end, and forget them."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _apply(self, entry: Entry) -> tuple[Visit, ...]:
        """Plan and commit one event. Returns the visits to execute."""
        run, delta = self.run, self.store.delta_of(entry)
        outcome = plan(self.graph, run.view, entry.event, entry.at_ms)
        while isinstance(outcome, NeedValues):
            outcome = plan(self.graph, run.view, entry.event, entry.at_ms, run.values.known(outcome.wanted, delta))
        if isinstance(outcome, IgnoredEvent):
            return ()
        visits = self.store.commit(entry, outcome)
        if self.watch is not None:
            self.watch(entry, outcome, run)
        return visits

    def _start(self, visits: Sequence[Visit]) -> None:
        spec = self.run.view.spec
        for visit in visits:
            call = VisitCall(self.run_id, visit.node, visit.seq, visit.attempt, spec.agent, spec.bundle, visit.role)
            if len(visits) == 1 and not self._running:
                self._execute(call)
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="sleipnir-visit")
            state = self.store.claim(call)
            if state is not None:
                context = contextvars.copy_context()
                self._running[self._pool.submit(context.run, self.execute, call, state)] = call

    def _execute(self, call: VisitCall) -> None:
        state = self.store.claim(call)
        if state is not None:
            self._deliver(call, *self.execute(call, state))

    def _collect(self) -> None:
        """Deliver the results of the visits that have ended; waits for the first one."""
        until_s = self._next_timer_s()
        ended, _ = wait(self._running, timeout=until_s, return_when=FIRST_COMPLETED)
        for future in ended:
            self._deliver(self._running.pop(future), *future.result())
        if not ended:
            self.store.fire_due(self.run_id, now_ms())

    def _deliver(self, call: VisitCall, result: VisitResult, values: dict[str, str]) -> None:
        header = ResultHeader.of(result, worker="", started_ms=0, took_ms=0)
        self.store.deliver(call, header, values, now_ms())

    def _next_timer_s(self) -> float | None:
        due_ms = min(self.run.timers.values(), default=None)
        return None if due_ms is None else max(0.0, (due_ms - now_ms()) / 1000)

    def _wait_for_timer(self) -> bool:
        """Wait for the next timer, unless the run is over or waits for an answer. Whether there is more to do."""
        run = self.run
        if run.view.is_final or run.gates:
            return False
        due_s = self._next_timer_s()
        if due_s is None:
            return False
        time.sleep(due_s)
        self.store.fire_due(self.run_id, now_ms())
        return True


def now_ms() -> int:
    return time.time_ns() // 1_000_000
