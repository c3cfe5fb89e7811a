"""The `state:` block: the types of keys, the first state of a run, and the JSON form of times and bytes (F01).

Rules. No value is converted: a bool is not a number; only a float also accepts an int. Undeclared keys
hold anything. The types of an agent's own models (`file.py:Name`) are checked where its Python runs, not here.
A datetime is stored as ISO-8601 text with its time zone, or as null; bytes as base64 text.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sleipnir.graph import schema as json_schema
from sleipnir.graph.message_keys import USER_INPUT
from sleipnir.graph.model import SINGLE, Graph, Json, StateField
from sleipnir.graph.plain import first_not_json
from sleipnir.graph.reducers import fold, is_custom, is_message, is_operation, operation_problem

TYPES: Final = ("any", "string", "int", "float", "bool", "list", "object", "messages", "datetime", "bytes")

_ZERO: Mapping[str, Json] = {
    "string": "", "int": 0, "float": 0.0, "bool": False, "list": [], "object": {}, "messages": [], "bytes": "",
}  # fmt: skip
_ABSENT_AT_FIRST = ("first", "max", "min", SINGLE)
"""Reducers for which a zero value would count as a written value and could win, and keys that begin absent."""


class StateError(Exception):
    """A run cannot begin with this state. `problems` holds all reasons, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def is_model(type_: str) -> bool:
    """Whether this is the path of a pydantic model of the agent, `file.py:Name`."""
    return is_custom(type_) and ".py:" in type_


def zero(field: StateField) -> Json:
    """The first value of a key that is neither given nor has a default; null for types without an obvious zero."""
    return json.loads(json.dumps(_ZERO.get(field.type)))


def initial(graph: Graph, given: Mapping[str, Any], unchecked: Collection[str] = ()) -> dict[str, Json]:
    """The first state of a run: the graph's `initial_state`, overridden by the values given at submission (datetime and
    bytes objects where declared), then the defaults and zero values of declared keys.

    Without a default, a key with the reducer `first`, `min` or `max` begins absent. The schemas of `unchecked` keys are
    not applied again. Raises StateError.
    """
    declared = graph.state
    state: dict[str, Json] = {
        **graph.initial_state,
        **{key: to_json(declared[key], value) if key in declared else value for key, value in given.items()},
    }
    if graph.has_messages and "initial_prompt" in state:
        state.setdefault(USER_INPUT, state["initial_prompt"])
    problems = [wrong for key in given if (wrong := _not_plain(key, state[key]))]
    if not problems:
        problems = [
            wrong
            for key, field in graph.state.items()
            if (wrong := _begin(state, key, field, _begins_absent(graph, field), applies_schema=key not in unchecked))
        ]
    if problems:
        raise StateError(problems)
    if graph.state_classes:
        state |= {key: _written(declared[key], state[key]) for key in given if key in declared}
    return state


def _written(field: StateField, value: Json) -> Json:
    """A given value as a write: a graph written in Python begins with the first values of its reducers."""
    if field.reducer in (None, SINGLE) or field.default is None or is_custom(field.reducer):
        return value
    return fold(field.reducer, field.default, value, strict=False)


def _begins_absent(graph: Graph, field: StateField) -> bool:
    """In a graph written in Python so does a key with a reducer of its own: its type has no empty value."""
    return field.reducer in _ABSENT_AT_FIRST or (bool(graph.state_classes) and is_custom(field.reducer or ""))


def _begin(
    state: dict[str, Json], key: str, field: StateField, begins_absent: bool, *, applies_schema: bool
) -> str | None:
    """Check the key's value, or set its first one. Returns what is wrong with it, or None."""
    if key in state:
        wrong = problem(field if applies_schema else replace(field, schema=None), state[key])
        return wrong and f"state key '{key}' {wrong}"
    if field.required:
        about = f" ({field.description})" if field.description else ""
        return f"state key '{key}' is required{about}: give it a value of type {field.type}"
    if field.default is not None:
        state[key] = field.default
    elif not begins_absent:
        state[key] = zero(field)
    return None


def _not_plain(key: str, value: Any) -> str | None:
    reason = first_not_json({key: value})
    return reason and (f"state {reason}" if reason.startswith("key ") else f"state key '{key}': {reason}")


def problem(field: StateField, value: Json) -> str | None:
    """Why the key cannot hold `value`, as "must be int, not string"; None if it can."""
    return _type_problem(field.type, field.items, value) or _schema_problem(field.schema, value)


def update_problem(field: StateField, value: Json) -> str | None:
    """Why a node cannot write `value` to the key; None if it can. A reducer may accept other types than the key holds.

    A schema describes the whole value, so it is not applied to a contribution.
    """
    reducer = field.reducer or ("messages" if field.type == "messages" else "overwrite")
    if is_custom(reducer):
        return None
    match reducer:
        case "messages":
            return _messages_update_problem(value)
        case "by_node":
            return _lists_of_messages_problem(value)
        case "append" | "union" if field.type == "list":
            whole = value if isinstance(value, list) else [value]
            return _type_problem("list", field.items, whole)
        case "append" | "union":
            return None
        case "merge" | "deep_merge":
            return _type_problem("object", None, value)
        case "extend" | "concat" | "sum" | "max" | "min":
            return _type_problem(field.type, field.items, value)
    return problem(field, value)


