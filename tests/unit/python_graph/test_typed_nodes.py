"""Node types of the language in a graph written in Python: their fields, and the edges after them."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, Command, InMemorySaver, Send, StateGraph
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import NODE_TYPES
from sleipnir.graph.shape import FIELDS, is_required
from sleipnir.python_graph.errors import GraphBuildError
from sleipnir.testing import run

pytestmark = pytest.mark.filterwarnings("ignore:Node .* is unreachable")  # some graphs here have parts only


class State(TypedDict):
    topic: str
    notes: Annotated[list[str], operator.add]


KINDS = ("llm", "agent", "script", "rag", "approval", "input")

REQUIRED: dict[str, dict[str, Any]] = {
    "llm": {},
    "agent": {"agent": "helper"},
    "script": {"script": "s.sh"},
    "rag": {"documents": ["./docs"]},
    "approval": {"question": "ok?", "options": ["yes"], "routes": {"yes": END}, "on_other": END},
    "input": {"question": "what?"},
}


def build(kind: str, **fields: Any) -> StateGraph:
    graph = StateGraph(State)
    needed = {"prompt": "{{topic}}"} if kind in ("agent", "llm") else {}
    getattr(graph, f"add_{kind}_node")("n", **{**needed, **REQUIRED[kind], **fields})
    return graph.add_edge(START, "n")


@pytest.mark.parametrize("kind", KINDS)
def test_the_parameters_without_a_default_are_the_required_fields_of_the_type(kind: str) -> None:
    parameters = inspect.signature(getattr(StateGraph, f"add_{kind}_node")).parameters.values()
    named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD and each.default is each.empty}
    named -= {"self", "name"}
    required = {field.name for field in dataclasses.fields(NODE_TYPES[kind]) if is_required(field)}
    assert required <= named == REQUIRED[kind].keys()
    assert named <= FIELDS[NODE_TYPES[kind]].keys()


@pytest.mark.parametrize("kind", KINDS)
def test_a_required_field_that_is_missing_is_an_error_of_the_call(kind: str) -> None:
    for name in REQUIRED[kind]:
        fields = {key: value for key, value in REQUIRED[kind].items() if key != name}
        with pytest.raises(TypeError, match=f"missing 1 required .* argument: '{name}'"):
            getattr(StateGraph(State), f"add_{kind}_node")("n", **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_keyword_is_reported_with_the_line_of_the_call(kind: str) -> None:
    with pytest.raises(GraphBuildError, match=rf"^{__file__}:\d+: unknown key 'descripton'\. Did you mean"):
        build(kind, descripton="x").compile()


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_of_the_type_is_taken(kind: str) -> None:
    node = build(kind, description="what it does", queue="mine", ends={"a": END}).compile().model.nodes["n"]
    assert (node.kind, node.description, node.queue, node.ends) == (kind, "what it does", "mine", {"a": "end"})
    for name, value in REQUIRED[kind].items():
        assert getattr(node, name) in (value, "end", {"yes": "end"})


@pytest.mark.parametrize("edge", ["next", "branch", "wait_for", "type", "id"])
def test_edges_are_no_fields(edge: str) -> None:
    graph = build("llm", **{edge: "x"})
    with pytest.raises(GraphBuildError, match=f"Node `n`: '{edge}' is no field here; add edges by add_edge"):
        graph.compile()


def asking(route: Any, *path_map: Any) -> Any:
    graph = StateGraph(State).add_input_node("ask", question="What?", state_updates={"topic": "{{input}}"})
    graph.add_node("one", lambda state: {"notes": ["one"]}).add_node("two", lambda state: {"notes": ["two"]})
    graph.add_edge(START, "ask").add_conditional_edges("ask", route, *path_map)
    return graph.compile(checkpointer=InMemorySaver())


def answered(graph: Any, text: str) -> Any:
    config = {"configurable": {"thread_id": text}}
    assert "__interrupt__" in graph.invoke({}, config)
    return graph.invoke(Command(resume=text), config)["notes"]


def test_a_conditional_edge_after_a_question_chooses_by_its_answer() -> None:
    graph = asking(lambda state: state["topic"], ["one", "two", END])
    assert [answered(graph, text) for text in ("one", "two", END)] == [["one"], ["two"], []]


def test_a_conditional_edge_may_choose_several_targets_and_labels_of_any_type() -> None:
    assert answered(asking(lambda state: ["one", "two"]), "x") == ["one", "two"]
    graph = asking(lambda state: state["topic"] == "x", {True: "one", False: END})
    assert [answered(graph, text) for text in ("x", "y")] == [["one"], []]


def test_a_conditional_edge_takes_the_configuration_and_may_be_async() -> None:
    async def route(state: State, config: Any) -> str:
        return "two" if config["configurable"]["thread_id"] == state["topic"] else "one"

    assert answered(asking(route), "x") == ["two"]


def test_a_conditional_edge_of_a_node_that_is_no_function_cannot_send() -> None:
    with pytest.raises(NodeFailed, match="it chose a Send to 'one': only the conditional edge of a function may"):
        answered(asking(lambda state: Send("one", {})), "x")


def test_the_exception_of_a_conditional_edge_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError, match="nothing"):
        answered(asking(lambda state: state["nothing"]), "x")
    with pytest.raises(KeyError, match="three"):
        answered(asking(lambda state: "three", {"one": "one"}), "x")
    with pytest.raises(ValueError, match="Branch did not return a valid destination"):
        answered(asking(lambda state: None), "x")


def test_a_node_that_is_no_function_has_one_conditional_edge() -> None:
    graph = build("llm").add_conditional_edges("n", lambda state: END)
    with pytest.raises(GraphBuildError, match="Node 'n' is no function: it can have one conditional edge"):
        graph.add_conditional_edges("n", operator.itemgetter("topic")).compile()


def test_a_graph_without_functions_has_langgraph_s_rules_too() -> None:
    """A join of which one source is never reached ends there; in a graph.yaml the run would fail."""
    builder = StateGraph(State)
    routes = {"yes": "left", "no": END}
    builder.add_approval_node("ask", question="ok?", options=["yes", "no"], routes=routes, on_other=END)
    for name in ("left", "right", "both"):
        builder.add_input_node(name, question=f"{name}?")
    builder.add_edge(START, "ask").add_edge(START, "right").add_edge(["left", "right"], "both")
    graph = builder.compile()
    assert graph.model.is_state_graph
    with pytest.warns(UserWarning, match="both"):
        result = run(graph, {"topic": "x"}, answers={"ask": "no", "right": "r"})
    assert (result.status, sorted(result.nodes)) == ("completed", ["ask", "right"])
