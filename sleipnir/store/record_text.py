"""Values and stored dataclasses as JSON text.

Separate from commit.py, which imports the planner's transitions: clients write few records and must start fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

from sleipnir.graph.plain import compact_json


def dumps(value: Any) -> str:
    """Compact JSON of a state value. Raises ValueError for NaN and TypeError for values that are not JSON."""
    return compact_json(value, allow_nan=False)


def record(value: Any) -> str:
    """The JSON text of a stored dataclass, without fields at their default, except the version."""
    return text(fields_set(value))


def text(value: Any) -> str:
    """Compact JSON of Sleipnir's own data, where no number is infinite: takes a third of the time of `dumps`."""
    return _encoder()(value, inf_nan_mode="null").decode()


@cache
def _encoder() -> Callable[..., bytes]:
    from pydantic_core import to_json  # not needed by commands that only read runs

    return to_json


def fields_set(value: Any) -> dict[str, Any]:
    """The fields of a stored dataclass that differ from their defaults, and its version."""
    defaults, nested = _KINDS.get(type(value)) or _kind(type(value))
    fields = {
        name: field
        for name, field in vars(value).items()
        if field is not (default := defaults[name]) and field != default
    }
    for name in nested:
        if name in fields:
            fields[name] = fields_set(fields[name])
    return fields


def _kind(kind: type[Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    nested = _NESTED.get(kind.__name__, ())
    return _KINDS.setdefault(kind, ({**defaults, "v": None}, nested))  # the version is always written


_KINDS: dict[type[Any], tuple[dict[str, Any], tuple[str, ...]]] = {}
"""The defaults of each class, and its fields that hold stored dataclasses."""

_NESTED = {
    "Step": ("part", "closing"), "Hold": ("breakpoint",), "InterruptQuestion": ("wait", "rules"),
    "Gate": ("rules",),
}  # fmt: skip
"""By the names of the classes, which are not imported here."""
