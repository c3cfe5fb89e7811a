"""The chunks of `stream` in every mode and form."""

from __future__ import annotations

import asyncio
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import START, Command, StateGraph
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.runtime import GraphOutput, get_stream_writer


class State(TypedDict):
    text: str
    log: Annotated[list[str], operator.add]


def first(state: State, writer: Any) -> dict[str, Any]:
    writer({"progress": 1})
    return {"text": "one"}


def second(state: State) -> None:
    get_stream_writer()("half")


def third(state: State) -> list[Any]:
    return [{"log": ["a"]}, Command(update={"log": ["b"]})]


GRAPH = StateGraph(State).add_sequence([first, second, third]).add_edge(START, "first").compile()

VALUES = [
    {"log": []}, {"text": "one", "log": []}, {"text": "one", "log": []}, {"text": "one", "log": ["a", "b"]},
]  # fmt: skip
UPDATES: list[Any] = [{"first": {"text": "one"}}, {"second": None}, {"third": [{"log": ["a"]}, {"log": ["b"]}]}]


def chunks(**options: Any) -> list[Any]:
    return list(GRAPH.stream({}, **options))


def test_updates_are_the_default_and_name_each_node() -> None:
    assert chunks() == chunks(stream_mode="updates") == UPDATES


def test_values_are_the_state_after_the_input_and_after_each_step_with_writes() -> None:
    got = chunks(stream_mode="values")
    assert got[0] == VALUES[0]
    assert got[-1] == VALUES[-1]
    assert [each for number, each in enumerate(got) if number == 0 or each != got[number - 1]] == [
        VALUES[0], VALUES[1], VALUES[3],
    ]  # fmt: skip


def test_custom_chunks_are_what_the_writer_got() -> None:
    assert chunks(stream_mode="custom") == [{"progress": 1}, "half"]


def test_a_list_of_modes_gives_pairs_also_of_one() -> None:
    assert chunks(stream_mode=["custom"]) == [("custom", {"progress": 1}), ("custom", "half")]
    both = chunks(stream_mode=["custom", "updates"])
    assert [chunk for mode, chunk in both if mode == "updates"] == UPDATES
    assert both.index(("custom", {"progress": 1})) < both.index(("updates", UPDATES[0]))


def test_namespaces_come_with_subgraphs() -> None:
    outer = StateGraph(State).add_node("inner", GRAPH).add_edge(START, "inner").compile()
    got = list(outer.stream({}, subgraphs=True))
    inner = [(ns, chunk) for ns, chunk in got if ns]
    assert [chunk for _, chunk in inner] == UPDATES
    assert {len(ns) for ns, _ in inner} == {1}
    assert len({ns for ns, _ in inner}) == 1
    assert inner[0][0][0].startswith("inner:")
    assert [chunk for ns, chunk in got if not ns] == [{"inner": {"text": "one", "log": ["a", "b"]}}]
    assert [mode for ns, mode, _ in outer.stream({}, subgraphs=True, stream_mode=["custom"]) if ns] == ["custom"] * 2


def test_without_subgraphs_nothing_from_inside_arrives() -> None:
    outer = StateGraph(State).add_node("inner", GRAPH).add_edge(START, "inner").compile()
    assert list(outer.stream({}, stream_mode="custom")) == []
    assert list(outer.stream({})) == [{"inner": {"text": "one", "log": ["a", "b"]}}]


def test_version_2_names_all_parts() -> None:
    got = chunks(stream_mode=["updates", "values"], version="v2")
    assert got[0] == {"type": "values", "ns": (), "data": VALUES[0], "interrupts": ()}
    assert {"type": "updates", "ns": (), "data": UPDATES[0]} in got


def test_invoke_gives_the_last_state_the_chunks_of_other_modes_or_an_output() -> None:
    assert GRAPH.invoke({}) == VALUES[-1]
    assert GRAPH.invoke({}, stream_mode="updates") == UPDATES
    assert GRAPH.invoke({}, stream_mode=["custom"]) == [("custom", {"progress": 1}), ("custom", "half")]
    out = GRAPH.invoke({}, version="v2")
    assert isinstance(out, GraphOutput)
    assert (out.value, out["text"]) == (VALUES[-1], "one")


