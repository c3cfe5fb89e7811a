"""Forks that only refer to the state that they begin with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sleipnir.graph.model import Concurrency, FunctionNode, Graph, Router
from sleipnir.messages import ResultHeader
from sleipnir.runs.events import (
    PAST_DUE,
    SLOT_GRANTED,
    Cancelled,
    Resulted,
    Resumed,
    Retried,
    Submitted,
    TimerFired,
    Told,
)
from sleipnir.runs.interrupts import answers_text
from sleipnir.runs.run import Breakpoint, Checkpoint, Fork, PastState, RunSpec, RunView
from sleipnir.runs.transitions import SetValue, Transition
from sleipnir.runs.values import KnownValues, WantedValues
from sleipnir.runs.visits import Visit, Work
from sleipnir_scheduler.planner.plan import IgnoredEvent, NeedValues, plan
from tests.model_store import graph_of

GRAPH = graph_of(
    "name: g\nstart: a\nnodes:\n  a: {type: script, script: a.sh, next: b}\n  b: {type: script, script: b.sh}"
)
LIMITED = graph_of(
    "name: g\nstart: a\nconcurrency: {limit: 1}\n"
    "nodes:\n  a: {type: script, script: a.sh, next: b}\n  b: {type: script, script: b.sh}"
)
CHAIN = """
name: g
version: sleipnir/1
start: a
nodes:
  a: {type: function, call: "f.py:a", next: b}
  b: {type: function, call: "f.py:b", next: c}
  c: {type: function, call: "f.py:c"}
