"""What planner tests share: a run moved by events, without Redis and without a clock.

The values are those of the store in memory, which applies transitions as commit.lua does: tests/store holds the two
against each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.graph.load import load_graph
from sleipnir.graph.model import Graph
from sleipnir.memory.values import RunValues
from sleipnir.messages import (
    OVERLAY_END,
    OVERLAYS,
    InterruptQuestion,
    ResultHeader,
    ToolCall,
    VisitResult,
    overlay_of,
    overlay_text,
)
from sleipnir.runs.events import Answered, Continued, Event, Resulted, Submitted
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import RunSpec, RunView
from sleipnir.runs.transitions import Step, Transition
from sleipnir.runs.values import KnownValues, WantedValues
from sleipnir.runs.visits import Backoff, Doubt, Failed, Question, Ready, Visit, Work
from sleipnir.store.record_text import dumps, record
from sleipnir_scheduler.planner.plan import IgnoredEvent, NeedValues, plan


def graph_of(text: str) -> Graph:
    return load_graph(text, "graph.yaml", "agent")


def new_run() -> RunView:
    return RunView(id="run1", spec=RunSpec("agent", "digest"))


def assert_same_visits(transition: Transition, before: RunView) -> None:
    """What the planner leaves in the run is what closing and opening makes of it, and counted alike."""
    expected = transition.visits_after(before)
    assert transition.frontier is not None
    assert dict(transition.frontier) == dict(expected)
    for name in Frontier.__slots__:
        if not name.startswith("_"):
            assert _counted(getattr(transition.frontier, name)) == _counted(getattr(expected, name)), name


def _counted(value: Any) -> Any:
    return {key: count for key, count in value.items() if count} if isinstance(value, dict) else value


def work_of(visit: Visit) -> Work:
    """The work of a visit that a worker has, or had."""
    match visit.body:
        case Work() as work:
            return work
        case (
            Question(_, Work() as work)
            | Backoff(work)
            | Doubt(work)
            | Ready(Work() as work)
            | Failed(was=Work() as work)
        ):
            return work
    return Work("")


def ok(seq: int, next_: str | tuple[str, ...] | None = None, attempt: int = 1, **more: Any) -> Resulted:
    return Resulted(seq, attempt, ResultHeader(ok=True, next=next_, **more))


def bad(seq: int, error: str = "boom", attempt: int = 1, **more: Any) -> Resulted:
    return Resulted(seq, attempt, ResultHeader(ok=False, error=error, **more))


def asking(seq: int, name: str, attempt: int = 1, **asked: Any) -> Resulted:
    """The code of a node asks with an interrupt."""
    result = VisitResult.asking(InterruptQuestion(name, **asked))
    return Resulted(seq, attempt, ResultHeader.of(result, worker="w", started_ms=0, took_ms=1))


class Memory:
    """The values of one run: those of the store in memory (sleipnir.memory.values), as objects."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.values = RunValues(_texts(state))

    @property
    def state(self) -> dict[str, Any]:
        return _objects(self.values.state)

    @property
    def windows(self) -> dict[str, Any]:
        return _objects(self.values.windows)

    @property
    def items(self) -> dict[str, str]:
        return self.values.items

    @items.setter
    def items(self, items: dict[str, str]) -> None:
        self.values.items = items

    @property
    def costs(self) -> dict[str, dict[str, float]]:
        return self.values.costs

    @property
    def entries(self) -> list[str]:
        """The journal as it is stored in Redis."""
        return [_entry(step, texts) for step, texts in self.values.journal]

    def fetch(
        self, wanted: WantedValues, delta: Mapping[str, Any], overlays: tuple[Mapping[str, Any], ...] = ()
    ) -> KnownValues:
        return self.values.known(wanted, _delivered(delta, overlays))

    def apply(
        self, transition: Transition, delta: Mapping[str, Any], overlays: tuple[Mapping[str, Any], ...] = ()
    ) -> None:
        numbers = range(len(self.values.journal), len(self.values.journal) + len(transition.writes))
        assert [write.step.step for write in transition.writes] == list(numbers)
        self.values.apply(transition, _delivered(delta, overlays))

    def talk(self, visit: Visit) -> list[Any]:
        """What a claim gives of a loop's conversation, in the form of the reply of claim.lua."""
        said = self.values.talk(visit)
        turns = [[reply, *results] for reply, results in said.turns]
        if visit.part is not None and visit.part.call is not None:
            return turns
        talk: list[Any] = [said.told]
        for number, turn in enumerate(turns):
            talk.append(turn)
            talk += [texts[number] for texts in (said.follow_ups, said.announced) if number in texts]
        return talk


def _entry(step: Step, texts: Mapping[str, str]) -> str:
    """A journal entry as it is stored."""
    return "\n".join([record(step), *(part for key, text in texts.items() for part in (dumps(key), text))])


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in values.items()}


def _objects(texts: Mapping[str, str], known: dict[str, Any] | None = None) -> dict[str, Any]:
    """The values of JSON texts. `known` keeps those of long ones."""
    return {key: _object(text, known) for key, text in texts.items()}


def _object(text: str, known: dict[str, Any] | None) -> Any:
    if known is None or len(text) < 10_000:
        return json.loads(text)
    if text not in known:
        known[text] = json.loads(text)
    return known[text]


