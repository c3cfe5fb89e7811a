"""The table of moves (planner/states.py): the planner makes these and no others, and the README shows them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.config_agent import load_config_agent
from sleipnir.graph.model import Graph
from sleipnir.messages import AGENTS, ANSWER, MESSAGES, PERSON, RESULT, ResultHeader, ToolCall, WaitRequest
from sleipnir.runs.events import (
    SIGNALLED,
    Answered,
    Cancelled,
    ChildEnded,
    ChildGone,
    Commented,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Skipped,
    TimerFired,
    Told,
)
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import FAIL, RUN_AGAIN, changed
from sleipnir.runs.visits import Backoff, Call, ChildWait, Loop, Question, Receipt, SignalWait, Visit, Work
from sleipnir_scheduler.planner import states
from sleipnir_scheduler.planner.draft.visits import LiveVisits
from sleipnir_scheduler.planner.plan import IgnoredEvent
from sleipnir_scheduler.planner.states import MEANINGS, MOVES, Closed, IllegalMove, New
from tests.model_store import Driver, asking, graph_of

README = Path(__file__).parents[3] / "scheduler" / "README.md"

FANNED = """
name: g
version: sleipnir/1
engine: ENGINE
start: split
settings: {max_loop_iterations: 9, max_concurrency: 4}
state: {log: {type: list, reducer: append}, best: {reducer: "f.py:best"}, n: int}
nodes:
  split: {type: router, next: [once, ask, loop, child, plain, map, choose, pause, below, paid]}
  once: {type: script, script: s.sh, effect: once, RETRY, next: after}
  ask: {type: approval, question: ok?, options: ["yes"], routes: {"yes": after}, on_other: after, timeout: 2}
  loop: {type: llm, prompt: p, tools: [t], max_iterations: 3, timeout: 9, next: after}
  child: {type: agent, agent: worker, prompt: p, timeout: 5, output_schema: {type: object}, next: after}
  map: {type: map, over: "{{items}}", as: item, branch: BODY, output_key: k, MORE, next: after}
  plain: {type: agent, agent: worker, prompt: p, on_error: continue, next: after}
  below: {type: graph, graph: low, timeout: 5, on_error: continue, next: after}
  pause: {type: wait, for: 3s, state_updates: {n: "NUMBER"}, next: after}
  paid: {type: wait, event: paid, timeout: 3s, state_updates: {n: "NUMBER"}, next: after}
  choose: {type: function, call: "f.py:f", branch: {call: "f.py:choose"}}
  script: {type: script, script: s.sh, effect: once}
  talk: {type: llm, prompt: p, tools: [t], max_iterations: 2, timeout: 9}
  delegate: {type: agent, agent: worker, prompt: "{{PROMPT}}", timeout: 5}
  question: {type: input, question: q?, timeout: 2}
  after: {type: script, script: s.sh, next: done}
  done: {type: end, output: "{{log}}"}
graphs: {low: {name: low, version: sleipnir/1, start: a, nodes: {a: {type: router}}}}
"""

ALONE = """
name: g
start: NODE
nodes:
  script: {type: script, script: s.sh, effect: once, fallback: end, next: end}
  llm: {type: llm, prompt: p, tools: [t], timeout: 9, fallback: end, next: end}
  agent: {type: agent, agent: worker, prompt: p, timeout: 5, next: end}
  input: {type: input, question: q?, timeout: 2, next: end}
  map: {type: map, over: "{{items}}", as: item, branch: script, output_key: k, collect_into: all, next: end}
  end: {type: end}
