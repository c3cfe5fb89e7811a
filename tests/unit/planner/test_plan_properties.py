"""The planner under a hostile world: events that come twice, late, out of order, stale or never.

A Hypothesis state machine drives runs of random graphs with the planner alone: sequential ones and ones that branch, in
both engines. The world is a few lists: messages on their way, visits that workers hold, timers that are due. What must
hold afterwards, whatever happened, is in the invariants. 500 examples, and 10,000 with `--hypothesis-profile slow`
(`make test-slow`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from sleipnir.events import (
    Answered,
    Cancelled,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Submitted,
    TimerFired,
)
from sleipnir.frontier import Frontier
from sleipnir.graph.model import ScriptNode
from sleipnir.journal import state_after
from sleipnir.messages import ResultHeader
from sleipnir.runs import FAIL, RUN_AGAIN, RunView, Visit
from sleipnir.transitions import Transition
from sleipnir_scheduler.planner.plan import Ignore, plan
from tests.unit.planner.driver import Memory, fetch_and_plan, new_run
from tests.unit.planner.random_graphs import CAP, MAP_SLOTS, NAMES, SLOTS, STATE, TRIES, Drawn, drawn_graphs

MAX_REDELIVERIES = 2
TEXTS = ["yes", "no", "", "free text", RUN_AGAIN, FAIL, '{"k": 1}']


class HostileWorld(RuleBasedStateMachine):
    """One run, and everything that can happen to the messages about it."""

    events = Bundle("events")

    @initialize(drawn=drawn_graphs(), target=events)
    def submit(self, drawn: Drawn) -> Event:
        self.graph = drawn.graph
        self.run = new_run()
        self.memory = Memory(STATE)
        self.now_ms = 1_000
        self.steps: list[tuple[int, int | None]] = []
        self.completed: Counter[str] = Counter()
        self.timers: dict[str, int] = {}
        self.run_agains: Counter[int] = Counter()
        self.applied = 0
        return Submitted()

    @precondition(lambda self: self._queued())
    @rule(data=st.data(), ok=st.booleans(), chosen=st.none() | st.sampled_from([*NAMES, "end", "ghost"]), target=events)
    def work(self, data: st.DataObject, ok: bool, chosen: str | None) -> Event:
        """A worker ends a visit; its result is on its way, and may come again later."""
        visit = data.draw(st.sampled_from(self._queued()))
        return self._result(visit, ok, chosen)

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
        self.deliver(self._result(visit, False, None) if ok else LeaseLost(visit.seq, visit.attempt, "w"), 0)

    @precondition(lambda self: self.timers)
    @rule(data=st.data(), target=events)
    def fire(self, data: st.DataObject) -> Event:
        """A timer comes due; its message arrives, and may come again."""
        name = data.draw(st.sampled_from(sorted(self.timers)))
        self.now_ms = max(self.now_ms, self.timers.pop(name))
        event = TimerFired(name)
        self.deliver(event, 0)
        return event

    @precondition(lambda self: self._live())
    @rule(data=st.data(), chosen=st.none() | st.sampled_from(NAMES), text=st.sampled_from(["yes", "no"]))
    def go_on(self, data: st.DataObject, chosen: str | None, text: str) -> None:
        """A live visit ends well and its message arrives at once: how runs become long."""
        visit = data.draw(st.sampled_from(self._live()))
        self.deliver(self._result(visit, True, chosen) if visit.queue else Answered(visit.seq, text, visit.attempt), 0)

    @precondition(lambda self: self._queued())
    @rule(data=st.data(), wanted=st.lists(st.sampled_from([*NAMES, "end"]), max_size=4))
    def command(self, data: st.DataObject, wanted: list[str]) -> None:
        """A visit asks for others by a list of commands."""
        visit = data.draw(st.sampled_from(self._queued()))
        if visit.item is None and visit.role == "node":
            self.deliver(Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, sends=tuple(wanted))), 0)

    @rule(seq=st.integers(0, 9), text=st.sampled_from(TEXTS), attempt=st.integers(1, 3), target=events)
    def answer(self, seq: int, text: str, attempt: int) -> Event:
        return Answered(seq, text, attempt)

    @rule(seq=st.integers(0, 9), attempt=st.integers(0, 3), target=events)
    def nonsense(self, seq: int, attempt: int) -> Event:
        """A result of an attempt that may never have been."""
        return Resulted(seq, attempt, ResultHeader(ok=True))

    @rule(name=st.sampled_from(["deadline", "other", "visit/1/1", "visit/2/2", "step/1", "step/2"]), target=events)
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
        before, delta = self.run, self._delta(event)
        values = (self.now_ms, self.memory, delta, MAX_REDELIVERIES, self._updates(event))
        outcome = fetch_and_plan(self.graph, before, event, *values)
        if isinstance(outcome, Ignore):
            return
        if isinstance(event, Resulted | LeaseLost):
            assert before.frontier[event.seq].attempt == event.attempt, "only the attempt that owns the visit counts"
        self._apply(before, outcome, delta, self._updates(event))
        again = plan(self.graph, self.run, event, self.now_ms, max_redeliveries=MAX_REDELIVERIES)
        # A second cancel, deadline, retry, pause or resume is a request of its own; what is no answer is asked again.
        requests = Cancelled | TimerFired | Retried | Paused | Resumed
        asked_again = isinstance(event, Answered) and any(gate.kind == "effect" for gate in outcome.gates)
        harmless = isinstance(again, Ignore) or isinstance(event, requests) or asked_again
        assert harmless or self.run.is_final, f"{event} applied twice"
        if isinstance(event, Answered) and event.text == RUN_AGAIN and self._attempt_grew(before, event.seq):
            self.run_agains[event.seq] += 1

    def _result(self, visit: Visit, ok: bool, chosen: str | None) -> Resulted:
        """What a worker says of a visit: the body of a map leaves one key, a reducer its own, a choice a label."""
        if not ok:
            return Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error="boom"))
        if visit.item is not None:
            return Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, keys=("output",)))
        if visit.role == "branch":
            return Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, next="end"))
        keys = ("best",) if visit.role == "reduce" else ("k", "log", "best") if visit.seq % 2 else ("k", "log")
        if self.graph.dialect == "sleipnir" and visit.role == "node":
            keys = (*keys, "by")  # the same key in several branches, which Loki refuses
        return Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, next=chosen, keys=keys))

    def _delta(self, event: Event) -> dict[str, Any]:
        if not isinstance(event, Resulted):
            return {}
        values = {"k": "end", "log": f"{event.seq}", "best": event.seq, "by": event.seq, "output": event.seq}
        return {key: values[key] for key in event.header.keys}

    def _updates(self, event: Event) -> tuple[dict[str, Any], ...]:
        sends = event.header.sends if isinstance(event, Resulted) else None
        return tuple({"k": f"{number}"} for number in range(len(sends or ())))

    def _apply(
        self, before: RunView, transition: Transition, delta: dict[str, Any], updates: tuple[dict[str, Any], ...]
    ) -> None:
        live = set(before.frontier)
        assert not (transition.paused and transition.dispatches), "a run that is held sends nothing to workers"
        self.timers |= transition.timers
        for name in transition.untimers:
            self.timers.pop(name, None)
        assert {visit.seq for visit in transition.close} <= live, "only live visits are closed"
        for write in transition.writes:
            self.steps.append((write.step.step, write.step.seq))
            if write.step.role == "node" and write.step.item is None and write.step.node:
                self.completed[write.step.node] += 1
        self.memory.apply(transition, delta, updates)
        self.run = transition.apply(before)
        self.applied += 1

    def _queued(self) -> list[Visit]:
        return [visit for visit in self.run.frontier.values() if visit.state == "queued"]

    def _live(self) -> list[Visit]:
        return [visit for visit in self.run.frontier.values() if visit.state == "queued" or visit.is_asking]

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
        states = {visit.state for visit in self.run.frontier.values()}
        if self.run.is_final:
            assert not states or (self.run.status == "failed" and states <= {"ended", "failed"})
        elif self.run.seq:
            visits = self.run.frontier.values()
            moving = any(visit.state == "queued" or visit.is_asking or visit.wake_ms is not None for visit in visits)
            assert moving, "a visit that is ready, ended or failed, or a map, moves nothing by itself"
            assert self.run.paused or (self.run.status == "waiting") == (not states & {"queued", "ready"})
        assert (self.run.status == "paused") == (self.run.paused is not None)

    @invariant()
    def what_the_frontier_counts_along_is_what_there_is(self) -> None:
        if isinstance(self.run.frontier, Frontier):
            assert _counts(self.run.frontier) == _counts(Frontier.of(dict(self.run.frontier)))

    @invariant()
    def what_waits_for_a_timer_has_one_and_a_finished_run_has_none(self) -> None:
        assert {visit.timer for visit in self.run.frontier.values() if visit.wake_ms is not None} <= set(self.timers)
        assert not (self.run.is_final and self.timers)

    @invariant()
    def an_effect_that_must_happen_once_is_repeated_only_by_its_own_failure_or_a_person(self) -> None:
        for visit in self.run.frontier.values():
            node = self.graph.nodes.get(visit.node)
            if isinstance(node, ScriptNode) and node.effect == "once" and visit.role == "node":
                assert visit.attempt <= 1 + visit.failures + self.run_agains[visit.seq]

    @invariant()
    def no_more_run_at_once_than_the_limits_allow(self) -> None:
        bodies = Counter(visit.item is not None for visit in self._queued() if visit.role == "node")
        assert bodies[False] <= SLOTS
        items = Counter(visit.item.map for visit in self.run.frontier.values() if visit.item and visit.queue)
        assert all(count <= MAP_SLOTS for count in items.values())

    @invariant()
    def a_dag_runs_no_node_twice_at_once_but_for_commands(self) -> None:
        if self.graph.engine == "dag":
            plain = [v for v in self._queued() if v.batch is None and v.item is None and v.role == "node"]
            assert len({visit.node for visit in plain}) == len(plain)

    @invariant()
    def a_join_fires_no_more_often_than_its_rarest_source_completes(self) -> None:
        if "join" in self.graph.nodes:
            assert self.run.counts.get("join", 0) <= min(self.completed["a"], self.completed["b"])

    @invariant()
    def functions_of_the_agents_own_run_where_functions_do(self) -> None:
        assert all(visit.queue in (None, "functions") for visit in self.run.frontier.values() if visit.role != "node")

    @invariant()
    def no_node_is_entered_more_often_than_its_cap_allows(self) -> None:
        refused = any(visit.failed for visit in self.run.frontier.values()) or self.run.status in (
            "failed",
            "cancelled",
        )
        for count in self.run.counts.values():
            assert count <= CAP or refused

    @invariant()
    def no_visit_is_given_away_more_often_than_allowed(self) -> None:
        assert all(visit.losses <= MAX_REDELIVERIES for visit in self.run.frontier.values())

    @invariant()
    def no_visit_is_tried_more_often_than_its_policy_says(self) -> None:
        assert all(visit.failures < TRIES for visit in self.run.frontier.values())

    @invariant()
    def nothing_private_outlives_its_visit(self) -> None:
        if self.run.status == "completed":
            assert (self.memory.items, self.memory.windows, self.run.tops) == ({}, {}, {})

    @invariant()
    def the_journal_alone_gives_the_state(self) -> None:
        assert state_after(self.memory.entries) == self.memory.state

    @invariant()
    def the_version_counts_what_was_applied(self) -> None:
        assert self.run.version == self.applied


def _counts(frontier: Frontier) -> list[Any]:
    """All that a frontier counts, zeros apart."""
    numbers = [{of: count for of, count in counts.items() if count} for counts in (frontier.items_of, frontier.nodes)]
    return [frontier.ready, frontier.maps, frontier.branches, frontier.failed, *numbers]


class OtherHostileWorld(HostileWorld):
    """The same again: half of the examples each, so that two processes share them."""


EXAMPLES = 10_000 if settings.get_current_profile_name() == "slow" else 500
TestHostileWorld, TestOtherHostileWorld = HostileWorld.TestCase, OtherHostileWorld.TestCase
TestHostileWorld.pytestmark = TestOtherHostileWorld.pytestmark = [pytest.mark.timeout(480)]
TestHostileWorld.settings = TestOtherHostileWorld.settings = settings(
    max_examples=EXAMPLES // 2, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
