"""Breakpoints of graphs in this process: `invoke` returns where the run stops, and `invoke(None, config)` goes on."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, Command, InMemorySaver, Send, StateGraph, interrupt
from sleipnir.python_graph.compiled import CompiledGraph

THREAD = {"configurable": {"thread_id": "1"}}

engines = pytest.mark.parametrize("engine", ["bsp", "dag"])


class State(TypedDict, total=False):
    seen: Annotated[list[str], operator.add]


def adder(name: str) -> Any:
    return lambda state: {"seen": [name]}


def chain(engine: str = "bsp", *, names: str = "abc", **options: Any) -> CompiledGraph:
    graph = StateGraph(State)
    for name, before in zip(names, [START, *names], strict=False):
        graph.add_node(name, adder(name)).add_edge(before, name)
    return graph.compile(checkpointer=InMemorySaver(), engine=engine, **options)


@engines
def test_a_call_returns_where_its_run_stops_and_the_next_one_goes_on(engine: str) -> None:
    graph = chain(engine, interrupt_before=["b"], interrupt_after=["c"])
    assert graph.invoke({"seen": ["x"]}, THREAD) == {"seen": ["x", "a"]}
    assert graph.invoke(None, THREAD) == {"seen": ["x", "a", "b", "c"]}
    assert graph.invoke(None, THREAD) == {"seen": ["x", "a", "b", "c"]}


def test_between_two_nodes_it_stops_once_as_langgraph_does() -> None:
    graph = chain(interrupt_before=["c"], interrupt_after=["b"])
    assert graph.invoke({"seen": []}, THREAD) == {"seen": ["a", "b"]}
    assert graph.invoke(None, THREAD) == {"seen": ["a", "b", "c"]}


@engines
def test_a_star_is_every_node(engine: str) -> None:
    graph = chain(engine, interrupt_before="*")
    assert graph.model.interrupt_before == ["a", "b", "c"]
    assert [graph.invoke(given, THREAD)["seen"] for given in ({"seen": []}, None, None, None)] == [
        [],
        ["a"],
        ["a", "b"],
        ["a", "b", "c"],
    ]


def test_a_graph_whose_start_chooses_stops_before_what_it_has_chosen() -> None:
    graph = StateGraph(State).add_node("a", adder("a")).add_node("b", adder("b"))
    graph.add_conditional_edges(START, lambda state: ["a", "b"], ["a", "b"])
    compiled = graph.compile(checkpointer=InMemorySaver(), interrupt_before="*", interrupt_after="*")
    assert compiled.invoke({"seen": ["x"]}, THREAD) == {"seen": ["x"]}
    assert compiled.invoke(None, THREAD) == {"seen": ["x", "a", "b"]}


def test_a_call_has_breakpoints_of_its_own_in_the_place_of_those_of_the_graph() -> None:
    graph = chain(interrupt_before=["b"])
    assert graph.invoke({"seen": []}, THREAD, interrupt_before=["c"]) == {"seen": ["a", "b"]}
    assert graph.invoke(None, THREAD) == {"seen": ["a", "b", "c"]}
    assert graph.invoke({"seen": []}, {"configurable": {"thread_id": "2"}}) == {"seen": ["a"]}


@pytest.mark.conformance("SI-05")
def test_an_unknown_name_is_an_error_before_anything_runs() -> None:
    graph = chain()
    for way in ("interrupt_before", "interrupt_after"):
        with pytest.raises(ValueError, match="Interrupt node `z` not found"):
            graph.invoke({"seen": []}, THREAD, **{way: ["z"]})
        with pytest.raises(ValueError, match="Interrupt node `z` not found"):
            chain(**{way: ["a", "z"]})
    assert graph.invoke({"seen": ["x"]}, THREAD) == {"seen": ["x", "a", "b", "c"]}


@pytest.mark.conformance("SI-07")
def test_a_run_that_nothing_could_go_on_with_is_refused() -> None:
    graph = chain(interrupt_before=["b"])
    with pytest.raises(ValueError, match="the breakpoint at 'b' needs a thread to go on with"):
        graph.invoke({"seen": []})
    with pytest.raises(ValueError, match="the breakpoint at 'c' needs a thread"):
        list(chain().stream({"seen": []}, interrupt_after=["c"]))


def test_a_run_is_kept_at_a_breakpoint_also_without_a_checkpointer() -> None:
    graph = StateGraph(State).add_node("a", adder("a")).add_node("b", adder("b")).add_edge(START, "a")
    compiled = graph.add_edge("a", "b").compile(interrupt_before=["b"])
    assert compiled.invoke({"seen": []}, THREAD) == {"seen": ["a"]}
    assert compiled.invoke(None, THREAD) == {"seen": ["a", "b"]}


def test_a_stop_is_an_empty_interrupt_in_the_stream_of_updates() -> None:
    graph = chain(interrupt_before=["b"])
    assert list(graph.stream({"seen": []}, THREAD)) == [{"a": {"seen": ["a"]}}, {"__interrupt__": ()}]
    assert list(graph.stream(None, THREAD)) == [{"b": {"seen": ["b"]}}, {"c": {"seen": ["c"]}}]


def test_a_new_input_leaves_the_breakpoint_and_starts_over() -> None:
    graph = chain(interrupt_before=["b"])
    assert graph.invoke({"seen": []}, THREAD) == {"seen": ["a"]}
    assert graph.invoke({"seen": ["x"]}, THREAD) == {"seen": ["a", "x", "a"]}


def test_an_answer_goes_past_a_breakpoint_too_as_nothing_else_is_asked() -> None:
    graph = chain(interrupt_before=["b"])
    graph.invoke({"seen": []}, THREAD)
    assert graph.invoke(Command(resume="yes"), THREAD) == {"seen": ["a", "b", "c"]}


def test_commands_stop_once_before_all_of_them() -> None:
    graph = StateGraph(State).add_node("a", lambda state: {}).add_node("b", lambda sent: {"seen": [sent["x"]]})
    graph.add_edge(START, "a").add_conditional_edges("a", lambda state: [Send("b", {"x": x}) for x in "12"], ["b"])
    compiled = graph.compile(checkpointer=InMemorySaver(), interrupt_before=["b"])
    assert compiled.invoke({"seen": ["x"]}, THREAD) == {"seen": ["x"]}
    assert compiled.invoke(None, THREAD) == {"seen": ["x", "1", "2"]}


def test_a_breakpoint_of_a_graph_that_is_a_node_stops_the_graph_above() -> None:
    below = StateGraph(State).add_node("x", adder("x")).add_node("y", adder("y")).add_edge(START, "x")
    inner = below.add_edge("x", "y").compile(interrupt_before=["y"])
    graph = StateGraph(State).add_node("a", adder("a")).add_node("inner", inner).add_node("c", adder("c"))
    graph.add_edge(START, "a").add_edge("a", "inner").add_edge("inner", "c")
    compiled = graph.compile(checkpointer=InMemorySaver())
    assert compiled.invoke({"seen": []}, THREAD) == {"seen": ["a"]}
    assert compiled.invoke(None, THREAD)["seen"][-3:] == ["x", "y", "c"]
    other = {"configurable": {"thread_id": "2"}}
    assert list(compiled.stream({"seen": []}, other))[-1] == {"__interrupt__": ()}
    assert compiled.invoke(Command(resume=1), other)["seen"][-3:] == ["x", "y", "c"]


def test_a_question_and_a_breakpoint_of_one_run_come_one_after_the_other() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"seen": [interrupt("which?")]}

    graph = StateGraph(State).add_node("ask", ask).add_node("b", adder("b")).add_edge(START, "ask")
    compiled = graph.add_edge("ask", "b").add_edge("b", END).compile(InMemorySaver(), interrupt_before=["ask", "b"])
    assert compiled.invoke({"seen": []}, THREAD) == {"seen": []}
    assert [each.value for each in compiled.invoke(None, THREAD)["__interrupt__"]] == ["which?"]
    assert compiled.invoke(Command(resume="this"), THREAD) == {"seen": ["this"]}
    assert compiled.invoke(None, THREAD) == {"seen": ["this", "b"]}


def test_breakpoints_are_part_of_the_graph_yaml() -> None:
    assert (
        "interrupt_before:\n- b\ninterrupt_after:\n- a\n- b\n- c\n"
        in chain(interrupt_before=["b"], interrupt_after="*").to_yaml()
    )
