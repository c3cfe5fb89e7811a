"""Values that JSON does not have: nodes see objects, the state holds JSON, and both stay the same over any path."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import operator
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel

from sleipnir import START, AIMessage, HumanMessage, MessagesState, Send, StateGraph, ToolMessage, add_messages
from sleipnir.python_graph.codec import codec_of, is_unstorable
from sleipnir.python_graph.schema import Key


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Item(BaseModel):
    name: str
    at: datetime.datetime


NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)

VALUES: list[tuple[Any, Any]] = [
    (set[int], {1, 2}), (frozenset[str], frozenset({"a"})), (datetime.datetime, NOON),
    (datetime.date, datetime.date(2026, 1, 2)), (datetime.timedelta, datetime.timedelta(seconds=90)),
    (decimal.Decimal, decimal.Decimal("1.10")), (uuid.UUID, uuid.UUID(int=7)), (Path, Path("a/b")),
    (Colour, Colour.RED), (Point, Point(1)), (Item, Item(name="x", at=NOON)), (list[Point], [Point(1), Point(2)]),
    (dict[str, Item], {"k": Item(name="x", at=NOON)}), (Point | None, Point(3)), (Point | None, None),
    (tuple[int, str], (1, "a")), (bytes, b"abc"), (set[Colour], {Colour.RED}), (list[set[int]], [{1}, set()]),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value"), VALUES)
def test_a_value_is_json_in_the_state_and_the_same_object_again(hint: Any, value: Any) -> None:
    codec = codec_of(Key("k", hint))
    assert codec is not None
    assert codec.decode(json.loads(json.dumps(codec.encode(value)))) == value


@pytest.mark.parametrize(("hint", "value"), VALUES)
def test_nodes_routers_and_callers_get_the_object(hint: Any, value: Any) -> None:
    state = TypedDict("state", {"k": hint, "seen": Annotated[list[str], operator.add]})  # type: ignore[misc]  # noqa: UP013

    def same(state: Any) -> str:
        return "equal" if state["k"] == value and type(state["k"]) is type(value) else "other"

    graph = StateGraph(state).add_node("a", lambda state: {"k": value, "seen": [same(state)]})
    graph.add_node("b", lambda state: {"seen": [same(state)]}).add_edge(START, "a").add_edge("a", "b")
    graph.add_conditional_edges("b", same, {"equal": "__end__"})
    out = graph.compile().invoke({"k": value})
    assert out == {"k": value, "seen": ["equal", "equal"]}


@pytest.mark.parametrize(
    "hint",
    [
        str,
        int,
        list[int],
        dict[str, list[str]],
        Any,
        object,
        int | None,
        Sequence[str],
        Mapping[str, list[int]],
        TypedDict("T", {"a": int}),
    ],
)
def test_values_of_json_types_are_not_converted(hint: Any) -> None:
    assert codec_of(Key("k", hint)) is None


def test_a_set_with_a_reducer_stays_a_set() -> None:
    class State(TypedDict):
        tags: Annotated[set[str], operator.or_]

    graph = StateGraph(State).add_node("a", lambda state: {"tags": {"a"}}).add_node("b", lambda state: {"tags": {"b"}})
    graph.add_edge(START, "a").add_edge(START, "b")
    assert graph.compile().invoke({"tags": {"c"}}) == {"tags": {"a", "b", "c"}}


def test_a_send_carries_objects_of_the_keys_of_the_state() -> None:
    class State(TypedDict):
        point: Point
        seen: Annotated[list[int], operator.add]

    graph = StateGraph(State).add_node("n", lambda state: {"seen": [state["point"].x]})
    graph.add_conditional_edges(START, lambda state: [Send("n", {"point": Point(number)}) for number in (1, 2)])
    assert graph.compile().invoke({})["seen"] == [1, 2]


def test_an_object_under_an_undeclared_type_is_stored_as_json() -> None:
    class State(TypedDict):
        k: Any

    graph = StateGraph(State).add_node("n", lambda state: {"k": Point(1)}).add_edge(START, "n").compile()
    assert graph.invoke({}) == {"k": {"x": 1, "y": 0}}


@pytest.mark.parametrize("value", [object(), lambda: 1, {1: object()}, float("nan"), [1, {2}]])
def test_a_value_that_is_no_json_is_a_type_error_that_names_node_and_key(value: Any) -> None:
    class State(TypedDict):
        k: Any

    graph = StateGraph(State).add_node("n", lambda state: {"k": value}).add_edge(START, "n").compile()
    with pytest.raises(TypeError, match=r"node 'n': Type is not JSON serializable: .*k"):
        graph.invoke({})


def test_messages_are_objects_for_nodes_and_roles_in_the_state() -> None:
    codec = codec_of(Key("messages", list, add_messages))
    assert codec is not None
    written = [HumanMessage("hi", id="1"), AIMessage("", id="2", tool_calls=[{"name": "t", "args": {}, "id": "c"}])]
    stored = codec.encode([*written, ToolMessage("42", id="3", tool_call_id="c")])
    assert [message["role"] for message in stored] == ["user", "assistant", "tool"]
    assert codec.decode(json.loads(json.dumps(stored)))[:2] == written
    assert codec.encode("hi")[0]["role"] == "user"
    assert codec.encode(None) is None


def test_unknown_fields_of_a_message_stay() -> None:
    codec = codec_of(Key("messages", list, add_messages))
    assert codec is not None
    message = {"role": "user", "content": "hi", "id": "1", "cache": {"a": 1}}
    assert codec.encode(codec.decode([message])) == [message]


def test_a_state_of_messages_takes_every_form_of_a_message() -> None:
    graph = StateGraph(MessagesState).add_node("n", lambda state: {"messages": ("assistant", "b")}).add_edge(START, "n")
    for first in (
        "a",
        ("user", "a"),
        {"role": "user", "content": "a"},
        [HumanMessage("a")],
        {"type": "human", "content": "a"},
    ):
        messages = graph.compile().invoke({"messages": first})["messages"]
        assert [(message.type, message.content) for message in messages] == [("human", "a"), ("ai", "b")]
        assert all(message.id for message in messages)


@pytest.mark.parametrize("hint", [type, Exception, range])
def test_a_type_without_a_json_form_is_known_before_anything_runs(hint: Any) -> None:
    assert is_unstorable(Key("k", hint))
    assert not is_unstorable(Key("k", hint, add_messages))


class Dated(BaseModel):
    at: datetime.datetime | None = None
    tags: Annotated[set[str], operator.or_] = set()
    items: list[Item] = []
    n: int = 0


def test_a_model_as_state_holds_objects_and_leaves_wrong_values_to_the_node_that_reads_them() -> None:
    seen: list[Any] = []

    def first(state: Dated) -> Any:
        return {"at": NOON, "tags": {"b"}, "items": [Item(name="x", at=NOON)], "n": "4"}

    def second(state: Dated) -> Any:
        seen.append(state)
        return {"at": "no date"}

    graph = StateGraph(Dated).add_sequence([first, second]).add_edge(START, "first").compile()
    out = graph.invoke({"tags": {"a"}})
    stored = {"name": "x", "at": "2026-01-02T12:00:00Z"}
    assert out == {"at": "no date", "tags": {"a", "b"}, "items": [stored], "n": "4"}
    assert seen == [Dated(at=NOON, tags={"a", "b"}, items=[Item(name="x", at=NOON)], n=4)]


def test_a_value_of_another_type_than_declared_that_is_no_json_is_a_type_error() -> None:
    class State(TypedDict):
        at: datetime.datetime

    graph = StateGraph(State).add_node("n", lambda state: {"at": object()}).add_edge(START, "n").compile()
    with pytest.raises(TypeError, match="Type is not JSON serializable"):
        graph.invoke({})
