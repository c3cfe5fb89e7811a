"""Keys that the engine fills: RemainingSteps and IsLastStep."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import (
    END,
    START,
    Command,
    GraphRecursionError,
    InMemorySaver,
    IsLastStep,
    RemainingSteps,
    StateGraph,
    interrupt,
)
from sleipnir.python_graph.compiled import CompiledGraph


class State(TypedDict, total=False):
    seen: Annotated[list[Any], operator.add]
    remaining: RemainingSteps
    is_last: IsLastStep


def note(state: State) -> State:
    return {"seen": [[state["remaining"], state["is_last"]]]}


def again_until(most: int) -> CompiledGraph:
    def choose(state: State) -> str:
        return END if len(state["seen"]) >= most else "note"

    return StateGraph(State).add_node(note).add_edge(START, "note").add_conditional_edges("note", choose).compile()


def test_nodes_see_how_many_steps_are_left_and_the_result_has_no_such_key() -> None:
    result = again_until(4).invoke({}, {"recursion_limit": 5})
    assert result == {"seen": [[4, False], [3, False], [2, False], [1, True]]}


def test_a_step_after_the_last_one_ends_the_run() -> None:
    with pytest.raises(GraphRecursionError):
        again_until(5).invoke({}, {"recursion_limit": 5})


def test_a_router_ends_the_run_before_its_limit() -> None:
    def choose(state: State) -> str:
        return END if state["remaining"] <= 2 else "note"

    graph = StateGraph(State).add_node(note).add_edge(START, "note").add_conditional_edges("note", choose).compile()
    assert len(graph.invoke({}, {"recursion_limit": 6})["seen"]) == 4


def test_a_choice_at_the_start_takes_no_step() -> None:
    builder = StateGraph(State).add_node(note).add_conditional_edges(START, lambda state: "note", ["note"])
    assert builder.compile().invoke({}, {"recursion_limit": 5})["seen"] == [[4, False]]


def test_after_an_answer_the_steps_of_the_call_that_gave_it_are_left() -> None:
    def ask(state: State) -> State:
        interrupt("go on?")
        return note(state)

    builder = StateGraph(State).add_sequence([("first", note), ("second", note), ("ask", ask), ("last", note)])
    graph = builder.add_edge(START, "first").compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}, "recursion_limit": 9}
    assert graph.invoke({}, config)["seen"] == [[8, False], [7, False]]
    ended = graph.invoke(Command(resume="yes"), {**config, "recursion_limit": 1})
    assert ended["seen"][2:] == [[2, False], [1, True]]


@dataclasses.dataclass
class Counted:
    remaining: RemainingSteps
    seen: Annotated[list[int], operator.add] = dataclasses.field(default_factory=list)


def test_an_instance_of_a_state_class_has_the_key_and_a_write_to_it_is_dropped() -> None:
    def count(state: Counted) -> dict[str, Any]:
        return {"seen": [state.remaining], "remaining": 100}

    graph = StateGraph(Counted).add_node("count", count).add_edge(START, "count").compile()
    with pytest.warns(UserWarning, match="'remaining', which is no key of the state"):
        assert graph.invoke({"seen": []}, {"recursion_limit": 3}) == {"seen": [2]}
    assert "remaining" not in graph.to_yaml()