"""
PAST = PastState("source", 1, 1, 2)
SPEC = RunSpec("agent", "digest", fork=Fork("source", Checkpoint(1, ("b",), {"a": 1}, 1)))
FORK = RunView(id="fork", spec=SPEC, counts={"a": 1}, steps=1, past=PAST)
WANTED = WantedValues(past=PAST)


def test_a_fork_takes_its_state_before_its_first_visit_opens() -> None:
    assert plan(GRAPH, FORK, Submitted(), 1) == NeedValues(WANTED)
    begun = plan(GRAPH, FORK, Submitted(), 1, KnownValues(WANTED))
    assert isinstance(begun, Transition) and [visit.node for visit in begun.open] == ["b"]


def test_a_fork_whose_state_is_lost_fails_instead_of_beginning_with_another_one() -> None:
    failed = plan(GRAPH, FORK, Submitted(), 1, KnownValues(WANTED, lost="it is gone"))
    assert isinstance(failed, Transition) and (failed.status, failed.open) == ("failed", ())
    assert failed.error is not None and failed.error.endswith("it is gone")
    assert PAST_DUE in failed.untimers
    again = replace(failed.apply(FORK), past=PAST)
    assert plan(GRAPH, again, Retried(), 2) == NeedValues(WANTED)
    still = plan(GRAPH, again, Retried(), 2, KnownValues(WANTED, lost="it is gone"))
    assert isinstance(still, Transition) and (still.status, still.open) == ("failed", ())
    found = plan(GRAPH, again, Retried(), 2, KnownValues(WANTED))
    assert isinstance(found, Transition) and [visit.node for visit in found.open] == ["b"], "not at the start"


def test_a_fork_that_waits_for_a_slot_takes_its_state_when_it_has_one_or_its_source_expires_soon() -> None:
    asked = plan(LIMITED, FORK, Submitted(), 1)
    assert isinstance(asked, Transition) and asked.open == ()
    waiting = asked.apply(FORK)
    assert waiting.past == PAST and waiting.slot is not None
    due = TimerFired(PAST_DUE)
    assert plan(LIMITED, waiting, due, 2) == NeedValues(WANTED)
    assert isinstance(plan(LIMITED, waiting, due, 2, KnownValues(WANTED)), IgnoredEvent)
    lost = plan(LIMITED, waiting, due, 2, KnownValues(WANTED, lost="gone"))
    assert isinstance(lost, Transition) and lost.status == "failed"
    assert isinstance(plan(LIMITED, replace(waiting, past=None), due, 2), IgnoredEvent)
    granted = Told(SLOT_GRANTED, {"ticket": waiting.slot.ticket})
    assert plan(LIMITED, waiting, granted, 3) == NeedValues(WANTED)
    begun = plan(LIMITED, waiting, granted, 3, KnownValues(WANTED))
    assert isinstance(begun, Transition) and [visit.node for visit in begun.open] == ["b"]
    cancelled = plan(LIMITED, waiting, Cancelled(by="ann", reason="why"), 3)
    assert isinstance(cancelled, Transition) and PAST_DUE in cancelled.untimers
    assert cancelled.writes[0].step.reason == "why"


def test_a_fork_takes_its_state_before_the_key_of_its_slot_is_rendered_from_it() -> None:
    keyed = replace(LIMITED, concurrency=Concurrency(key="{{customer}}", limit=1))
    assert plan(keyed, FORK, Submitted(), 1) == NeedValues(WANTED)
    wanted = replace(WANTED, state=frozenset(["customer"]))
    assert plan(keyed, FORK, Submitted(), 1, KnownValues(WANTED)) == NeedValues(wanted)
    asked = plan(keyed, FORK, Submitted(), 1, KnownValues(wanted, {"customer": "ann"}))
    assert isinstance(asked, Transition) and asked.slot is not None and asked.slot.key == "ann"
    lost = plan(keyed, FORK, Submitted(), 1, KnownValues(WANTED, lost="gone"))
    assert isinstance(lost, Transition) and lost.status == "failed"


def queued(transition: Transition) -> list[Visit]:
    return [visit for visit in transition.open if visit.state == "queued"]


def updated(graph: Graph, values: dict[str, Any], steps: int = 3) -> tuple[RunView, Transition]:
    """A fork that begins with an update as `b`, and its first transition."""
    made = Fork("source", Checkpoint(5, ("b",), {"a": 1, "b": 2}, steps), update=values)
    fork = RunView(id="fork", spec=RunSpec("agent", "digest", fork=made), counts={"a": 1, "b": 2}, steps=steps)
    begun = plan(graph, fork, Submitted(), 1)
    assert isinstance(begun, Transition)
    return fork, begun


def test_the_node_of_an_update_is_not_called_and_the_run_stops_at_what_comes_next() -> None:
    chain = graph_of(CHAIN)
    fork, begun = updated(chain, {"n": 1})
    assert queued(begun) == [] and [write.step.kind for write in begun.writes] == ["function", "paused"]
    stands = begun.apply(fork)
    [hold] = stands.holds
    assert hold.breakpoint == Breakpoint("after", ("b",), ("c",))
    resumed = plan(chain, stands, Resumed("person", "ann"), 2)
    assert isinstance(resumed, Transition) and [visit.node for visit in queued(resumed)] == ["c"]
    again = plan(chain, resumed.apply(stands), Resulted(2, 1, ResultHeader(True)), 3)
    assert isinstance(again, Transition) and again.status == "completed", "it stops once"


def test_an_update_whose_routers_fail_is_made_again_by_a_retry_and_never_calls_its_node() -> None:
    plain = graph_of(CHAIN)
    node = plain.nodes["b"]
    assert isinstance(node, FunctionNode)
    graph = replace(plain, nodes={**plain.nodes, "b": replace(node, routers=[Router(call="f.py:r", to={"c": "c"})])})
    run, begun = updated(graph, {"n": 1})
    for number in (1, 2):
        [visit] = queued(begun)
        assert isinstance(visit.body, Work) and visit.body.given == f"{number}.update"
        assert SetValue(f"{number}.update", answers_text((), '{"n":1}')) in begun.items
        run = begun.apply(run)
        failed = plan(graph, run, Resulted(number, 1, ResultHeader(False, error="no")), 2)
        assert isinstance(failed, Transition) and failed.status == "failed"
        run = failed.apply(run)
        retried = plan(graph, run, Retried(), 3)
        assert isinstance(retried, Transition)
        begun = retried
