"""Drives one run, with the runs that it starts, to its end, or to its open questions: plan an event, commit it, deliver
its effects, execute the visits that it starts.

The planner and the executors are those of the fleet. One visit is executed in the caller's thread; several visits of
one commit are executed in threads.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sleipnir.graph.model import FunctionNode, Graph, ScriptNode
from sleipnir.memory.store import Begin, Entry, MemoryRun, MemoryStore, no_children
from sleipnir.messages import ResultHeader, Role, VisitCall, VisitResult
from sleipnir.runs.claims import Claim, ClaimRefused
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Backoff, Delay, Question, Receipt, SignalWait, Work
from sleipnir_inprocess.clocks import RealClock, RunClock
from sleipnir_scheduler.planner.plan import IgnoredEvent, NeedValues, plan
from sleipnir_workers.execution.execution import ProcessLost
from sleipnir_workers.processes import descendants

Executed = tuple[VisitResult, dict[str, str]] | None
"""The result of a visit, and the JSON texts that it writes. None: the visit was lost."""

Execute = Callable[[VisitCall, Claim, threading.Event], Executed]
"""Executes a claimed visit; the event is set when the visit is lost. Raises ProcessLost."""

Committed = Callable[[Entry, Transition, MemoryRun], None]
"""Called after each commit."""

READ_NOTHING: tuple[Role, ...] = ("reduce", "summary")
"""Roles that read only the overlay of their visit."""


@dataclass
class Runner:
    """One run and the runs below it. `watch` is called after each commit, in the caller's thread.

    `graph_of` is the graph of a run; `begin` makes the runs that it starts. With `inline` a single visit is executed in
    the caller's thread. Questions keep the run waiting unless they have a time limit and `expire`. With `look_s`,
    `steps` also yields every so often while visits are executed; with `looks`, after each call of `look`.
    """

    store: MemoryStore
    run_id: str
    graph_of: Callable[[RunSpec], Graph]
    execute: Execute
    watch: Committed | None = None
    begin: Begin = no_children
    clock: RunClock = field(default_factory=RealClock)
    threads: int = 8
    inline: bool = True
    expire: bool = False
    started: Callable[[VisitCall, Claim], None] | None = None
    """Called in the caller's thread before a visit is executed, in the order of the visits."""
    look_s: float | None = None
    looks: bool = False
    goes_on: bool = False
    """Whether the run was driven before: visits that were not executed, or not to their end, are executed first."""
    _look: Future[None] = field(default_factory=Future)
    """Done when `look` was called since the last yield."""
    _pool: ThreadPoolExecutor | None = None
    _never_lost: threading.Event = field(default_factory=threading.Event)
    """Of visits in the caller's thread, which nothing can stop."""
    _running: dict[Future[Executed], tuple[VisitCall, Claim, threading.Event]] = field(default_factory=dict)

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
        """The same, one commit at a time; the visits that a commit starts are executed after it is yielded."""
        if self.goes_on:
            self.goes_on = False
            self.start(self._left())
        while True:
            if self.store.inbox:
                calls = self.advance()
                yield
                self.start(calls)
            elif self._running:
                self._collect()
                if self.look_s is not None or self.looks:
                    yield
            elif not self._wait_for_timer():
                return

    def close_step(self) -> None:
        """Go on until the open super-step has closed; nothing of the next one is executed."""
        number = self.run.view.steps
        while self.store.inbox:
            calls = self.advance()
            if self.run.view.steps == number:
                self.start(calls)

    def look(self) -> None:
        """Let `steps` yield soon; from any thread."""
        with suppress(InvalidStateError):  # it was called before
            self._look.set_result(None)

    def close(self) -> None:
        """Stop running visits, and wait for their end."""
        for _, _, lost in self._running.values():
            lost.set()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._running.clear()
        descendants.resign()

    def advance(self) -> list[VisitCall]:
        """Plan and commit the next event, and deliver the effects of that. Returns the visits to execute."""
        calls = self._apply(self.store.inbox[0])
        self.store.inbox.popleft()  # not before: after an interrupt of the process it is planned again
        if self.store.effects:
            self.store.deliver_effects(self.begin)
        return calls

    def _apply(self, entry: Entry) -> list[VisitCall]:
        run, delta = self.store.runs[entry.run], self.store.delta_of(entry)
        graph = self.graph_of(run.view.spec)
        outcome = plan(graph, run.view, entry.event, entry.at_ms)
        while isinstance(outcome, NeedValues):
            outcome = plan(graph, run.view, entry.event, entry.at_ms, run.values.known(outcome.wanted, delta))
        if isinstance(outcome, IgnoredEvent):
            self.store.discard(entry, outcome.notice)
            return []
        visits = self.store.commit(entry, outcome)
        if visits is None:
            self.store.discard(entry)
            return []
        if self._running:
            self._stop_lost(entry.run)
        if self.watch is not None:
            self.watch(entry, outcome, run)
        spec = run.view.spec
        return [
            VisitCall(entry.run, visit.node, visit.seq, visit.attempt, spec.agent, spec.bundle, visit.role)
            for visit in visits
        ]

    def _stop_lost(self, run_id: str) -> None:
        """Stop the visits of a run that a commit has closed."""
        view = self.store.runs[run_id].view
        for call, _, lost in self._running.values():
            if call.run == run_id:
                visit = view.frontier.get(call.seq)
                if view.is_final or visit is None or visit.attempt != call.attempt:
                    lost.set()

    def _left(self) -> list[VisitCall]:
        """The visits that are to be executed, and not claimed. Those whose execution was left are handed back."""
        run, calls = self.run, []
        spec = run.view.spec
        for visit in run.view.frontier.values():
            if not isinstance(visit.body, Work):
                continue
            call = VisitCall(self.run_id, visit.node, visit.seq, visit.attempt, spec.agent, spec.bundle, visit.role)
            if run.claims.get(visit.seq) != visit.attempt:
                calls.append(call)
            elif (visit.seq, visit.attempt) not in run.deltas:
                self.store.hand_back(call)
        return calls

    def start(self, calls: Sequence[VisitCall]) -> None:
        """Execute these visits: one in the caller's thread, several in others."""
        is_single = self.inline and len(calls) == 1 and not self._running and not self._reads_stream(calls[0])
        for call in calls:
            claim = self.store.claim(call, () if call.role in READ_NOTHING else None)
            if isinstance(claim, ClaimRefused):
                continue
            if self.started is not None:
                self.started(call, claim)
            if is_single:
                self._finish(call, claim, partial(self.execute, call, claim, self._never_lost))
                return
            lost = threading.Event()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="sleipnir-visit")
            context = contextvars.copy_context()
            self._running[self._pool.submit(context.run, self.execute, call, claim, lost)] = call, claim, lost

    def _reads_stream(self, call: VisitCall) -> bool:
        """Whether the visit waits for another one, perhaps of a run below, which must go on meanwhile."""
        node = self.graph_of(self.store.runs[call.run].view.spec).nodes[call.node]
        return isinstance(node, ScriptNode | FunctionNode) and node.stream_input is not None

    def _collect(self) -> None:
        """Deliver the results of the visits that have ended; waits for the first one, or for a timer."""
        due_ms = self.store.fire_due()
        if self.store.inbox:  # it is planned first: what is running may wait for it
            return
        until_s = None if due_ms is None else max(0.0, (due_ms - self.clock.now_ms()) / 1000)
        if self.look_s is not None:
            until_s = self.look_s if until_s is None else min(until_s, self.look_s)
        watched: list[Future[Any]] = [*self._running, self._look] if self.looks else [*self._running]
        done, _ = wait(watched, timeout=until_s, return_when=FIRST_COMPLETED)
        if self._look in done:
            self._look = Future()  # before the yield: what is passed on later is seen by the next wait
        ended = [future for future in self._running if future in done]
        for future in ended:
            call, claim, _ = self._running.pop(future)
            self._finish(call, claim, future.result)
        if not ended:
            self.store.fire_due()

    def _finish(self, call: VisitCall, claim: Claim, outcome: Callable[[], Executed]) -> None:
        """Deliver the result of an execution."""
        try:
            executed = outcome()
        except ProcessLost:
            self.store.hand_back(call)
            return
        if executed is not None:
            result, values = executed
            took_ms = self.clock.now_ms() - claim.started_ms
            header = ResultHeader.of(result, worker="", started_ms=claim.started_ms, took_ms=took_ms)
            self.store.deliver(call, header, values)

    def _wait_for_timer(self) -> bool:
        """Wait for the next timer, unless the run is over, held or waits for an answer. Whether there is more to do."""
        if self.run.view.is_final or self.run.view.is_held:
            return False
        due_ms = self.store.fire_due()
        if self.store.inbox:
            return True
        if self.store.gates_below(self.run_id) or any(run.view.is_held for run in self.store.runs.values()):
            due_ms = min(self._delays(), default=None)
        if due_ms is None:
            return False
        self.clock.wait_until(due_ms)
        self.store.fire_due()
        return True

    def _delays(self) -> Iterator[int]:
        """When visits go on that wait for no person and no other run; and when questions expire, if they may."""
        bodies = (Backoff, Delay, Receipt, *((Question, SignalWait) if self.expire else ()))
        for run in self.store.runs.values():
            for visit in run.view.frontier.values():
                if isinstance(visit.body, bodies) and visit.body.due_ms is not None:
                    yield visit.body.due_ms
