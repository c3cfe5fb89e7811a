"""What planner tests share: a run moved by events, without Redis and without a clock."""

from __future__ import annotations

from typing import Any

from sleipnir.graph.load import load_graph
from sleipnir.graph.model import Graph
from sleipnir.messages import ResultHeader
from sleipnir.runs import Event, Resulted, RunSpec, RunView, Transition
from sleipnir_scheduler.planner.moves import Known
from sleipnir_scheduler.planner.plan import NeedState, plan


def graph_of(text: str) -> Graph:
    return load_graph(text, "graph.yaml", "agent")


def new_run() -> RunView:
    return RunView(id="run1", spec=RunSpec("agent", "digest"))


def ok(seq: int, next_: str | None = None, attempt: int = 1, **more: Any) -> Resulted:
    return Resulted(seq, attempt, ResultHeader(ok=True, next=next_, **more))


def bad(seq: int, error: str = "boom", attempt: int = 1, **more: Any) -> Resulted:
    return Resulted(seq, attempt, ResultHeader(ok=False, error=error, **more))


class Driver:
    """A run moved by events, as the scheduler moves it: state values are given when the planner asks for them."""

    def __init__(self, text: str, state: dict[str, Any] | None = None) -> None:
        self.graph, self.run, self.state, self.now_ms = graph_of(text), new_run(), state or {}, 1_000

    def send(self, event: Event, after_ms: int = 1) -> Transition:
        self.now_ms += after_ms
        outcome = plan(self.graph, self.run, event, self.now_ms)
        while isinstance(outcome, NeedState):
            known = Known(outcome.keys, {k: v for k, v in self.state.items() if k in outcome.keys})
            outcome = plan(self.graph, self.run, event, self.now_ms, known)
        assert isinstance(outcome, Transition), outcome
        for write in outcome.writes:
            self.state |= write.values
        self.run = outcome.apply(self.run)
        return outcome

    def live(self) -> list[str]:
        return [visit.node for visit in self.run.frontier.values()]
