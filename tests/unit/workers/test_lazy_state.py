"""A FunctionState is a dict in every respect; what nobody asks for is never parsed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir_workers.execution.lazy_state import FunctionState, StoredState

TEXTS = {"a": "1", "b": "[1, 2]", "c": '{"x": null}'}
VALUES: dict[str, Any] = {"a": 1, "b": [1, 2], "c": {"x": None}}


def test_unread_values_are_never_parsed() -> None:
    state = FunctionState({"a": "1", "broken": "{"})
    assert state["a"] == state.get("a") == 1
    assert "broken" in state
    assert len(state) == 2
    assert list(state) == ["a", "broken"]
    with pytest.raises(json.JSONDecodeError):
        state["broken"]


@pytest.mark.parametrize(
    "read",
    [
        dict,
        lambda state: {**state},
        lambda state: dict(**state),
        lambda state: state | {},
        lambda state: {} | state,
        lambda state: state.copy(),
        copy.copy,
        copy.deepcopy,
        lambda state: pickle.loads(pickle.dumps(state)),
        lambda state: json.loads(json.dumps(state)),
        lambda state: json.loads(json.dumps(state, indent=1)),
        lambda state: dict(state.items()),
        lambda state: dict(zip(state, state.values(), strict=True)),
        lambda state: {key: state[key] for key in state},
        lambda state: {key: state.pop(key) for key in list(state)},
        lambda state: dict(reversed([state.popitem() for _ in range(3)])),
        lambda state: {key: state.setdefault(key) for key in state},
    ],
)
def test_every_way_to_read_it_gives_the_values(read: Callable[[Any], Any]) -> None:
    found = read(FunctionState(TEXTS))
    assert found == VALUES
    assert type(found) is dict


def test_it_is_equal_to_a_dict_and_prints_like_one() -> None:
    assert FunctionState(TEXTS) == VALUES
    assert FunctionState(TEXTS) != {**VALUES, "a": 2}
    assert repr(FunctionState(TEXTS)) == repr(VALUES)
    match FunctionState(TEXTS):
        case {"a": found}:
            assert found == 1


def test_written_values_are_kept_and_deleted_values_are_removed() -> None:
    state = FunctionState(TEXTS)
    state["a"] = 5
    del state["b"]
    state.update(c=6)
    state |= {"d": 7}
    assert state == {"a": 5, "c": 6, "d": 7}
    with pytest.raises(KeyError):
        state["b"]
    state.clear()
    assert (state, len(state), state.get("a")) == ({}, 0, None)


def test_its_values_are_copies() -> None:
    stored = StoredState(TEXTS)
    FunctionState(stored.texts)["b"].append(3)
    assert (stored["b"], FunctionState(stored.texts)["b"]) == ([1, 2], [1, 2])


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.text() | st.lists(st.none())), st.data())
def test_it_does_what_a_dict_does(values: dict[str, Any], data: st.DataObject) -> None:
    state, plain = FunctionState({key: json.dumps(value) for key, value in values.items()}), dict(values)
    for _ in range(5):
        key = data.draw(st.sampled_from([*values, "other"]))
        match data.draw(st.sampled_from(["get", "set", "pop", "default", "in"])):
            case "get":
                assert state.get(key, "none") == plain.get(key, "none")
            case "set":
                state[key] = plain[key] = "new"
            case "pop":
                assert state.pop(key, None) == plain.pop(key, None)
            case "default":
                assert state.setdefault(key, []) == plain.setdefault(key, [])
            case _:
                assert (key in state) == (key in plain)
    assert (state, list(state), len(state)) == (plain, list(plain), len(plain))
