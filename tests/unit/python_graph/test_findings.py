"""Wrong graphs: each mistake is one finding with the file and the line of the call, and all come at once."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, StateGraph
from sleipnir.errors import Problem
from sleipnir.python_graph.errors import GraphBuildError
from sleipnir.python_graph.references import References


class State(TypedDict):
    topic: str
    draft: str
    notes: Annotated[list[str], operator.add]


def keep(state: State) -> None:
    """Writes nothing."""


def problems(graph: StateGraph, **options: Any) -> list[Problem]:
    with pytest.raises(GraphBuildError) as raised:
        graph.compile(**options)
    lines = str(raised.value).splitlines()
    assert len(lines) == len(raised.value.problems)
    for line, problem in zip(lines, raised.value.problems, strict=True):
        assert line.startswith(f"{__file__}:{problem.line}: {problem.message}")
    return list(raised.value.problems)


def lines_below(build: Callable[..., Any], graph: StateGraph, **options: Any) -> list[tuple[int, str]]:
    """The findings, with lines counted from the `def` of the function that builds the graph."""
    first = build.__code__.co_firstlineno
    return [((problem.line or 0) - first, problem.message) for problem in problems(graph, **options)]


def test_all_mistakes_are_reported_at_once_in_the_order_of_their_lines() -> None:
    def build() -> StateGraph:
        graph = StateGraph(State)
        graph.add_node("a", keep)
        graph.add_node("b", keep, destinations=("nowhere",))
        graph.add_llm_node("ask", prompt="{{topic}}", promt="x")
        graph.add_script_node("run", script="s.sh", timeout="long")
        graph.add_edge(START, "a")
        graph.add_edge("a", "missing")
        graph.add_edge("lost", "a")
        graph.add_conditional_edges("a", keep, {"x": "gone"})
        graph.add_conditional_edges("other", keep)
        return graph

    assert lines_below(build, build()) == [
        (3, "Found edge ending at unknown node `nowhere`"),
        (4, "unknown key 'promt'"),
        (5, "'timeout' must be a whole number, got the text 'long'"),
        (7, "Found edge ending at unknown node `missing`"),
        (8, "Found edge starting at unknown node 'lost'"),
        (9, "At 'a' node, 'keep' branch found unknown target 'gone'"),
        (10, "Found edge starting at unknown node 'other'"),
    ]


def test_a_misspelt_field_names_the_near_one() -> None:
    graph = StateGraph(State).add_llm_node("a", prompt="x", temprature=1).add_edge(START, "a")
    with pytest.raises(GraphBuildError, match=r"unknown key 'temprature'\. Did you mean \"temperature\"\?"):
        graph.compile()


def test_a_missing_entry_point_is_reported_with_other_mistakes() -> None:
    def build() -> StateGraph:
        graph = StateGraph(State)
        graph.add_node("a", keep)
        graph.add_edge("a", "missing")
        return graph

    found = lines_below(build, build())
    assert found == [
        (1, "Graph must have an entrypoint: add at least one edge from START to another node"),
        (3, "Found edge ending at unknown node `missing`"),
    ]


def test_a_graph_without_nodes_is_reported() -> None:
    assert problems(StateGraph(State))[0].message.startswith("Graph must have an entrypoint")


@pytest.mark.parametrize("name", ["a", START, END, "a:b", "a|b"])
def test_a_wrong_name_of_a_node_is_an_error_of_the_call(name: str) -> None:
    graph = StateGraph(State).add_node("a", keep)
    with pytest.raises(ValueError, match=r"already present|reserved"):
        graph.add_node(name, keep)
    with pytest.raises(ValueError, match=r"already present|reserved"):
        graph.add_llm_node(name, prompt="x")


def test_a_loop_without_a_way_out_is_reported_at_the_edge_that_closes_it() -> None:
    def build() -> StateGraph:
        graph = StateGraph(State)
        graph.add_node("a", keep)
        graph.add_node("b", keep)
        graph.add_llm_node("c", prompt="{{topic}}")
        graph.add_edge(START, "a")
        graph.add_edge("a", "b")
        graph.add_edge("b", "c")
        graph.add_edge("c", "b")
        graph.add_edge("c", END)
        return graph

    [(line, message)] = lines_below(build, build())
    assert line in (7, 8)
    assert message.startswith(("The loop 'b' -> 'c' -> 'b' has no way out", "The loop 'c' -> 'b' -> 'c' has no way"))
    build().compile(max_steps=9)


def test_a_loop_of_typed_nodes_only_is_reported_once() -> None:
    graph = StateGraph(State).add_llm_node("a", prompt="x").add_llm_node("b", prompt="y")
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "a")
    assert [problem.message for problem in problems(graph)] == ["Cycle detected: a -> b -> a"]


def test_a_loop_that_a_router_closes_has_a_way_out() -> None:
    graph = StateGraph(State).add_node("a", keep).add_node("b", keep).add_edge(START, "a").add_edge("a", "b")
    graph.add_conditional_edges("b", lambda state: END, ["a", END]).compile()


def test_ten_thousand_nodes_in_a_row_are_no_loop() -> None:
    graph = StateGraph(State).add_sequence([(f"n{number}", keep) for number in range(2_000)]).add_edge(START, "n0")
    assert len(graph.compile().model.nodes) == 2_000


def test_parallel_writers_of_a_key_without_a_reducer_are_reported_where_their_writes_are_declared() -> None:
    def build() -> StateGraph:
        graph = StateGraph(State)
        graph.add_llm_node("a", prompt="{{topic}}", state_updates={"draft": "{{output}}"})
        graph.add_llm_node("b", prompt="{{topic}}", state_updates={"draft": "{{output}}"})
        graph.add_node("split", keep)
        graph.add_edge(START, "split")
        graph.add_edge("split", "a")
        graph.add_edge("split", "b")
        return graph

    [(line, message)] = lines_below(build, build())
    assert message == "key 'draft' takes one write per super-step, and parallel branches write it (a, b)"
    assert line in (4, 6, 7)


def test_edges_among_the_fields_of_a_node_are_refused() -> None:
    graph = StateGraph(State).add_llm_node("a", prompt="x", next="b").add_edge(START, "a")
    [problem] = problems(graph)
    assert problem.message == "Node `a`: 'next' is no field here; add edges by add_edge and add_conditional_edges"


class Locked(TypedDict):
    topic: str
    lock: threading.Lock
    call: Callable[[int], int]


def test_a_state_type_that_json_cannot_hold_is_reported() -> None:
    def build() -> StateGraph:
        graph = StateGraph(Locked)
        return graph.add_node("a", keep).add_edge(START, "a")

    found = lines_below(build, build())
    assert [line for line, _ in found] == [1, 1]
    assert [message.split(" has ")[0] for _, message in found] == ["State key 'lock'", "State key 'call'"]
    assert all(message.endswith("which JSON cannot hold") for _, message in found)


def test_what_is_not_supported_yet_is_named() -> None:
    graph = StateGraph(State).add_node("a", keep).add_edge(START, "a")
    with pytest.raises(GraphBuildError, match=r"store=.* is not supported yet"):
        graph.compile(store=["a"])


class Place:
    """Functions in the places that workers can and cannot find again."""

    def method(self, state: State) -> None:
        """Of an instance."""

    @staticmethod
    def static(state: State) -> None:
        """Of the class."""


def test_a_function_that_cannot_be_found_again_says_why() -> None:
    references = References()

    def inner(state: State) -> None:
        """A closure."""

    reached = {references.to(found): found for found in (keep, Place.static, State, operator.add)}
    assert references.unreachable == {}
    assert all(":" in reference and "#" not in reference for reference in reached)
    hidden = {references.to(found): found for found in (inner, lambda state: None, Place().method)}
    assert [references.unreachable[reference] for reference in hidden] == [
        "it is defined inside a function",
        "it is a lambda",
        "it is a method of an object",
    ]
    assert [references.find(reference) for reference in hidden] == list(hidden.values())
    assert {references.to(found) for found in reached.values()} == set(reached)


def test_a_reference_is_found_again_by_its_module_and_name() -> None:
    assert References().find("operator:add") is operator.add
    assert References().find(f"{__name__}:Place.static") is Place.static
    with pytest.raises(AttributeError):
        References().find("operator:nothing_here")
