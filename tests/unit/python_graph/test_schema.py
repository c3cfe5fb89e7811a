"""The keys of a state: TypedDict, dataclass and pydantic model; reducers, first values, schemas of parts of it."""

from __future__ import annotations

import collections
import datetime
import decimal
import operator
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, Required, TypedDict

import pytest
from pydantic import BaseModel, ValidationError

from sleipnir import START, StateGraph, add_messages
from sleipnir.python_graph.schema import ABSENT, Key, built_in, is_state_class, keys_of


def add(old: Any, new: Any) -> Any:
    return old + new


class Typed(TypedDict, total=False):
    plain: str
    summed: Annotated[int, operator.add]
    needed: Required[Annotated[list[int], operator.add]]
    may: Annotated[NotRequired[dict[str, int]], operator.or_]
    noted: Annotated[str, "a note", {"more": 1}]
    constrained: Annotated[int, int]


@dataclass
class Record:
    plain: str
    summed: Annotated[int, add] = 5
    parts: Annotated[list[str], add] = field(default_factory=lambda: ["first"])


class Model(BaseModel):
    plain: str
    summed: Annotated[int, add] = 5


def test_keys_of_a_typed_dict_are_in_its_order_with_their_types_and_reducers() -> None:
    keys = keys_of(Typed)
    assert list(keys) == ["plain", "summed", "needed", "may", "noted", "constrained"]
    assert keys["plain"] == Key("plain", str)
    assert keys["summed"] == Key("summed", int, operator.add)
    assert keys["needed"] == Key("needed", list[int], operator.add)
    assert keys["may"] == Key("may", dict[str, int], operator.or_)
    assert (keys["noted"].reducer, keys["constrained"].reducer) == (None, None), "a note and a class are no reducers"


def test_keys_of_a_dataclass_and_a_model_are_their_fields() -> None:
    assert keys_of(Record)["summed"] == Key("summed", int, add)
    assert list(keys_of(Record)) == ["plain", "summed", "parts"]
    assert keys_of(Model)["plain"] == Key("plain", str, validated=True)


def test_keys_of_a_class_that_derives_from_another_come_with_it() -> None:
    class More(Typed):
        own: bytes

    assert list(keys_of(More))[-1] == "own"
    assert keys_of(More)["summed"].reducer is operator.add


@pytest.mark.parametrize("candidate", [dict, int, "State", None, list[int], Record(plain="")])
def test_what_is_no_state_class_is_refused_where_it_is_named(candidate: Any) -> None:
    assert not is_state_class(candidate)
    with pytest.raises(ValueError, match="is no state class: use a TypedDict, a pydantic model or a dataclass"):
        StateGraph(candidate)


@pytest.mark.parametrize(
    ("type_", "first"),
    [
        (list, []), (list[int], []), (dict[str, int], {}), (set[int], set()), (frozenset, frozenset()), (str, ""),
        (int, 0), (float, 0.0), (bool, False), (bytes, b""), (tuple, ()), (Sequence[int], []), (Mapping[str, int], {}),
        (MutableMapping[str, int], {}), (collections.abc.Set, set()), (Any, ABSENT), (int | None, ABSENT),
        (Typed, {}), (Record, ABSENT), (object, ABSENT), (decimal.Decimal, decimal.Decimal()),
        (collections.Counter, collections.Counter()), (datetime.datetime, ABSENT),
    ],
)  # fmt: skip
def test_a_key_with_a_reducer_begins_with_the_empty_value_of_its_type(type_: Any, first: Any) -> None:
    begun = Key("k", type_, add).first
    assert begun is ABSENT if first is ABSENT else (begun == first and type(begun) is type(first))
    assert Key("k", type_).first is ABSENT, "without a reducer a key begins absent"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (Key("k", list, operator.add), "append"), (Key("k", list[str], operator.add), "append"),
        (Key("k", int, operator.add), "sum"), (Key("k", float, operator.add), "sum"), (Key("k", int, max), "max"),
        (Key("k", float, min), "min"), (Key("k", dict[str, int], operator.or_), "merge"),
        (Key("k", str, operator.add), None), (Key("k", set[int], operator.or_), None), (Key("k", list, add), None),
        (Key("k", Any, operator.add), None), (Key("k", list, add_messages), None),
    ],
)  # fmt: skip
def test_a_reducer_of_python_is_one_of_the_language_if_both_do_the_same(key: Key, name: str | None) -> None:
    assert built_in(key) == name


def bad(one: Any) -> Any:
    return one


def three(one: Any, two: Any, more: Any) -> Any:
    return one


def test_a_reducer_with_another_number_of_parameters_is_refused_where_the_state_is_named() -> None:
    for reducer, names in ((bad, "one"), (three, "one, two, more")):
        state = TypedDict("state", {"k": Annotated[list, reducer]})  # type: ignore[misc]  # noqa: UP013
        with pytest.raises(ValueError, match=rf"Invalid reducer signature\. Expected \(a, b\) -> c\. Got \({names}\)"):
            StateGraph(state)


