"""Interrupts of graphs that run in this process (spec/langgraph-api.md 6)."""

from __future__ import annotations

import operator
import re
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from sleipnir import (
    START,
    Command,
    EmptyInputError,
    GraphInterrupt,
    GraphRecursionError,
    InMemorySaver,
    Interrupt,
    RetryPolicy,
    Send,
    StateGraph,
    interrupt,
    is_invalid_resume,
)
from sleipnir.python_graph.compiled import CompiledGraph

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    text: str
    got: Annotated[list[Any], operator.add]


def asker(question: Any, **how: Any) -> Any:
    def node(state: State) -> dict[str, Any]:
        return {"got": [interrupt(question, **how)]}

    return node


def graph_of(**nodes: Any) -> CompiledGraph:
    """All nodes run in the first super-step."""
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
    return graph.compile(checkpointer=InMemorySaver())


def open_questions(result: dict[str, Any]) -> dict[Any, str]:
    """The ids of the open questions by what they ask."""
    return {each.value: each.id for each in result["__interrupt__"]}


@pytest.mark.parametrize("engine", ["bsp", "dag"])
@pytest.mark.conformance("EX-33", "EX-38")
def test_two_approvals_one_after_the_other_and_a_refusal_at_the_first(engine: str) -> None:
    ran: list[str] = []

    class Counted(TypedDict, total=False):
        counter: int
        answers: Annotated[list[str], operator.add]
        result: str

    def increment(state: Counted) -> dict[str, Any]:
        ran.append("increment")
        return {"counter": state["counter"] + 10}

    def request_approval(state: Counted) -> Command[Any]:
        answer = interrupt({"message": "go on?", "counter": state["counter"]}, key="request_approval")
        return Command(update={"answers": [answer]}, goto="second_approval" if answer == "yes" else "finalize")

    def second_approval(state: Counted) -> dict[str, Any]:
        return {"answers": [interrupt("sure?", key="second_approval")]}

    def process(state: Counted) -> dict[str, Any]:
        return {"result": "approved"}

    def finalize(state: Counted) -> dict[str, Any]:
        return {"result": state.get("result", "rejected")}

    builder = StateGraph(Counted).add_node(increment).add_node("request_approval", request_approval)
    builder.add_node(second_approval).add_node(process).add_node(finalize)
    builder.add_edge(START, "increment").add_edge("increment", "request_approval")
    builder.add_edge("second_approval", "process").add_edge("process", "finalize")
    graph = builder.compile(checkpointer=InMemorySaver(), engine=engine)
    first = graph.invoke({"counter": 0}, CONFIG)
    assert [each.value for each in first["__interrupt__"]] == [{"message": "go on?", "counter": 10}]
    second = graph.invoke(Command(resume="yes"), CONFIG)
    assert [each.value for each in second["__interrupt__"]] == ["sure?"]
    last = graph.invoke(Command(resume="yes"), CONFIG)
    assert last == {"counter": 10, "answers": ["yes", "yes"], "result": "approved"}
    assert ran == ["increment"]
    other: dict[str, Any] = {"configurable": {"thread_id": "2"}}
    graph.invoke({"counter": 0}, other)
    refused = graph.invoke(Command(resume="no"), other)
    assert refused == {"counter": 10, "answers": ["no"], "result": "rejected"}


def test_answers_go_by_the_ids_of_their_questions_in_parts() -> None:
    graph = graph_of(left=asker("left?"), right=asker("right?"), quiet=lambda state: {"got": ["quiet"]})
    first = graph.invoke({"got": []}, CONFIG)
    ids = open_questions(first)
    assert (first["got"], sorted(ids)) == (["quiet"], ["left?", "right?"])
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids.values())
    assert open_questions(graph.invoke(Command(resume={}), CONFIG)) == ids
    with pytest.raises(RuntimeError, match="you must specify the interrupt id"):
        graph.invoke(Command(resume="for whom?"), CONFIG)
    with pytest.raises(RuntimeError, match=r"no open question has the id 0{32}"):
        graph.invoke(Command(resume={"0" * 32: 1}), CONFIG)
    second = graph.invoke(Command(resume={ids["right?"]: None}), CONFIG)
    assert (second["got"], open_questions(second)) == (["quiet", None], {"left?": ids["left?"]})
    assert graph.invoke(Command(resume={ids["left?"]: 1}), CONFIG) == {"got": [1, "quiet", None]}


