"""The records of runs in memory: the operations of the store in Redis that the scheduler, the workers and the client
use, with the same meaning, for one process.

A claim takes a lease that never lapses: the process that executes the visit is the one that keeps the record. Nothing
expires. Effects are delivered between the runs of one store (deliver_effects).
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sleipnir.errors import GateError, RunNotFound, SleipnirError, UsageError
from sleipnir.memory.shared_values import OF_PROCESS, MemoryValues
from sleipnir.memory.signals import MemorySignals
from sleipnir.memory.signals import Told as SignalTold
from sleipnir.memory.slots import MemorySlots
from sleipnir.memory.values import RunValues, Texts, json_text
from sleipnir.messages import CHILD, FINAL, RESULT, ResultHeader, RunStatus, VisitCall, overlay_of
from sleipnir.runs.child_run import MOST_RETURNED, child_text, wanted_keys
from sleipnir.runs.claims import Claim, ClaimRefused
from sleipnir.runs.events import (
    SIGNALLED,
    Answered,
    Cancelled,
    ChildEnded,
    ChildGone,
    Continued,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Skipped,
    Submitted,
    TimerFired,
    Told,
)
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.interrupts import INTERRUPT
from sleipnir.runs.run import NO_FAILED_VISITS, Gate, RunSpec, RunView, changed
from sleipnir.runs.shared_values import names_of
from sleipnir.runs.signals import Signalled, new_id
from sleipnir.runs.transitions import (
    AskSlot,
    AwaitSignal,
    DeclineSignal,
    Effect,
    FreeSlot,
    LeaveSignal,
    Notice,
    RetryChild,
    ShareValues,
    StartChild,
    TellChild,
    TellParent,
    TellRoot,
    TellRun,
    Transition,
)
from sleipnir.runs.views import ChildInfo, GateInfo, RunEvent, RunInfo, SlotInfo, hold_info
from sleipnir.runs.visits import Failure, SignalWait, Visit, Work

MOST_EVENTS: Final = 1_000
"""Of a run for watchers; older ones are dropped, as in Redis."""

Begin = Callable[[str, RunSpec, StartChild], tuple[RunSpec, Mapping[str, Any]]]
"""The spec and the first state of a child: of a parent's id and spec, and the effect. Raises SleipnirError."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def no_children(parent: str, spec: RunSpec, effect: StartChild) -> tuple[RunSpec, Mapping[str, Any]]:
    """Begin of a store whose runs start no agents."""
    raise SleipnirError(f"there was no agent {effect.agent!r} when the run was submitted")


@dataclass
class MemoryRun:
    """One run: its view for the planner, its values, its open questions and timers, and how it ended.

    `deltas` are the delivered results that are not applied yet, by visit and attempt; `claims` the claimed attempts by
    visit, `seen` the last journal steps at that time; `answers` the texts that open questions were answered with.
    `waiting` is the visit of its parent, and its attempt, that waits for it. A run that is `retrying` was asked to go
    on, and the planner has not done it yet; a run that is over `keeps` what a retry needs, or not.
    """

    view: RunView
    values: RunValues
    created_ms: int = 0
    gates: dict[int, Gate] = field(default_factory=dict)
    answers: dict[int, str] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    deltas: dict[tuple[int, int], Texts] = field(default_factory=dict)
    events: deque[RunEvent] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    children: dict[str, ChildInfo] = field(default_factory=dict)
    waiting: tuple[int, int] = (0, 0)
    ended_ms: int | None = None
    output: str | None = None
    error: str | None = None
    failure: Failure | None = None
    stopped_by: str | None = None
    retries: int = 0
    retrying: bool = False
    keeps: bool = True

    @property
    def status(self) -> RunStatus:
        """Its status; a run that is asked to go on counts as running."""
        return "running" if self.retrying and self.view.is_final else self.view.status

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


@dataclass(frozen=True)
class Entry:
    """An event of a run, in the order of their arrival; `at_ms` is the planner's clock."""

    run: str
    event: Event
    at_ms: int