def test_builtins_without_a_signature_and_variable_parameters_are_reducers() -> None:
    for reducer in (max, lambda *values: values[-1], lambda old, new, *, more=1: new):
        state = TypedDict("state", {"k": Annotated[int, reducer]})  # type: ignore[misc]  # noqa: UP013
        assert keys_of(state)["k"].reducer is reducer


def test_a_name_in_an_annotation_that_does_not_exist_is_an_error_of_the_call() -> None:
    state = TypedDict("state", {"k": "Missing"})  # type: ignore[misc,name-defined]  # noqa: F821, UP013
    with pytest.raises(NameError, match="Missing"):
        StateGraph(state)


def test_two_classes_that_give_a_key_two_reducers_are_refused() -> None:
    class Other(TypedDict):
        summed: Annotated[int, max]

    def node(state: Other) -> None:
        """Reads the other schema."""

    with pytest.raises(ValueError, match="Channel 'summed' already exists with a different type"):
        StateGraph(Typed).add_node("n", node, input_schema=Other)


def keep(old: Any, new: Any) -> Any:
    return [*old, new]


class Unmade(TypedDict):
    k: Annotated[Any, keep]


class Listed(TypedDict):
    k: Annotated[list[Any], keep]


class In(TypedDict):
    plain: str


class Out(TypedDict):
    noted: str


class Private(TypedDict):
    secret: str


def ran(state: type, node: Any, input: Any = None, **schemas: Any) -> Any:
    graph = StateGraph(state, **schemas).add_node("n", node).add_edge(START, "n")
    return graph.compile().invoke({} if input is None else input)


def test_a_key_that_nothing_writes_is_absent_for_nodes_and_in_the_output() -> None:
    seen: list[Any] = []
    assert ran(Typed, lambda state: seen.append(dict(state))) == {"summed": 0, "needed": [], "may": {}}
    assert seen == [{"summed": 0, "needed": [], "may": {}}]


def test_the_first_write_to_a_reducer_key_without_an_empty_value_is_stored_as_it_is() -> None:
    assert ran(Unmade, lambda state: {"k": "second"}, {"k": ["first"]}) == {"k": ["first", "second"]}
    assert ran(Unmade, lambda state: {"k": ["only"]}) == {"k": ["only"]}


def test_none_as_an_update_goes_to_the_reducer() -> None:
    assert ran(Listed, lambda state: {"k": None}) == {"k": [None]}


def test_defaults_of_a_class_fill_the_instance_and_are_not_in_the_state() -> None:
    seen: list[Any] = []

    def node(state: Record) -> None:
        seen.append(state)

    assert ran(Record, node, {"plain": "x"}) == {"plain": "x", "summed": 0, "parts": []}
    assert seen == [Record("x", 0, [])], "keys with a reducer are present from the start"


def test_a_model_validates_what_a_node_reads_and_not_what_is_stored() -> None:
    seen: list[Any] = []

    class Numbers(BaseModel):
        n: int
        text: str = "unset"

    def node(state: Numbers) -> Any:
        seen.append(state)
        return {"text": 5}

    assert ran(Numbers, node, {"n": "4"}) == {"n": "4", "text": 5}
    assert seen == [Numbers(n=4)]
    with pytest.raises(ValidationError, match="n"):
        ran(Numbers, node, {"n": "many"})


def test_schemas_of_input_and_output_select_keys() -> None:
    def node(state: Typed) -> dict[str, Any]:
        return {"noted": state["plain"], "secret": "s"}

    def reads(state: Private) -> dict[str, Any]:
        return {"noted": state["secret"]}

    graph = StateGraph(Typed, input_schema=In, output_schema=Out).add_sequence([node, reads]).add_edge(START, "node")
    compiled = graph.compile()
    assert compiled.invoke({"plain": "x", "summed": 3}) == {"noted": "s"}
    assert list(compiled.stream({"plain": "x", "summed": 3}, stream_mode="values"))[-1]["secret"] == "s"
    assert ran(Typed, lambda state: None, output_schema=Out) is None


def test_the_context_is_made_of_its_schema() -> None:
    @dataclass
    class Context:
        user: str
        size: int = 1

    seen: list[Any] = []

    def node(state: Typed, runtime: Any) -> None:
        seen.append(runtime.context)

    graph = StateGraph(Typed, context_schema=Context).add_node("n", node).add_edge(START, "n").compile()
    graph.invoke({}, context={"user": "ann"})
    graph.invoke({}, context=Context("bob", 2))
    graph.invoke({})
    assert seen == [Context("ann"), Context("bob", 2), None]
    with pytest.raises(TypeError, match="user"):
        graph.invoke({}, context={})
