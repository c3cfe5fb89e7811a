"""One event of one run: which visits close and open, what is written, whether the run ends.

    plan(graph, run, event, now_ms, state) -> Transition | NeedState | Ignore

`state` holds the state values known so far. A control node (approval, input, end) renders templates; when it needs a
value that is not in `state`, the answer is NeedState with the keys: fetch them and plan again. Planning is pure, so
planning again is safe. See scheduler/README.md for the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

from sleipnir.graph.model import (
    ApprovalNode,
    FunctionNode,
    Graph,
    InputNode,
    Json,
    ScriptNode,
)
from sleipnir.graph.template import apply_updates, updates_read
from sleipnir.messages import ResultHeader
from sleipnir.runs import (
    RUN_DEADLINE,
    Answered,
    Cancelled,
    Event,
    LeaseLost,
    Notice,
    Paused,
    Resulted,
    Resumed,
    Retried,
    RunView,
    Submitted,
    TimerFired,
    Transition,
    Visit,
)
from sleipnir_scheduler.planner import effects, retries
from sleipnir_scheduler.planner.draft import Draft
from sleipnir_scheduler.planner.moves import NO_NEXT, NOTHING, Known, Moves, RunFailed, StateMissing, no_route, single


@dataclass(frozen=True)
class NeedState:
    """Plan again with these state keys known (absent ones may stay absent)."""

    keys: frozenset[str]


@dataclass(frozen=True)
class Ignore:
    """The event changes nothing; `notice` is for watchers (a late result)."""

    reason: str
    notice: Notice | None = None


def plan(
    graph: Graph,
    run: RunView,
    event: Event,
    now_ms: int,
    known: Known = NOTHING,
    *,
    max_redeliveries: int = 3,
) -> Transition | NeedState | Ignore:
    """What `event`, which happened at `now_ms`, changes in `run`."""
    if run.is_final and not (run.status == "failed" and isinstance(event, Retried)):
        return Ignore(f"run is {run.status}", _late(event))
    planner = _Planner(graph, run, now_ms, known, max_redeliveries)
    try:
        return planner.decide(event)
    except StateMissing as missing:
        return NeedState(missing.keys)
    except RunFailed as failure:
        return planner.fail(str(failure), failure.node, failure.entering)


def fail(graph_name: str, run: RunView, message: str, now_ms: int) -> Transition:
    """End a run for a reason outside its graph (its bundle cannot be read, a bug of ours)."""
    draft = Draft(run, now_ms)
    draft.end("failed", error=f"Graph execution failed for agent '{run.spec.agent}' ({graph_name}): {message}")
    return draft.transition()


def _late(event: Event) -> Notice | None:
    if not isinstance(event, Resulted):
        return None
    detail = {"seq": event.seq, "attempt": event.attempt, "worker": event.header.worker}
    return Notice("late_result", detail)


class _Planner(Moves):
    """What each kind of event means."""

    def decide(self, event: Event) -> Transition | Ignore:
        match event:
            case Submitted():
                return self._start()
            case Resulted():
                return self._result(event)
            case Answered():
                return self._answer(event)
            case LeaseLost():
                return self._lease_lost(event)
            case Cancelled():
                return self._cancel()
            case Retried():
                return self._retry()
            case Paused():
                return self._pause(event)
            case Resumed():
                return self._resume()
            case TimerFired():
                return self._timer(event)
            case _:
                return Ignore(f"unknown event {event!r}")

    def _start(self) -> Transition | Ignore:
        if self.run.seq:
            return Ignore("already started")
        deadline_ms = self.graph.settings.timeout and self.now_ms + self.graph.settings.timeout * 1000
        self.draft.start(self.graph.name, self.graph.start, deadline_ms)
        self.enter(self.graph.start)
        return self.draft.transition()

    def _result(self, event: Resulted) -> Transition | Ignore:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.attempt != event.attempt or visit.state != "queued":
            return Ignore("the visit is over, or another attempt owns it", _late(event))
        header = event.header
        notes = header.notes
        if not header.ok:
            verdict = self._retry_or_not(visit, header)
            if isinstance(verdict, retries.Again):
                self.draft.try_again(visit, header, verdict.at_ms, verdict.most)
                return self.draft.transition()
            notes = (*notes, verdict.why) if verdict.why else notes
        target = self.route(visit, header.ok, header.next if isinstance(header.next, str) else None)
        self.draft.finish(visit, header, target, notes)
        return self.follow(visit, target, header.error or no_route(visit))

    def _retry_or_not(self, visit: Visit, failure: ResultHeader) -> retries.Again | retries.GiveUp:
        node = self.graph.nodes[visit.node]
        policies = self.graph.retries_of(node)
        return retries.decide(
            policies, visit, failure, run=self.run.id, now_ms=self.now_ms, deadline_ms=self.deadline_ms()
        )

    def _answer(self, event: Answered) -> Transition | Ignore:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.queue is not None or visit.attempt != event.attempt:
            return Ignore("the question is closed, or another one")
        node = self.graph.nodes[visit.node]
        if isinstance(node, ScriptNode | FunctionNode):
            return effects.answered(self, visit, node, event.text)
        value: str
        target: str | None
        if isinstance(node, ApprovalNode):
            value, target = event.text, node.routes.get(event.text, node.on_other)
        elif isinstance(node, InputNode):
            value, target = self.input_value(node, event.text), single(node.next)
        else:
            return Ignore(f"a {node.kind} node asks no question")
        self.draft.notice("gate_answered", seq=visit.seq, node=visit.node, answer=event.text)
        writes = apply_updates(node.state_updates, self.state(updates_read(node)), scoped=node.scoped, value=value)
        self.draft.close(visit, target, writes)
        return self.follow(visit, target, NO_NEXT)

    def _lease_lost(self, event: LeaseLost) -> Transition | Ignore:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.attempt != event.attempt or visit.queue is None:
            return Ignore("the visit is over, or another attempt owns it")
        what = "visit_handed_back" if event.handed_back else "worker_lost"
        self.draft.notice(what, seq=visit.seq, node=visit.node, attempt=visit.attempt, worker=event.worker)
        if self.deadline_passed():
            raise RunFailed(self.timed_out(visit.node), entering=visit.node)
        node = self.graph.nodes[visit.node]
        if isinstance(node, ScriptNode | FunctionNode) and node.effect == "once":
            return effects.ask(self, visit, event)
        if event.handed_back or visit.losses < self.max_redeliveries:
            self.draft.redeliver(visit, losses=0 if event.handed_back else 1)
            return self.draft.transition()
        error = f"WorkerLost: {visit.losses + 1} workers died while running this visit, last {event.worker}"
        return self.give_up(visit, error)

    def _pause(self, event: Paused) -> Transition | Ignore:
        if self.run.paused is not None:
            return Ignore("the run is paused already")
        self.draft.pause(event.by, event.reason)
        return self.draft.transition()

    def _resume(self) -> Transition | Ignore:
        if self.run.paused is None:
            return Ignore("the run is not paused")
        self.draft.resume()
        if (deadline_ms := self.deadline_ms()) is not None and self.run.seq:
            self.draft.arm_deadline(deadline_ms)
        return self.draft.transition()

    def _cancel(self) -> Transition:
        self.draft.end("cancelled", error=f"Graph '{self.graph.name}' aborted at '{self.somewhere()}'")
        return self.draft.transition()

    def _retry(self) -> Transition | Ignore:
        if self.run.status != "failed":
            return Ignore("only a failed run can be retried")
        node = self.run.failed_at or self.graph.start
        self.draft.revive(node)
        if self.graph.settings.timeout:
            self.draft.arm_deadline(self.now_ms + self.graph.settings.timeout * 1000)
        self.enter(node)
        return self.draft.transition()

    def _timer(self, event: TimerFired) -> Transition | Ignore:
        if event.name == RUN_DEADLINE:
            return self._deadline()
        visit = next((visit for visit in self.run.frontier.values() if visit.timer == event.name), None)
        if visit is None or visit.wake_ms is None:
            return Ignore("the visit is over, or another attempt of it is on its way")
        if visit.queue is not None:
            self.draft.wake(visit)
            return self.draft.transition()
        return self._unanswered(visit)

    def _deadline(self) -> Transition | Ignore:
        """The run's deadline. A visit that a worker has may finish, and `enter` looks again then (spec 2.4), unless the
        graph says `interrupt_on_timeout`."""
        deadline_ms = self.deadline_ms()
        if deadline_ms is None or self.run.paused is not None:
            return Ignore("the run has no deadline, or is paused, and its deadline with it")
        if not self.deadline_passed():  # this was the timer of a deadline that has moved since
            self.draft.arm_deadline(deadline_ms)
            return self.draft.transition()
        live = sorted(self.run.frontier.values(), key=lambda visit: visit.seq)
        if not self.graph.settings.interrupt_on_timeout:
            self.draft.unless_claimed()
        raise RunFailed(self.timed_out(live[0].node if live else self.graph.start))

    def _unanswered(self, visit: Visit) -> Transition:
        """Nobody has answered in time: `on_timeout`, else an input's default, else the run fails."""
        node = self.graph.nodes[visit.node]
        assert isinstance(node, ApprovalNode | InputNode)
        self.draft.notice("gate_expired", seq=visit.seq, node=visit.node)
        error, target = None, node.on_timeout
        writes: dict[str, Json] = {}
        if target is None and isinstance(node, InputNode) and node.default is not None:
            value, target = self.input_value(node, ""), single(node.next)
            state = self.state(updates_read(node))
            writes |= apply_updates(node.state_updates, state, scoped=node.scoped, value=value)
        elif target is None:
            error = f"{node.kind} node '{node.id}' was not answered within {node.timeout}s"
        self.draft.close(visit, target, writes, error=error)
        return self.follow(visit, target, error or NO_NEXT)
