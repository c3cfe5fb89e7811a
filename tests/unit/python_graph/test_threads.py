"""The past of a thread in process: its checkpoints, edits of its state, and lines that go on from old checkpoints. The
programs of tests/langgraph_cases hold the forms of the snapshots against LangGraph's."""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import (
    END,
    START,
    AIMessage,
    Command,
    GraphRecursionError,
    InMemorySaver,
    MessagesState,
    Overwrite,
    RemoveMessage,
    Send,
    StateGraph,
    StateSnapshot,
    add_messages,
    interrupt,
)
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import EmptyInputError, InvalidUpdateError
from sleipnir.runs.events import Resulted
from sleipnir_inprocess import runner

T = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    counter: int
    note: str
    seen: Annotated[list[Any], operator.add]


def wrote(name: str) -> Callable[[State], dict[str, Any]]:
    return lambda state: {"seen": [name], "note": name}


def marks(name: str) -> Callable[[State], dict[str, Any]]:
    return lambda state: {"seen": [name]}


def chain(*names: str) -> CompiledGraph:
    graph = StateGraph(State)
    for source, name in zip((START, *names), names, strict=False):
        graph.add_node(name, wrote(name)).add_edge(source, name)
    return graph.compile(checkpointer=InMemorySaver())


def past(graph: CompiledGraph, nodes: tuple[str, ...]) -> StateSnapshot:
    """The newest checkpoint that leads to these nodes."""
    return next(each for each in graph.get_state_history(T) if each.next == nodes)


def line(graph: CompiledGraph) -> list[tuple[str, int]]:
    return [(each.metadata["source"], each.metadata["step"]) for each in graph.get_state_history(T) if each.metadata]


# Reading


@pytest.mark.conformance("CK-02")
def test_each_checkpoint_names_the_one_before_it() -> None:
    graph = chain("a", "b")
    graph.invoke({"counter": 1}, T)
    graph.invoke({"counter": 2}, T)
    history = list(graph.get_state_history(T))
    assert [each.parent_config for each in history] == [*(each.config for each in history[1:]), None]
    assert len({each.config["configurable"]["checkpoint_id"] for each in history}) == len(history) == 8
    assert [graph.get_state(each.config) for each in history] == history
    assert history[0] == graph.get_state(T)
    assert sorted(each.created_at or "" for each in history) == [each.created_at for each in reversed(history)]


@pytest.mark.conformance("TT-05", "CK-01", "SV-02")
def test_the_history_is_newest_first_and_limited_and_filtered() -> None:
    graph = chain("a", "b")
    graph.invoke({"counter": 1}, T)
    assert line(graph) == [("loop", 2), ("loop", 1), ("loop", 0), ("input", -1)]
    assert [each.next for each in graph.get_state_history(T, limit=2)] == [(), ("b",)]
    assert list(graph.get_state_history(T, limit=0)) == []
    assert len(list(graph.get_state_history(T, limit=99))) == 4
    assert [each.next for each in graph.get_state_history(T, filter={"step": 0})] == [("a",)]
    assert [
        each.next for each in graph.get_state_history(T, filter={"source": "loop"}, before=past(graph, ()).config)
    ] == [
        ("b",),
        ("a",),
    ]
    assert list(graph.get_state_history({"configurable": {"thread_id": "other"}})) == []


@pytest.mark.conformance("TT-01", "TT-06", "CK-14", "IN-10", "SV-11")
def test_what_does_not_exist_is_an_error() -> None:
    unsaved = StateGraph(State).add_node("a", wrote("a")).add_edge(START, "a").compile()
    for call in (unsaved.get_state, lambda config: list(unsaved.get_state_history(config))):
        with pytest.raises(ValueError, match="No checkpointer set"):
            call(T)
    with pytest.raises(ValueError, match="No checkpointer set"):
        unsaved.update_state(T, {"note": "x"})
    graph = chain("a")
    graph.invoke({}, T)
    missing = {"configurable": {"thread_id": "t", "checkpoint_id": "run9:4"}}
    for attempt in (
        lambda: graph.get_state(missing),
        lambda: graph.update_state(missing, {"note": "x"}),
        lambda: graph.invoke(None, missing),
        lambda: graph.invoke({}, missing),
        lambda: graph.invoke({}, {"configurable": {"thread_id": "new", "checkpoint_id": "run9:4"}}),
        lambda: unsaved.invoke({}, missing),
        lambda: list(graph.get_state_history(T, before=missing)),
    ):
        with pytest.raises(ValueError, match="the thread has no checkpoint 'run9:4'"):
            attempt()
    with pytest.raises(ValueError, match="names no thread"):
        graph.get_state({})
    for nameless in ({}, {"configurable": {"thread_id": ""}}):
        with pytest.raises(ValueError, match="names no thread"):
            graph.update_state(nameless, {"note": "x"})
    with pytest.raises(ValueError, match="thread_id is empty"):
        graph.invoke({}, {"configurable": {"thread_id": ""}})
    assert len(line(graph)) == 3


