"""Reducers: Loki's table with its messages, the kinder ones under `state:`, messages, and what holds of all of them."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir import commands
from sleipnir.graph.reducers import ABSENT, BUILT_IN, LOKI, ReducerError, fold, fold_all, is_custom, type_name


def strictly(reducer: str, current: Any, incoming: Any) -> Any:
    return fold(reducer, current, incoming, strict=True)


def kindly(reducer: str, current: Any, incoming: Any) -> Any:
    return fold(reducer, current, incoming, strict=False)


@pytest.mark.conformance("Y02")
@pytest.mark.parametrize(
    ("reducer", "current", "incoming", "result"),
    [
        ("append", ABSENT, 1, [1]),
        ("append", ABSENT, [1], [[1]]),
        ("append", [1], [2], [1, [2]]),
        ("append", [1], None, [1, None]),
        ("extend", ABSENT, [1], [1]),
        ("extend", [1], [2, 3], [1, 2, 3]),
        ("concat", ABSENT, "a", "a"),
        ("concat", "", "a", "a"),
        ("concat", "a", "b", "a\nb"),
        ("concat", "a", "", "a\n"),
        ("sum", ABSENT, 1.0, 1.0),
        ("sum", 1, 2, 3),
        ("sum", 1.5, 1.5, 3),
        ("sum", 1, 0.5, 1.5),
        ("sum", 2**60, 1, 2**60 + 1),
        ("max", ABSENT, -4, -4),
        ("max", 1, 2.0, 2),
        ("max", 2.5, 1, 2.5),
        ("min", 3.0, 4, 3),
        ("merge", ABSENT, {"a": 1}, {"a": 1}),
        ("merge", {"a": 1, "b": {"x": 1}}, {"b": {"y": 2}, "c": 3}, {"a": 1, "b": {"y": 2}, "c": 3}),
        ("overwrite", ABSENT, 1, 1),
        ("overwrite", [1], None, None),
    ],
)
def test_each_of_lokis_reducers_folds_as_in_its_table(reducer: str, current: Any, incoming: Any, result: Any) -> None:
    found = strictly(reducer, current, incoming)
    assert (found, type(found)) == (result, type(result))


@pytest.mark.conformance("Y02")
@pytest.mark.parametrize(
    ("reducer", "current", "incoming", "message"),
    [
        ("append", "x", 1, "requires an array (or absent) for the current value, got string"),
        ("append", None, 1, "requires an array (or absent) for the current value, got null"),
        ("extend", {}, [1], "requires an array (or absent) for the current value, got object"),
        ("extend", [1], 2, "requires an array for the incoming value, got number"),
        ("concat", None, "a", "requires a string (or absent) for the current value, got null"),
        ("concat", "a", ["b"], "requires a string for the incoming value, got array"),
        ("sum", "1", 1, "requires a number for the current value, got string"),
        ("sum", 1, True, "requires a number for the incoming value, got bool"),
        ("max", None, 1, "requires a number for the current value, got null"),
        ("min", 1, None, "requires a number for the incoming value, got null"),
        ("merge", [], {}, "requires an object (or absent) for the current value, got array"),
        ("merge", {}, 1.5, "requires an object for the incoming value, got number"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_in_lokis_words(
    reducer: str, current: Any, incoming: Any, message: str
) -> None:
    with pytest.raises(ReducerError) as error:
        strictly(reducer, current, incoming)
    assert str(error.value) == f"reducer '{reducer}' {message}"


@pytest.mark.conformance("Y02")
def test_loki_has_eight_reducers() -> None:
    assert len(LOKI) == 8 and set(LOKI) < set(BUILT_IN)


def test_a_reducer_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ReducerError, match=r"'add' is not a built-in reducer; available are append, .*, messages"):
        kindly("add", 1, 2)


@pytest.mark.parametrize(
    ("name", "custom"),
    [("fold.py:keep", True), ("lib/fold.py:keep_2", True), ("fold.py", False), ("fold.py:a b", False), ("sum", False)],
)
def test_a_custom_reducer_is_a_function_in_a_file_of_the_agent(name: str, custom: bool) -> None:
    assert is_custom(name) is custom


@pytest.mark.conformance("ST-06")
@pytest.mark.parametrize(
    ("current", "incoming", "result"),
    [
        (ABSENT, "a", ["a"]),
        (ABSENT, ["a"], ["a"]),
        (["a"], "b", ["a", "b"]),
        (["a"], ["b", "c"], ["a", "b", "c"]),
        (["a"], {"b": 1}, ["a", {"b": 1}]),
        ("no list", ["a"], ["a"]),
        (None, "a", "a"),
    ],
)
def test_append_under_state_takes_an_element_or_a_list_and_overwrites_what_is_none(
    current: Any, incoming: Any, result: Any
) -> None:
    assert kindly("append", current, incoming) == result


@pytest.mark.conformance("ST-07")
def test_lists_of_texts_are_concatenated() -> None:
    assert kindly("append", ["a"], ["b"]) == kindly("extend", ["a"], ["b"]) == ["a", "b"]


@pytest.mark.conformance("ST-08")
def test_merge_joins_objects_without_sharing_anything_with_them() -> None:
    first, second = {"a": {"deep": [1]}}, {"b": {"deep": [2]}}
    merged = kindly("merge", first, second)
    assert merged == {"a": {"deep": [1]}, "b": {"deep": [2]}}
    merged["a"]["deep"].append("changed")
    merged["b"]["deep"].append("changed")
    assert (first, second) == ({"a": {"deep": [1]}}, {"b": {"deep": [2]}})
    assert kindly("merge", {"a": 1}, {"a": 2}) == {"a": 2}


@pytest.mark.parametrize(
    ("reducer", "current", "incoming", "result"),
    [
        ("deep_merge", ABSENT, {"a": 1}, {"a": 1}),
        (
            "deep_merge",
            {"a": {"x": 1, "y": [1]}, "b": 1},
            {"a": {"y": [2]}, "c": 2},
            {"a": {"x": 1, "y": [2]}, "b": 1, "c": 2},
        ),
        ("deep_merge", {"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ("union", ABSENT, ["b", "a", "b"], ["b", "a"]),
        ("union", [1, True, "1"], [1.0, 1, "1", True], [1, True, "1", 1.0]),
        ("union", [{"a": 1, "b": 2}], {"b": 2, "a": 1}, [{"a": 1, "b": 2}]),
        ("first", ABSENT, 1, 1),
        ("first", None, 1, None),
        ("last", 1, 2, 2),
        ("sum", 0.5, 0.5, 1.0),
        ("max", 1.0, 0.5, 1.0),
        ("sum", 1, 1, 2),
    ],
)
def test_reducers_of_our_own(reducer: str, current: Any, incoming: Any, result: Any) -> None:
    found = kindly(reducer, current, incoming)
    assert json.dumps(found) == json.dumps(result)


@pytest.mark.parametrize("values", [(1e308, 1e308), (10**400, 0.5)])
def test_a_sum_that_json_cannot_write_is_refused(values: tuple[Any, Any]) -> None:
    with pytest.raises(ReducerError, match="reducer 'sum' results in a number that is too large"):
        kindly("sum", *values)


HELLO = {"role": "user", "content": "hello", "name": "ann"}
HI = {"role": "assistant", "content": "hi"}


@pytest.mark.conformance("MS-01")
def test_a_null_leaves_messages_as_they_are() -> None:
    assert kindly("messages", [HELLO], None) == [HELLO]
    assert kindly("messages", ABSENT, None) == []


@pytest.mark.conformance("MS-02")
def test_a_message_or_a_list_of_them_is_appended() -> None:
    assert kindly("messages", ABSENT, HELLO) == [HELLO]
    assert kindly("messages", [HELLO], [HI, HELLO]) == [HELLO, HI, HELLO]
    assert kindly("messages", [HELLO], []) == [HELLO]


@pytest.mark.conformance("MS-03")
def test_operations_of_one_write_are_applied_in_order() -> None:
    steps = [commands.append("user", "first"), commands.replace_last_user("second"), HI]
    assert kindly("messages", [], steps) == [{"role": "user", "content": "second"}, HI]


@pytest.mark.conformance("MS-04")
def test_replacing_the_last_user_message_where_there_is_none_adds_one() -> None:
    assert kindly("messages", [HI], commands.replace_last_user("q")) == [HI, {"role": "user", "content": "q"}]


@pytest.mark.conformance("MS-05")
def test_replacing_the_last_user_message_keeps_its_other_fields_and_its_place() -> None:
    replaced = kindly("messages", [HELLO, HELLO, HI], commands.replace_last_user("bye"))
    assert replaced == [HELLO, {**HELLO, "content": "bye"}, HI]


@pytest.mark.conformance("MS-06")
def test_remove_all_empties_the_list_for_what_follows_it() -> None:
    assert kindly("messages", [HELLO, HI], commands.remove_all()) == []
    assert kindly("messages", [HELLO], [commands.remove_all(), commands.append("user", "new", name="bob")]) == [
        {"role": "user", "content": "new", "name": "bob"}
    ]


@pytest.mark.conformance("MS-02")
def test_a_message_with_the_id_of_an_earlier_one_takes_its_place() -> None:
    first, second = {**HELLO, "id": "1"}, {**HI, "id": "2"}
    added = kindly("messages", [first, second], [{**first, "content": "new"}, commands.append("user", "more", id="3")])
    assert [message["content"] for message in added] == ["new", HI["content"], "more"]
    assert kindly("messages", [first], [second, {**second, "content": "twice"}]) == [
        first,
        {**second, "content": "twice"},
    ]


def test_a_message_is_removed_by_its_id() -> None:
    first, second = {**HELLO, "id": "1"}, {**HI, "id": "2"}
    steps = [commands.remove("1"), commands.remove("unknown"), {**second, "content": "new"}]
    assert kindly("messages", [first, HELLO, second], steps) == [HELLO, {**second, "content": "new"}]


def test_many_messages_with_ids_fold_in_linear_time() -> None:
    many = [{"role": "user", "content": "", "id": str(number)} for number in range(20_000)]
    began = time.process_time()
    assert len(kindly("messages", many, [*many, *many])) == len(many)
    assert time.process_time() - began < 5


@pytest.mark.conformance("ST-14")
def test_lists_of_messages_by_node_are_replaced_and_removed_one_by_one() -> None:
    lists = {"ask": [HELLO], "check": [HI]}
    assert kindly("by_node", lists, {"ask": [HI]}) == {"ask": [HI], "check": [HI]}
    assert kindly("by_node", lists, {"ask": []}) == {"check": [HI]}
    assert kindly("by_node", lists, {"ask": None, "other": [HELLO]}) == {"check": [HI], "other": [HELLO]}
    assert kindly("by_node", lists, None) == {}


@pytest.mark.conformance("MS-07")
@pytest.mark.parametrize("wrong", ["text", 7, ["text"], {"content": "of nobody"}, [HELLO, None]])
def test_what_is_no_message_takes_the_place_of_the_list(wrong: Any) -> None:
    assert kindly("messages", [HELLO], wrong) == wrong


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            {"op": "clear"},
            "operation 'clear' on messages does not exist; available are append, replace_last_user, remove, remove_all",
        ),
        ({"op": "append", "content": "x"}, "operation 'append' on messages needs a `role`"),
        ({"op": "replace_last_user"}, "operation 'replace_last_user' on messages needs a `content`"),
    ],
)
def test_a_mistyped_operation_never_costs_the_messages(step: Any, message: str) -> None:
    with pytest.raises(ReducerError) as error:
        kindly("messages", [HELLO], step)
    assert str(error.value) == message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.sampled_from(
    [HELLO, HI, commands.append("user", "x"), commands.replace_last_user("y"), commands.remove_all(), {"op": "no"}]
)
WRITES = JSON | MESSAGES | st.lists(MESSAGES, max_size=3)


@given(
    reducer=st.sampled_from(BUILT_IN),
    current=st.just(ABSENT) | WRITES,
    writes=st.lists(WRITES, max_size=3),
    strict=st.booleans(),
)
def test_folding_changes_nothing_that_goes_in_and_shares_nothing_with_it(
    reducer: str, current: Any, writes: list[Any], strict: bool
) -> None:
    before = copy.deepcopy((None if current is ABSENT else current, writes))
    try:
        found = fold_all(reducer, current, writes, strict=strict)
    except ReducerError:
        found = None
    assert ((None if current is ABSENT else current), writes) == before
    parts_in = {id(part) for value in (current, *writes) for part in _parts(value)}
    assert not parts_in & {id(part) for part in _parts(found)}


@given(
    reducer=st.sampled_from(BUILT_IN),
    current=st.just(ABSENT) | WRITES,
    writes=st.lists(WRITES, max_size=4),
    strict=st.booleans(),
)
def test_folding_many_is_folding_one_after_the_other(
    reducer: str, current: Any, writes: list[Any], strict: bool
) -> None:
    one_by_one: Any = current
    try:
        for write in writes:
            one_by_one = fold(reducer, one_by_one, write, strict=strict)
    except ReducerError as error:
        with pytest.raises(ReducerError) as at_once:
            fold_all(reducer, current, writes, strict=strict)
        assert str(at_once.value) == str(error)
        return
    assert fold_all(reducer, current, writes, strict=strict) == one_by_one


LISTS = st.lists(JSON, max_size=3)
FLAT = st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3)
NESTED = st.dictionaries(st.sampled_from("ab"), FLAT, max_size=2)
ALIKE = {
    "extend": LISTS,
    "union": LISTS,
    "concat": st.text("ab", min_size=1),
    "sum": st.integers(),
    "max": st.integers(),
    "min": st.floats(allow_nan=False, allow_infinity=False),
    "merge": st.dictionaries(st.sampled_from("abc"), JSON),
    "deep_merge": NESTED,
    "first": JSON,
    "last": JSON,
    "overwrite": JSON,
}


@given(st.sampled_from(sorted(ALIKE)).flatmap(lambda name: st.tuples(st.just(name), *[ALIKE[name]] * 3)))
def test_where_it_should_hold_folding_is_associative(drawn: tuple[str, Any, Any, Any]) -> None:
    reducer, a, b, c = drawn
    left = kindly(reducer, kindly(reducer, a, b), c)
    assert left == kindly(reducer, a, kindly(reducer, b, c))


def test_ten_thousand_writes_into_one_list_are_folded_in_linear_time() -> None:
    writes = [[number] for number in range(10_000)]
    for reducer in ("append", "extend", "union"):
        assert fold_all(reducer, [], writes, strict=False) == list(range(10_000))
    assert fold_all("concat", ABSENT, ["x"] * 10_000, strict=False) == "\n".join("x" * 10_000)


def test_a_value_nested_too_deep_is_an_error_not_a_crash() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ReducerError, match="nested too deeply"):
        kindly("append", [], deep)
    while deep:  # or its end would be one recursion too
        deep = deep.pop()


@pytest.mark.parametrize(
    ("value", "name"),
    [(None, "null"), (True, "bool"), (1, "number"), (1.5, "number"), ("", "string"), ([], "array"), ({}, "object")],
)
def test_types_have_jsons_names(value: Any, name: str) -> None:
    assert type_name(value) == name


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(part for item in value.values() for part in _parts(item))]
    return [value, *(part for item in value for part in _parts(item))] if isinstance(value, list) else []
