"""Nodes that no edge leads to."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

import sleipnir
from sleipnir import END, START, Command, Send, StateGraph
from sleipnir.python_graph.errors import GraphWarning

Sent = Send


class State(TypedDict, total=False):
    n: int


def plain(state: State) -> State:
    return {"n": 1}


def builder(first: Callable[..., Any] = plain, **options: Any) -> StateGraph:
    made = StateGraph(State).add_node("first", first, **options).add_node("left_out", plain)
    return made.add_edge(START, "first").add_edge("left_out", END)


def warned(graph: StateGraph) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.compile()
    return caught


def test_a_node_that_no_edge_leads_to_is_a_warning_at_its_line() -> None:
    [warning] = warned(builder())
    assert warning.category is GraphWarning
    assert str(warning.message) == "Node 'left_out' is unreachable: no edge leads to it"
    assert warning.filename == __file__
    assert "left_out" in Path(__file__).read_text().splitlines()[warning.lineno - 1]


def by_name(state: State) -> Any:
    return Command(goto="left_out")


def by_attribute(state: State) -> Any:
    return sleipnir.Command(goto="left_out")


def by_another_name(state: State) -> Any:
    return [Sent("left_out", state)]


def inside(state: State) -> Any:
    return [Command(goto=name) for name in ("left_out",)]


class Object:
    def __call__(self, state: State) -> Any:
        return Command(goto="left_out")

    def method(self, state: State) -> Any:
        return Command(goto="left_out")


@pytest.mark.parametrize(
    "function",
    [by_name, by_attribute, by_another_name, inside, Object(), Object().method, functools.partial(by_name), dict],
    ids=["name", "attribute", "alias", "inside", "object", "method", "partial", "no code"],
)
def test_a_function_that_may_send_a_command_may_lead_to_any_node(function: Callable[..., Any]) -> None:
    assert warned(builder(function)) == []


def test_one_that_names_its_destinations_leads_only_there() -> None:
    assert warned(builder(by_name, destinations=("left_out",))) == []
    assert len(warned(builder(by_name, destinations=("first",)))) == 1


def test_a_router_without_a_mapping_may_choose_any_node() -> None:
    assert warned(builder().add_conditional_edges("first", lambda state: "left_out")) == []
    assert len(warned(builder().add_conditional_edges("first", lambda state: END, [END]))) == 1


def test_nodes_without_code_say_where_they_lead() -> None:
    graph = StateGraph(State).add_approval_node("ask", question="?", options=["yes"], routes={"yes": END}, on_other=END)
    graph.add_node("left_out", plain).add_edge(START, "ask").add_edge("left_out", END)
    assert len(warned(graph)) == 1
