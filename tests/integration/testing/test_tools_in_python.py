"""Tools nodes and messages of graphs written in Python, with functions and external tools."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest

from sleipnir import (
    END,
    START,
    AIMessage,
    Command,
    ExternalTool,
    HumanMessage,
    MessagesState,
    StateGraph,
    ToolMessage,
    ToolRetryPolicy,
    tools_condition,
)
from sleipnir.python_graph.tools import schema_of_arguments
from sleipnir.testing import Call, ModelServer, Reply


class State(MessagesState):
    calls: int


def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


TRIES: list[str] = []


def seldom(text: Annotated[str, "what"]) -> str:
    """Fails at first."""
    TRIES.append(text)
    if len(TRIES) < 3:
        raise ConnectionError("not yet")
    return text.upper()


def count(state: State) -> dict[str, Any]:
    replies = [message for message in state["messages"] if isinstance(message, AIMessage)]
    return {"calls": sum(len(message.tool_calls) for message in replies)}


def graph(**tools: Any) -> StateGraph:
    builder = StateGraph(State)
    builder.add_llm_node("ask", model="openai:gpt-test", instructions="Be brief.")
    builder.add_tools_node("work", [add, seldom], **tools)
    builder.add_node(count)
    builder.add_edge(START, "ask").add_tools_conditional_edges("ask", "work", "count").add_edge("work", "ask")
    return builder.add_edge("count", END)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    def serve(*replies: Reply | str) -> ModelServer:
        server = ModelServer(replies)
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        return server

    return serve


@pytest.mark.conformance("RT-22", "TL-15")
def test_functions_are_tools_of_a_graph_in_python(model: Any) -> None:
    TRIES.clear()
    retry = ToolRetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False)
    calls = [Call("add", {"a": 2}), Call("seldom", {"text": "x"})]
    with model(Reply(calls=calls), "done") as server:
        result = graph(parallel=4, retry=retry).compile().invoke({"messages": [HumanMessage("hello")]})
        [first, second] = server.requests
    assert first.tools == ["add", "seldom"]
    assert first.messages[0] == {"role": "system", "content": "Be brief."}
    assert [each.text for each in second.tool_results] == ["3", '"X"']
    assert [type(message) for message in result["messages"]] == [
        *(HumanMessage, AIMessage, ToolMessage, ToolMessage, AIMessage),
    ]
    assert result["messages"][1].tool_calls[0]["args"] == {"a": 2}
    assert (result["calls"], len(TRIES)) == (2, 3)


def test_a_failed_tool_raises_its_own_exception(model: Any) -> None:
    TRIES.clear()
    with model(Reply(calls=[Call("seldom", {"text": "x"})])), pytest.raises(ConnectionError, match="not yet"):
        graph().compile().invoke({"messages": [HumanMessage("hello")]})


def test_an_external_tool_is_answered_by_the_program(model: Any) -> None:
    from sleipnir import InMemorySaver

    builder = StateGraph(MessagesState).add_llm_node("ask", model="openai:gpt-test")
    builder.add_tools_node("work", [ExternalTool("browse", {"properties": {"url": {"type": "string"}}})])
    builder.add_edge(START, "ask").add_tools_conditional_edges("ask", "work", END).add_edge("work", "ask")
    app, config = builder.compile(InMemorySaver()), {"configurable": {"thread_id": "1"}}
    with model(Reply(calls=[Call("browse", {"url": "a"})]), "done"):
        waiting = app.invoke({"messages": [HumanMessage("hello")]}, config)
        [question] = waiting["__interrupt__"]
        assert question.value["arguments"] == {"url": "a"}
        result = app.invoke(Command(resume={"title": "A"}), config)
    assert json.loads(result["messages"][-2].content) == {"title": "A"}
    assert result["messages"][-1].content == "done"


def test_the_condition_looks_at_the_last_message() -> None:
    calling = AIMessage("", tool_calls=[{"name": "add", "args": {}, "id": "1"}])
    assert tools_condition({"messages": [HumanMessage("x"), calling]}) == "tools"
    assert tools_condition([calling, HumanMessage("x")]) == END
    assert tools_condition({"other": [{"role": "assistant", "tool_calls": [{"name": "add"}]}]}, "other") == "tools"
    with pytest.raises(ValueError, match="No messages found"):
        tools_condition({"messages": []})


def test_the_condition_follows_functions_too() -> None:
    def ask(state: MessagesState) -> dict[str, Any]:
        is_first = not isinstance(state["messages"][-1], ToolMessage)
        calls = [{"name": "add", "args": {"a": 5}, "id": "1"}] if is_first else []
        return {"messages": [AIMessage("" if is_first else "six", tool_calls=calls)]}

    builder = StateGraph(MessagesState).add_node(ask).add_tools_node("tools", [add])
    builder.add_edge(START, "ask").add_conditional_edges("ask", tools_condition).add_edge("tools", "ask")
    result = builder.compile().invoke({"messages": [HumanMessage("hello")]})
    assert [message.content for message in result["messages"]] == ["hello", "", "6", "six"]


def test_what_is_no_tool_is_refused_with_the_place_of_its_node() -> None:
    async def later(a: int) -> int:
        return a

    def many(*numbers: int) -> int:
        return sum(numbers)

    for tool, why in ((later, "is async"), (many, "has no name for a model"), (7, "is a name, a function")):
        builder = StateGraph(MessagesState).add_tools_node("work", [tool]).add_edge(START, "work")  # type: ignore[list-item]
        with pytest.raises(ValueError, match=why):
            builder.compile()


def test_the_schema_of_a_function_has_its_types_and_what_is_required() -> None:
    schema = schema_of_arguments(add)
    assert schema["required"] == ["a"]
    assert {name: each["type"] for name, each in schema["properties"].items()} == {"a": "integer", "b": "integer"}