def test_the_metadata_of_a_call_are_those_of_its_checkpoints() -> None:
    graph = chain("a")
    graph.invoke({}, {**T, "metadata": {"user": "ann"}})
    graph.invoke({}, {**T, "metadata": {"user": "bob"}})
    assert len(list(graph.get_state_history(T, filter={"user": "ann"}))) == 3
    assert graph.get_state(T).metadata == {"source": "loop", "step": 4, "parents": {}, "user": "bob"}


@pytest.mark.conformance("SV-01")
def test_values_are_objects_and_belong_to_the_caller() -> None:
    class Chat(MessagesState):
        pass

    graph = StateGraph(Chat).add_node("say", lambda state: {"messages": AIMessage("hello")}).add_edge(START, "say")
    compiled = graph.compile(checkpointer=InMemorySaver())
    compiled.invoke({"messages": [("user", "hi")]}, T)
    history = list(compiled.get_state_history(T))
    assert [[each.content for each in one.values["messages"]] for one in history] == [["hi", "hello"], ["hi"], []]
    assert history[1].tasks[0].result is not None and history[1].tasks[0].result["messages"][0].content == "hello"
    history[0].values["messages"].clear()
    assert len(compiled.get_state(T).values["messages"]) == 2


def test_a_state_is_seen_while_its_run_is_streamed() -> None:
    graph = chain("a", "b")
    seen = [graph.get_state(T).next for _ in graph.stream({}, T)]
    assert seen == [("b",), ()]


def test_sends_come_first_and_can_be_gone_on_with() -> None:
    graph = StateGraph(State)
    graph.add_node("plan", wrote("plan")).add_node("work", lambda each: {"seen": [each["item"]]})
    graph.add_node("also", wrote("also")).add_node("close", wrote("close"))
    graph.add_edge(START, "plan").add_edge("plan", "also").add_edge("work", "close")
    graph.add_conditional_edges("plan", lambda state: [Send("work", {"item": number}) for number in range(3)])
    compiled = graph.compile(checkpointer=InMemorySaver())
    first = compiled.invoke({}, T)
    sent = past(compiled, ("work", "work", "work", "also"))
    assert [task.result for task in sent.tasks] == [
        {"seen": [0]},
        {"seen": [1]},
        {"seen": [2]},
        {"seen": ["also"], "note": "also"},
    ]
    assert compiled.invoke(None, sent.config) == first
    fork = past(compiled, ("work", "work", "work", "also"))
    assert fork.config != sent.config and fork.metadata is not None and fork.metadata["source"] == "fork"
    assert fork.tasks == sent.tasks or [task.result for task in fork.tasks] == [task.result for task in sent.tasks]
    assert compiled.invoke(None, fork.config) == first


class Talk(TypedDict, total=False):
    seen: Annotated[list[Any], operator.add]
    total: Annotated[int, lambda old, new: old * 10 + new]
    messages: Annotated[list[Any], add_messages]
    note: str


