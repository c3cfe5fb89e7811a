"""The records of runs in memory: the operations of the store in Redis that the scheduler, the workers and the client
use, with the same meaning, for one process.

A claim takes a lease that never lapses: the process that executes the visit is the one that keeps the record.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sleipnir.memory.values import RunValues, Texts
from sleipnir.messages import ResultHeader, VisitCall, overlay_of
from sleipnir.runs.events import RUN_DEADLINE, Answered, Cancelled, Continued, Event, Resulted, Submitted, TimerFired
from sleipnir.runs.run import Gate, RunSpec, RunView
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Visit, Work


@dataclass
class MemoryRun:
    """One run: its view for the planner, its values, its open questions and timers, and how it ended. `deltas` are the
    delivered results that are not applied yet, by visit and attempt."""

    view: RunView
    values: RunValues
    gates: dict[int, Gate] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    deltas: dict[tuple[int, int], Texts] = field(default_factory=dict)
    output: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Entry:
    """An event of a run, in the order of their arrival; `at_ms` is the planner's clock."""

    run: str
    event: Event
    at_ms: int


class MemoryStore:
    """Runs by their ids, and the inbox of events that nobody has planned yet."""

    def __init__(self) -> None:
        self.runs: dict[str, MemoryRun] = {}
        self.inbox: deque[Entry] = deque()

    def create(
        self, run_id: str, spec: RunSpec, state: Texts, now_ms: int, deadline_ms: int | None = None
    ) -> MemoryRun:
        """Accept a run. `deadline_ms`: when its `timeout` is over."""
        run = self.runs[run_id] = MemoryRun(RunView(run_id, spec), RunValues(state))
        if deadline_ms is not None:
            run.timers[RUN_DEADLINE] = deadline_ms
        self.inbox.append(Entry(run_id, Submitted(), now_ms))
        return run

    def claim(self, call: VisitCall) -> dict[str, str] | None:
        """The state of a queued visit, with its overlay. None: the visit is over, or another attempt owns it."""
        run = self.runs.get(call.run)
        visit = run.view.frontier.get(call.seq) if run is not None else None
        if run is None or visit is None or visit.attempt != call.attempt or not isinstance(visit.body, Work):
            return None
        overlay = run.values.items.get(visit.overlay, "") if visit.overlay else ""
        if visit.role in ("reduce",):
            return overlay_of(overlay)
        return {**run.values.state, **overlay_of(overlay)} if overlay else dict(run.values.state)

    def deliver(self, call: VisitCall, header: ResultHeader, values: Texts, now_ms: int) -> None:
        """Take the result of a visit."""
        self.runs[call.run].deltas[call.seq, call.attempt] = values
        self.inbox.append(Entry(call.run, Resulted(call.seq, call.attempt, header), now_ms))

    def answer(self, run_id: str, gate: Gate, text: str, now_ms: int, by: str = "") -> None:
        """Answer an open question."""
        self.inbox.append(Entry(run_id, Answered(gate.seq, text, gate.attempt, by), now_ms))

    def cancel(self, run_id: str, now_ms: int) -> None:
        self.inbox.append(Entry(run_id, Cancelled(), now_ms))

    def delta_of(self, entry: Entry) -> Texts:
        """The delivered result that an event is about."""
        event = entry.event
        return self.runs[entry.run].deltas.get((event.seq, event.attempt), {}) if isinstance(event, Resulted) else {}

    def commit(self, entry: Entry, transition: Transition) -> tuple[Visit, ...]:
        """Apply a transition. Returns the visits to execute."""
        run = self.runs[entry.run]
        event = entry.event
        delta = run.deltas.pop((event.seq, event.attempt), {}) if isinstance(event, Resulted) else {}
        run.values.apply(transition, delta)
        run.view = transition.apply(run.view)
        if transition.output is not None:
            run.output = transition.output
        if transition.error is not None:
            run.error = transition.error
        if transition.timers:
            run.timers |= transition.timers
        for name in transition.untimers:
            run.timers.pop(name, None)
        for gate in transition.gates:
            run.gates[gate.seq] = gate
        if run.gates:
            run.gates = {seq: gate for seq, gate in run.gates.items() if seq in run.view.frontier}
        if transition.continues:
            self.inbox.append(Entry(entry.run, Continued(), entry.at_ms))
        return transition.dispatches

    def fire_due(self, run_id: str, now_ms: int) -> int | None:
        """Post the timers of a run that are due. Returns the time of the next one; None: there is none."""
        timers = self.runs[run_id].timers
        for name in [name for name, due_ms in timers.items() if due_ms <= now_ms]:
            del timers[name]
            self.inbox.append(Entry(run_id, TimerFired(name), now_ms))
        return min(timers.values(), default=None)
