"""`compile(errors=...)`: failures after which a run of a graph in Python goes on."""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, Command, RecoverableError, StateGraph


class HalfDone(Exception):
    """Listed by the graphs here."""


class Nearly(HalfDone):
    """Derives from a listed one."""


class State(TypedDict, total=False):
    n: int
    execution_errors: Annotated[list[Any], operator.add]


def compiled(*functions: Any, **errors: Any) -> Any:
    graph = StateGraph(State)
    for function in functions:
        graph.add_node(function)
    for source, target in pairwise([START, *(function.__name__ for function in functions), END]):
        graph.add_edge(source, target)
    return graph.compile(errors=errors)


def gives(state: State) -> State:
    raise RecoverableError("half", code=3, value={"n": 4})


def nearly(state: State) -> State:
    raise Nearly("almost")


def adds(state: State) -> State:
    return {"n": state.get("n", 0) + len(state.get("execution_errors", []))}


@pytest.mark.conformance("ER-01", "ER-02", "ER-03")
def test_the_run_goes_on_with_the_value_and_nodes_see_the_records() -> None:
    result = compiled(gives, nearly, adds, collect=True, recoverable=[HalfDone]).invoke({})
    assert result["n"] == 6
    found = [
        (record["node"], record["code"], record["type"].rpartition(":")[2]) for record in result["execution_errors"]
    ]
    assert found == [("gives", "3", "RecoverableError"), ("nearly", None, "Nearly")]


def test_a_command_as_the_value_goes_where_it_says() -> None:
    def moves(state: State) -> State:
        raise RecoverableError("other way", value=Command(update={"n": 9}, goto="aside"))

    def aside(state: State) -> State:
        return {"n": 10}

    graph = StateGraph(State).add_node(moves).add_node(aside).add_edge(START, "moves")
    assert graph.compile(errors={"collect": False}).invoke({})["n"] == 10


def test_without_errors_the_exception_is_raised() -> None:
    with pytest.raises(RecoverableError, match="half"):
        StateGraph(State).add_node(gives).add_edge(START, "gives").compile().invoke({})


def test_other_exceptions_are_raised() -> None:
    def fails(state: State) -> State:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        compiled(fails, collect=True, recoverable=[HalfDone, KeyError]).invoke({})
