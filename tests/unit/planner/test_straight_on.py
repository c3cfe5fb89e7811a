"""The short path of `bsp` for a visit that is alone in its super-step: it plans and stores what the long path does."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.graph.model import EndNode, FunctionNode, Graph, Node, ScriptNode
from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Answered, Event, LeaseLost, Paused, Resulted, Resumed, TimerFired
from sleipnir.runs.run import RunView
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Visit
from sleipnir.store.commit import control
from sleipnir_scheduler.planner.context import Context, VisitOutcome
from sleipnir_scheduler.planner.engines import bsp
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.examples import examples
from tests.model_store import assert_same_visits, fetch_and_plan
from tests.unit.planner import test_plan_properties
from tests.unit.planner.random_graphs import NAMES, Drawn, drawn_graphs
from tests.unit.planner.test_plan_properties import HostileWorld


class BothWays:
    """Plans each event with the short path and without it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.planned: Counter[bool] = Counter()
        """Results that went the short path, and those that did not."""
        self._is_short_allowed = True
        self._goes_straight_on = bsp.goes_straight_on
        monkeypatch.setattr(bsp, "goes_straight_on", self._observed)
        monkeypatch.setattr(test_plan_properties, "fetch_and_plan", self.plan)

    def _observed(self, context: Context, visit: Any, outcome: VisitOutcome) -> bool:
        if not self._is_short_allowed:
            return False
        went = self._goes_straight_on(context, visit, outcome)
        self.planned[went] += 1
        return went

    def plan(self, graph: Graph, run: RunView, *rest: Any) -> Transition | IgnoredEvent:
        self._is_short_allowed = True
        short = fetch_and_plan(graph, run, *rest)
        self._is_short_allowed = False
        long = fetch_and_plan(graph, run, *rest)
        if isinstance(short, IgnoredEvent) or isinstance(long, IgnoredEvent):
            assert short == long
            return short
        assert stored(run, short) == stored(run, long)
        assert parts(short) == parts(long)
        assert_same_visits(long, run)
        return short


def stored(run: RunView, transition: Transition) -> tuple[Any, list[Any]]:
    """What a commit sends to Redis."""
    at: dict[str, Any] = {"event_id": "2-0", "epoch": 1, "now_ms": 2, "publish_after_ms": 3, "retention_ms": 4}
    body, texts = control(run, transition.apply(run), transition, **at)
    return json.loads(body), texts


def parts(transition: Transition) -> dict[str, Any]:
    """All parts but the counts of the frontier, which `assert_same_visits` compares with its visits."""
    values = {field.name: getattr(transition, field.name) for field in fields(transition)}
    return values | {"frontier": dict(transition.frontier or {})}


def straightened(graph: Graph, random: Random) -> Graph:
    """The same graph with more nodes that lead to one node, so that many of its visits are alone, and with
    limits."""

    def next_of() -> str | list[str]:
        targets = random.sample([*NAMES, "end"], random.choice([1, 1, 1, 1, 1, 2]))
        return targets if len(targets) > 1 else targets[0]

    def straight(node: Node) -> Node:
        if node.id not in NAMES or (isinstance(node, FunctionNode) and random.random() < 0.5):
            return node
        if random.random() < 0.7:
            return ScriptNode(id=node.id, script="s.sh", next=next_of())
        return replace(node, next=next_of())

    limits = graph.limits
    if not graph.is_loki:
        limits = replace(limits, step_timeout=random.choice([None, 2_000]), max_steps=random.choice([None, 2]))
    joins = () if random.random() < 0.2 else ("join", "quorum")
    nodes = {name: straight(node) for name, node in graph.nodes.items() if name not in joins}
    return replace(graph, nodes=nodes, limits=limits, engine="bsp")


def drive(world: HostileWorld, random: Random) -> None:
    """Move a run that mostly goes well: the longer it lives, the more steps close."""
    for _ in range(30):
        live = [visit for visit in world.run.frontier.values() if visit.state == "queued" or visit.is_asking]
        if not live:
            return
        visit, later_ms = random.choice(live), random.choice([0, 0, 0, 900])
        world.deliver(event_for(world, visit, random), later_ms)


def event_for(world: HostileWorld, visit: Visit, random: Random) -> Event:
    if visit.is_asking:
        return Answered(visit.seq, random.choice(["yes", "no"]), visit.attempt)
    match random.randrange(30):
        case 0:
            return LeaseLost(visit.seq, visit.attempt, "w")
        case 1:
            return Paused("me")
        case 2 | 3:
            return Resumed()
        case 4 if world.timers:
            return TimerFired(random.choice(sorted(world.timers)))
        case 5:
            return Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error="boom"))
    if visit.role != "node" or visit.item is not None:
        return world._result(visit, True, None)
    if random.random() < 0.1:
        targets = tuple(random.choices(NAMES, k=random.choice([1, 1, 2])))
        return Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, sends=targets))
    chosen = random.choice([*NAMES, "end", "ghost"]) if random.random() < 0.2 else None
    keys = random.choice([(), ("k",), ("k", "free"), ("log",)])
    return Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, next=chosen, keys=keys))


def test_the_short_path_plans_what_the_long_path_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    both = BothWays(monkeypatch)

    @settings(max_examples=examples(20), database=None, deadline=None)
    @given(drawn=drawn_graphs(), seed=st.integers(0, 2**32), max_tokens=st.sampled_from([None, None, None, 5]))
    def runs(drawn: Drawn, seed: int, max_tokens: int | None) -> None:
        random = Random(seed)
        for graph in (drawn.graph, *(straightened(drawn.graph, random) for _ in range(4))):
            world = HostileWorld()
            world.deliver(world.submit(Drawn(graph), max_tokens), 0)
            drive(world, random)

    runs()
    assert both.planned[True], "a short path that is never taken is never compared"


def test_results_of_a_chain_take_the_short_path(monkeypatch: pytest.MonkeyPatch) -> None:
    both = BothWays(monkeypatch)
    made = {name: ScriptNode(id=name, script="s.sh", next=next_) for name, next_ in pairwise(["a", "b", "c", "end"])}
    world = HostileWorld()
    world.deliver(world.submit(Drawn(Graph(name="g", start="a", nodes={**made, "end": EndNode(id="end")})), None), 0)
    for seq in (1, 2, 3):
        world.deliver(Resulted(seq, 1, ResultHeader(ok=True, keys=("k",))), 1)
    assert (world.run.status, both.planned) == ("completed", {True: 3})