def shape(name: str) -> StateGraph:
    """Graphs whose super-steps close in different ways."""
    graph = StateGraph(Talk)

    def does(node: str, update: dict[str, Any] | None = None, **options: Any) -> None:
        graph.add_node(node, lambda state: {"seen": [node], **(update or {})}, **options)

    match name:
        case "chain":
            does("a"), does("b", {"note": "b"}), does("c", {"note": "c"})
            graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
        case "parallel":
            for node in ("a", "b", "c", "join"):
                does(node, {"total": len(node)})
            graph.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c").add_edge(["a", "c"], "join")
        case "own reducers":
            does("a", {"total": 2, "messages": AIMessage("a", id="1")})
            does("b", {"total": 3, "messages": AIMessage("b", id="1")})
            does("c", {"messages": [RemoveMessage(id="1"), AIMessage("c", id="2")]})
            graph.add_edge(START, "a").add_edge(START, "b").add_edge("a", "c").add_edge("b", "c")
        case "sends":
            does("plan", {"total": 1}), does("close", {"total": 4})
            graph.add_node("work", lambda each: {"seen": [each["item"]], "total": each["item"]})
            graph.add_edge(START, "plan").add_edge("work", "close")
            graph.add_conditional_edges("plan", lambda state: [Send("work", {"item": n}) for n in range(200)])
        case "loop":
            does("up"), does("late", defer=True)
            graph.add_edge(START, "up").add_edge("up", "late")
            graph.add_conditional_edges("up", lambda state: "up" if len(state["seen"]) < 4 else END, ["up", END])
        case "commands":
            graph.add_node("a", lambda state: Command(update={"seen": Overwrite(["new"])}, goto="b"))
            graph.add_node("b", lambda state: [Command(update={"seen": [1]}), Command(update={"seen": [2]}, goto="c")])
            does("c")
            graph.add_conditional_edges(START, lambda state: "a", ["a"])
    return graph


SHAPES = ("chain", "parallel", "own reducers", "sends", "loop", "commands")


@pytest.mark.parametrize("name", SHAPES)
def test_the_history_has_the_states_that_were_streamed(name: str) -> None:
    graph = shape(name).compile(checkpointer=InMemorySaver())
    for _ in range(2):  # also above the state of an earlier run
        streamed = list(graph.stream({"note": "in", "messages": [("user", "hi")]}, T, stream_mode="values"))
        history = list(graph.get_state_history(T, limit=len(streamed)))
        assert [plain(each.values) for each in reversed(history)] == [plain(values) for values in streamed]
        assert history[0].next == ()
        for past in history:
            assert sorted(task.name for task in past.tasks) == sorted(past.next)
            assert None not in [task.result for task in past.tasks]


@pytest.mark.parametrize("name", SHAPES)
def test_each_checkpoint_leads_to_the_same_end(name: str) -> None:
    graph = shape(name).compile(checkpointer=InMemorySaver())
    end = plain(graph.invoke({"note": "in", "messages": [("user", "hi")]}, T))
    history = list(graph.get_state_history(T))
    for past in history[1:]:  # a call from the newest one goes on without a fork
        assert plain(graph.invoke(None, past.config)) == end
        again = list(graph.get_state_history(T, limit=history.index(past) + 1))
        assert [plain(each.values) for each in again] == [plain(each.values) for each in history[: len(again)]]
        assert [each.next for each in again] == [each.next for each in history[: len(again)]]
        assert (again[-1].metadata or {})["source"] == "fork"


@pytest.mark.parametrize("name", SHAPES)
def test_a_call_that_is_left_anywhere_goes_on_to_the_same_end(name: str) -> None:
    graph = shape(name).compile(checkpointer=InMemorySaver())
    end = plain(graph.invoke({"note": "in", "messages": [("user", "hi")]}, T))
    for most in (1, 2, 3):
        thread = {"configurable": {"thread_id": f"left after {most}"}}
        for number, _ in enumerate(graph.stream({"note": "in", "messages": [("user", "hi")]}, thread), 1):
            if number == most:
                break
        assert plain(graph.invoke(None, thread)) == end


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """A state without the ids that messages are given."""
    messages = [(each.type, each.content) for each in values.get("messages", ())]
    return {**values, "messages": messages} if "messages" in values else values


# Going on


def failing(times: int) -> tuple[CompiledGraph, list[str]]:
    log: list[str] = []

    def fails(state: State) -> dict[str, Any]:
        log.append("fails")
        if log.count("fails") <= times:
            raise RuntimeError("the disk is full")
        return {"seen": ["fails"]}

    def works(state: State) -> dict[str, Any]:
        log.append("works")
        return {"seen": ["works"]}

    graph = StateGraph(State).add_node("works", works).add_node("fails", fails)
    graph.add_edge(START, "works").add_edge(START, "fails")
    return graph.compile(checkpointer=InMemorySaver()), log


