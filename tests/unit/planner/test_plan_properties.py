"""The planner under a hostile world: events that come twice, late, out of order, stale or never.

A Hypothesis state machine drives runs of random graphs with the planner alone. The world is a few lists: messages on
their way, visits that workers hold, timers that are due. What must hold afterwards, whatever happened, is in the
invariants. 500 examples, and 10,000 with `--hypothesis-profile slow` (`make test-slow`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from sleipnir.graph.model import ApprovalNode, EndNode, Graph, InputNode, LlmNode, Node, Retry, ScriptNode, Settings
from sleipnir.messages import ResultHeader
from sleipnir.runs import (
    FAIL,
    RUN_AGAIN,
    Answered,
    Cancelled,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    RunSpec,
    RunView,
    Submitted,
    TimerFired,
    Transition,
    Visit,
)
from sleipnir_scheduler.planner.moves import Known
from sleipnir_scheduler.planner.plan import Ignore, NeedState, plan

NAMES = ["a", "b", "c", "d"]
CAP = 4
MAX_REDELIVERIES = 2
TRIES = 3
TEXTS = ["yes", "no", "", "free text", RUN_AGAIN, FAIL, '{"k": 1}']


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    target = st.sampled_from([*NAMES, "end"])
    maybe = st.none() | target
    common: dict[str, Any] = {"id": name, "next": draw(maybe)}
    match draw(st.sampled_from(["script", "llm", "approval", "input"])):
        case "script":
            once: Any = draw(st.sampled_from([None, None, "once"]))
            return ScriptNode(**common, script="s.sh", fallback=draw(maybe), effect=once, retry=draw(policies()))
        case "llm":
            updates = {"k": "{{output}}"}
            return LlmNode(**common, prompt="p", fallback=draw(maybe), state_updates=updates, retry=draw(policies()))
        case "approval":
            routes = {"yes": draw(target), "no": draw(target)}
            question = draw(st.sampled_from(["ok?", "{{k}}?"]))
            expiry = {"timeout": draw(st.none() | st.just(2)), "on_timeout": draw(maybe)}
            other = draw(target)
            return ApprovalNode(**common, **expiry, question=question, options=["yes"], routes=routes, on_other=other)
        case _:
            expiry = {"timeout": draw(st.none() | st.just(2)), "on_timeout": draw(maybe)}
            return InputNode(**common, **expiry, question="q?", default="d", validation="len(input) < 3")


@st.composite
def policies(draw: st.DrawFn) -> list[Retry] | None:
    if draw(st.booleans()):
        return None
    return [Retry(max_attempts=TRIES, initial_interval=draw(st.sampled_from([0, 500])), on=["any"])]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    made = {name: draw(nodes(name)) for name in NAMES}
    ends: dict[str, Node] = {"end": EndNode(id="end", output="{{k}}")}
    limits = Settings(max_loop_iterations=CAP, timeout=draw(st.none() | st.integers(1, 3)))
    return Graph(name="g", start=draw(st.sampled_from([*NAMES, "end"])), nodes={**made, **ends}, settings=limits)


class HostileWorld(RuleBasedStateMachine):
    """One run, and everything that can happen to the messages about it."""

    events = Bundle("events")

    @initialize(graph=graphs(), target=events)
    def submit(self, graph: Graph) -> Event:
        self.graph = graph
        self.run = RunView(id="run", spec=RunSpec("agent", "digest"))
        self.state: dict[str, Any] = {}
        self.now_ms = 1_000
        self.steps: list[tuple[int, int | None]] = []
        self.timers: dict[str, int] = {}
        self.run_agains: Counter[int] = Counter()
        self.applied = 0
        return Submitted()

    @precondition(lambda self: self._queued())
    @rule(data=st.data(), ok=st.booleans(), chosen=st.none() | st.sampled_from([*NAMES, "end", "ghost"]), target=events)
    def work(self, data: st.DataObject, ok: bool, chosen: str | None) -> Event:
        """A worker ends a visit; its result is on its way, and may come again later."""
        visit = data.draw(st.sampled_from(self._queued()))
        header = ResultHeader(ok=ok, next=chosen if ok else None, error=None if ok else "boom", keys=("k",))
        return Resulted(visit.seq, visit.attempt, header)

    @precondition(lambda self: self._queued())
    @rule(data=st.data(), handed_back=st.booleans(), target=events)
    def die(self, data: st.DataObject, handed_back: bool) -> Event:
        """A worker dies with a visit, or stops and hands it back."""
        visit = data.draw(st.sampled_from(self._queued()))
        return LeaseLost(visit.seq, visit.attempt, "w", handed_back)

    @precondition(lambda self: self._queued())
    @rule(data=st.data(), ok=st.booleans())
    def lose_at_once(self, data: st.DataObject, ok: bool) -> None:
        """A worker dies, and everybody knows: how visits come to many attempts."""
        visit = data.draw(st.sampled_from(self._queued()))
        lost = LeaseLost(visit.seq, visit.attempt, "w")
        self.deliver(Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error="boom")) if ok else lost, 0)

    @precondition(lambda self: self.timers)
    @rule(data=st.data(), target=events)
    def fire(self, data: st.DataObject) -> Event:
        """A timer comes due; its message arrives, and may come again."""
        name = data.draw(st.sampled_from(sorted(self.timers)))
        self.now_ms = max(self.now_ms, self.timers.pop(name))
        event = TimerFired(name)
        self.deliver(event, 0)
        return event

    @precondition(lambda self: self.run.frontier)
    @rule(chosen=st.sampled_from(NAMES), text=st.sampled_from(["yes", "no"]))
    def go_on(self, chosen: str, text: str) -> None:
        """The live visit ends well and its message arrives at once: how runs become long."""
        [visit] = self.run.frontier.values()
        header = ResultHeader(ok=True, next=chosen)
        self.deliver(
            Resulted(visit.seq, visit.attempt, header) if visit.queue else Answered(visit.seq, text, visit.attempt), 0
        )

    @rule(seq=st.integers(0, 6), text=st.sampled_from(TEXTS), attempt=st.integers(1, 3), target=events)
    def answer(self, seq: int, text: str, attempt: int) -> Event:
        return Answered(seq, text, attempt)

    @rule(seq=st.integers(0, 6), attempt=st.integers(0, 3), target=events)
    def nonsense(self, seq: int, attempt: int) -> Event:
        """A result of an attempt that may never have been."""
        return Resulted(seq, attempt, ResultHeader(ok=True))

    @rule(name=st.sampled_from(["deadline", "other", "visit/1/1", "visit/2/2"]), target=events)
    def timer(self, name: str) -> Event:
        return TimerFired(name)

    @rule(target=events)
    def cancel(self) -> Event:
        return Cancelled()

    @rule(target=events)
    def retry(self) -> Event:
        return Retried()

    @rule(target=events)
    def pause(self) -> Event:
        return Paused("me")

    @rule(target=events)
    def resume(self) -> Event:
        return Resumed()

    @rule(event=events, later_ms=st.sampled_from([0, 1, 900, 5_000]))
    def deliver(self, event: Event, later_ms: int) -> None:
        """One message arrives; any may arrive any number of times, or never."""
        self.now_ms += later_ms
        before = self.run
        outcome = plan(self.graph, before, event, self.now_ms, max_redeliveries=MAX_REDELIVERIES)
        for _ in range(5):
            if not isinstance(outcome, NeedState):
                break
            known = Known(outcome.keys, {key: self.state[key] for key in outcome.keys if key in self.state})
            outcome = plan(self.graph, before, event, self.now_ms, known, max_redeliveries=MAX_REDELIVERIES)
        assert not isinstance(outcome, NeedState), "planning ends once the state it asked for is known"
        if isinstance(outcome, Ignore):
            return
        if isinstance(event, Resulted | LeaseLost):
            assert before.frontier[event.seq].attempt == event.attempt, "only the attempt that owns the visit counts"
        self._apply(before, outcome)
        again = plan(self.graph, self.run, event, self.now_ms, max_redeliveries=MAX_REDELIVERIES)
        # A second cancel, deadline, retry, pause or resume is a request of its own; what is no answer is asked again.
        requests = Cancelled | TimerFired | Retried | Paused | Resumed
        asked_again = isinstance(event, Answered) and any(gate.kind == "effect" for gate in outcome.gates)
        harmless = isinstance(again, Ignore) or isinstance(event, requests) or asked_again
        assert harmless or self.run.is_final, f"{event} applied twice"
        if isinstance(event, Answered) and event.text == RUN_AGAIN and self._attempt_grew(before, event.seq):
            self.run_agains[event.seq] += 1

    def _apply(self, before: RunView, transition: Transition) -> None:
        live = set(before.frontier)
        assert not (transition.paused and transition.dispatches), "a run that is held sends nothing to workers"
        self.timers |= transition.timers
        for name in transition.untimers:
            self.timers.pop(name, None)
        assert {visit.seq for visit in transition.close} <= live, "only live visits are closed"
        for write in transition.writes:
            self.steps.append((write.step.step, write.step.seq))
            self.state |= write.values
        self.run = transition.apply(before)
        self.applied += 1

    def _queued(self) -> list[Visit]:
        return [visit for visit in self.run.frontier.values() if visit.state == "queued"]

    def _attempt_grew(self, before: RunView, seq: int) -> bool:
        now = self.run.frontier.get(seq)
        return now is not None and now.attempt > before.frontier[seq].attempt

    @invariant()
    def every_visit_is_committed_at_most_once_and_steps_have_no_gap(self) -> None:
        numbers = [step for step, _ in self.steps]
        assert numbers == list(range(1, len(numbers) + 1))
        seqs = [seq for _, seq in self.steps if seq is not None]  # a retry is a step without a visit
        assert len(set(seqs)) == len(seqs)

    @invariant()
    def a_run_is_over_or_something_is_live_that_moves_it(self) -> None:
        if self.run.is_final:
            assert not self.run.frontier
        elif self.run.seq:
            assert self.run.frontier
            assert self.run.paused or (self.run.status == "waiting") == (not self._queued())
        assert (self.run.status == "paused") == (self.run.paused is not None)

    @invariant()
    def what_waits_for_a_timer_has_one_and_a_finished_run_has_none(self) -> None:
        assert {visit.timer for visit in self.run.frontier.values() if visit.wake_ms is not None} <= set(self.timers)
        assert not (self.run.is_final and self.timers)

    @invariant()
    def an_effect_that_must_happen_once_is_repeated_only_by_its_own_failure_or_a_person(self) -> None:
        for visit in self.run.frontier.values():
            node = self.graph.nodes[visit.node]
            if isinstance(node, ScriptNode) and node.effect == "once":
                assert visit.attempt <= 1 + visit.failures + self.run_agains[visit.seq]

    @invariant()
    def a_sequential_run_has_at_most_one_live_visit(self) -> None:
        assert len(self.run.frontier) <= 1

    @invariant()
    def no_node_is_entered_more_often_than_its_cap_allows(self) -> None:
        for count in self.run.counts.values():
            assert count <= CAP or self.run.status == "failed"

    @invariant()
    def no_visit_is_given_away_more_often_than_allowed(self) -> None:
        assert all(visit.losses <= MAX_REDELIVERIES for visit in self.run.frontier.values())

    @invariant()
    def no_visit_is_tried_more_often_than_its_policy_says(self) -> None:
        assert all(visit.failures < TRIES for visit in self.run.frontier.values())

    @invariant()
    def the_version_counts_what_was_applied(self) -> None:
        assert self.run.version == self.applied


class OtherHostileWorld(HostileWorld):
    """The same again: half of the examples each, so that two processes share them."""


EXAMPLES = 10_000 if settings.get_current_profile_name() == "slow" else 500
TestHostileWorld, TestOtherHostileWorld = HostileWorld.TestCase, OtherHostileWorld.TestCase
TestHostileWorld.pytestmark = TestOtherHostileWorld.pytestmark = [pytest.mark.timeout(280)]
TestHostileWorld.settings = TestOtherHostileWorld.settings = settings(
    max_examples=EXAMPLES // 2, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