def test_the_chunks_of_ended_siblings_come_again_with_the_answers() -> None:
    graph = graph_of(left=asker("left?"), right=asker("right?"), quiet=lambda state: {"got": ["quiet"]})
    chunks = list(graph.stream({"got": ["a"]}, CONFIG, stream_mode=["updates", "values"]))
    asked = [data["__interrupt__"] for mode, data in chunks if mode == "updates" and "__interrupt__" in data]
    assert sorted(question.value for (question,) in asked) == ["left?", "right?"]
    mode, last = chunks[-1]
    assert (mode, last["got"], len(last["__interrupt__"])) == ("values", ["a", "quiet"], 2)
    ids = {question.value: question.id for (question,) in asked}
    chunks = list(graph.stream(Command(resume={ids["left?"]: 1, ids["right?"]: 2}), CONFIG))
    assert chunks[0] == {"quiet": {"got": ["quiet"]}, "__metadata__": {"cached": True}}
    assert sorted(map(str, chunks[1:])) == ["{'left': {'got': [1]}}", "{'right': {'got': [2]}}"]


@pytest.mark.conformance("IN-03")
def test_a_question_keeps_its_id_until_it_is_answered_and_the_next_has_another() -> None:
    def node(state: State) -> dict[str, Any]:
        return {"got": [interrupt("same?"), interrupt("same?")]}

    graph = graph_of(node=node)
    (first,) = graph.invoke({}, CONFIG)["__interrupt__"]
    assert graph.invoke(None, CONFIG)["__interrupt__"] == [first]
    (second,) = graph.invoke(Command(resume=0), CONFIG)["__interrupt__"]
    assert (second.value, second.id == first.id) == ("same?", False)
    assert graph.invoke(Command(resume=False), CONFIG) == {"got": [0, False]}


def test_a_new_input_drops_the_open_question() -> None:
    graph = graph_of(node=asker("?"))
    graph.invoke({"text": "a"}, CONFIG)
    again = graph.invoke({"text": "b"}, CONFIG)
    assert (again["text"], len(again["__interrupt__"])) == ("b", 1)
    assert graph.invoke(Command(resume=1), CONFIG) == {"text": "b", "got": [1]}


def test_only_a_thread_that_waits_takes_an_answer() -> None:
    with pytest.raises(EmptyInputError, match="no run of this thread could go on"):
        graph_of(node=asker("?")).invoke(Command(resume=1), CONFIG)


class Person(TypedDict):
    name: str
    age: NotRequired[int]


def test_an_answer_that_does_not_match_its_schema_is_refused_and_saves_nothing() -> None:
    graph = graph_of(node=asker("who?", response_schema=Person))
    (question,) = graph.invoke({}, CONFIG)["__interrupt__"]
    assert question.response_schema["required"] == ["name"]
    with pytest.raises(ValueError, match="'name' is a required property") as refused:
        graph.invoke(Command(resume={"nom": "Ann"}), CONFIG)
    assert is_invalid_resume(refused.value)
    assert not is_invalid_resume(ValueError())
    assert graph.invoke(None, CONFIG)["__interrupt__"] == [question]
    assert graph.invoke(Command(resume={"name": "Ann"}), CONFIG) == {"got": [{"name": "Ann"}]}


def test_a_question_passes_the_handlers_of_its_node() -> None:
    def node(state: State) -> dict[str, Any]:
        try:
            return {"got": [interrupt("?")]}
        except GraphInterrupt:
            raise
        except Exception:
            return {"got": ["swallowed"]}

    graph = graph_of(node=node)
    assert len(graph.invoke({}, CONFIG)["__interrupt__"]) == 1
    assert graph.invoke(Command(resume=1), CONFIG) == {"got": [1]}