@pytest.mark.conformance("CK-08")
def test_after_an_error_only_what_failed_runs_again() -> None:
    graph, log = failing(2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the disk is full"):
            graph.invoke({}, T) if not log else graph.invoke(None, T)
        state = graph.get_state(T)
        assert (state.next, state.values) == (("fails",), {"seen": ["works"]})
        assert [task.error for task in state.tasks] == [None, "RuntimeError('the disk is full')"]
    assert graph.invoke(None, T)["seen"] == ["fails", "works"]
    assert sorted(log) == ["fails", "fails", "fails", "works"]
    assert graph.get_state(T).next == ()


def test_writes_that_contradict_each_other_are_an_error_of_their_whole_step() -> None:
    graph = StateGraph(State).add_node("left", wrote("left")).add_node("right", wrote("right"))
    compiled = graph.add_edge(START, "left").add_edge(START, "right").compile(checkpointer=InMemorySaver())
    for _ in range(2):
        with pytest.raises(InvalidUpdateError, match="At key 'note'"):
            compiled.invoke({}, T) if not line(compiled) else compiled.invoke(None, T)
        state = compiled.get_state(T)
        assert (state.next, state.values) == (("left", "right"), {"seen": []})
        assert ["At key 'note'" in str(task.error) for task in state.tasks] == [True, True]
    compiled.update_state(T, {"note": "x"}, as_node="left")
    assert compiled.get_state(T).values == {"note": "x", "seen": []}


def test_a_router_that_fails_at_the_start_leaves_the_input_open() -> None:
    graph = StateGraph(State).add_node("a", wrote("a"))
    graph.add_conditional_edges(START, lambda state: {"x": "a"}[state["note"]])
    compiled = graph.compile(checkpointer=InMemorySaver())
    with pytest.raises(KeyError):
        compiled.invoke({"counter": 1}, T)
    state = compiled.get_state(T)
    assert (state.next, state.values, line(compiled)) == ((START,), {"seen": []}, [("input", -1)])
    with pytest.raises(KeyError):
        compiled.invoke(None, T)
    assert compiled.invoke({"note": "x"}, T) == {"note": "a", "seen": ["a"]}
    assert line(compiled) == [("loop", 2), ("loop", 1), ("input", 0), ("input", -1)]


def test_a_run_that_was_interrupted_while_it_was_planned_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, planned = chain("a", "b"), runner.plan
    with monkeypatch.context() as patched:

        def interrupted(*arguments: Any) -> Any:
            if isinstance(arguments[2], Resulted):
                raise KeyboardInterrupt
            return planned(*arguments)

        patched.setattr(runner, "plan", interrupted)
        with pytest.raises(KeyboardInterrupt):
            graph.invoke({}, T)
    assert graph.invoke(None, T)["seen"] == ["a", "b"]


def test_a_new_input_drops_what_was_open() -> None:
    graph, _ = failing(1)
    with pytest.raises(RuntimeError):
        graph.invoke({}, T)
    assert graph.invoke({"counter": 1}, T)["seen"] == ["fails", "works"]
    history = list(graph.get_state_history(T))
    assert [each.next for each in history] == [(), ("works", "fails"), (START,), ("works", "fails"), (START,)]
    assert [task.error for task in history[3].tasks] == [None, "RuntimeError('the disk is full')"]


def test_a_stream_that_was_left_goes_on_where_it_was() -> None:
    graph = chain("a", "b", "c")
    for chunk in graph.stream({}, T):
        assert list(chunk) == ["a"]
        break
    assert graph.get_state(T).next == ("b",)
    assert graph.invoke(None, T)["seen"] == ["a", "b", "c"]


def test_a_visit_whose_execution_was_left_is_executed_again() -> None:
    calls: list[str] = []
    left = threading.Event()

    def talk(state: State, writer: Any) -> dict[str, Any]:
        calls.append("talk")
        writer("begun")
        left.wait(60)
        return {"seen": ["talk"]}

    graph = StateGraph(State).add_node("talk", talk).add_edge(START, "talk").compile(checkpointer=InMemorySaver())
    for _ in graph.stream({}, T, stream_mode="custom"):
        left.set()
        break
    assert graph.get_state(T).next == ("talk",)
    assert graph.invoke(None, T)["seen"] == ["talk"]
    assert calls == ["talk", "talk"]


def test_two_calls_do_not_execute_one_run() -> None:
    graph = chain("a", "b")
    chunks = graph.stream({}, T)
    next(chunks)
    with pytest.raises(RuntimeError, match="executed by another call"):
        graph.invoke(None, T)
    with pytest.raises(RuntimeError, match="cannot be updated"):
        graph.update_state(T, {"note": "x"})
    list(chunks)
    assert graph.invoke(None, T)["seen"] == ["a", "b"]


def test_a_finished_thread_runs_nothing_and_one_without_runs_is_an_error() -> None:
    graph = chain("a")
    with pytest.raises(EmptyInputError):
        graph.invoke(None, T)
    graph.invoke({}, T)
    assert graph.invoke(None, T) == {"seen": ["a"], "note": "a"}
    assert list(graph.stream(None, T)) == []
    assert len(line(graph)) == 3


def test_a_limit_of_steps_holds_for_each_call_that_goes_on() -> None:
    graph = chain("a", "b", "c", "d")
    with pytest.raises(GraphRecursionError):
        graph.invoke({}, {**T, "recursion_limit": 2})
    old = graph.get_state(T)
    assert old.next == ("c",)
    with pytest.raises(GraphRecursionError):
        graph.invoke(None, {**past(graph, ("a",)).config, "recursion_limit": 2})
    assert graph.invoke(None, {**old.config, "recursion_limit": 2})["seen"] == ["a", "b", "c", "d"]


# Old checkpoints


@pytest.mark.conformance("TT-07", "CK-12", "EX-32")
def test_an_old_checkpoint_begins_another_line_and_the_later_history_stays() -> None:
    graph = chain("a", "b", "c")
    graph.invoke({"counter": 1}, T)
    before = list(graph.get_state_history(T))
    old = past(graph, ("b",))
    assert graph.invoke(None, old.config)["seen"] == ["a", "b", "c"]
    after = list(graph.get_state_history(T))
    assert after[-len(before) :] == before
    assert [(each.metadata or {})["source"] for each in after[: -len(before)]] == ["loop", "loop", "fork"]
    fork = after[2]
    assert (fork.values, fork.next, fork.parent_config) == (old.values, old.next, old.config)
    assert fork.config != old.config
    assert graph.get_state(T) == after[0]


def test_an_input_after_an_old_checkpoint_begins_with_its_state() -> None:
    graph = chain("a", "b")
    graph.invoke({"counter": 1}, T)
    old = past(graph, ("b",))
    assert graph.invoke({"counter": 2}, old.config) == {"counter": 2, "note": "b", "seen": ["a", "a", "b"]}
    history = list(graph.get_state_history(T))
    assert history[3].parent_config == old.config
    assert [(each.metadata or {})["step"] for each in history] == [5, 4, 3, 2, 2, 1, 0, -1]


def test_the_checkpoint_of_an_input_can_be_gone_on_with() -> None:
    routed = StateGraph(State).add_node("a", wrote("a")).add_conditional_edges(START, lambda state: "a")
    for graph in (chain("a"), routed.compile(checkpointer=InMemorySaver())):
        graph.invoke({"counter": 1}, T)
        first = list(graph.get_state_history(T))[-1]
        assert (first.next, first.values) == ((START,), {"seen": []})
        assert graph.invoke(None, first.config) == {"counter": 1, "note": "a", "seen": ["a"]}
        assert line(graph)[:3] == [("loop", 2), ("loop", 1), ("fork", 0)]


def test_an_old_question_is_asked_again_and_takes_the_answer_of_the_call() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"seen": [interrupt("how many?")]}

    graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=InMemorySaver())
    graph.invoke({}, T)
    old = graph.get_state(T)
    assert graph.invoke(Command(resume=1), T)["seen"] == [1]
    assert "__interrupt__" in graph.invoke(None, old.config)
    assert graph.invoke(Command(resume=2), T)["seen"] == [2]
    assert graph.invoke(Command(resume=3), old.config)["seen"] == [3]
    assert [each.values["seen"] for each in graph.get_state_history(T) if not each.next] == [[3], [2], [1]]


