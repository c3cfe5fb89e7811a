"""Reducers: how a value that a visit wrote is folded into the value that its key has (spec/graph-package.md F02, F03).

Two blocks of a graph file name them. Loki's `reducers:` is strict and means what spec/graph-agents.md 2.11 says; under
our own `state:` (`strict=False`) two of the same names are kinder to authors:

* `append` adds one element; under `state:` it adds the elements of a list, and takes the place of a value that is none.
* `sum`, `max` and `min` make whole floats ints; under `state:` a float stays a float, as the key's type promises.

A null is a value, not an absent one. A fold gives a new value, which shares nothing with what went in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import dropwhile
from typing import Any, Final, TypeAlias

from sleipnir.graph.model import Json

LOKI: Final = ("append", "extend", "concat", "sum", "max", "min", "merge", "overwrite")
"""What a `reducers:` block may name."""

BUILT_IN: Final = (*LOKI, "deep_merge", "union", "first", "last", "messages")
"""What a key under `state:` may name, besides a function of the agent (`is_custom`)."""

OPERATIONS: Final = ("append", "replace_last_user", "remove_all")
"""What can be done to a list of messages, besides adding one; sleipnir/commands.py makes them."""

ABSENT: Final = object()
"""The current value of a key that has none."""

_CUSTOM = re.compile(r"[^:]+\.py:[A-Za-z_]\w*")
_WHOLE_BELOW = 2**53  # beyond, a float names no particular whole number


class ReducerError(Exception):
    """A value does not fit its reducer. The message names both, and fits a terminal."""


def is_custom(name: str) -> bool:
    """Whether this is a function of the agent, `file.py:name`: a worker calls it."""
    return _CUSTOM.fullmatch(name) is not None


def fold(reducer: str, current: Json, incoming: Json, *, strict: bool) -> Json:
    """`current` (ABSENT: the key has none) with one write folded in. Raises ReducerError."""
    return fold_all(reducer, current, [incoming], strict=strict)


def fold_all(reducer: str, current: Json, incoming: Iterable[Json], *, strict: bool) -> Json:
    """`current` with several writes folded in, one after the other, in time linear in all of them. Without any write it
    is as it was, and ABSENT stays ABSENT. Raises ReducerError."""
    if reducer not in _FOLDS:
        raise ReducerError(f"{reducer!r} is no built-in reducer; there are {', '.join(BUILT_IN)}")
    try:
        values = [_copy(value) for value in incoming]
        return _FOLDS[reducer](_copy(current), values, strict) if values else _copy(current)
    except RecursionError:
        raise ReducerError(f"reducer '{reducer}' cannot fold a value that is nested so deep") from None


def type_name(value: Json) -> str:
    """What JSON calls it."""
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


# Each takes values that are its own: it may change them and give them away.


def _append(current: Json, values: list[Json], strict: bool) -> Json:
    if strict:
        return [*_items("append", current), *values]
    found = [] if current is ABSENT else current
    for value in values:
        if not isinstance(found, list):
            found = value
        elif isinstance(value, list):
            found.extend(value)
        else:
            found.append(value)
    return found


def _extend(current: Json, values: list[Json], strict: bool) -> Json:
    found = _items("extend", current)
    for value in values:
        found += _required("extend", "incoming", value, "array")
    return found


def _union(current: Json, values: list[Json], strict: bool) -> Json:
    """A list without doubles, in the order of their first coming. A value that is no list is one element."""
    found = _items("union", current)
    for value in values:
        found += value if isinstance(value, list) else [value]
    known: dict[str, Json] = {}
    for item in found:
        known.setdefault(json.dumps(item, sort_keys=True), item)
    return list(known.values())


def _items(reducer: str, current: Json) -> list[Json]:
    found: list[Json] = [] if current is ABSENT else _required(reducer, "current", current, "array")
    return found


def _concat(current: Json, values: list[Json], strict: bool) -> Json:
    texts = [] if current is ABSENT else [_required("concat", "current", current, "string")]
    texts += [_required("concat", "incoming", value, "string") for value in values]
    return "\n".join(dropwhile(lambda text: text == "", texts))  # nothing separates a text from an empty beginning


def _merge(current: Json, values: list[Json], strict: bool) -> Json:
    found = {} if current is ABSENT else _required("merge", "current", current, "object")
    for value in values:
        found |= _required("merge", "incoming", value, "object")
    return found


def _deep_merge(current: Json, values: list[Json], strict: bool) -> Json:
    found = {} if current is ABSENT else _required("deep_merge", "current", current, "object")
    for value in values:
        _merge_into(found, _required("deep_merge", "incoming", value, "object"))
    return found


def _merge_into(target: dict[str, Json], source: dict[str, Json]) -> None:
    for key, value in source.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge_into(target[key], value)
        else:
            target[key] = value


def _numbers(reducer: str, combine: Callable[[Any, Any], Any]) -> _Fold:
    def fold_numbers(current: Json, values: list[Json], strict: bool) -> Json:
        found = current if current is ABSENT else _required(reducer, "current", current, "number")
        for value in values:
            number = _required(reducer, "incoming", value, "number")
            found = number if found is ABSENT else _combined(reducer, combine, found, number, strict)
        return found

    return fold_numbers


def _combined(reducer: str, combine: Callable[[Any, Any], Any], left: Any, right: Any, strict: bool) -> Any:
    try:
        found = combine(left, right)
    except OverflowError:
        found = float("inf")
    if not isinstance(found, float):
        return found
    if found - found != 0:  # infinite, which JSON cannot say
        raise ReducerError(f"reducer '{reducer}' gives a number that is too large")
    return int(found) if strict and found.is_integer() and abs(found) <= _WHOLE_BELOW else found


def _overwrite(current: Json, values: list[Json], strict: bool) -> Json:
    return values[-1]


def _first(current: Json, values: list[Json], strict: bool) -> Json:
    return values[0] if current is ABSENT else current


def _messages(current: Json, values: list[Json], strict: bool) -> Json:
    """Messages and operations are applied in order; a null changes nothing; what is neither takes the list's place."""
    found: Json = [] if current is ABSENT else current
    for value in values:
        steps = value if isinstance(value, list) else [value]
        if value is None:
            continue
        if not all(is_message(step) or is_operation(step) for step in steps):
            found = value
            continue
        found = found if isinstance(found, list) else []
        for step in steps:
            _operate(found, step)
    return found


def is_message(value: Json) -> bool:
    return isinstance(value, dict) and "op" not in value and isinstance(value.get("role"), str)


def is_operation(value: Json) -> bool:
    return isinstance(value, dict) and "op" in value


def operation_problem(step: Json) -> str | None:
    """Why an operation on messages cannot be done."""
    if step["op"] not in OPERATIONS:
        return f"operation {step['op']!r} on messages does not exist; there are {', '.join(OPERATIONS)}"
    if step["op"] == "append" and not isinstance(step.get("role"), str):
        return "operation 'append' on messages needs a `role`"
    if step["op"] == "replace_last_user" and "content" not in step:
        return "operation 'replace_last_user' on messages needs a `content`"
    return None


def _operate(messages: list[Json], step: dict[str, Json]) -> None:
    if "op" not in step:
        messages.append(step)
        return
    if problem := operation_problem(step):
        raise ReducerError(problem)
    match step["op"]:
        case "append":
            messages.append({key: value for key, value in step.items() if key != "op"})
        case "replace_last_user":
            _replace_last_user(messages, step["content"])
        case "remove_all":
            messages.clear()


def _replace_last_user(messages: list[Json], content: Json) -> None:
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            message["content"] = content
            return
    messages.append({"role": "user", "content": content})


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
}
