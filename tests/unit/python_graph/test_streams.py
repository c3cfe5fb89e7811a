"""The chunks of `stream` in every mode and form."""

from __future__ import annotations

import asyncio
import operator
import threading
import unittest.mock
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import (
    START,
    AIMessage,
    Command,
    HumanMessage,
    InMemorySaver,
    MessagesState,
    RetryPolicy,
    Send,
    StateGraph,
)
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.emitters import get_stream_writer
from sleipnir.python_graph.runtime import GraphOutput


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
    with pytest.raises(ValueError, match="unknown stream_mode 'nothing'; there are values, updates, custom, messages"):
        chunks(stream_mode=mode)


ANY = unittest.mock.ANY


def test_a_task_begins_and_ends_once_though_it_is_tried_again() -> None:
    tries: list[int] = []

    def stumbles(state: State) -> dict[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("again")
        return {"text": "done"}

    graph = StateGraph(State).add_node(stumbles, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    got = list(graph.add_edge(START, "stumbles").compile().stream({"text": "a"}, stream_mode="tasks"))
    assert len(tries) == 3
    assert got == [
        {"id": ANY, "name": "stumbles", "input": {"text": "a", "log": []}, "triggers": ()},
        {"id": got[0]["id"], "name": "stumbles", "error": None, "result": {"text": "done"}, "interrupts": []},
    ]


def test_parallel_tasks_begin_in_order_before_any_ends_and_a_failed_one_has_its_error() -> None:
    def fails(state: State) -> None:
        raise KeyError("mine")

    graph = StateGraph(State).add_node("good", lambda state: {"text": "x"}).add_node("bad", fails)
    graph.add_edge(START, "good").add_edge(START, "bad")
    got: list[Any] = []
    with pytest.raises(KeyError, match="mine"):
        for chunk in graph.compile().stream({}, stream_mode="tasks"):
            got.append(chunk)
    assert [(chunk["name"], "input" in chunk) for chunk in got[:2]] == [("bad", True), ("good", True)]
    ends = {chunk["name"]: chunk for chunk in got[2:]}
    assert ends["good"]["result"] == {"text": "x"}
    assert ends["bad"]["error"] == "KeyError('mine')"


def test_the_input_of_a_task_that_was_sent_is_its_argument() -> None:
    def spread(state: State) -> list[Send]:
        return [Send("work", {"text": name}) for name in "ab"]

    graph = StateGraph(State).add_node("work", lambda state: {"log": [state["text"]]})
    got = list(graph.add_conditional_edges(START, spread, ["work"]).compile().stream({}, stream_mode="tasks"))
    assert [chunk["input"] for chunk in got if "input" in chunk] == [{"text": "a"}, {"text": "b"}]


def test_tasks_of_a_graph_below_come_with_its_namespace() -> None:
    outer = StateGraph(State).add_node("inner", GRAPH).add_edge(START, "inner").compile()
    got = [(len(ns), chunk["name"]) for ns, chunk in outer.stream({}, stream_mode="tasks", subgraphs=True)]
    below = [(1, name) for name in ("first", "first", "second", "second", "third", "third")]
    assert got == [(0, "inner"), *below, (0, "inner")]


def test_checkpoints_are_those_of_the_history_also_without_a_thread() -> None:
    got = chunks(stream_mode="checkpoints")
    assert [(chunk["metadata"]["step"], chunk["next"]) for chunk in got] == [
        (-1, ["__start__"]), (0, ["first"]), (1, ["second"]), (2, ["third"]), (3, []),
    ]  # fmt: skip
    assert [chunk["parent_config"] for chunk in got] == [None, *(chunk["config"] for chunk in got[:-1])]
    assert got[-1]["values"] == VALUES[-1]


def test_debug_is_tasks_and_checkpoints_with_the_number_of_their_step() -> None:
    got = chunks(stream_mode=["debug", "tasks", "checkpoints"])
    debug = [chunk for mode, chunk in got if mode == "debug"]
    assert [(chunk["step"], chunk["type"]) for chunk in debug] == [
        (-1, "checkpoint"), (0, "checkpoint"),
        *((step, type_) for step in (1, 2, 3) for type_ in ("task", "task_result", "checkpoint")),
    ]  # fmt: skip
    assert [chunk["payload"] for chunk in debug] == [chunk for mode, chunk in got if mode != "debug"]


def test_steps_are_numbered_on_in_a_thread() -> None:
    graph = StateGraph(State).add_node(second).add_edge(START, "second").compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    for first_step in (-1, 2):
        got = list(graph.stream({"text": "x"}, thread, stream_mode="debug"))
        assert [chunk["step"] for chunk in got] == [first_step + number for number in (0, 1, 2, 2, 2)]


def test_a_message_is_new_once() -> None:
    class Talk(MessagesState):
        pass

    def repeats(state: Talk) -> dict[str, Any]:
        return {"messages": [*state["messages"], AIMessage("new", id="n"), {"role": "user", "content": "a dict"}]}

    graph = StateGraph(Talk).add_sequence([repeats, ("again", repeats)]).add_edge(START, "repeats").compile()
    got = list(graph.stream({"messages": [HumanMessage("hi", id="h")]}, stream_mode="messages"))
    assert [(message.content, metadata["langgraph_node"]) for message, metadata in got][:1] == [("new", "repeats")]
    assert sum(message.id == "n" for message, _ in got) == 1
    assert all(message.id != "h" for message, _ in got)


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
