"""The planner under a hostile world: events that come twice, late, out of order, stale or never.

A Hypothesis state machine drives runs of random graphs with the planner alone: sequential ones and ones that branch, in
both engines. The world is a few lists: messages on their way, visits that workers hold, timers that are due. What must
hold afterwards, whatever happened, is in the invariants. 500 examples, and 10,000 with `--hypothesis-profile slow`
(`make test-slow`).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from sleipnir.graph.model import ScriptNode
from sleipnir.messages import ANSWER, FOLLOW_UP, MESSAGES, OVERLAY_END, PERSON, RESULT, ResultHeader, ToolCall
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.checkpoints import CheckpointReader
from sleipnir.runs.dag_checkpoints import DagReader
from sleipnir.runs.events import (
    Answered,
    Cancelled,
    Commented,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Skipped,
    Submitted,
    TimerFired,
)
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.interrupts import INTERRUPT, answer_of, answers_of
from sleipnir.runs.journal import read_entry, state_after
from sleipnir.runs.run import FAIL, RUN_AGAIN, Checkpoint, Fork, RunSpec, RunView
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import (
    BRANCH,
    Branch,
    Commands,
    Ended,
    Failed,
    Fan,
    Loop,
    Part,
    Question,
    Ready,
    Visit,
)
from sleipnir_scheduler.planner.plan import IgnoredEvent, plan
from tests.model_store import Memory, asking, assert_same_visits, fetch_and_plan, new_run, work_of
from tests.unit.planner.random_graphs import CAP, MAP_SLOTS, NAMES, SLOTS, STATE, TRIES, TURNS, Drawn, drawn_graphs

MAX_REDELIVERIES = 2
TEXTS = ["yes", "no", "", "free text", RUN_AGAIN, FAIL, '{"k": 1}']
WHERE = [(), ("scripts", PERSON), ("llm", "", "scripts"), ("",), (PERSON, "")]
"""Where the calls of a turn are answered; of no two turns in a row alike."""
UNCLEAR = ("effect", "confirm", "checkbox", BUDGET, INTERRUPT)
"""Questions whose answers may not be understood."""
ASKING = ["user__confirm", "user__checkbox", "user__input"]


class HostileWorld(RuleBasedStateMachine):
    """One run, and everything that can happen to the messages about it."""

    events = Bundle("events")

    @initialize(drawn=drawn_graphs(), max_tokens=st.sampled_from([None, 1, 3]), target=events)
    def submit(self, drawn: Drawn, max_tokens: int | None) -> Event:
        self.graph = drawn.graph
        self.run = replace(new_run(), spec=RunSpec("agent", "digest", max_tokens=max_tokens))
        self.memory = Memory(STATE)
        self.now_ms = 1_000
        self.steps: list[tuple[int, int | None]] = []
        self.completed: Counter[str] = Counter()
        self.timers: dict[str, int] = {}
        self.run_agains: Counter[int] = Counter()
        self.applied = 0
        self.parts: Counter[tuple[int, int, int | None]] = Counter()
        self.said: dict[int, list[Any]] = {}
        self.follow_ups: dict[int, dict[int, str]] = {}
        self.answers: dict[str, list[Any]] = {}
        return Submitted()

    @precondition(lambda self: self._queued())
    @rule(data=st.data(), ok=st.booleans(), chosen=st.none() | st.sampled_from([*NAMES, "end", "ghost"]), target=events)
    def work(self, data: st.DataObject, ok: bool, chosen: str | None) -> Event:
        """A worker ends a visit; its result is on its way, and may come again later."""
        visit = data.draw(st.sampled_from(self._queued()))
        return self._result(visit, ok, chosen)

    @precondition(lambda self: self._queued())
    @rule(data=st.data(), handed_back=st.booleans(), stopped=st.booleans(), target=events)
    def die(self, data: st.DataObject, handed_back: bool, stopped: bool) -> Event:
        """A worker dies with a visit, or stops and hands it back; or a pause takes it from the worker."""
        visit = data.draw(st.sampled_from(self._queued()))
        if stopped and handed_back:
            return LeaseLost(visit.seq, visit.attempt, "w", handed_back, stopped=True, seen=self.run.step)
        return LeaseLost(visit.seq, visit.attempt, "w", handed_back)

    @precondition(lambda self: self._queued())
    @rule(data=st.data(), ok=st.booleans())
    def lose_at_once(self, data: st.DataObject, ok: bool) -> None:
        """A worker dies, and everybody knows: how visits come to many attempts."""
        visit = data.draw(st.sampled_from(self._queued()))
        self.deliver(self._result(visit, False, None) if ok else LeaseLost(visit.seq, visit.attempt, "w"), 0)

    @precondition(lambda self: self._asking())
    @rule(data=st.data(), later_ms=st.sampled_from([1, 3_000]), target=events)
    def put_off(self, data: st.DataObject, later_ms: int) -> Event:
        """A worker meets a limit of the model before it has asked."""
        visit = data.draw(st.sampled_from(self._asking()))
        header = ResultHeader(ok=False, error="limit", later_ms=self.now_ms + later_ms)
        self.deliver(event := Resulted(visit.seq, visit.attempt, header), 0)
        return event

    @precondition(lambda self: self._able_to_ask())
    @rule(data=st.data(), timeout_ms=st.none() | st.just(2_000), schema=st.none() | st.just({"enum": ["yes"]}))
    def interrupt(self, data: st.DataObject, timeout_ms: int | None, schema: Any) -> None:
        """The code of a node asks a person."""
        visit = data.draw(st.sampled_from(self._able_to_ask()))
        self.deliver(asking(visit.seq, "k", visit.attempt, timeout_ms=timeout_ms, schema=schema), 0)

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

    @rule(seq=st.integers(0, 9), attempt=st.integers(1, 3), target=events)
    def comment(self, seq: int, attempt: int) -> Event:
        return Commented(seq, attempt, "wait for the supplier", "me")

    @rule(seq=st.integers(0, 9), attempt=st.integers(0, 3), target=events)
    def nonsense(self, seq: int, attempt: int) -> Event:
        """A result of an attempt that may never have been."""
        return Resulted(seq, attempt, ResultHeader(ok=True))

    @rule(
        name=st.sampled_from(["deadline", "pause", "other", "visit/1/1", "visit/2/2", "step/1", "step/2"]),
        target=events,
    )
    def timer(self, name: str) -> Event:
        return TimerFired(name)

    @rule(target=events)
    def cancel(self) -> Event:
        return Cancelled()

    @rule(target=events)
    def retry(self) -> Event:
        return Retried()

    @rule(seq=st.integers(1, 9), value=st.sampled_from([{"k": 1}, {"log": "x"}, "text", ["x"], None]), target=events)
    def skip(self, seq: int, value: Any) -> Event:
        return Skipped(seq, value, by="me")

    @rule(
        target=events,
        owner=st.sampled_from(["person", "parent", ""]),
        timeout_ms=st.sampled_from([None, None, 0, 2_000, 9_000]),
    )
    def pause(self, owner: Any, timeout_ms: int | None) -> Event:
        return Paused("me", owner=owner, timeout_ms=timeout_ms)

    @rule(target=events, owner=st.sampled_from(["person", "parent", ""]))
    def resume(self, owner: Any) -> Event:
        return Resumed(owner)

    @precondition(lambda self: self.run.is_at_breakpoint)
    @rule(later_ms=st.sampled_from([1, 5_000]))
    def go_past_a_breakpoint(self, later_ms: int) -> None:
        """A person resumes the run: how runs with breakpoints become long."""
        self.deliver(Resumed("person"), later_ms)

    @rule(event=events, later_ms=st.sampled_from([0, 1, 900, 5_000]))
    def deliver(self, event: Event, later_ms: int) -> None:
        """One message arrives; any may arrive any number of times, or never."""
        self.now_ms += later_ms
        before, delta = self.run, self._delta(event)
        values = (self.now_ms, self.memory, delta, MAX_REDELIVERIES, self._updates(event))
        outcome = fetch_and_plan(self.graph, before, event, *values)
        if isinstance(outcome, IgnoredEvent):
            return
        if isinstance(event, Resulted | LeaseLost):
            assert before.frontier[event.seq].attempt == event.attempt, "only the attempt that owns the visit counts"
        self._apply(event, before, outcome, delta, self._updates(event))
        again = plan(self.graph, self.run, event, self.now_ms, max_redeliveries=MAX_REDELIVERIES)
        # A second cancel, deadline, retry, pause or resume is a request of its own; what is no answer is asked again.
        requests = Cancelled | TimerFired | Retried | Paused | Resumed
        asked_again = isinstance(event, Answered) and any(gate.kind in UNCLEAR for gate in outcome.gates)
        harmless = isinstance(again, IgnoredEvent) or isinstance(event, requests) or asked_again
        assert harmless or self.run.is_final, f"{event} applied twice"
        if isinstance(event, Answered) and self._attempt_grew(before, event.seq):
            self._accepted(before.frontier[event.seq], event.text)

    def _accepted(self, visit: Visit, text: str) -> None:
        """The visit goes on with an answer."""
        if isinstance(visit.body, Question) and visit.body.work is not None:
            field = visit.body.work.given or f"{visit.seq}.answers"
            self.answers.setdefault(field, []).append(answer_of(text))
            self.run_agains[visit.seq] += 1
        elif text == RUN_AGAIN:
            self.run_agains[visit.seq] += 1

    def _result(self, visit: Visit, ok: bool, chosen: str | None) -> Resulted:
        """What a worker says of a visit, which takes a token."""
        said = self._said(visit, ok, chosen)
        return replace(said, header=replace(said.header, usage={"input_tokens": 1, "calls": 1}))

    def _said(self, visit: Visit, ok: bool, chosen: str | None) -> Resulted:
        """The body of a map leaves one key, a reducer its own, a choice a label."""
        if visit.role == "tool":
            return Resulted(visit.seq, visit.attempt, self._of_tool(visit, ok))
        if not ok:
            return Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error="boom"))
        if visit.role == "turn" and ((calls := _calls(visit)) or visit.seq % 2):
            assert visit.part is not None
            told = () if visit.part.turn else (MESSAGES,)
            more = [f"{RESULT}.{number}" for number, call in enumerate(calls) if not call.where]
            more += [] if calls else [FOLLOW_UP]
            header = ResultHeader(True, (*told, ANSWER, *more), calls=calls, goes_on=not calls)
            return Resulted(visit.seq, visit.attempt, header)
        if visit.item is not None:
            return Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, keys=("output",)))
        if visit.role == "branch":
            return Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, next="end"))
        keys = ("best",) if visit.role == "reduce" else ("k", "log", "best") if visit.seq % 2 else ("k", "log")
        if not self.graph.is_loki and visit.role == "node":
            keys = (*keys, "by")  # the same key in several branches, which Loki refuses
        return Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, next=chosen, keys=keys))

    def _of_tool(self, visit: Visit, ok: bool) -> ResultHeader:
        """A tool that fails has a result all the same, but for one that left none, or none that could be stored."""
        keys = ((RESULT,), (), ("_error", "last_error"))[0 if ok else visit.seq % 3]
        return ResultHeader(ok=ok, keys=keys, error=None if ok else "boom")

    def _delta(self, event: Event) -> dict[str, Any]:
        if not isinstance(event, Resulted):
            return {}
        values = {"k": "end", "log": f"{event.seq}", "best": event.seq, "by": event.seq, "output": event.seq}
        values[ANSWER] = {"tool_calls": [_as_sent(call) for call in event.header.calls]}
        return {key: values.get(key, f"{key} {event.seq}/{event.attempt}") for key in event.header.keys}

    def _updates(self, event: Event) -> tuple[dict[str, Any], ...]:
        sends = event.header.sends if isinstance(event, Resulted) else None
        return tuple({"k": f"{number}"} for number in range(len(sends or ())))

    def _apply(
        self,
        event: Event,
        before: RunView,
        transition: Transition,
        delta: dict[str, Any],
        updates: tuple[dict[str, Any], ...],
    ) -> None:
        live = set(before.frontier)
        for name in transition.untimers:
            self.timers.pop(name, None)
        self.timers |= transition.timers
        assert {visit.seq for visit in transition.close} <= live, "only live visits are closed"
        for write in transition.writes:
            self.steps.append((write.step.step, write.step.seq))
            if write.step.role == "node" and write.step.item is None and write.step.node:
                self.completed[write.step.node] += 1
        self.memory.apply(transition, delta, updates)
        assert_same_visits(transition, before)
        self.run = transition.apply(before)
        assert not (self.run.is_held and transition.dispatches), "a run that is held sends nothing to workers"
        if before.is_at_breakpoint and not isinstance(event, Resumed):
            self._assert_that_nothing_started(before, event)
        if self.run.is_at_breakpoint and not before.is_at_breakpoint and self.graph.engine == "bsp":
            opened = [visit for visit in self.run.frontier.values() if visit.group == self.run.steps]
            assert {visit.state for visit in opened if visit.is_branch} <= {"ready"}, "nothing of the step has started"
        if before.is_held and self.run.is_final and not before.is_final:
            assert isinstance(event, Cancelled | Answered | Resumed), "a run that is held does not end"
        self.applied += 1
        for write in transition.writes:
            if write.step.part is not None:
                self._heard(write.step.part, write.step.seq, delta)

    def _assert_that_nothing_started(self, before: RunView, event: Event) -> None:
        """A run at a breakpoint starts nothing, control nodes included. A person may end a visit there."""
        for seq, visit in self.run.frontier.items():
            was = before.frontier.get(seq)
            if isinstance(event, Skipped) and event.seq == seq:
                continue
            if was is not None and was.state == "ready" and not self.run.is_final:
                assert visit.state == "ready" or visit.kind == BUDGET, f"visit {seq} of '{visit.node}' has started"

    def _heard(self, part: Part, seq: int | None, delta: dict[str, Any]) -> None:
        """Remember what was said, and when: a turn, or a call of one."""
        self.parts[part.loop, part.turn, part.call] += 1
        talk = self.said.setdefault(part.loop, [""])
        if part.call is not None:  # an error, or a person's answer, is whatever is there now, and stays so
            found = (
                json.dumps(delta[RESULT])
                if RESULT in delta
                else self.memory.items.get(f"{part.loop}.{part.turn}.{part.call}", "{}")
            )
            talk[part.turn + 1][part.call + 1] = found
            assert json.loads(found) is not None
        elif ANSWER in delta:
            talk[0] = json.dumps(delta[MESSAGES]) if part.turn == 0 else talk[0]
            calls = len(delta[ANSWER]["tool_calls"])
            talk.append([json.dumps(delta.get(key)) for key in (ANSWER, *(f"{RESULT}.{n}" for n in range(calls)))])
            if FOLLOW_UP in delta:
                self.follow_ups.setdefault(part.loop, {})[part.turn] = json.dumps(delta[FOLLOW_UP])

    def _with_follow_ups(self, loop: int, turns: list[Any]) -> list[Any]:
        follow_ups = self.follow_ups.get(loop, {})
        return [
            part
            for turn, said in enumerate(turns)
            for part in ([said, follow_ups[turn]] if turn in follow_ups else [said])
        ]

    def _queued(self) -> list[Visit]:
        return [visit for visit in self.run.frontier.values() if visit.state == "queued"]

    def _asking(self) -> list[Visit]:
        """What asks a model."""
        return [visit for visit in self._queued() if visit.kind == "llm" and visit.role in ("node", "turn")]

    def _able_to_ask(self) -> list[Visit]:
        """The visits of nodes with code."""
        return [visit for visit in self._queued() if visit.kind in ("script", "function") and visit.role == "node"]

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
            moving = any(visit.state == "queued" or visit.is_asking or visit.due_ms is not None for visit in visits)
            assert moving or self.run.is_held, (
                "a visit that is ready, ended or failed, or a map, moves nothing by itself"
            )
            assert self.run.is_held or (self.run.status == "waiting") == (not states & {"queued", "ready"})
        assert (self.run.status == "paused") == (self.run.is_held and not self.run.is_final)

    @invariant()
    def what_the_frontier_counts_along_is_what_there_is(self) -> None:
        if isinstance(self.run.frontier, Frontier):
            assert _counts(self.run.frontier) == _counts(Frontier.of(dict(self.run.frontier)))

    @invariant()
    def what_waits_for_a_timer_has_one_and_a_finished_run_has_none(self) -> None:
        held = self.run.is_held  # then a loop's clock stands still, and is armed anew when the run goes on
        visits = [visit for visit in self.run.frontier.values() if not (held and isinstance(visit.body, Loop))]
        assert {visit.timer for visit in visits if visit.due_ms is not None} <= set(self.timers)
        assert not (self.run.is_final and self.timers)

    @invariant()
    def an_execution_gets_all_answers_to_what_its_visit_has_asked(self) -> None:
        for visit in self._able_to_ask():
            expected = self.answers.get(visit.body.given or f"{visit.seq}.answers", [])
            found = answers_of(self.memory.values.talk(visit).told)
            assert [answer.value for answer in found] == expected

    @invariant()
    def no_answers_outlive_their_visits(self) -> None:
        kept = {work_of(visit).given for visit in self.run.frontier.values()}
        if not self.run.is_final:
            assert {field for field in self.memory.items if field.endswith(".answers")} <= kept

    @invariant()
    def what_is_stored_of_an_item_or_a_command_belongs_to_a_visit(self) -> None:
        if self.run.is_final and self.run.status != "failed":
            return
        visits = self.run.frontier.values()
        owners = {(visit.overlay or "").partition(".")[0] for visit in visits}
        for visit in visits:
            body: object = visit.body.was if isinstance(visit.body, Failed) else visit.body
            body = body.resumes if isinstance(body, Ready) else body
            owners |= {str(number) for number in (visit.seq, _number_of(body), visit.part and visit.part.loop)}
            owners.add((work_of(visit).given or "").partition(".")[0])
        assert {field.partition(".")[0] for field in self.memory.items} <= owners

    @invariant()
    def a_budget_is_asked_about_by_the_one_visit_that_it_names(self) -> None:
        asking = [visit.seq for visit in self.run.frontier.values() if visit.kind == BUDGET]
        budget = self.run.budget
        assert asking == ([budget.asked] if budget and budget.asked is not None else [])

    @invariant()
    def an_effect_that_must_happen_once_is_repeated_only_by_its_own_failure_or_a_person(self) -> None:
        for visit in self.run.frontier.values():
            node = self.graph.nodes.get(visit.node)
            if isinstance(visit.body, Ended):  # it has forgotten its failures, and runs no more
                continue
            if isinstance(node, ScriptNode) and node.effect == "once" and visit.role == "node":
                assert visit.attempt <= 1 + work_of(visit).failures + self.run_agains[visit.seq]

    @invariant()
    def no_more_run_at_once_than_the_limits_allow(self) -> None:
        visits = [visit for visit in self.run.frontier.values() if visit.part is None]  # its loop has the slot
        busy = [
            visit
            for visit in visits
            if visit.state == "queued" or (isinstance(visit.body, Loop) and visit.state == "waiting")
        ]
        assert sum(visit.item is None and visit.role == "node" for visit in busy) <= SLOTS
        items = Counter(visit.item.map for visit in visits if visit.item and (visit.queue or visit in busy))
        assert all(count <= MAP_SLOTS for count in items.values())

    @invariant()
    def a_dag_runs_no_node_twice_at_once_but_for_commands(self) -> None:
        if self.graph.engine == "dag":
            live = [
                v
                for v in self.run.frontier.values()
                if v.state == "queued" or (isinstance(v.body, Loop) and v.state == "waiting")
            ]
            plain = [v for v in live if v.place == BRANCH]
            assert len({visit.node for visit in plain}) == len(plain)

    @invariant()
    def a_join_fires_no_more_often_than_its_rarest_source_completes(self) -> None:
        if "join" in self.graph.nodes:
            assert self.run.counts.get("join", 0) <= min(self.completed["a"], self.completed["b"])

    @invariant()
    def a_deferred_node_waits_only_while_others_are_left(self) -> None:
        if self.run.deferred and self.run.status not in ("failed", "cancelled"):
            assert any(visit.is_branch for visit in self.run.frontier.values())

    @invariant()
    def functions_of_the_agents_own_run_where_functions_do(self) -> None:
        own = [visit for visit in self.run.frontier.values() if visit.role in ("branch", "reduce")]
        assert all(visit.queue in (None, "functions") for visit in own)

    @invariant()
    def no_node_is_entered_more_often_than_its_cap_allows(self) -> None:
        refused = any(visit.state == "failed" for visit in self.run.frontier.values()) or self.run.status in (
            "failed",
            "cancelled",
        )
        entries = {node: count for node, count in self.run.counts.items() if not node.startswith("\0")}  # of no join
        beyond = {node: count - CAP for node, count in entries.items() if count > CAP and not refused}
        if beyond:  # a person has let visits end that a limit kept from beginning
            steps = [read_entry(entry)[0] for entry in self.memory.entries]
            let_end = Counter(step.node for step in steps if step.skipped is not None and step.gate is not None)
            assert all(count <= let_end[node] for node, count in beyond.items())

    @invariant()
    def no_visit_is_given_away_more_often_than_allowed(self) -> None:
        assert all(work_of(visit).losses <= MAX_REDELIVERIES for visit in self.run.frontier.values())

    @invariant()
    def no_visit_is_tried_more_often_than_its_policy_says(self) -> None:
        assert all(work_of(visit).failures < TRIES for visit in self.run.frontier.values())

    @invariant()
    def nothing_private_outlives_its_visit(self) -> None:
        if self.run.status != "completed":
            return
        assert (self.run.tops, self.run.deferred) == ({}, {})
        # By Loki's rules an end node of a `dag` ends what is live; what that had goes with the run's keys (commit.lua).
        if self.graph.engine == "bsp" or not self.graph.is_loki:
            assert (self.memory.items, self.memory.windows) == ({}, {})

    @invariant()
    def each_turn_and_each_call_is_committed_at_most_once(self) -> None:
        assert set(self.parts.values()) <= {1}

    @invariant()
    def a_loop_asks_the_model_or_waits_for_the_calls_of_its_last_turn(self) -> None:
        loops = {visit.body.id: visit.body for visit in self.run.frontier.values() if isinstance(visit.body, Loop)}
        live: dict[int, list[Part]] = {id_: [] for id_ in loops}
        for visit in self.run.frontier.values():
            if visit.part is not None:
                live[visit.part.loop].append(visit.part)
        for id_, loop in loops.items():
            calls = [part for part in live[id_] if part.call is not None]
            assert {part.turn for part in live[id_]} == {loop.turn}
            assert loop.turn < TURNS
            assert len(calls) == loop.open, "the loop counts along what is there"
            assert len(live[id_]) == (loop.open or 1), "a turn comes when the last call has ended"
            assert self.parts[id_, loop.turn, None] == bool(calls), "a call comes after its turn"
            assert all(self.parts[id_, loop.turn, part.call] == 0 for part in calls)

    @invariant()
    def a_claim_gives_what_was_said_and_what_is_said_no_more_is_forgotten(self) -> None:
        if self.run.status in ("completed", "cancelled"):
            return
        for visit in self.run.frontier.values():
            if visit.part is not None:
                said = self.said.get(visit.part.loop, [""])
                whole = [*said[:1], *self._with_follow_ups(visit.part.loop, said[1:])]
                asked = [said[visit.part.turn + 1][:1]] if visit.part.call is not None else whole
                assert self.memory.talk(visit) == asked
        bodies = [visit.body for visit in self.run.frontier.values()]
        bodies += [body.was for body in bodies if isinstance(body, Failed)]
        kept = {body.id for body in bodies if isinstance(body, Loop)}
        of_loops = {int(field.partition(".")[0]) for field in self.memory.items} & self.said.keys()
        assert of_loops <= kept, "what was said goes with its loop"

    @invariant()
    def the_journal_alone_gives_the_state(self) -> None:
        assert state_after(self.memory.entries) == self.memory.state

    @invariant()
    def the_journal_alone_tells_where_a_run_goes_on_after_a_checkpoint(self) -> None:
        if self.graph.engine == "dag" or self.run.is_final or not self.run.frontier:
            return
        steps = [read_entry(entry)[0] for entry in self.memory.entries]
        reader = CheckpointReader(Checkpoint(0, (self.graph.start,))).over(steps)
        if not steps[-1].is_checkpoint:
            return
        nodes = sorted(visit.node for visit in self.run.frontier.values() if visit.is_branch)
        last = reader.last
        assert sorted(last.nodes) == nodes or last.commands
        closed = self.run.steps - bool(nodes)  # a run that is held, and would end, has opened none
        assert (last.arrived, last.deferred, last.steps) == (self.run.arrived, self.run.deferred, closed)
        missing = Counter(last.counts)
        missing.subtract(Counter(self.run.counts) - Counter(set(nodes)))
        assert last.commands or not any(missing.values())

    @invariant()
    def the_journal_alone_tells_what_is_unfinished_in_a_dag(self) -> None:
        if self.graph.engine != "dag" or self.run.is_final or not self.run.frontier:
            return
        reader = DagReader(self.graph, Checkpoint(0, (self.graph.start,)))
        steps = [read_entry(entry)[0] for entry in self.memory.entries]
        for step in steps:
            if reader.add(step) and reader.step % 3 == 0:
                reader.keep()
        assert not reader.is_strange
        live = [visit for visit in self.run.frontier.values() if visit.is_branch and visit.place.role == "node"]
        chosen = [visit for visit in live if isinstance(visit.body, Ended) and visit.body.applied]
        assert reader.is_whole == (not chosen)
        if chosen or not steps[-1].is_checkpoint:
            return
        reader.keep()
        kept = reader.kept
        assert kept is not None
        point = kept.checkpoint
        assert sorted(visit.rank for visit in point.visits) == sorted(
            visit.rank for visit in live if isinstance(visit.place, Branch) and visit.place.batch is None
        )
        sent = sorted(visit.overlay or "" for visit in live if isinstance(visit.place, Branch) and visit.place.batch)
        numbers = (f"{each.seq}.{number}" for each in point.lists for number, node in enumerate(each.nodes) if node)
        assert sorted(numbers) == sent
        for each in point.lists:
            texts = kept.overlays[str(each.seq)].split(OVERLAY_END)
            assert all(texts[n] == self.memory.items[f"{each.seq}.{n}"] for n, node in enumerate(each.nodes) if node)
        if not any(isinstance(visit.body, Failed) for visit in live):
            assert (point.arrived, point.steps + len(live)) == (self.run.arrived, self.run.steps)
            opened = Counter(visit.rank[1] for visit in point.visits)
            opened.update({node for each in point.lists for node in each.nodes if node})
            # of two lists to one node each counts, and a retry forgets that other visits of its nodes were open
            if len(point.lists) < 2 and all(step.kind != "retried" for step in steps):
                assert Counter(point.counts) + opened == Counter(self.run.counts)
        begun = RunView("fork", RunSpec("agent", "digest", fork=Fork("source", point)), counts=point.counts)
        began = plan(self.graph, replace(begun, steps=point.steps, arrived=point.arrived), Submitted(), self.now_ms)
        if isinstance(began, Transition) and began.status != "failed" and self.graph.limits.max_steps is None:
            assert {visit.rank for visit in live} <= {visit.rank for visit in began.open} | {
                visit.rank for visit in live if visit.kind in ("end", "router")
            }

    @invariant()
    def the_version_counts_what_was_applied(self) -> None:
        assert self.run.version == self.applied


def _number_of(body: object) -> int | None:
    """What the values of a body are stored under."""
    match body:
        case Fan(id=number) | Loop(id=number) | Commands(of=number):
            return number
    return None


def _calls(visit: Visit) -> tuple[ToolCall, ...]:
    """What the model asks for in a turn."""
    assert visit.part is not None
    where = WHERE[(visit.seq + visit.part.turn) % len(WHERE)]
    asks = ASKING[visit.seq % len(ASKING)]
    return tuple(ToolCall(f"c{number}", asks if at == PERSON else "t", at) for number, at in enumerate(where))


def _as_sent(call: ToolCall) -> dict[str, Any]:
    arguments = {"question": "q?", "options": ["yes", "no"]}
    return {"id": call.id, "function": {"name": call.name, "arguments": json.dumps(arguments)}}


def _counts(frontier: Frontier) -> list[Any]:
    """All that a frontier counts, zeros apart."""
    numbers = [{of: count for of, count in counts.items() if count} for counts in (frontier.items_of, frontier.nodes)]
    steps = [frontier.members, frontier.unfinished, len(frontier)]
    return [frontier.ready, frontier.maps, frontier.branches, frontier.failed, *numbers, *steps]


class TalkativeWorld(HostileWorld):
    """The same, with a run that begins with a conversation. Half of the examples each, so that two processes share
    them."""

    @initialize(
        drawn=drawn_graphs(talkative=True), max_tokens=st.sampled_from([None, 1, 3]), target=HostileWorld.events
    )
    def submit(self, drawn: Drawn, max_tokens: int | None) -> Event:
        submitted = super().submit(drawn, max_tokens)
        self.deliver(submitted, 0)
        return submitted

    @precondition(lambda self: self._parts())
    @rule(data=st.data(), most=st.integers(1, 8), ok=st.booleans())
    def talk(self, data: st.DataObject, most: int, ok: bool) -> None:
        """The conversation goes on for a while, without trouble: the parts that are there end."""
        for visit in data.draw(st.permutations(self._parts()))[:most]:
            asking = visit.queue is None
            self.deliver(Answered(visit.seq, "no", visit.attempt) if asking else self._result(visit, ok, None), 0)

    def _parts(self) -> list[Visit]:
        return [visit for visit in self._live() if visit.part is not None]


EXAMPLES = {"slow": 10_000, "ci": 2_000}.get(settings.get_current_profile_name(), 500)
TestHostileWorld, TestTalkativeWorld = HostileWorld.TestCase, TalkativeWorld.TestCase
TestHostileWorld.pytestmark = TestTalkativeWorld.pytestmark = [pytest.mark.timeout(1200)]
TestHostileWorld.settings = TestTalkativeWorld.settings = settings(
    max_examples=EXAMPLES // 2, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