def test_joins_and_deferred_nodes_of_an_old_checkpoint_are_those_of_then() -> None:
    graph = StateGraph(State)
    for name in ("left", "right", "slow", "close"):
        graph.add_node(name, marks(name))
    graph.add_node("last", marks("last"), defer=True)
    graph.add_edge(START, "left").add_edge(START, "right").add_edge("right", "slow").add_edge("left", "last")
    graph.add_edge(["left", "slow"], "close")
    compiled = graph.compile(checkpointer=InMemorySaver())
    whole = compiled.invoke({}, T)
    assert whole["seen"] == ["left", "right", "slow", "close", "last"]
    for nodes in [("left", "right"), ("slow",), ("close",), ("last",)]:
        assert compiled.invoke(None, past(compiled, nodes).config) == whole


# Edits


@pytest.mark.conformance("TT-02", "TT-04")
def test_an_edit_is_a_new_checkpoint_with_values_of_the_declared_types() -> None:
    graph = chain("a", "b")
    graph.invoke({"counter": 1}, T)
    base = past(graph, ("b",))
    edited = graph.update_state(base.config, {"counter": 2.0, "note": "x"})
    state = graph.get_state(T)
    assert state.config == edited == graph.get_state(edited).config
    assert state.values == {"counter": 2, "note": "x", "seen": ["a"]}
    assert isinstance(state.values["counter"], int)
    assert (state.next, state.parent_config) == (base.next, base.config)
    assert state.metadata == {
        "source": "update",
        "step": 2,
        "parents": {},
        "base_checkpoint_id": base.config["configurable"]["checkpoint_id"],
        "updated_keys": ["counter", "note"],
    }
    assert graph.invoke(None, edited) == {"counter": 2, "note": "b", "seen": ["a", "b"]}
    assert line(graph)[:2] == [("loop", 3), ("update", 2)]


