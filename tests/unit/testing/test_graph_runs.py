"""sleipnir.testing.run of compiled graphs."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, HumanMessage, MessagesState, RetryPolicy, StateGraph, interrupt
from sleipnir.errors import UsageError
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import EmptyInputError
from sleipnir.python_graph.runtime import Runtime
from sleipnir.testing import AskedQuestion, run


class State(TypedDict, total=False):
    topic: str
    notes: Annotated[list[str], operator.add]


class Topic(TypedDict, total=False):
    topic: str


def left(state: State) -> State:
    return {"notes": [f"left of {state['topic']}"]}


def right(state: State) -> State:
    return {"notes": [f"right of {state['topic']}"]}


def joined(state: State) -> State:
    return {"topic": ", ".join(state["notes"])}


def diamond() -> CompiledGraph:
    builder = StateGraph(State, output_schema=Topic).add_node(left).add_node(right).add_node(joined)
    return builder.add_edge(START, "left").add_edge(START, "right").add_edge(["left", "right"], "joined").compile()


def asking(**fields: Any) -> CompiledGraph:
    routes = {"yes": END, "no": "left"}
    builder = StateGraph(State).add_node(left).add_edge(START, "left").add_edge("left", "ask")
    builder.add_approval_node("ask", question="Enough?", options=["yes", "no"], routes=routes, on_other=END, **fields)
    return builder.compile()


def test_a_run_of_a_graph_gives_its_output_its_visits_and_the_state_after_each() -> None:
    result = run(diamond(), {"topic": "x"})
    assert (result.status, result.error) == ("completed", None)
    assert result.output == {"topic": "left of x, right of x"}
    assert result.state == {"topic": "left of x, right of x", "notes": ["left of x", "right of x"]}
    assert (sorted(result.nodes[:2]), result.nodes[2:]) == (["left", "right"], ["joined"])
    assert result.visit("right").delta == {"notes": ["right of x"]}
    assert result.visits[0].state == {"topic": "x", "notes": []}, "the other one of the super-step has not ended"
    assert result.visits[1].state["notes"] == ["left of x", "right of x"]


def test_a_choice_at_the_start_is_no_visit() -> None:
    builder = StateGraph(State).add_node(left).add_conditional_edges(START, lambda state: "left", ["left"])
    result = run(builder.compile(), {"topic": "x"})
    assert result.nodes == ["left"]


def test_questions_of_a_graph_get_the_answers_of_the_test() -> None:
    result = run(asking(), {"topic": "x"}, answers=["no", "yes"])
    assert result.status == "completed"
    assert result.nodes == ["left", "ask", "left", "ask"]
    assert [question.answer for question in result.questions] == ["no", "yes"]
    assert result.output == {"topic": "x", "notes": ["left of x"] * 2}


def test_a_graph_waits_for_an_answer_that_is_not_given() -> None:
    result = run(asking(), {"topic": "x"})
    assert (result.status, result.output) == ("waiting", None)
    assert result.questions == (AskedQuestion("ask", "Enough?", ("yes", "no"), None, None),)


def test_an_unanswered_question_of_a_graph_expires_at_once() -> None:
    assert run(asking(timeout=86_400, on_timeout=END), {"topic": "x"}).status == "completed"


def test_a_question_of_a_node_s_code_gets_any_value_as_its_answer() -> None:
    def ask(state: State) -> State:
        return {"notes": interrupt("which notes?")}

    graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
    assert run(graph, {"topic": "x"}, answers=[["one", "two"]]).output == {"topic": "x", "notes": ["one", "two"]}


def test_an_answer_to_a_node_that_a_graph_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no such node; there are ask, left$"):
        run(asking(), {"topic": "x"}, answers={"aks": "yes"})


def test_an_exception_of_a_node_is_the_error_of_the_run() -> None:
    def fail(state: State) -> State:
        raise ValueError("no bells")

    result = run(StateGraph(State).add_node("fail", fail).add_edge(START, "fail").compile(), {"topic": "x"})
    assert (result.status, result.output) == ("failed", None)
    assert "ValueError: no bells" in str(result.error)
    assert not result.visit("fail").ok


def test_a_pause_before_a_retry_takes_no_time() -> None:
    attempts = []

    def unsteady(state: State) -> State:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("gone")
        return {"notes": ["there"]}

    policy = RetryPolicy(max_attempts=3, initial_interval=3_600.0, backoff_factor=1.0, jitter=False)
    builder = StateGraph(State).add_node("unsteady", unsteady, retry_policy=policy).add_edge(START, "unsteady")
    result = run(builder.compile(), {"topic": "x"})
    assert (result.status, len(attempts)) == ("completed", 3)


def test_a_run_that_meets_its_recursion_limit_has_failed() -> None:
    builder = StateGraph(State).add_node(left).add_edge(START, "left")
    builder.add_conditional_edges("left", lambda state: "left", ["left", END])
    result = run(builder.compile(), {"topic": "x"}, config={"recursion_limit": 3})
    assert (result.status, result.output, result.nodes) == ("failed", None, ["left"] * 3)
    assert "Recursion limit of 3 reached" in str(result.error)


def test_the_output_of_a_graph_has_objects_and_its_state_has_json() -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage("hello")]}

    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    result = run(builder.compile(), {"messages": []})
    assert result.output["messages"][0].content == "hello"
    assert result.state["messages"][0]["content"] == "hello"


def test_nodes_of_a_graph_get_configuration_and_context() -> None:
    def note(state: State, config: Any, runtime: Runtime[Any]) -> State:
        return {"notes": [config["configurable"]["user"], runtime.context["tenant"]]}

    builder = StateGraph(State).add_node("note", note).add_edge(START, "note")
    result = run(
        builder.compile(), {"topic": "x"}, config={"configurable": {"user": "ann"}}, context={"tenant": "acme"}
    )
    assert result.output["notes"] == ["ann", "acme"]


def test_what_does_not_apply_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^state= does not apply to a run of a graph$"):
        run(diamond(), {"topic": "x"}, state={})
    with pytest.raises(TypeError, match=r"^config= does not apply to a run of an agent$"):
        run(tmp_path, config={})
    with pytest.raises(EmptyInputError):
        run(diamond(), None)


def test_a_graph_goes_past_its_breakpoints() -> None:
    class Letter(TypedDict, total=False):
        text: str
        sent: bool

    graph = StateGraph(Letter).add_node("write", lambda state: {"text": "x"}).add_node("send", lambda s: {"sent": True})
    compiled = graph.add_edge(START, "write").add_edge("write", "send").compile(interrupt_before=["write", "send"])
    assert [run(compiled, {}, resumes=times).nodes for times in range(3)] == [[], ["write"], ["write", "send"]]
    assert run(compiled, {}, resumes=2).output == {"text": "x", "sent": True}