class MemoryStore:
    """Runs by their ids, the inbox of events that are not planned yet, and the undelivered effects of commits.

    `clock` gives the time in milliseconds since the epoch; `shared` has the shared values that runs write back.
    """

    def __init__(self, clock: Callable[[], int] = now_ms, shared: MemoryValues = OF_PROCESS) -> None:
        self.clock, self._shared = clock, shared
        self.runs: dict[str, MemoryRun] = {}
        self.inbox: deque[Entry] = deque()
        self.effects: deque[tuple[str, Effect]] = deque()
        self.called: dict[str, dict[Any, Any]] = {}
        """By run, what the process that executes it keeps of the graphs that its nodes have called."""
        self._slots, self._signals = MemorySlots(), MemorySignals()
        self._event_ids = itertools.count(1)

    def run(self, run_id: str) -> MemoryRun:
        """Raises RunNotFound."""
        if run_id not in self.runs:
            raise RunNotFound(f"no run {run_id!r}")
        return self.runs[run_id]

    # Clients

    def create(self, run_id: str, spec: RunSpec, state: Texts) -> bool:
        """Accept a run. False: it exists already, and nothing changes."""
        if run_id in self.runs:
            return False
        self.runs[run_id] = MemoryRun(RunView(run_id, spec), RunValues(state, spec.scopes), self.clock())
        self._post(run_id, Submitted())
        return True

    def adopt(self, view: RunView, state: Texts, items: Texts) -> None:
        """Have a run that is in the middle of its graph, with this state and values of single visits. Its visits that
        are ready start with the next event."""
        run = self.runs[view.id] = MemoryRun(view, RunValues(state, view.spec.scopes), self.clock())
        run.values.items |= items
        if not run.is_final:
            self._post(view.id, Continued())

    def gates(self, run_id: str) -> list[GateInfo]:
        """The unanswered questions of a run, by the number of their visit."""
        run = self.run(run_id)
        path = tuple(run.view.spec.path)
        return [
            GateInfo.of(run_id, g, path)
            for g in sorted(run.gates.values(), key=lambda gate: gate.seq)
            if g.seq not in run.answers
        ]

    def gates_below(self, run_id: str) -> list[GateInfo]:
        """The open questions of a run and of all runs below it, in the order in which they were asked."""
        runs, at = [run_id], 0
        while at < len(runs):
            runs += [child for child in self.run(runs[at]).children if child in self.runs]
            at += 1
        gates = (gate for run in runs if not self.runs[run].is_final for gate in self.gates(run))
        return sorted(gates, key=lambda gate: gate.opened_ms)

    def answer(self, run_id: str, seq: int, text: str, attempt: int = 1, by: str = "") -> None:
        """Answer the question that this attempt of a visit asks. The program that runs it answers, so the rules of who
        may do not apply. Raises GateError if there is none, or if it was answered with another text."""
        run = self.run(run_id)
        gate = run.gates.get(seq)
        if gate is None or gate.attempt != attempt:
            if run.is_final:
                raise GateError(f"run {run_id!r} is {run.status}; its question {seq} needs no answer any more")
            raise GateError(f"run {run_id!r} has no open question {seq}: it was answered, or has expired")
        if seq in run.answers:
            if run.answers[seq] != text:
                raise GateError(f"question {seq} of run {run_id!r} was already answered with {run.answers[seq]!r}")
            return
        if isinstance(run.view.frontier[seq].body, SignalWait):
            self._post(run_id, Told(SIGNALLED, vars(self._signal_for(gate, text))))
            return
        run.answers[seq] = text
        self._post(run_id, Answered(seq, text, attempt, by, checked=True))

    def signal(self, name: str, id_: str, data: str) -> int:
        """Send a signal, with data as JSON text. Returns how many waiting visits it has reached."""
        told = self._signals.send(name, id_, data, self.clock())
        for run_id, signal in told:
            self._post_unfinished(run_id, Told(SIGNALLED, vars(signal)))
        return len(told)

    def cancel(self, run_id: str, by: str = "") -> None:
        """Raises RunNotFound, or UsageError if the run is over."""
        self._ask_unfinished(run_id, Cancelled(by=by), "cancel")

    def pause(self, run_id: str, by: str = "", reason: str | None = None, *, timeout_ms: int | None = None) -> None:
        """Raises RunNotFound, or UsageError if the run is over."""
        self._ask_unfinished(run_id, Paused(by, reason, "person", timeout_ms), "pause")

    def resume(self, run_id: str, by: str = "") -> None:
        """Raises RunNotFound, or UsageError if the run is over."""
        self._ask_unfinished(run_id, Resumed("person", by), "resume")

    def pass_breakpoints(self) -> bool:
        """Resume the runs that are at a breakpoint. False: there is none."""
        stopped = [run_id for run_id, run in self.runs.items() if run.view.is_at_breakpoint]
        for run_id in stopped:
            self.resume(run_id)
        return bool(stopped)

    def retry(self, run_id: str, *, fresh_children: bool = False, by: str = "") -> None:
        """Let a failed run go on. Raises RunNotFound, or UsageError if it did not fail."""
        run = self.run(run_id)
        if run.retrying:
            raise UsageError(f"run {run_id!r} is already being retried")
        if run.view.status != "failed":
            raise UsageError(f"run {run_id!r} is {run.view.status}; only a failed run can be retried")
        run.retrying = True
        self._post(run_id, Retried(fresh_children, by))

    def skip(
        self, run_id: str, seq: int, value: Any, to: Sequence[str] = (), *, by: str = "", reason: str | None = None
    ) -> None:
        """Let a visit end with an output; a failed run goes on then. Raises RunNotFound, or UsageError if the run is
        over, or is about to go on already."""
        run = self.run(run_id)
        if run.retrying:
            raise UsageError(f"run {run_id!r} is being retried or skipped already")
        if run.view.status in ("completed", "cancelled"):
            raise UsageError(f"run {run_id!r} is {run.view.status}; nothing to skip")
        run.retrying = run.view.is_final
        self._post(run_id, Skipped(seq, value, tuple(to), by, reason))

    def _ask_unfinished(self, run_id: str, event: Event, verb: str) -> None:
        if (status := self.run(run_id).status) in FINAL:
            raise UsageError(f"run {run_id!r} is already {status}; nothing to {verb}")
        self._post(run_id, event)

    def info(self, run_id: str) -> RunInfo:
        """The run without its live visits. Raises RunNotFound."""
        run = self.run(run_id)
        view, spec, slot = run.view, run.view.spec, run.view.slot
        budget = view.budget or spec.budget
        return RunInfo(
            id=run_id,
            agent=spec.agent,
            status=run.status,
            created_ms=run.created_ms,
            started_ms=view.started_ms or None,
            ended_ms=run.ended_ms,
            error=run.error,
            failure=run.failure,
            step=view.step,
            usage=run.values.usage,
            parent=spec.parent,
            root=spec.root,
            event_scope=spec.event_scope,
            retries=run.retries,
            slot=None if slot is None else SlotInfo(slot.key, slot.limit, slot.granted),
            max_cost_usd=None if budget is None else budget.max_cost_usd,
            max_tokens=None if budget is None else budget.max_tokens,
            overrides=spec.of_nodes,
            stopped_by=run.stopped_by if run.status == "completed" else None,
            failed_visits=view.failed_visits,
            cached_visits=view.cached_visits,
            holds=() if view.is_final else tuple(map(hold_info, view.holds)),
        )

    # Workers

    def claim(self, call: VisitCall, wanted: Collection[str] | None = None) -> Claim | ClaimRefused:
        """Take a visit, and read its state: the `wanted` keys (None: all of them), and its overlay."""
        run = self.runs.get(call.run)
        visit = run.view.frontier.get(call.seq) if run is not None else None
        if run is None or visit is None:
            return ClaimRefused("gone")
        if visit.attempt != call.attempt:
            return ClaimRefused("stale")
        if not isinstance(visit.body, Work):
            return ClaimRefused("gone")
        if (visit.node, visit.role) != (call.node, call.role):
            return ClaimRefused("forged")
        if run.claims.get(call.seq) == call.attempt:
            return ClaimRefused("taken")
        if run.view.status == "paused":
            return ClaimRefused("paused")
        run.claims[call.seq], run.seen[call.seq] = call.attempt, run.view.step
        part, item = visit.part, visit.item
        is_of_run = call.role in ("before_run", "after_run")
        if item is None and part is None and not is_of_run:  # maps and loops report their progress
            self._tell(
                run, "visit_started", {"seq": call.seq, "node": call.node, "attempt": call.attempt, "worker": ""}
            )
        values = run.values
        sees = visit.body.sees
        seen = values.state if sees is None else values.state_after(sees)
        overlay = values.items.get(visit.overlay, "") if visit.overlay else ""
        state = seen if wanted is None else {key: seen[key] for key in wanted if key in seen}
        state = {**state, **overlay_of(overlay)} if overlay else dict(state)
        talk, view = values.talk(visit), run.view
        work = visit.body
        tries = work.failures, work.input_changed
        return Claim(view.spec, self.clock(), state, item, part, talk, visit.depth, view.limited_from, *tries)

    def deliver(self, call: VisitCall, header: ResultHeader, values: Texts) -> bool:
        """Take the result of a visit, once. False: refused, the visit is over or another attempt owns it."""
        run = self.runs.get(call.run)
        visit = run.view.frontier.get(call.seq) if run is not None else None
        if run is None or visit is None or not call.attempt == visit.attempt == run.claims.get(call.seq):
            if run is not None:
                late = {"seq": call.seq, "node": call.node, "attempt": call.attempt, "worker": header.worker}
                self._tell(run, "late_result", late)
            return False
        if (call.seq, call.attempt) in run.deltas:
            return True
        run.deltas[call.seq, call.attempt] = values
        self._post(call.run, Resulted(call.seq, call.attempt, header))
        return True

    def hand_back(self, call: VisitCall) -> bool:
        """Return a visit whose executor was lost. False: it is not claimed any more."""
        run = self.runs.get(call.run)
        if run is None or run.claims.pop(call.seq, None) != call.attempt:
            return False
        self._post(call.run, LeaseLost(call.seq, call.attempt, "", handed_back=True))
        return True

    # The planner

    def delta_of(self, entry: Entry) -> Texts:
        """The delivered result that an event is about."""
        event = entry.event
        if isinstance(event, Resulted | ChildEnded):
            return self.runs[entry.run].deltas.get((event.seq, event.attempt), {})
        return {}

    def commit(self, entry: Entry, transition: Transition) -> tuple[Visit, ...] | None:
        """Apply a transition. Returns the visits to execute; None: nothing was applied, because one of the visits to
        close is claimed, or its question answered, and the transition is only for the other case."""
        run = self.runs[entry.run]
        if transition.unless_claimed and any(run.claims.get(each.seq) == each.attempt for each in transition.close):
            return None
        if transition.unless_answered and any(each.seq in run.answers for each in transition.close):
            return None
        was_final = run.view.is_final
        delta = self.delta_of(entry)
        if transition.delivered is not None:
            self._forget_delta(run, entry.event)
        run.values.apply(transition, delta)
        run.view = transition.apply(run.view)
        for visit in transition.close:
            run.claims.pop(visit.seq, None)
            run.seen.pop(visit.seq, None)
        for seqs in transition.gone.values():
            for seq in seqs:
                run.claims.pop(seq, None)
                run.seen.pop(seq, None)
        self._commit_record(run, transition)
        for notice in transition.notices:
            self._tell(run, notice.type, notice.data)
        for effect in transition.effects:
            if isinstance(effect, StartChild | RetryChild):
                run.children[effect.child] = ChildInfo(effect.child, effect.agent, effect.seq)
            self.effects.append((entry.run, effect))
        for scope, keys in run.values.taken_unshared().items() if run.values.unshared else ():
            self.effects.append((entry.run, ShareValues(scope, keys)))
        if transition.continues:
            self._post(entry.run, Continued())
        if transition.stops:
            self._stop_visits(entry.run, run)
        if run.view.is_final and (transition.revives or not was_final):
            self._close(run, keeps=transition.keeps or run.view.status == "failed")
        return transition.dispatches

    def _stop_visits(self, run_id: str, run: MemoryRun) -> None:
        """Take the claimed visits whose results are not there from their executors."""
        for seq, attempt in list(run.claims.items()):
            if (seq, attempt) not in run.deltas:
                del run.claims[seq]
                lost = LeaseLost(seq, attempt, "", handed_back=True, stopped=True, seen=run.seen[seq])
                self._post(run_id, lost)

    def _commit_record(self, run: MemoryRun, transition: Transition) -> None:
        if transition.revives:
            run.retries += run.ended_ms is not None and not run.view.is_final
            run.ended_ms, run.error, run.failure, run.retrying, run.keeps = None, None, None, False, True
        for name in ("ended_ms", "output", "error", "failure", "stopped_by"):
            if (value := getattr(transition, name)) is not None:
                setattr(run, name, value)
        if transition.timers:
            run.timers |= transition.timers
        for name in transition.untimers:
            run.timers.pop(name, None)
        if run.gates:
            run.gates = {seq: gate for seq, gate in run.gates.items() if _still_asks(run.view, gate)}
            run.answers = {seq: text for seq, text in run.answers.items() if seq in run.gates}
        for gate in transition.gates:
            run.gates[gate.seq] = gate
            run.answers.pop(gate.seq, None)
        for visit in transition.open:
            if isinstance(visit.body, SignalWait):
                self._ask_for_signal(run, visit, visit.body)

    def _close(self, run: MemoryRun, *, keeps: bool) -> None:
        """Drop what a run needs no more that is over."""
        run.keeps = keeps
        for records in (run.claims, run.gates, run.answers, run.deltas):
            records.clear()
        if not keeps:
            run.values.items.clear()
            run.values.windows.clear()
            run.view = changed(run.view, frontier=Frontier.of({}))

    def discard(self, entry: Entry, notice: Notice | None = None) -> None:
        """Drop an event that changes nothing."""
        if (run := self.runs.get(entry.run)) is None:
            return
        self._forget_delta(run, entry.event)
        if notice is not None:
            self._tell(run, notice.type, notice.data)

    def _forget_delta(self, run: MemoryRun, event: Event) -> None:
        if isinstance(event, Resulted | ChildEnded):
            run.deltas.pop((event.seq, event.attempt), None)

    def fire_due(self) -> int | None:
        """Post the timers that are due, in order of time. Returns the time of the next one; None: there is none."""
        timers = [(due_ms, run_id, name) for run_id, run in self.runs.items() for name, due_ms in run.timers.items()]
        if not timers:
            return None
        now, timers = self.clock(), sorted(timers)
        for due_ms, run_id, name in timers:
            if due_ms > now:
                return due_ms
            del self.runs[run_id].timers[name]
            self._post(run_id, TimerFired(name))
        return None

    # Effects

    def deliver_effects(self, begin: Begin = no_children) -> None:
        """Deliver the effects of commits, in order."""
        while self.effects:
            self._deliver(*self.effects.popleft(), begin)

    def _deliver(self, run_id: str, effect: Effect, begin: Begin) -> None:
        match effect:
            case StartChild():
                self._start_child(run_id, effect, begin)
            case RetryChild():
                self._retry_child(run_id, effect)
            case TellChild(child, what, by, keeps, due_ms):
                self._post_unfinished(child, _passed_on(what, by or f"run {run_id}", due_ms, keeps=keeps))
            case TellRun(to, what, data):
                self._post_unfinished(to, Told(what, data))
            case TellRoot(type_, data):
                root = self.runs[run_id].view.spec.root
                if root in self.runs:
                    self._tell(self.runs[root], type_, data)
            case TellParent():
                self._tell_parent(run_id)
            case AskSlot(agent, key, limit, ticket):
                self._grant(self._slots.ask((agent, key), (run_id, ticket), limit))
            case FreeSlot(agent, key, ticket):
                self._grant(self._slots.free((agent, key), (run_id, ticket)))
            case AwaitSignal():
                self._signal(self._signals.await_(run_id, effect))
            case LeaveSignal():
                self._signal(self._signals.leave(run_id, effect))
            case DeclineSignal():
                self._signal(self._signals.decline(run_id, effect))
            case ShareValues(scope, keys):
                run = self.runs[run_id]
                [name] = (each for each in names_of(run.view.spec) if each.scope == scope)
                self._shared.write(name, {key[len(scope) :]: run.values.state[key] for key in keys})
            case _:
                raise AssertionError(f"no run in memory is a row of a batch, so none owes {effect}")

    def _start_child(self, parent: str, effect: StartChild, begin: Begin) -> None:
        if effect.child in self.runs:
            return
        try:
            spec, state = begin(parent, self.runs[parent].view.spec, effect)
        except SleipnirError as error:
            self._post(parent, ChildEnded(effect.seq, effect.attempt, effect.child, "refused", str(error)))
            return
        self.create(effect.child, spec, {key: json_text(value) for key, value in state.items()})

    def _retry_child(self, parent: str, effect: RetryChild) -> None:
        run = self.runs.get(effect.child)
        if run is None or (run.view.status == "cancelled" and not run.keeps and run.waiting[0] < effect.seq):
            self._post_unfinished(parent, ChildGone(effect.seq, effect.attempt, effect.child))
            return
        if run.waiting[0] < effect.seq:
            run.waiting = (effect.seq, effect.attempt)
            if run.view.status != "completed":
                run.retrying = True
                self._post(effect.child, Retried(by=f"run {parent}"))
        if run.view.status == "completed":
            self._tell_parent(effect.child)

    def _tell_parent(self, run_id: str) -> None:
        """Let the visit that waits for a run know how that has ended; a run that goes on has not."""
        run = self.runs[run_id]
        spec = run.view.spec
        parent = self.runs.get(spec.parent or "")
        if parent is None or spec.parent is None or not run.is_final:
            return
        seq, attempt = run.waiting[0] or spec.parent_seq, run.waiting[1] or spec.parent_attempt
        usage, failed = run.values.usage, run.view.failed_visits.without_ending()
        if spec.returns is not None:
            parent.deltas[seq, attempt] = {CHILD: self._end_of(run_id, run, spec.returns)}
        elif run.output is not None:
            parent.deltas[seq, attempt] = {RESULT: json_text(run.output)}
        self._post(
            spec.parent,
            ChildEnded(
                seq,
                attempt,
                run_id,
                run.view.status,
                run.error,
                asdict(usage) if usage.calls else None,
                failed if failed.count else NO_FAILED_VISITS,
                run.failure,
                len(parent.deltas[seq, attempt][CHILD]) if spec.returns is not None else 0,
            ),
        )

    def _end_of(self, run_id: str, run: MemoryRun, returns: Sequence[str]) -> str:
        """The end of a child, for a node that maps it."""
        keys, state = wanted_keys(returns), run.values.state
        return child_text(
            run=run_id,
            agent=run.view.spec.agent,
            status=run.view.status,
            output=run.output,
            error=run.error,
            failure=run.failure,
            state=dict(state) if keys is None else {key: state[key] for key in keys if key in state},
            most_bytes=MOST_RETURNED,
        )

    def _grant(self, granted: Sequence[tuple[str, int]]) -> None:
        for run_id, ticket in granted:
            self.effects.append((run_id, TellRun(run_id, "slot_granted", {"ticket": ticket})))

    def _signal(self, told: Sequence[SignalTold]) -> None:
        for run_id, signal in told:
            self.effects.append((run_id, TellRun(run_id, SIGNALLED, vars(signal))))

    def _ask_for_signal(self, run: MemoryRun, visit: Visit, wait: SignalWait) -> None:
        """Who drives a run in this process may give the data of the signal for which a visit waits, as an answer."""
        asked, payload = f"waits for event {wait.name}; its data", {"wait_for_event": wait.name}
        name, at = wait.name if wait.asked is None else wait.asked.name, self.clock()
        gate = Gate(visit.seq, visit.node, INTERRUPT, asked, attempt=visit.attempt, opened_ms=at, key=name)
        run.gates[visit.seq] = changed(gate, payload=payload, due_ms=wait.due_ms, twin=visit.twin)
        shown = {"seq": gate.seq, "attempt": gate.attempt, "node": gate.node, "kind": gate.kind, "key": gate.key}
        self._tell(run, "gate_opened", {**shown, "question": asked, "options": [], "default": None})

    def _signal_for(self, gate: Gate, text: str) -> Signalled:
        number = str(self.clock() * 1000)
        return Signalled(gate.seq, gate.attempt, str((gate.payload or {})["wait_for_event"]), number, new_id(), text)

    # What happens

    def _post(self, run_id: str, event: Event) -> None:
        self.inbox.append(Entry(run_id, event, self.clock()))

    def _post_unfinished(self, run_id: str, event: Event) -> None:
        if run_id in self.runs and not self.runs[run_id].is_final:
            self._post(run_id, event)

    def _tell(self, run: MemoryRun, type_: str, data: Mapping[str, Any]) -> None:
        """Add an event for watchers."""
        run.events.append(RunEvent(str(next(self._event_ids)), self.clock(), type_, data))


def _passed_on(what: str, by: str, due_ms: int | None, *, keeps: bool) -> Event:
    """What a child is told of its parent."""
    match what:
        case "paused":
            return Paused(by, None, "parent", due_ms=due_ms)
        case "resumed":
            return Resumed("parent", by)
    return Cancelled(keeps, by)


def _still_asks(view: RunView, gate: Gate) -> bool:
    visit = view.frontier.get(gate.seq)
    asks = visit is not None and (visit.is_asking or isinstance(visit.body, SignalWait))
    return visit is not None and visit.attempt == gate.attempt and asks