@pytest.mark.conformance("TT-03")
def test_a_reserved_key_is_refused_unless_the_state_declares_it() -> None:
    graph = chain("a")
    graph.invoke({}, T)
    before = line(graph)
    for key in ("", "__interrupt__", "checkpoint_id", "thread_id"):
        with pytest.raises(InvalidUpdateError, match="reserved"):
            graph.update_state(T, {key: 1, "note": "x"})
    assert line(graph) == before
    with pytest.warns(UserWarning, match="the update writes 'nots', which is no key of the state"):
        graph.update_state(T, {"nots": "x"})

    class Own(TypedDict):
        checkpoint_id: int

    own = StateGraph(Own).add_node("a", lambda state: {}).add_edge(START, "a").compile(checkpointer=InMemorySaver())
    own.update_state(T, {"checkpoint_id": 5}, as_node="a")
    assert own.get_state(T).values == {"checkpoint_id": 5}


def test_an_edit_goes_through_reducers_or_past_them() -> None:
    graph = chain("a")
    graph.invoke({}, T)
    graph.update_state(T, {"seen": ["more"]})
    assert graph.get_state(T).values["seen"] == ["a", "more"]
    graph.update_state(T, {"seen": ["only"]}, mode="set")
    assert graph.get_state(T).values["seen"] == ["only"]
    graph.update_state(T, {"seen": Overwrite([])})
    assert graph.get_state(T).values["seen"] == []
    with pytest.raises(ValueError, match="'reduce' or 'set', not 'merge'"):
        graph.update_state(T, {"seen": []}, mode="merge")  # type: ignore[arg-type]


def test_a_reducer_of_the_program_sees_the_values_of_an_edit() -> None:
    class Own(TypedDict):
        total: Annotated[int, lambda old, new: old * 10 + new]

    graph = StateGraph(Own).add_node("a", lambda state: {"total": 2}).add_edge(START, "a")
    compiled = graph.compile(checkpointer=InMemorySaver())
    compiled.invoke({"total": 1}, T)
    compiled.update_state(T, {"total": 3})
    assert compiled.get_state(T).values == {"total": 123}
    compiled.update_state(T, {"total": 7}, mode="set")
    assert compiled.get_state(T).values == {"total": 7}


def branching() -> CompiledGraph:
    graph = StateGraph(State)
    for name in ("first", "left", "right", "join"):
        graph.add_node(name, marks(name))
    graph.add_edge(START, "first").add_edge(["left", "right"], "join")
    graph.add_conditional_edges("first", lambda state: state.get("note", ["left", "right"]))
    return graph.compile(checkpointer=InMemorySaver())


def test_an_edit_takes_the_edges_of_its_node() -> None:
    graph = branching()
    graph.update_state(T, {"note": "right"}, as_node="first")
    state = graph.get_state(T)
    assert (state.next, state.parent_config, line(graph)) == (("right",), None, [("update", 0)])
    with pytest.warns(UserWarning, match="the join before node 'join' can never fire"):
        assert graph.invoke(None, T)["seen"] == ["right"]
    with pytest.raises(InvalidUpdateError, match=r"Node rihgt does not exist\. Did you mean .right.\?"):
        graph.update_state(T, {"note": "left"}, as_node="rihgt")