@pytest.mark.conformance("IN-07")
def test_asking_is_not_tried_again_and_a_failure_keeps_the_answers() -> None:
    runs: list[int] = []

    def node(state: State) -> dict[str, Any]:
        runs.append(1)
        answer = interrupt("?")
        if len(runs) < 3:
            raise ConnectionError
        return {"got": [answer]}

    graph = StateGraph(State)
    graph.add_node("node", node, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    graph = graph.add_edge(START, "node").compile(checkpointer=InMemorySaver())  # type: ignore[assignment]
    graph.invoke({}, CONFIG)  # type: ignore[attr-defined]
    assert len(runs) == 1
    assert graph.invoke(Command(resume="once"), CONFIG) == {"got": ["once"]}  # type: ignore[attr-defined]
    assert len(runs) == 3


@pytest.mark.conformance("FO-09")
def test_sent_visits_ask_with_their_own_input() -> None:
    ran: list[int] = []

    def work(state: dict[str, Any]) -> dict[str, Any]:
        ran.append(state["n"])
        return {"got": [interrupt(state["n"]) if state["n"] in (1, 3) else state["n"]]}

    graph = StateGraph(State).add_node("split", lambda state: {}).add_node("work", work).add_edge(START, "split")
    graph.add_conditional_edges("split", lambda state: [Send("work", {"n": n}) for n in range(5)])
    compiled = graph.compile(checkpointer=InMemorySaver())
    ids = open_questions(compiled.invoke({}, CONFIG))
    assert sorted(ids) == [1, 3]
    compiled.invoke(Command(resume={ids[3]: "three"}), CONFIG)
    assert compiled.invoke(Command(resume="one"), CONFIG) == {"got": [0, "one", 2, "three", 4]}
    assert sorted(ran) == [0, 1, 1, 2, 3, 3, 4]


# Graphs below


def below(*, calls: list[str]) -> CompiledGraph:
    """Two nodes one after the other, of which the second asks twice."""

    def prepare(state: State) -> dict[str, Any]:
        calls.append("prepare")
        return {"text": state["text"].upper()}

    def question(state: State) -> dict[str, Any]:
        calls.append("question")
        return {"got": [interrupt(f"{state['text']} 1?"), interrupt(f"{state['text']} 2?")]}

    return StateGraph(State).add_sequence([prepare, question]).add_edge(START, "prepare").compile()


def test_a_graph_that_is_a_node_goes_on_where_it_asked() -> None:
    calls: list[str] = []
    graph = graph_of(inner=below(calls=calls))
    assert [each.value for each in graph.invoke({"text": "tea"}, CONFIG)["__interrupt__"]] == ["TEA 1?"]
    assert [each.value for each in graph.invoke(Command(resume=1), CONFIG)["__interrupt__"]] == ["TEA 2?"]
    assert graph.invoke(Command(resume=2), CONFIG) == {"text": "TEA", "got": [1, 2]}
    assert calls == ["prepare", "question", "question", "question"]


def test_graphs_that_a_node_calls_are_told_apart_by_their_order() -> None:
    calls: list[str] = []
    inner = below(calls=calls)

    def node(state: State) -> dict[str, Any]:
        own = interrupt("own?")
        tea = inner.invoke({"text": "tea"})["got"]
        between = interrupt("between?")
        return {"got": [own, *tea, between, *inner.invoke({"text": "cake"})["got"]]}

    graph = graph_of(node=node)
    result, asked = graph.invoke({}, CONFIG), []
    for answer in range(6):
        asked += [each.value for each in result["__interrupt__"]]
        result = graph.invoke(Command(resume=answer), CONFIG)
    assert asked == ["own?", "TEA 1?", "TEA 2?", "between?", "CAKE 1?", "CAKE 2?"]
    assert result == {"got": [0, 1, 2, 3, 4, 5]}
    assert calls.count("prepare") == 2


@pytest.mark.conformance("EX-34")
def test_questions_of_a_graph_two_levels_below_reach_the_caller() -> None:
    middle = graph_of(deep=graph_of(left=asker("left?"), right=asker("right?")))
    graph = graph_of(inner=middle)
    asked = open_questions(graph.invoke({}, CONFIG))
    assert list(asked) == ["left?", "right?"]
    with pytest.raises(RuntimeError, match="multiple pending interrupts"):
        graph.invoke(Command(resume=1), CONFIG)
    answers = {asked["left?"]: 1, asked["right?"]: 2}
    assert graph.invoke(Command(resume=answers), CONFIG) == {"got": [1, 2]}


@pytest.mark.parametrize("first", ["left?", "right?"])
@pytest.mark.conformance("NI-04", "NI-06")
def test_questions_of_graphs_below_keep_their_ids_and_are_answered_one_by_one(first: str) -> None:
    ran: list[str] = []

    def asking(side: str) -> Any:
        def node(state: State) -> dict[str, Any]:
            ran.append(side)
            return {"got": [interrupt(f"{side}?", response_schema={"type": "integer"})]}

        return node

    def after(state: State) -> dict[str, Any]:
        return {"got": [interrupt("after?")]}

    def middle() -> CompiledGraph:
        deep = graph_of(left=asking("left"), right=asking("right"))
        return StateGraph(State).add_sequence([("deep", deep), ("after", after)]).add_edge(START, "deep").compile()

    graph = graph_of(one=middle(), two=middle())
    stream = list(graph.stream({}, CONFIG, stream_mode="updates"))
    assert [[each.value for each in chunk["__interrupt__"]] for chunk in stream] == [["left?", "right?"]] * 2
    questions = [each for chunk in stream for each in chunk["__interrupt__"]]
    assert len({each.id for each in questions}) == 4
    assert {each.response_schema["type"] for each in questions} == {"integer"}
    ids = [each.id for each in questions if each.value == first]
    with pytest.raises(ValueError, match="'x' is not of type 'integer'"):
        graph.invoke(Command(resume={ids[0]: "x"}), CONFIG)
    left = graph.invoke(Command(resume={ids[0]: 1}), CONFIG)["__interrupt__"]
    assert [each.id for each in left] == [each.id for each in questions if each.id != ids[0]]
    rest = {each.id: number for number, each in enumerate(left, 2)}
    result = graph.invoke(Command(resume=rest), CONFIG)
    last = {each.id: each.value for each in result["__interrupt__"]}
    assert list(last.values()) == ["after?", "after?"]
    done = graph.invoke(Command(resume={id_: "end" for id_ in last}), CONFIG)
    assert sorted(map(str, done["got"])) == ["1", "2", "3", "4", "end", "end"]
    assert ran.count("left") == ran.count("right") == 4


def test_a_node_that_calls_graphs_one_after_the_other_gets_the_answers_of_each() -> None:
    pair = StateGraph(State).add_node("left", asker("left?")).add_node("right", asker("right?"))
    pair = pair.add_edge(START, "left").add_edge(START, "right").compile()

    def node(state: State) -> dict[str, Any]:
        first = pair.invoke({})["got"]
        own = interrupt("own?")
        return {"got": [*first, own, *pair.invoke({})["got"]]}

    graph = graph_of(node=node)
    given = iter(range(5))
    result = graph.invoke({}, CONFIG)
    while "__interrupt__" in result:
        newest = open_questions(result)
        for id_ in reversed(newest.values()):
            result = graph.invoke(Command(resume={id_: next(given)}), CONFIG)
    assert result == {"got": [1, 0, 2, 4, 3]}


def test_an_approval_node_of_a_graph_below_asks_the_caller() -> None:
    inner = StateGraph(State).add_node("write", lambda state: {"text": state["text"] + "!"})
    inner.add_approval_node("ask", question="{{text}}?", options=["yes"], routes={"yes": "end"}, on_other="end")
    inner.add_node("end", lambda state: {"got": ["ended"]}).add_edge(START, "write").add_edge("write", "ask")
    graph = graph_of(inner=inner.compile())
    (question,) = graph.invoke({"text": "tea"}, CONFIG)["__interrupt__"]
    assert question.value == {"node": "ask", "question": "tea!?", "options": ["yes"]}
    assert isinstance(question, Interrupt)
    assert graph.invoke(Command(resume="yes"), CONFIG) == {"text": "tea!", "got": ["ended"]}


def test_a_router_of_a_graph_below_asks_nothing_for_the_node_that_has_called_it() -> None:
    inner = StateGraph(State).add_input_node("ask", question="?").add_node("end", lambda state: {})
    inner.add_edge(START, "ask").add_conditional_edges("ask", lambda state: interrupt("where?"), ["end"])
    graph = graph_of(inner=inner.compile())
    graph.invoke({"text": "tea"}, CONFIG)
    with pytest.raises(RuntimeError, match=r"interrupt\(\) was called outside of a node"):
        graph.invoke(Command(resume="a"), CONFIG)


def test_a_failure_after_the_answers_of_a_graph_below_asks_it_anew() -> None:
    calls: list[str] = []
    inner = below(calls=calls)

    def node(state: State) -> dict[str, Any]:
        got = inner.invoke({"text": "tea"})["got"]
        if calls.count("prepare") == 1:
            raise ConnectionError
        return {"got": got}

    graph = StateGraph(State).add_node("node", node, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    compiled = graph.add_edge(START, "node").compile(checkpointer=InMemorySaver())
    compiled.invoke({}, CONFIG)
    compiled.invoke(Command(resume=1), CONFIG)
    assert compiled.invoke(Command(resume=2), CONFIG) == {"got": [1, 2]}
    assert calls.count("prepare") == 2


def test_a_failure_after_answers_in_any_order_gives_them_to_the_same_questions_again() -> None:
    runs: list[str] = []
    deep = graph_of(left=asker("left?"), right=asker("right?"))
    middle = graph_of(deep=deep, own=asker("own?"))

    def node(state: State) -> dict[str, Any]:
        runs.append("node")
        got = middle.invoke({}, {"configurable": {"thread_id": str(len(runs))}})["got"]
        if runs.count("failed") == 0:
            runs.append("failed")
            raise ConnectionError
        return {"got": got}

    graph = StateGraph(State).add_node("node", node, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    compiled = graph.add_edge(START, "node").compile(checkpointer=InMemorySaver())
    asked = open_questions(compiled.invoke({}, CONFIG))
    assert list(asked) == ["left?", "right?", "own?"]
    compiled.invoke(Command(resume={asked["own?"]: 3, asked["right?"]: 2}), CONFIG)
    assert compiled.invoke(Command(resume=1), CONFIG) == {"got": [1, 2, 3]}
    assert runs.count("failed") == 1


def test_a_call_that_goes_on_has_a_limit_of_super_steps_of_its_own() -> None:
    def ask(state: dict[str, Any]) -> None:
        interrupt("go on?")

    def rest(state: dict[str, Any]) -> None:
        pass

    builder = StateGraph(Limited).add_sequence([("a", rest), ("b", rest), ("ask", ask), ("c", rest), ("d", rest)])
    graph = builder.add_edge(START, "a").compile(checkpointer=InMemorySaver())

    def answered(limit: int) -> Any:
        config = {"configurable": {"thread_id": str(limit)}, "recursion_limit": 4}
        assert "__interrupt__" in graph.invoke({"n": 1}, config)
        return graph.invoke(Command(resume=1), {**config, "recursion_limit": limit})

    assert answered(2) == {"n": 1}
    with pytest.raises(GraphRecursionError):
        answered(1)


class Limited(TypedDict):
    n: int