"""

POLICY = "retry: {max_attempts: 3, initial_interval: 1s, on: [any]}"
COLLECT = "collect_into: all, on_item_error: HOW"

BOSS = """
name: boss
can_spawn_agents: true
max_concurrent_agents: 2
summarization_threshold: 4
escalation_timeout: 3
"""


def boss() -> Graph:
    graph = load_config_agent(BOSS, "config.yaml", "boss").graph
    assert graph is not None
    return graph


def graphs() -> Iterator[Graph]:
    fanned = FANNED.replace("RETRY", POLICY).replace("MORE", COLLECT)
    for engine in ("bsp", "dag"):
        for body in ("script", "talk", "delegate", "question", "[script, question]"):
            text = fanned.replace("ENGINE", engine).replace("BODY", body)
            yield graph_of(text.replace("HOW", "fail").replace("PROMPT", "item").replace("NUMBER", "1"))
            yield graph_of(text.replace("HOW", "skip").replace("PROMPT", "missing").replace("NUMBER", "one"))
    for node in ("script", "llm", "agent", "input", "map"):
        yield graph_of(ALONE.replace("NODE", node))
    yield boss()


class World:
    """A run to which anything may happen next."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.order = random.Random(seed)
        self.driver = Driver(graph, {"items": ["x", "y"], "initial_prompt": "go"})
        spec = changed(
            self.driver.run.spec,
            agents={"worker": "digest2"},
            max_tokens=self.order.choice([None, None, 40]),
            parent="run0",
            root="run0",
            depth=1,
        )
        self.driver.run = changed(self.driver.run, spec=spec)
        self.driver.start()

    def live(self, steps: int) -> None:
        for _ in range(steps):
            event, delta, updates, after_ms = self.something()
            outcome = self.driver.try_(event, delta, updates, after_ms=after_ms)
            assert isinstance(outcome, IgnoredEvent) or outcome.seq >= 0
            if self.driver.run.is_final and not self.driver.run.may_go_on:
                return

    def something(self) -> tuple[Event, dict[str, Any], tuple[dict[str, Any], ...], int]:
        order, run = self.order, self.driver.run
        if run.is_final and order.random() < 0.3 and run.frontier:
            return self.skip(order.choice(list(run.frontier.values()))), {}, (), 1
        if run.is_final:
            return Retried(fresh_children=order.random() < 0.3), {}, (), 1
        draw = order.random()
        if draw < 0.03:
            return Cancelled(keeps=order.random() < 0.7), {}, (), 1
        if draw < 0.06:
            return (Resumed(by="ann") if run.holds else Paused("ann")), {}, (), 1
        if draw < 0.08 and run.frontier:
            return self.skip(order.choice(list(run.frontier.values()))), {}, (), 1
        timed = [visit for visit in run.frontier.values() if visit.due_ms is not None]
        if draw < 0.2 and timed:
            visit = order.choice(timed)
            return TimerFired(visit.timer), {}, (), max(1, (visit.due_ms or 0) - self.driver.now_ms)
        if draw < 0.21:
            return TimerFired("run/deadline"), {}, (), 1
        live = [visit for visit in run.frontier.values() if visit.state in ("queued", "waiting")]
        if not live:
            return Resumed(by="ann"), {}, (), 1
        return self.about(order.choice(live))

    def skip(self, visit: Visit) -> Skipped:
        value = self.order.choice(["text", {"k": 1, "log": ["x"]}, {"best": 3}, ["a", "b"], None])
        return Skipped(visit.seq, value, self.order.choice([(), (), ("after",)]), "ann")

    def about(self, visit: Visit) -> tuple[Event, dict[str, Any], tuple[dict[str, Any], ...], int]:
        order = self.order
        match visit.body:
            case Question() if order.random() < 0.1:
                return Commented(visit.seq, visit.attempt, "wait", "ann"), {}, (), 1
            case Question() if visit.kind == "budget":
                return Answered(visit.seq, order.choice(["yes", "no", "what?"]), visit.attempt), {}, (), 1
            case ChildWait(child) if not isinstance(visit.place, Call) and order.random() < 0.2:
                return ChildGone(visit.seq, visit.attempt, child.run), {}, (), 1
            case ChildWait(child):
                status: Any = order.choice(["completed", "completed", "failed", "cancelled"])
                return ChildEnded(visit.seq, visit.attempt, child.run, status, "why"), {RESULT: "a long text"}, (), 1
            case SignalWait(name):
                signal = {"seq": visit.seq, "attempt": visit.attempt, "name": name, "number": "1", "id": "e"}
                return Told(SIGNALLED, signal), {}, (), 1
            case Receipt():
                return Told("arrived", {"seq": visit.seq, "found": True}), {}, (), 1
        if visit.is_asking:
            text = order.choice(["yes", "maybe", RUN_AGAIN, FAIL, "{}"])
            return Answered(visit.seq, text, visit.attempt), {}, (), 1
        if visit.state != "queued":
            agents = visit.children
            if agents:
                return ChildEnded(3, 1, agents[0], "completed"), {RESULT: "a long text"}, (), 1
            return LeaseLost(visit.seq, visit.attempt, "w"), {}, (), 1
        if order.random() < 0.15:
            return LeaseLost(visit.seq, visit.attempt, "w", begun=order.random() < 0.7), {}, (), 1
        if order.random() < 0.05:
            header = ResultHeader(ok=False, error="limit", later_ms=self.driver.now_ms + 500)
            return Resulted(visit.seq, visit.attempt, header), {}, (), 1
        if order.random() < 0.15:
            return Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error="boom")), {}, (), 1
        if visit.role == "node" and visit.kind in ("script", "function") and order.random() < 0.15:
            timeout_ms, schema = order.choice([None, 2_000]), order.choice([None, {"enum": ["yes"]}])
            wait = order.choice([None, WaitRequest(for_ms=2_000), WaitRequest(event="paid")])
            asked = {"timeout_ms": timeout_ms, "schema": schema, "wait": wait}
            return asking(visit.seq, "k", visit.attempt, **asked), {}, (), 1
        header, delta, updates = self.result(visit)
        return Resulted(visit.seq, visit.attempt, header), delta, updates, 1

    def result(self, visit: Visit) -> tuple[ResultHeader, dict[str, Any], tuple[dict[str, Any], ...]]:
        order, usage = self.order, {"input_tokens": 30, "output_tokens": 0, "calls": 1}
        match visit.role:
            case "turn":
                return self.turn(visit)
            case "tool" | "summary":
                return ResultHeader(ok=True, keys=(RESULT,), usage=usage), {RESULT: {"output": "short"}}, ()
            case "branch":
                return ResultHeader(ok=True, next=order.choice(["after", "done"])), {}, ()
            case "reduce":
                return ResultHeader(ok=True, keys=("best",)), {"best": 1}, ()
        if visit.node == "choose" and order.random() < 0.3:
            sends = ("after",) * 150
            return ResultHeader(ok=True, sends=sends), {}, tuple({"n": n} for n in range(len(sends)))
        if visit.kind == "graph" and isinstance(visit.body, Work) and visit.body.given is None:
            return ResultHeader(ok=True, keys=(RESULT,)), {RESULT: {"n": 1}}, ()  # the first state of its child
        delta = {"k": 1} | ({"log": ["x"], "best": 2} if visit.item is None else {})
        return ResultHeader(ok=True, keys=tuple(delta), usage=usage), delta, ()

    def turn(self, visit: Visit) -> tuple[ResultHeader, dict[str, Any], tuple[dict[str, Any], ...]]:
        part, order = visit.part, self.order
        assert part is not None
        first = {MESSAGES: [{"role": "user", "content": "go"}]} if part.turn == 0 else {}
        if order.random() < 0.2:
            delta = {"k": "done"}
            return ResultHeader(ok=True, keys=tuple(delta)), delta, ()
        asked: list[tuple[str, str, dict[str, Any]]] = [
            ("t", "scripts", {}),
            ("user__input", PERSON, {"question": "?"}),
        ]
        if self.driver.graph.loop is not None:
            loops = [each.body for each in self.driver.run.frontier.values() if isinstance(each.body, Loop)]
            asked.append(("agent__spawn", AGENTS, {"agent": "worker", "prompt": "do"}))
            asked += [("agent__collect", AGENTS, {"id": agent.id}) for agent in loops[0].agents]
            asked.append(("agent__send_message", AGENTS, {"to": "agent_x", "message": "hi"}))
        chosen = order.sample(asked, order.randint(1, min(3, len(asked))))
        calls = tuple(ToolCall(f"c{number}", name, where) for number, (name, where, _) in enumerate(chosen))
        functions = [{"name": name, "arguments": json.dumps(arguments)} for name, _, arguments in chosen]
        delta = {**first, ANSWER: {"role": "assistant", "tool_calls": [{"id": "c", "function": f} for f in functions]}}
        return ResultHeader(ok=True, keys=tuple(delta), calls=calls), delta, ()