def test_an_edit_counts_as_an_arrival_at_a_join() -> None:
    graph = branching()
    graph.update_state(T, {"note": "right"}, as_node="first")
    with pytest.warns(UserWarning, match="can never fire"):
        graph.invoke(None, T)
    graph.update_state(T, {"seen": ["as left"]}, as_node="left")
    assert graph.get_state(T).next == ("join",)
    assert graph.invoke(None, T)["seen"] == ["right", "as left", "join"]


def test_an_edit_of_unclear_origin_needs_the_name_of_a_node() -> None:
    graph = branching()
    graph.invoke({}, T)
    both = past(graph, ("join",))
    with pytest.raises(InvalidUpdateError, match="Ambiguous update, specify as_node: 'left', 'right' wrote last"):
        graph.update_state(both.config, {"note": "x"})
    assert graph.invoke(None, graph.update_state(both.config, {"note": "x"}, as_node="join"))["note"] == "x"
    assert graph.invoke(None, graph.update_state(both.config, None))["seen"] == ["first", "left", "right", "join"]


def test_an_edit_as_start_is_an_input_and_as_end_nothing_comes_next() -> None:
    graph = chain("a", "b")
    with pytest.raises(EmptyInputError):
        graph.update_state(T, None)
    graph.update_state(T, {"counter": 1})
    assert graph.get_state(T).next == ("a",)
    graph.update_state(T, None, as_node=END)
    assert (graph.get_state(T).next, graph.invoke(None, T)) == ((), {"counter": 1, "seen": []})
    with pytest.raises(InvalidUpdateError, match="it takes no values"):
        graph.update_state(T, {"counter": 2}, as_node=END)
    graph.update_state(T, {"counter": 3}, as_node=START)
    assert graph.invoke(None, T) == {"counter": 3, "note": "b", "seen": ["a", "b"]}


def test_an_edit_as_the_start_of_a_graph_with_a_router_there_routes() -> None:
    graph = StateGraph(State).add_node("a", wrote("a")).add_node("b", wrote("b"))
    graph.add_conditional_edges(START, lambda state: state["note"])
    compiled = graph.compile(checkpointer=InMemorySaver())
    compiled.update_state(T, {"note": "b"})
    assert (compiled.get_state(T).next, line(compiled)) == (("b",), [("update", 0)])
    assert compiled.invoke(None, T)["seen"] == ["b"]


def test_an_edit_without_values_and_node_repeats_the_checkpoint() -> None:
    graph = chain("a", "b")
    graph.invoke({}, T)
    old = past(graph, ("b",))
    again = graph.get_state(graph.update_state(old.config, None))
    assert (again.values, again.next, (again.metadata or {})["source"]) == (old.values, ("b",), "update")
    assert graph.invoke(None, T)["seen"] == ["a", "b"]


@pytest.mark.conformance("EX-39")
def test_an_edit_while_a_question_is_open_drops_it_and_the_next_answer_counts() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"seen": [interrupt(f"how many for {state['note']}?")]}

    graph = StateGraph(State).add_node("write", wrote("write")).add_node("ask", ask)
    compiled = graph.add_edge(START, "write").add_edge("write", "ask").compile(checkpointer=InMemorySaver())
    compiled.invoke({}, T)
    compiled.update_state(T, {"note": "ann"})
    state = compiled.get_state(T)
    assert (state.next, state.interrupts) == (("ask",), ())
    assert compiled.invoke(Command(resume=2), T)["seen"] == ["write", 2]
    asked = next(
        each
        for each in compiled.get_state_history(T)
        if each.metadata and each.metadata["source"] == "loop" and each.next == ("ask",)
    )
    assert asked.values["note"] == "write", "the checkpoint that was edited has not changed"


def test_what_has_ended_beside_an_open_question_counts_in_an_edit() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"seen": [interrupt("?")]}

    graph = StateGraph(State).add_node("ask", ask).add_node("quiet", wrote("quiet")).add_node("end", wrote("end"))
    graph.add_edge(START, "ask").add_edge(START, "quiet").add_edge(["ask", "quiet"], "end")
    compiled = graph.compile(checkpointer=InMemorySaver())
    compiled.invoke({}, T)
    compiled.update_state(T, {"seen": ["answered"]}, as_node="ask")
    assert compiled.get_state(T).next == ("end",)
    assert compiled.invoke(None, T)["seen"] == ["quiet", "answered", "end"]