def test_output_keys_select_parts_and_one_key_is_bare() -> None:
    assert GRAPH.invoke({}, output_keys="text") == "one"
    assert GRAPH.invoke({}, output_keys=["text"]) == {"text": "one"}
    assert chunks(output_keys=["log"]) == [{"first": None}, {"second": None}, UPDATES[2]]


@pytest.mark.parametrize("mode", ["nothing", ["updates", "nothing"]])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="unknown stream_mode 'nothing'; there are values, updates, custom"):
        chunks(stream_mode=mode)


@pytest.mark.parametrize("mode", ["messages", "tasks", "checkpoints", "debug"])
def test_a_mode_that_comes_later_says_so(mode: str) -> None:
    with pytest.raises(ValueError, match=f"stream_mode '{mode}' is not supported yet"):
        chunks(stream_mode=mode)


def test_leaving_a_stream_early_stops_the_run_between_steps() -> None:
    seen: list[str] = []

    def note(name: str) -> Any:
        return lambda state: seen.append(name)

    graph = StateGraph(State).add_sequence([(name, note(name)) for name in "abc"]).add_edge(START, "a").compile()
    stream = graph.stream({})
    assert next(stream) == {"a": None}
    stream.close()  # type: ignore[attr-defined]
    assert seen == ["a"]


def test_chunks_of_finished_siblings_come_before_the_error() -> None:
    def fails(state: State) -> None:
        raise KeyError("mine")

    graph = StateGraph(State).add_node("good", lambda state: {"text": "x"}).add_node("bad", fails)
    graph.add_edge(START, "good").add_edge(START, "bad")
    got: list[Any] = []
    with pytest.raises(KeyError, match="mine"):
        for chunk in graph.compile().stream({}):
            got.append(chunk)
    assert got == [{"good": {"text": "x"}}]


def slow(taken: threading.Event) -> CompiledGraph:
    """A graph whose node goes on when the caller has its first chunk."""

    def node(state: State, writer: Any) -> dict[str, Any]:
        writer("begins")
        assert taken.wait(60), "the caller gets the chunk while the node runs"
        writer("ends")
        return {"text": "done"}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


def test_the_caller_gets_custom_chunks_while_the_node_runs() -> None:
    taken = threading.Event()
    found = []
    for chunk in slow(taken).stream({}, stream_mode=["custom", "updates"]):
        found.append(chunk)
        taken.set()
    assert found == [("custom", "begins"), ("custom", "ends"), ("updates", {"node": {"text": "done"}})]


def test_so_does_a_caller_with_asyncio() -> None:
    async def chunks_of() -> list[Any]:
        taken, found = threading.Event(), []
        async for chunk in slow(taken).astream({}, stream_mode="custom"):
            found.append(chunk)
            taken.set()
        return found

    assert asyncio.run(chunks_of()) == ["begins", "ends"]


def test_and_a_caller_of_a_graph_whose_node_is_a_graph() -> None:
    taken = threading.Event()
    above = StateGraph(State).add_node("sub", slow(taken)).add_edge(START, "sub").compile()
    found = []
    for namespace, chunk in above.stream({}, stream_mode="custom", subgraphs=True):
        found.append((len(namespace), chunk))
        taken.set()
    assert found == [(1, "begins"), (1, "ends")]


def test_a_node_is_executed_in_the_thread_of_the_caller_unless_its_chunks_are_streamed() -> None:
    def where(state: State) -> dict[str, Any]:
        return {"log": [threading.current_thread().name]}

    graph = StateGraph(State).add_node("where", where).add_edge(START, "where").compile()
    assert graph.invoke({})["log"] == [threading.current_thread().name]
    [chunk] = graph.stream({}, stream_mode="updates")
    assert chunk["where"]["log"] == [threading.current_thread().name]
