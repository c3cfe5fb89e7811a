"""`wait()` in the nodes of graphs that run in this process."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import START, Command, InMemorySaver, StateGraph, interrupt, wait
from sleipnir.python_graph.compiled import CompiledGraph

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    got: Annotated[list[Any], operator.add]


def graph(*nodes: Any) -> CompiledGraph:
    built: Any = StateGraph(State)
    for node in nodes:
        built.add_node(node.__name__, node).add_edge(START, node.__name__)
    compiled: CompiledGraph = built.compile(checkpointer=InMemorySaver())
    return compiled


def test_the_node_runs_again_from_its_beginning_when_the_time_is_over() -> None:
    runs = []

    def node(state: State) -> dict[str, Any]:
        runs.append(1)
        first = wait(0.001)
        wait(until=datetime.now(UTC) - timedelta(days=1))
        return {"got": [first, wait(for_="1ms")]}

    assert graph(node).invoke({}, CONFIG) == {"got": [None, None]}
    assert len(runs) == 4


def test_a_wait_for_an_event_stops_the_run_and_the_answer_is_its_data() -> None:
    def node(state: State) -> dict[str, Any]:
        name = interrupt("who?")
        event = wait(event=f"mail.{name}", filter="event.data.n > 1", timeout="1h")
        assert event is not None
        return {"got": [event["name"], event["data"]]}

    run = graph(node)
    run.invoke({}, CONFIG)
    shown = run.invoke(Command(resume="ann"), CONFIG)["__interrupt__"]
    assert [each.value for each in shown] == [{"wait_for_event": "mail.ann"}]
    again = run.invoke(Command(resume={"n": 0}), CONFIG)["__interrupt__"]
    assert [each.value for each in again] == [{"wait_for_event": "mail.ann"}], "the filter is false"
    assert run.invoke(Command(resume={"n": 2}), CONFIG) == {"got": ["mail.ann", {"n": 2}]}


def test_two_waits_of_one_step_are_answered_by_their_ids() -> None:
    def left(state: State) -> dict[str, Any]:
        return {"got": [wait(event="left", key="l")]}

    def right(state: State) -> dict[str, Any]:
        return {"got": [wait(event="right")]}

    run = graph(left, right)
    shown = run.invoke({}, CONFIG)["__interrupt__"]
    answers = {each.id: each.value["wait_for_event"] for each in shown}
    got = run.invoke(Command(resume=answers), CONFIG)["got"]
    assert sorted((each["name"], each["data"]) for each in got) == [("left", "left"), ("right", "right")]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "exactly one of for_, until and event"),
        ({"for_": 1, "event": "e"}, "exactly one of for_, until and event"),
        ({"for_": 0}, "for_ of a wait must be positive and at most 8760h"),
        ({"for_": "soon"}, "'soon' is not a duration"),
        ({"for_": 1, "timeout": 1}, "the timeout of a wait belongs to an event"),
        ({"for_": 1, "consume": "one"}, "filter, look_back and consume of a wait belong to an event"),
        ({"until": "noon"}, "'noon' is no time"),
        ({"until": datetime(2030, 1, 1)}, "has no zone"),
        ({"event": "a b"}, "'a b' is no name of an event"),
        ({"event": "e", "filter": "event.data.all(x, x > 1)"}, "a filter may not loop"),
        ({"event": "e", "look_back": "25h"}, "look_back of a wait must be at most 24h"),
        ({"event": "e", "consume": "two"}, "consume must be 'all' or 'one', not 'two'"),
        ({"event": "e", "key": " "}, "the key of a wait must be a text"),
    ],
)
def test_what_cannot_be_waited_for_is_an_error_in_the_node(given: dict[str, Any], error: str) -> None:
    def node(state: State) -> dict[str, Any]:
        wait(**given)
        return {}

    with pytest.raises(ValueError, match=error):
        graph(node).invoke({}, CONFIG)


def test_outside_of_a_node_there_is_nothing_to_wait() -> None:
    with pytest.raises(RuntimeError, match="outside of a node"):
        wait(1)
