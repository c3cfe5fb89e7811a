"""Reducers fold the value that a visit wrote into the current value of its key (spec/graph-package.md F02, F03).

Two blocks of a graph file name them. Loki's `reducers:` is strict and follows spec/graph-agents.md 2.11; under
Sleipnir's `state:` (`strict=False`) some of the same names are more lenient:

* `append` adds one element; under `state:` it adds the elements of a list and replaces a current value of another type.
* `sum`, `max` and `min` make whole floats ints; under `state:` a float stays a float, as the key's type requires.

A message with an `id` that an earlier message has takes its place.

A null is a value, not an absent one. A fold returns a new value, which shares nothing with its inputs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import dropwhile
from typing import Any, Final, TypeAlias

from sleipnir.graph.model import SINGLE, Json

LOKI: Final = ("append", "extend", "concat", "sum", "max", "min", "merge", "overwrite")
"""The reducers of a `reducers:` block."""

BUILT_IN: Final = (*LOKI, "deep_merge", "union", "first", "last", "messages", "by_node")
"""The reducers that this module applies."""

NAMES: Final = (*BUILT_IN, SINGLE)
"""The values of `reducer` of a key under `state:`, besides a function of the agent (`is_custom`)."""

OPERATIONS: Final = ("append", "replace_last_user", "remove", "remove_all")
"""The operations on a list of messages, besides adding one; sleipnir/commands.py creates them."""

ABSENT: Final = object()
"""Stands for the current value of a key without one."""

_CUSTOM = re.compile(r"[^:]+:[A-Za-z_<][\w.<>]*(?:#\d+)?")
_WHOLE_BELOW = 2**53  # larger floats do not represent every whole number


OVERWRITE: Final = "__overwrite__"
"""The only key of a write that replaces the value past its reducer."""


class ReducerError(Exception):
    """A value does not fit its reducer. The message names both and fits on a terminal."""


def is_custom(name: str) -> bool:
    """Whether the name is a Python function, `file.py:name` or `package.module:name`, which a worker calls."""
    return _CUSTOM.fullmatch(name) is not None


def fold(reducer: str, current: Json, incoming: Json, *, strict: bool) -> Json:
    """`current` (ABSENT: the key has none) with one write folded in. Raises ReducerError."""
    return fold_all(reducer, current, [incoming], strict=strict)


def fold_all(reducer: str, current: Json, incoming: Iterable[Json], *, strict: bool) -> Json:
    """`current` with several writes folded in, in order, in linear time. Without writes the value is unchanged and
    ABSENT stays ABSENT. Raises ReducerError."""
    if reducer not in _FOLDS:
        raise ReducerError(f"{reducer!r} is not a built-in reducer; available are {', '.join(BUILT_IN)}")
    try:
        values = [_copy(value) for value in incoming]
        if not strict and (replaced := overwritten(values)) is not None:
            return replaced[OVERWRITE]
        return _FOLDS[reducer](_copy(current), values, strict) if values else _copy(current)
    except RecursionError:
        raise ReducerError(f"reducer '{reducer}' cannot fold a value that is nested too deeply") from None


def overwritten(values: Sequence[Json]) -> Mapping[str, Json] | None:
    """The write among those of a super-step that replaces the value, as it is stored. Raises ReducerError for two."""
    found = [value for value in values if isinstance(value, dict) and value.keys() == {OVERWRITE}]
    if len(found) > 1:
        raise ReducerError("Can receive only one Overwrite value per super-step.")
    return found[0] if found else None


def type_name(value: Json) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _copy(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


# Each fold owns its arguments: it may change and return them.


def _append(current: Json, values: list[Json], strict: bool) -> Json:
    if strict:
        return [*_items("append", current), *values]
    items = [] if current is ABSENT else current
    for value in values:
        if not isinstance(items, list):
            items = value
        elif isinstance(value, list):
            items.extend(value)
        else:
            items.append(value)
    return items


def _extend(current: Json, values: list[Json], strict: bool) -> Json:
    items = _items("extend", current)
    for value in values:
        items += _required("extend", "incoming", value, "array")
    return items


def _union(current: Json, values: list[Json], strict: bool) -> Json:
    """A list without duplicates, in the order of first occurrence. A value that is not a list is one element."""
    items = _items("union", current)
    for value in values:
        items += value if isinstance(value, list) else [value]
    known: dict[str, Json] = {}
    for item in items:
        known.setdefault(json.dumps(item, sort_keys=True), item)
    return list(known.values())


def _items(reducer: str, current: Json) -> list[Json]:
    items: list[Json] = [] if current is ABSENT else _required(reducer, "current", current, "array")
    return items


def _concat(current: Json, values: list[Json], strict: bool) -> Json:
    texts = [] if current is ABSENT else [_required("concat", "current", current, "string")]
    texts += [_required("concat", "incoming", value, "string") for value in values]
    return "\n".join(dropwhile(lambda text: text == "", texts))  # nothing separates a text from an empty beginning


def _merge(current: Json, values: list[Json], strict: bool) -> Json:
    merged = {} if current is ABSENT else _required("merge", "current", current, "object")
    for value in values:
        merged |= _required("merge", "incoming", value, "object")
    return merged


def _deep_merge(current: Json, values: list[Json], strict: bool) -> Json:
    merged = {} if current is ABSENT else _required("deep_merge", "current", current, "object")
    for value in values:
        _merge_into(merged, _required("deep_merge", "incoming", value, "object"))
    return merged


def _merge_into(target: dict[str, Json], source: dict[str, Json]) -> None:
    for key, value in source.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge_into(target[key], value)
        else:
            target[key] = value


def _numbers(reducer: str, combine: Callable[[Any, Any], Any]) -> _Fold:
    def fold_numbers(current: Json, values: list[Json], strict: bool) -> Json:
        result = current if current is ABSENT else _required(reducer, "current", current, "number")
        for value in values:
            number = _required(reducer, "incoming", value, "number")
            result = number if result is ABSENT else _combined(reducer, combine, result, number, strict)
        return result

    return fold_numbers


def _combined(reducer: str, combine: Callable[[Any, Any], Any], left: Any, right: Any, strict: bool) -> Any:
    try:
        result = combine(left, right)
    except OverflowError:
        result = float("inf")
    if not isinstance(result, float):
        return result
    if result - result != 0:  # infinite, which JSON cannot represent
        raise ReducerError(f"reducer '{reducer}' results in a number that is too large")
    return int(result) if strict and result.is_integer() and abs(result) <= _WHOLE_BELOW else result


def _overwrite(current: Json, values: list[Json], strict: bool) -> Json:
    return values[-1]


def _first(current: Json, values: list[Json], strict: bool) -> Json:
    return values[0] if current is ABSENT else current


def _messages(current: Json, values: list[Json], strict: bool) -> Json:
    """Messages and operations are applied in order; a null changes nothing; any other value replaces the list."""
    messages: Json = [] if current is ABSENT else current
    for value in values:
        steps = value if isinstance(value, list) else [value]
        if value is None:
            continue
        if not all(is_message(step) or is_operation(step) for step in steps):
            messages = value
            continue
        items = _Messages(messages if isinstance(messages, list) else [])
        for step in steps:
            items.operate(step)
        messages = items.messages
    return messages


def _by_node(current: Json, values: list[Json], strict: bool) -> Json:
    """Lists of messages by node: a null removes all, an empty list that of its node; others are replaced one by one."""
    lists = {} if current is ABSENT else _required("by_node", "current", current, "object")
    for value in values:
        if value is None:
            lists = {}
            continue
        lists |= _required("by_node", "incoming", value, "object")
        lists = {node: messages for node, messages in lists.items() if messages}
    return lists


def is_message(value: Json) -> bool:
    return isinstance(value, dict) and "op" not in value and isinstance(value.get("role"), str)


def is_operation(value: Json) -> bool:
    return isinstance(value, dict) and "op" in value


def operation_problem(step: Json) -> str | None:
    """Why an operation on messages is not valid; None if it is."""
    if step["op"] not in OPERATIONS:
        return f"operation {step['op']!r} on messages does not exist; available are {', '.join(OPERATIONS)}"
    if step["op"] == "append" and not isinstance(step.get("role"), str):
        return "operation 'append' on messages needs a `role`"
    if step["op"] == "replace_last_user" and "content" not in step:
        return "operation 'replace_last_user' on messages needs a `content`"
    if step["op"] == "remove" and not isinstance(step.get("id"), str):
        return "operation 'remove' on messages needs an `id`"
    return None


class _Messages:
    """A list of messages while operations change it. Its ids are read once, when the first message has one."""

    def __init__(self, messages: list[Json]) -> None:
        self.messages = messages
        self._places: dict[str | None, int] | None = None

    def operate(self, step: dict[str, Json]) -> None:
        if "op" not in step:
            self._put(step)
            return
        if problem := operation_problem(step):
            raise ReducerError(problem)
        match step["op"]:
            case "append":
                self._put({key: value for key, value in step.items() if key != "op"})
            case "replace_last_user":
                self._replace_last_user(step["content"])
            case "remove":
                self.messages = [message for message in self.messages if _id_of(message) != step["id"]]
                self._places = None
            case "remove_all":
                self.messages = []
                self._places = None

    def _put(self, message: dict[str, Json]) -> None:
        """Add a message, in the place of the one with its id."""
        if (id_ := _id_of(message)) is None:
            self.messages.append(message)
            return
        if self._places is None:
            self._places = {_id_of(each): place for place, each in enumerate(self.messages)}
        place = self._places.setdefault(id_, len(self.messages))
        if place == len(self.messages):
            self.messages.append(message)
        else:
            self.messages[place] = message

    def _replace_last_user(self, content: Json) -> None:
        for message in reversed(self.messages):
            if isinstance(message, dict) and message.get("role") == "user":
                message["content"] = content
                return
        self.messages.append({"role": "user", "content": content})


def _id_of(message: Json) -> str | None:
    """The id of a message; None for one without, and for what is no message."""
    id_ = message.get("id") if isinstance(message, dict) else None
    return id_ if isinstance(id_, str) else None


_ARTICLE = {"array": "an array", "string": "a string", "number": "a number", "object": "an object"}


def _required(reducer: str, which: str, value: Json, kind: str) -> Any:
    if type_name(value) == kind:
        return value
    absent = " (or absent)" if which == "current" and kind != "number" else ""
    raise ReducerError(
        f"reducer '{reducer}' requires {_ARTICLE[kind]}{absent} for the {which} value, got {type_name(value)}"
    )


_Fold: TypeAlias = Callable[[Json, list[Json], bool], Json]

_FOLDS: dict[str, _Fold] = {
    "append": _append,
    "extend": _extend,
    "concat": _concat,
    "sum": _numbers("sum", lambda left, right: left + right),
    "max": _numbers("max", max),
    "min": _numbers("min", min),
    "merge": _merge,
    "overwrite": _overwrite,
    "deep_merge": _deep_merge,
    "union": _union,
    "first": _first,
    "last": _overwrite,
    "messages": _messages,
    "by_node": _by_node,
}
