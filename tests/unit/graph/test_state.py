"""The `state:` block: types, what a run begins with, what a node may write, and times and bytes as JSON."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir import commands
from sleipnir.graph.model import Graph, StateField
from sleipnir.graph.state import (
    TYPES,
    StateError,
    from_json,
    initial,
    is_model,
    problem,
    to_json,
    update_problem,
    zero,
)

HELLO = {"role": "user", "content": "hello"}


def graph(initial_state: dict[str, Any] | None = None, **state: StateField) -> Graph:
    return Graph(name="g", start="end", nodes={}, state=state, initial_state=initial_state or {})


def problems_of(graph: Graph, **given: Any) -> list[str]:
    with pytest.raises(StateError) as error:
        initial(graph, given)
    assert str(error.value) == "\n".join(error.value.problems)
    return list(error.value.problems)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (StateField(), object()),
        (StateField(type="string"), ""),
        (StateField(type="int"), 2**70),
        (StateField(type="float"), 1.5),
        (StateField(type="float"), 1),
        (StateField(type="bool"), False),
        (StateField(type="list"), [1, "a", None]),
        (StateField(type="list", items="int"), []),
        (StateField(type="list", items="float"), [1, 1.5]),
        (StateField(type="object"), {"a": None}),
        (StateField(type="messages"), [HELLO]),
        (StateField(type="datetime"), "2026-01-02T03:04:05+05:30"),
        (StateField(type="datetime"), "2026-01-02T03:04:05Z"),
        (StateField(type="datetime"), None),
        (StateField(type="bytes"), "aGVsbG8="),
        (StateField(type="models.py:Order"), {"anything": 1}),
        (StateField(type="list", items="models.py:Order"), [{"anything": 1}]),
        (StateField(type="object", schema={"required": ["a"]}), {"a": 1}),
    ],
)
def test_a_value_of_the_declared_type_is_accepted(field: StateField, value: Any) -> None:
    assert problem(field, value) is None


@pytest.mark.conformance("ST-04")
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (StateField(type="string"), 1, "must be string, not int 1"),
        (StateField(type="int"), True, "must be int, not bool True"),
        (StateField(type="int"), 1.0, "must be int, not float 1.0"),
        (StateField(type="int"), "1", "must be int, not string '1'"),
        (StateField(type="float"), False, "must be float, not bool False"),
        (StateField(type="bool"), 0, "must be bool, not int 0"),
        (StateField(type="list"), {}, "must be list, not object"),
        (StateField(type="list", items="int"), [1, "x" * 50], "[1] must be int, not string"),
        (StateField(type="object"), [], "must be object, not list"),
        (StateField(type="string"), None, "must be string, not null"),
        (StateField(type="messages"), "hello", "must be a list of messages, not string 'hello'"),
        (StateField(type="messages"), [HELLO, "x"], "[1] must be a message, an object with a `role`"),
        (StateField(type="datetime"), "soon", "must be datetime (ISO-8601 text), not string 'soon'"),
        (StateField(type="datetime"), 5, "must be datetime (ISO-8601 text), not int 5"),
        (StateField(type="bytes"), "ünicode", "must be bytes (base64 text), not string 'ünicode'"),
        (StateField(type="bytes"), "abc", "must be bytes (base64 text), not string 'abc'"),
        (
            StateField(type="object", schema={"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}),
            {"a": [1, "x"]},
            "does not match its schema: $.a[1]: 'x' is not of type 'integer'",
        ),
        (
            StateField(schema={"$ref": "http://example.com/order.json"}),
            1,
            "cannot be checked, its schema refers to 'http://example.com/order.json', which is not in it",
        ),
    ],
)
def test_a_value_of_another_type_is_named_with_its_place(field: StateField, value: Any, message: str) -> None:
    assert problem(field, value) == message


@pytest.mark.conformance("ST-02")
@pytest.mark.parametrize("type_", TYPES)
def test_a_declared_key_without_a_value_begins_as_the_zero_value_of_its_type(type_: str) -> None:
    state = initial(graph(key=StateField(type=type_)), {})
    assert state == {"key": zero(StateField(type=type_))}
    assert problem(StateField(type=type_), state["key"]) is None


@pytest.mark.conformance("ST-02")
def test_what_was_given_comes_before_the_graphs_own_value_and_that_before_the_default() -> None:
    declared = {name: StateField(type="int", default=1) for name in ("given", "own", "both", "neither")}
    state = initial(graph({"own": 2, "both": 2, "free": 2}, **declared), {"given": 3, "both": 3, "other": 3})
    assert state == {"own": 2, "both": 3, "free": 2, "given": 3, "other": 3, "neither": 1}


def test_what_is_given_to_a_graph_in_python_is_a_write_to_its_first_state() -> None:
    written = graph(
        most=StateField(type="int", reducer="max", default=0),
        items=StateField(type="list", reducer="append", default=[]),
        own=StateField(type="any", reducer="graph.py:join"),
        plain=StateField(type="any", reducer="single"),
    )
    given = {"most": -5, "items": ["a"], "plain": 1}
    assert initial(written, given) == {**given, "own": None}
    in_python = replace(written, state_classes=["graph.py:State"])
    assert initial(in_python, given) == {"most": 0, "items": ["a"], "plain": 1}


@pytest.mark.parametrize("reducer", ["first", "min", "max"])
def test_a_zero_value_never_wins_against_what_is_written_first(reducer: str) -> None:
    assert initial(graph(key=StateField(type="int", reducer=reducer)), {}) == {}
    assert initial(graph(key=StateField(type="int", reducer=reducer, default=5)), {}) == {"key": 5}


@pytest.mark.conformance("ST-03", "ST-04")
def test_everything_that_is_missing_or_wrong_is_named_at_once() -> None:
    declared = graph(
        {"own": "x"},
        doc=StateField(type="object", required=True, description="the order"),
        who=StateField(type="string", required=True),
        own=StateField(type="int"),
        n=StateField(type="int"),
        ok=StateField(type="int"),
    )
    assert problems_of(declared, n="3", ok=3) == [
        "state key 'doc' is required (the order): give it a value of type object",
        "state key 'who' is required: give it a value of type string",
        "state key 'own' must be int, not string 'x'",
        "state key 'n' must be int, not string '3'",
    ]


@pytest.mark.conformance("ST-03")
def test_a_required_key_is_there_when_it_was_given_or_the_graph_has_it() -> None:
    required = StateField(type="string", required=True)
    assert initial(graph(key=required), {"key": ""}) == {"key": ""}
    assert initial(graph({"key": "own"}, key=required), {}) == {"key": "own"}


@pytest.mark.conformance("ST-12")
def test_a_key_that_is_not_declared_holds_anything() -> None:
    assert initial(graph(n=StateField(type="int")), {"free": [None, {"x": 1.5}]}) == {
        "free": [None, {"x": 1.5}],
        "n": 0,
    }


@pytest.mark.conformance("ST-13")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, print]}, "state key 'x.a[1]' is a builtin_function_or_method, which is not JSON"),
        ({"a": {"b": threading.Lock()}}, "state key 'x.a.b' is a lock, which is not JSON"),
        ({"a": {1, 2}}, "state key 'x.a' is a set, which is not JSON"),
        ({"a": float("nan")}, "state key 'x.a' is NaN, which JSON cannot hold; use null or a number"),
        ({3: 1}, "state key 'x.3' is named by a int; names must be strings"),
    ],
)
def test_what_no_machine_could_read_back_is_named_with_its_place(value: Any, message: str) -> None:
    assert problems_of(graph(), x=value) == [message]


@pytest.mark.conformance("ST-13")
def test_empty_and_null_values_are_fine() -> None:
    state: dict[str, Any] = {"empty": {}, "null": None, "nested": {"map": {}, "none": None, "list": []}}
    assert initial(graph(), state) == state
    assert initial(graph(), {}) == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (StateField(type="list", items="int", reducer="append"), 1),
        (StateField(type="list", items="int", reducer="append"), [1, 2]),
        (StateField(type="list", items="int", reducer="union"), 1),
        (StateField(type="any", reducer="append"), {"a": 1}),
        (StateField(type="list", items="int", reducer="extend"), [1]),
        (StateField(type="int", reducer="sum"), 1),
        (StateField(type="float", reducer="max"), 1),
        (StateField(type="string", reducer="concat"), "a"),
        (StateField(type="object", reducer="merge", schema={"required": ["a"]}), {"b": 1}),
        (StateField(type="object", reducer="custom.py:fold"), "anything"),
        (StateField(type="messages"), None),
        (StateField(type="messages"), HELLO),
        (StateField(type="messages"), [commands.remove_all(), HELLO, commands.append("user", "x")]),
        (StateField(type="messages", reducer="overwrite"), [HELLO]),
        (StateField(type="int", reducer="last"), 1),
        (StateField(type="int"), 1),
    ],
)
def test_a_node_may_write_what_the_keys_reducer_takes(field: StateField, value: Any) -> None:
    assert update_problem(field, value) is None


@pytest.mark.conformance("ST-04")
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (StateField(type="list", items="int", reducer="append"), "x", "[0] must be int, not string 'x'"),
        (StateField(type="list", items="int", reducer="append"), [1, "x"], "[1] must be int, not string 'x'"),
        (StateField(type="list", items="int", reducer="extend"), 1, "must be list, not int 1"),
        (StateField(type="int", reducer="sum"), 1.5, "must be int, not float 1.5"),
        (StateField(type="int", reducer="sum"), True, "must be int, not bool True"),
        (StateField(type="string", reducer="concat"), None, "must be string, not null"),
        (StateField(type="object", reducer="merge"), [1], "must be object, not list"),
        (
            StateField(type="messages"),
            ["text"],
            "[0] must be a message (an object with a `role`) or an operation on them, not string 'text'",
        ),
        (
            StateField(type="messages"),
            {"op": "drop"},
            "cannot be written: operation 'drop' on messages does not exist;"
            " available are append, replace_last_user, remove, remove_all",
        ),
        (StateField(type="int"), "x", "must be int, not string 'x'"),
        (
            StateField(type="int", schema={"maximum": 3}),
            4,
            "does not match its schema: $: 4 is greater than the maximum of 3",
        ),
    ],
)
def test_the_error_of_a_write_names_the_type_of_the_key(field: StateField, value: Any, message: str) -> None:
    assert update_problem(field, value) == message


ZONES = st.none() | st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours, minutes=30)))


@given(st.datetimes(timezones=ZONES))
def test_a_datetime_comes_back_with_its_zone(at: datetime) -> None:
    field = StateField(type="datetime")
    stored = json.loads(json.dumps(to_json(field, at)))
    back = from_json(field, stored)
    assert (back, back.utcoffset(), problem(field, stored)) == (at, at.utcoffset(), None)


@given(st.binary())
def test_bytes_come_back(data: bytes) -> None:
    field = StateField(type="bytes")
    stored = json.loads(json.dumps(to_json(field, data)))
    assert (from_json(field, stored), problem(field, stored)) == (data, None)


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_ints_stay_ints_and_floats_floats(number: int | float) -> None:
    for field in (StateField(type="int"), StateField(type="float"), StateField()):
        back = from_json(field, json.loads(json.dumps(to_json(field, number))))
        assert (back, type(back)) == (number, type(number))


def test_the_items_of_a_list_and_one_that_is_appended_are_converted_too() -> None:
    field = StateField(type="list", items="datetime", reducer="append")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert to_json(field, at) == "2026-01-02T00:00:00+00:00"
    assert from_json(field, to_json(field, [at, at])) == [at, at]


def test_only_what_is_declared_is_converted() -> None:
    assert from_json(StateField(type="string"), "2026-01-02T00:00:00") == "2026-01-02T00:00:00"
    assert from_json(StateField(type="datetime"), None) is None
    assert to_json(StateField(type="datetime"), "2026-01-02") == "2026-01-02"


def test_a_run_can_be_given_times_and_bytes() -> None:
    declared = graph(at=StateField(type="datetime"), data=StateField(type="bytes"))
    state = initial(declared, {"at": datetime(2026, 1, 2, tzinfo=UTC), "data": b"hello"})
    assert state == {"at": "2026-01-02T00:00:00+00:00", "data": "aGVsbG8="}
    assert problems_of(graph(), at=datetime(2026, 1, 2)) == ["state key 'at' is a datetime, which is not JSON"]


@pytest.mark.parametrize(
    ("type_", "model"), [("models.py:Order", True), ("int", False), ("models:Order", False), ("models.py", False)]
)
def test_a_model_is_named_by_its_file(type_: str, model: bool) -> None:
    assert is_model(type_) is model


def test_the_schema_of_a_key_that_was_checked_before_is_not_applied_again() -> None:
    fields = {name: StateField(type="list", schema={"maxItems": 1}) for name in ("a", "b")}
    assert initial(graph(**fields), {"a": [1, 2], "b": [1]}, unchecked=("a",)) == {"a": [1, 2], "b": [1]}
    with pytest.raises(StateError, match="state key 'b' does not match its schema"):
        initial(graph(**fields), {"a": [1, 2], "b": [1, 2]}, unchecked=("a",))
    with pytest.raises(StateError, match="state key 'a' must be list, not int"):
        initial(graph(**fields), {"a": 5}, unchecked=("a",))
