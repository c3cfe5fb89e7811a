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
from sleipnir.memory.slots import MemorySlots
from sleipnir.memory.values import RunValues, Texts, json_text
from sleipnir.messages import FINAL, RESULT, ResultHeader, RunStatus, VisitCall, overlay_of
from sleipnir.runs.claims import Claim, ClaimRefused
from sleipnir.runs.events import (
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
    Submitted,
    TimerFired,
    Told,
)
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import NO_FAILED_VISITS, Gate, RunSpec, RunView, changed
from sleipnir.runs.transitions import (
    AskSlot,
    Effect,
    FreeSlot,
    Notice,
    RetryChild,
    StartChild,
    TellChild,
    TellParent,
    TellRoot,
    TellRun,
    Transition,
)
from sleipnir.runs.views import ChildInfo, GateInfo, RunEvent, RunInfo, SlotInfo
from sleipnir.runs.visits import Failure, Visit, Work

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
    visit; `answers` the texts that open questions were answered with. `waiting` is the visit of its parent, and its
    attempt, that waits for it. A run that is `retrying` was asked to go on, and the planner has not done it yet;
    a run that is over `keeps` what a retry needs, or not.
    """

    view: RunView
    values: RunValues
    created_ms: int = 0
    gates: dict[int, Gate] = field(default_factory=dict)
    answers: dict[int, str] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
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

    `clock` gives the time in milliseconds since the epoch.
    """

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self.clock = clock
        self.runs: dict[str, MemoryRun] = {}
        self.inbox: deque[Entry] = deque()
        self.effects: deque[tuple[str, Effect]] = deque()
        self.called: dict[str, dict[Any, Any]] = {}
        """By run, what the process that executes it keeps of the graphs that its nodes have called."""
        self._slots = MemorySlots()
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
        self.runs[run_id] = MemoryRun(RunView(run_id, spec), RunValues(state), self.clock())
        self._post(run_id, Submitted())
        return True

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
        """Answer the question that this attempt of a visit asks. Raises GateError if there is none, or if it was
        answered with another text."""
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
        run.answers[seq] = text
        self._post(run_id, Answered(seq, text, attempt, by))

    def cancel(self, run_id: str, by: str = "") -> None:
        """Raises RunNotFound, or UsageError if the run is over."""
        self._ask_unfinished(run_id, Cancelled(by=by), "cancel")

    def pause(self, run_id: str, by: str = "", reason: str | None = None) -> None:
        """Raises RunNotFound, or UsageError if the run is over."""
        self._ask_unfinished(run_id, Paused(by, reason, "person"), "pause")

    def resume(self, run_id: str, by: str = "") -> None:
        """Raises RunNotFound, or UsageError if the run is over."""
        self._ask_unfinished(run_id, Resumed("person", by), "resume")

    def retry(self, run_id: str, *, fresh_children: bool = False, by: str = "") -> None:
        """Let a failed run go on. Raises RunNotFound, or UsageError if it did not fail."""
        run = self.run(run_id)
        if run.retrying:
            raise UsageError(f"run {run_id!r} is already being retried")
        if run.view.status != "failed":
            raise UsageError(f"run {run_id!r} is {run.view.status}; only a failed run can be retried")
        run.retrying = True
        self._post(run_id, Retried(fresh_children, by))

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
            retries=run.retries,
            slot=None if slot is None else SlotInfo(slot.key, slot.limit, slot.granted),
            max_cost_usd=None if budget is None else budget.max_cost_usd,
            max_tokens=None if budget is None else budget.max_tokens,
            stopped_by=run.stopped_by if run.status == "completed" else None,
            failed_visits=view.failed_visits,
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
        run.claims[call.seq] = call.attempt
        part, item = visit.part, visit.item
        if item is None and part is None:  # maps and loops report their progress
            self._tell(
                run, "visit_started", {"seq": call.seq, "node": call.node, "attempt": call.attempt, "worker": ""}
            )
        values = run.values
        overlay = values.items.get(visit.overlay, "") if visit.overlay else ""
        state = values.state if wanted is None else {key: values.state[key] for key in wanted if key in values.state}
        state = {**state, **overlay_of(overlay)} if overlay else dict(state)
        return Claim(run.view.spec, self.clock(), state, item, part, values.talk(visit), visit.depth)

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
        for seqs in transition.gone.values():
            for seq in seqs:
                run.claims.pop(seq, None)
        self._commit_record(run, transition)
        for notice in transition.notices:
            self._tell(run, notice.type, notice.data)
        for effect in transition.effects:
            if isinstance(effect, StartChild | RetryChild):
                run.children[effect.child] = ChildInfo(effect.child, effect.agent, effect.seq)
            self.effects.append((entry.run, effect))
        if transition.continues:
            self._post(entry.run, Continued())
        if run.view.is_final and (transition.revives or not was_final):
            self._close(run, keeps=transition.keeps or run.view.status == "failed")
        return transition.dispatches

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

    def _close(self, run: MemoryRun, *, keeps: bool) -> None:
        """Drop what a run needs no more that is over."""
        run.keeps = keeps
        for records in (run.claims, run.gates, run.answers, run.deltas):
            records.clear()
        if not keeps:
            run.values.items.clear()
            run.values.windows.clear()
            run.view = changed(run.view, frontier=Frontier.of({}))

    def with_state_alone(self, run_id: str) -> MemoryStore:
        """A store with a run that is over: with its status and its state, and nothing else of it."""
        run, store = self.run(run_id), MemoryStore(self.clock)
        store.runs[run_id] = MemoryRun(RunView(run_id, run.view.spec, run.view.status), RunValues(run.values.state))
        store.runs[run_id].values.journal.clear()
        return store

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
            case TellChild(child, what, by, keeps):
                self._post_unfinished(child, _passed_on(what, by or f"run {run_id}", keeps=keeps))
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
        if run.output is not None:
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
            ),
        )

    def _grant(self, granted: Sequence[tuple[str, int]]) -> None:
        for run_id, ticket in granted:
            self.effects.append((run_id, TellRun(run_id, "slot_granted", {"ticket": ticket})))

    # What happens

    def _post(self, run_id: str, event: Event) -> None:
        self.inbox.append(Entry(run_id, event, self.clock()))

    def _post_unfinished(self, run_id: str, event: Event) -> None:
        if run_id in self.runs and not self.runs[run_id].is_final:
            self._post(run_id, event)

    def _tell(self, run: MemoryRun, type_: str, data: Mapping[str, Any]) -> None:
        """Add an event for watchers."""
        run.events.append(RunEvent(str(next(self._event_ids)), self.clock(), type_, data))


def _passed_on(what: str, by: str, *, keeps: bool) -> Event:
    """What a child is told of its parent."""
    match what:
        case "paused":
            return Paused(by, None, "parent")
        case "resumed":
            return Resumed("parent", by)
    return Cancelled(keeps, by)


def _still_asks(view: RunView, gate: Gate) -> bool:
    visit = view.frontier.get(gate.seq)
    return visit is not None and visit.attempt == gate.attempt and visit.is_asking
