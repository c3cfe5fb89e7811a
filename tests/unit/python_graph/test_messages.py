"""Messages: their forms, and the reducer `add_messages`."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest

from sleipnir import (
    REMOVE_ALL_MESSAGES,
    START,
    AIMessage,
    Command,
    HumanMessage,
    MessagesState,
    RemoveMessage,
    StateGraph,
    SystemMessage,
    ToolMessage,
    add_messages,
)
from sleipnir.python_graph.messages import message_of


def shown(messages: list[Any]) -> list[tuple[str, Any]]:
    return [(message.id, message.content) for message in messages]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hi", HumanMessage("hi")),
        (("user", "hi"), HumanMessage("hi")),
        (("human", "hi"), HumanMessage("hi")),
        (["assistant", "hi"], AIMessage("hi")),
        (("ai", "hi"), AIMessage("hi")),
        (("system", "hi"), SystemMessage("hi")),
        (("developer", "hi"), SystemMessage("hi")),
        ({"role": "user", "content": "hi", "id": "1", "name": "ann"}, HumanMessage("hi", "1", "ann")),
        ({"type": "ai", "content": "hi"}, AIMessage("hi")),
        ({"role": "tool", "content": "42", "tool_call_id": "c"}, ToolMessage("42", tool_call_id="c")),
        ({"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}, AIMessage("", tool_calls=[{"id": "c"}])),
    ],
)
def test_what_programs_write_as_a_message_is_one(given: Any, message: Any) -> None:
    assert message_of(given) == message
    assert message_of(message) is message


@pytest.mark.parametrize("given", [7, None, {"content": "no role"}, ("a", "b", "c"), (1, "x"), object()])
def test_anything_else_is_no_message(given: Any) -> None:
    with pytest.raises(ValueError, match="is no message: write a message, a text"):
        message_of(given)


def test_an_unknown_role_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"Unexpected message type: 'robot'\. Use one of user, human"):
        message_of(("robot", "hi"))


def test_a_message_of_another_library_is_taken_by_its_attributes() -> None:
    class Foreign:
        type, content, id, tool_calls = "ai", "hi", "f1", [{"name": "t"}]

    assert message_of(Foreign()) == AIMessage("hi", "f1", tool_calls=[{"name": "t"}])


def test_new_messages_are_appended_and_get_ids() -> None:
    messages = add_messages(add_messages([], "one"), ["two", ("ai", "three")])
    assert [message.content for message in messages] == ["one", "two", "three"]
    assert len({message.id for message in messages}) == 3


def test_a_message_with_a_known_id_replaces_in_place() -> None:
    before = [HumanMessage("a", "1"), AIMessage("b", "2"), HumanMessage("c", "3")]
    assert shown(add_messages(before, AIMessage("B", "2"))) == [("1", "a"), ("2", "B"), ("3", "c")]
    assert shown(add_messages([], [AIMessage("x", "1"), AIMessage("y", "1")])) == [("1", "y")]


def test_a_message_is_removed_by_its_id() -> None:
    before = [HumanMessage("a", "1"), AIMessage("b", "2")]
    assert shown(add_messages(before, [RemoveMessage(id="1"), HumanMessage("c", "3")])) == [("2", "b"), ("3", "c")]
    assert shown(add_messages(before, {"type": "remove", "id": "2"})) == [("1", "a")]
    with pytest.raises(ValueError, match=r"Attempting to delete a message with an ID that doesn't exist \('9'\)"):
        add_messages(before, RemoveMessage(id="9"))


def test_all_messages_are_removed_but_those_after_in_the_same_list() -> None:
    clear = RemoveMessage(id=REMOVE_ALL_MESSAGES)
    before = [HumanMessage("a", "1")]
    assert add_messages(before, clear) == []
    after = [HumanMessage("dropped", "2"), clear, HumanMessage("b", "3"), clear, HumanMessage("c", "4")]
    assert shown(add_messages(before, after)) == [("4", "c")]


def test_nothing_adds_nothing() -> None:
    assert shown(add_messages([HumanMessage("a", "1")], [])) == [("1", "a")]
    assert add_messages(None, None) == []


def test_nodes_see_objects_that_they_may_change_without_effect() -> None:
    seen: list[Any] = []

    def node(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        seen.append((last.type, last.content, last.id))
        last.content = "changed in place"
        return {"messages": AIMessage("answer", id="a")}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    out = graph.invoke({"messages": [HumanMessage("hi", id="h")]})
    assert seen == [("human", "hi", "h")]
    assert out == {"messages": [HumanMessage("hi", id="h"), AIMessage("answer", id="a")]}


class Chat(MessagesState):
    """More keys beside the messages."""

    log: Annotated[list[str], operator.add]


def test_parallel_nodes_append_in_the_order_of_their_names() -> None:
    graph = StateGraph(Chat)
    for name in ("zed", "amy"):
        graph.add_node(name, lambda state, name=name: {"messages": name, "log": [name]})  # type: ignore[misc]
        graph.add_edge(START, name)
    out = graph.compile().invoke({"messages": []})
    assert ([message.content for message in out["messages"]], out["log"]) == (["amy", "zed"], ["amy", "zed"])


def test_several_commands_of_one_node_add_their_messages_one_after_the_other() -> None:
    def node(state: MessagesState) -> list[Any]:
        return [Command(update={"messages": HumanMessage("a", "1")}), {"messages": [AIMessage("b", "1"), "c"]}]

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    assert [message.content for message in graph.invoke({"messages": "x"})["messages"]] == ["x", "b", "c"]