def test_an_error_of_a_router_is_that_of_the_edit_and_nothing_is_written() -> None:
    graph = StateGraph(State).add_node("a", wrote("a")).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: {"x": END}[state["note"]])
    compiled = graph.compile(checkpointer=InMemorySaver())
    with pytest.raises(KeyError, match="note"):
        compiled.update_state(T, None, as_node="a")
    assert line(compiled) == []
    compiled.update_state(T, {"note": "x"}, as_node="a")
    assert (line(compiled), compiled.get_state(T).next) == ([("update", 0)], ())


def test_an_edit_cannot_stand_for_a_node_that_is_no_function() -> None:
    graph = StateGraph(State).add_node("end", wrote("end"))
    graph.add_approval_node("sure", question="Sure?", options=["yes"], routes={"yes": "end"}, on_other="end")
    compiled = graph.add_edge(START, "sure").compile(checkpointer=InMemorySaver())
    with pytest.raises(InvalidUpdateError, match="Node sure is of type approval"):
        compiled.update_state(T, {"note": "x"}, as_node="sure")


def test_a_graph_of_the_engine_dag_has_no_checkpoints() -> None:
    log: list[str] = []

    def fails_once(state: State) -> dict[str, Any]:
        log.append("fails")
        if len(log) == 1:
            raise RuntimeError("the disk is full")
        return {"seen": ["late"]}

    graph = StateGraph(State).add_node("a", fails_once).add_edge(START, "a")
    compiled = graph.compile(checkpointer=InMemorySaver(), engine="dag")
    with pytest.raises(RuntimeError, match="the disk is full"):
        compiled.invoke({}, T)
    assert compiled.invoke(None, T)["seen"] == ["late"]
    assert compiled.invoke({"note": "x"}, T)["seen"] == ["late", "late"]
    for attempt in (
        lambda: compiled.get_state(T),
        lambda: list(compiled.get_state_history(T)),
        lambda: compiled.update_state(T, {"note": "x"}),
        lambda: compiled.invoke(None, {"configurable": {"thread_id": "t", "checkpoint_id": "run1:1"}}),
    ):
        with pytest.raises(ValueError, match="a graph of the engine 'dag' has no checkpoints"):
            attempt()


# Graphs below


def test_the_state_of_a_graph_that_asks_is_found_by_its_configuration() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"note": interrupt("?")}

    below = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
    graph = StateGraph(State).add_node("below", below).add_edge(START, "below").compile(checkpointer=InMemorySaver())
    graph.invoke({"counter": 1}, T)
    (task,) = graph.get_state(T).tasks
    (whole,) = graph.get_state(T, subgraphs=True).tasks
    assert graph.get_state(task.state) == whole.state
    assert whole.state.next == ("ask",)
    assert [each.id for each in whole.state.interrupts] == [each.id for each in graph.get_state(T).interrupts]
    with pytest.raises(ValueError, match="no graph of the namespace 'x' waits"):
        graph.get_state({"configurable": {"thread_id": "t", "checkpoint_ns": "x"}})


def test_a_checkpoint_of_the_caller_is_none_of_a_graph_below() -> None:
    below = chain("inner")
    graph = StateGraph(State).add_node("below", below).add_node("end", wrote("end"))
    compiled = graph.add_edge(START, "below").add_edge("below", "end").compile(checkpointer=InMemorySaver())
    compiled.invoke({}, T)
    assert compiled.invoke(None, past(compiled, ("below",)).config)["seen"][-1] == "end"


# Costs


def test_the_history_of_a_short_run_needs_a_few_kilobytes() -> None:
    graph = chain(*(f"n{number}" for number in range(10)))
    config: Iterator[dict[str, Any]] = ({"configurable": {"thread_id": str(number)}} for number in range(25))
    for _ in range(5):
        graph.invoke({}, next(config))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            graph.invoke({}, next(config))
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / 20
    finally:
        tracemalloc.stop()
    assert each < 12_000


def test_the_async_forms_give_the_same() -> None:
    graph = chain("a", "b")

    async def main() -> list[Any]:
        await graph.ainvoke({}, T)
        await graph.aupdate_state(T, {"note": "x"}, as_node="a")
        return [await graph.aget_state(T), [each async for each in graph.aget_state_history(T, limit=2)]]

    assert asyncio.run(main()) == [graph.get_state(T), list(graph.get_state_history(T, limit=2))]
    assert graph.get_state(T).next == ("b",)