def of_text(field: StateField, text: str) -> Json:
    """The value that state_updates write to the key for a rendered `text`: the text if it fits, else the JSON value
    that it spells if that fits, else the text."""
    return checked_of_text(field, text)[0]


def checked_of_text(field: StateField, text: str) -> tuple[Json, str | None]:
    """The same value, and why it cannot be written (`update_problem`). If the text spells a list or an object, the
    reason is about that."""
    if (wrong := update_problem(field, text)) is None:
        return text, None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text, wrong
    if first_not_json({"value": value}) is not None:
        return text, wrong
    if (wrong_value := update_problem(field, value)) is None:
        return value, None
    return text, wrong_value if isinstance(value, list | dict) else wrong


def _type_problem(type_: str, items: str | None, value: Json, path: str = "") -> str | None:
    if type_ == "list" and isinstance(value, list) and items is not None:
        problems = (_type_problem(items, None, item, f"{path}[{index}]") for index, item in enumerate(value))
        return next((wrong for wrong in problems if wrong), None)
    if type_ == "messages" and isinstance(value, list):
        place = next((index for index, item in enumerate(value) if not is_message(item)), None)
        return None if place is None else f"{path}[{place}] must be a message, an object with a `role`"
    if type_ not in _IS or _IS[type_](value):
        return None
    return f"{path} must be {_EXPECTED.get(type_, type_)}, not {_called(value)}".strip()


def _is_int(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: Json) -> bool:
    if not isinstance(value, str):
        return value is None
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_base64(value: Json) -> bool:
    try:
        return isinstance(value, str) and base64.b64decode(value, validate=True) is not None
    except (binascii.Error, ValueError):
        return False


_IS: Mapping[str, Callable[[Json], bool]] = {
    "string": lambda value: isinstance(value, str),
    "int": _is_int,
    "float": lambda value: _is_int(value) or isinstance(value, float),
    "bool": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "messages": lambda value: isinstance(value, list),
    "datetime": _is_time,
    "bytes": _is_base64,
}
_EXPECTED = {"messages": "a list of messages", "datetime": "datetime (ISO-8601 text)", "bytes": "bytes (base64 text)"}
_CALLED = {bool: "bool", int: "int", float: "float", str: "string", list: "list", dict: "object", type(None): "null"}


def _called(value: Json) -> str:
    """The type of a value by its name in TYPES, followed by the value itself if it is short."""
    name = _CALLED.get(type(value), type(value).__qualname__)
    return f"{name} {value!r}" if isinstance(value, str | int | float) and len(repr(value)) <= 30 else name


def _messages_update_problem(value: Json) -> str | None:
    if value is None:
        return None
    for index, step in enumerate(value if isinstance(value, list) else [value]):
        if not is_message(step) and not is_operation(step):
            place = f"[{index}] " if isinstance(value, list) else ""
            return f"{place}must be a message (an object with a `role`) or an operation on them, not {_called(step)}"
        if is_operation(step) and (wrong := operation_problem(step)):
            return f"cannot be written: {wrong}"
    return None


def _lists_of_messages_problem(value: Json) -> str | None:
    """Why a value is not lists of messages, by node; a null removes all."""
    if value is None or not isinstance(value, dict):
        return None if value is None else _type_problem("object", None, value)
    problems = (_type_problem("messages", None, messages or [], f"['{node}']") for node, messages in value.items())
    return next((wrong for wrong in problems if wrong), None)


def _schema_problem(schema: Json, value: Json) -> str | None:
    """The most relevant violation, as `$.items[0]: ...`. A value that cannot be checked does not fit."""
    if schema is None:
        return None
    try:
        violation = json_schema.violation(schema, value)
    except json_schema.NotChecked as error:
        return f"cannot be checked, {error}"
    return violation and f"does not match its schema: {violation}"


def to_json(field: StateField, value: Any) -> Any:
    """`value` with datetime and bytes objects as text where the key, or its items, are declared so."""
    if field.type == "list" and isinstance(value, list | tuple):
        return [_to_text(field.items, item) for item in value]
    return _to_text(field.items if field.type == "list" else field.type, value)


def from_json(field: StateField, value: Json) -> Any:
    """A stored value as a Python function sees it: datetime and bytes objects where declared. Reverses to_json."""
    if field.type == "list" and isinstance(value, list):
        return [_from_text(field.items, item) for item in value]
    return _from_text(field.items if field.type == "list" else field.type, value)


def _to_text(type_: str | None, value: Any) -> Any:
    if type_ == "datetime" and isinstance(value, datetime):
        return value.isoformat()
    if type_ == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    return value


def _from_text(type_: str | None, value: Json) -> Any:
    if not isinstance(value, str):
        return value
    if type_ == "datetime":
        return datetime.fromisoformat(value)
    return base64.b64decode(value, validate=True) if type_ == "bytes" else value