def test_the_planner_makes_every_move_of_the_table_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that is not in the table raises IllegalMove, which no world here may meet."""
    made: set[tuple[str, str]] = set()

    def noting(name: str) -> None:
        original = getattr(LiveVisits, name)

        def method(self: LiveVisits, *args: Any, **kwargs: Any) -> Any:
            before = New if name == "open" else type(args[0].body)
            result = original(self, *args, **kwargs)
            after = Closed if name == "drop" else type(result.body)
            if name != "begin" or after is not before:
                made.add((before.__name__, after.__name__))
            return result

        monkeypatch.setattr(LiveVisits, name, method)

    for name in ("open", "move", "begin", "stay", "drop"):
        noting(name)
    legal = {(before.__name__, after.__name__) for before, moves in MOVES.items() for after in moves}
    for seed in range(400):
        for number, graph in enumerate(graphs()):
            World(graph, seed * 100 + number).live(60)
        if made >= legal:
            break
    assert legal - made == set(), "moves that no world has made"
    assert made - legal == set()


def test_a_move_that_is_not_in_the_table_is_refused_and_changes_nothing() -> None:
    visits = LiveVisits({}, 1, Frontier(), 0)
    visit = visits.open("a", "script")
    with pytest.raises(IllegalMove, match="visit 1 of node 'a' cannot go from Ready to Backoff"):
        visits.move(visit, Backoff(Work("scripts"), 5))
    assert visits.get(1) == visit


def test_every_state_that_a_visit_can_be_in_has_a_meaning_and_can_be_left() -> None:
    assert set(MEANINGS) == set(MOVES) - {New, Closed}
    assert all(MOVES[state] for state in MEANINGS)
    reached = {after for moves in MOVES.values() for after in moves}
    assert reached == {*MEANINGS, Closed}


def test_the_readme_of_the_scheduler_shows_the_table() -> None:
    assert states.as_markdown() in README.read_text(encoding="utf-8")