def _delivered(delta: Mapping[str, Any], overlays: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    """A result as a worker delivers it."""
    texts = _texts(delta)
    if overlays:
        texts[OVERLAYS] = OVERLAY_END.join(overlay_text(_texts(values)) for values in overlays)
    return texts


def fetch_and_plan(
    graph: Graph,
    run: RunView,
    event: Event,
    now_ms: int,
    memory: Memory,
    delta: Mapping[str, Any],
    max_redeliveries: int = 3,
    overlays: tuple[Mapping[str, Any], ...] = (),
) -> Transition | IgnoredEvent:
    """Plan, and fetch what planning asks for, as the scheduler does."""
    outcome = plan(graph, run, event, now_ms, max_redeliveries=max_redeliveries)
    for _ in range(20):
        if not isinstance(outcome, NeedValues):
            return outcome
        known = memory.fetch(outcome.wanted, delta, overlays)
        outcome = plan(graph, run, event, now_ms, known, max_redeliveries=max_redeliveries)
    raise AssertionError("planning does not end, though it gets all it asks for")


class Driver:
    """A run moved by events, as the scheduler moves it."""

    def __init__(self, text: str | Graph, state: dict[str, Any] | None = None) -> None:
        self.graph = graph_of(text) if isinstance(text, str) else text
        self.run, self.memory, self.now_ms = new_run(), Memory(state or {}), 1_000
        self._seen: dict[str, Any] = {}
        """Values by their text: a list of a million is not parsed for each visit that sees it."""
        self.last: Transition | None = None
        self.own_events = 0
        """How often the run went on with an event of its own."""

    @property
    def state(self) -> dict[str, Any]:
        return self.memory.state

    def try_(
        self,
        event: Event,
        delta: Mapping[str, Any] | None = None,
        overlays: tuple[Mapping[str, Any], ...] = (),
        after_ms: int = 1,
    ) -> Transition | IgnoredEvent:
        """What an event changes, if it changes something."""
        self.now_ms += after_ms
        outcome = self._plan_and_apply(event, delta or {}, overlays)
        following = outcome
        while isinstance(following, Transition) and following.continues:
            self.own_events += 1
            following = self._plan_and_apply(Continued(), {})
        return outcome

    def _plan_and_apply(
        self, event: Event, values: Mapping[str, Any], overlays: tuple[Mapping[str, Any], ...] = ()
    ) -> Transition | IgnoredEvent:
        outcome = fetch_and_plan(self.graph, self.run, event, self.now_ms, self.memory, values, overlays=overlays)
        if isinstance(outcome, Transition):
            self.memory.apply(outcome, values, overlays)
            assert_same_visits(outcome, self.run)
            self.run, self.last = outcome.apply(self.run), outcome
        return outcome

    def send(self, event: Event, after_ms: int = 1) -> Transition:
        outcome = self.try_(event, after_ms=after_ms)
        assert isinstance(outcome, Transition), outcome
        return outcome

    # A day in the life of a run, by the names of its nodes

    def start(self) -> Driver:
        self.send(Submitted())
        return self

    def visit(self, node: str, item: int | None = None) -> Visit:
        """The live visit of a node with the lowest number; of an item of a map, if told."""
        return min(self._live(node, item), key=lambda visit: visit.seq)

    def _live(self, node: str, item: int | None) -> list[Visit]:
        return [
            visit
            for visit in self.run.frontier.values()
            if visit.node == node
            and visit.state in ("queued", "waiting")
            and (item is None or (visit.item is not None and visit.item.index == item))
        ]

    def does(
        self,
        node: str,
        /,
        next_: str | tuple[str, ...] | None = None,
        *,
        item: int | None = None,
        sends: list[tuple[str, dict[str, Any]]] | None = None,
        **delta: Any,
    ) -> Driver:
        """The visit of a node ends well, and has written `delta`."""
        return self.ends(self.visit(node, item), next_, sends=sends, **delta)

    def ends(
        self,
        visit: Visit,
        /,
        next_: str | tuple[str, ...] | None = None,
        *,
        sends: list[tuple[str, dict[str, Any]]] | None = None,
        calls: tuple[ToolCall, ...] = (),
        goes_on: bool = False,
        **delta: Any,
    ) -> Driver:
        targets = None if sends is None else tuple(to for to, _ in sends)
        header = ResultHeader(ok=True, keys=tuple(delta), next=next_, sends=targets, calls=calls, goes_on=goes_on)
        overlays = tuple(update for _, update in sends or ())
        outcome = self.try_(Resulted(visit.seq, visit.attempt, header), delta, overlays)
        assert isinstance(outcome, Transition), outcome
        return self

    def asks(self, node: str, name: str, *, item: int | None = None, **asked: Any) -> Driver:
        """The code of a node asks."""
        visit = self.visit(node, item)
        self.send(asking(visit.seq, name, visit.attempt, **asked))
        return self

    def fails(self, node: str, error: str = "boom", *, item: int | None = None) -> Driver:
        visit = self.visit(node, item)
        self.send(Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error=error)))
        return self

    def answers(self, node: str, text: str) -> Driver:
        visit = self.visit(node)
        self.send(Answered(visit.seq, text, visit.attempt))
        return self

    def sees(self, visit: Visit) -> dict[str, Any]:
        """The state as a worker sees it that claims this visit now."""
        own = overlay_of(self.memory.items.get(visit.overlay or "", ""))
        return _objects({**self.memory.values.state, **own}, self._seen)

    def live(self) -> list[str]:
        """The nodes of live visits, by number."""
        return [visit.node for visit in self.run.frontier.values() if visit.state not in ("ended", "failed")]

    def failed(self) -> list[str]:
        """The nodes that `retry` would run again."""
        return [visit.node for visit in self.run.frontier.values() if visit.state == "failed"]

    def on_workers(self) -> list[str]:
        return [visit.node for visit in self.run.frontier.values() if visit.state == "queued"]

    @property
    def error(self) -> str | None:
        return self.last.error if self.last else None

    @property
    def output(self) -> str | None:
        return self.last.output if self.last else None
