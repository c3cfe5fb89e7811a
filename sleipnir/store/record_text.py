"""Values and stored dataclasses as JSON text.

Apart from commit.py, which needs the planner's transitions: clients write few records, and start more often.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def dumps(value: Any) -> str:
    """Compact JSON of a state value. Raises ValueError on NaN and TypeError on what JSON cannot say."""
    return _ENCODER.encode(value)  # json.dumps would make an encoder each time


def record(value: Any) -> str:
    """A stored dataclass: fields at their default are left out, except the version."""
    return text(fields_set(value))


def text(value: Any) -> str:
    """Compact JSON of what Sleipnir has made, where no number can be infinite: a third of the time of `dumps`."""
    from pydantic_core import to_json  # commands that only look at runs do without

    return to_json(value, inf_nan_mode="null").decode()


def fields_set(value: Any) -> dict[str, Any]:
    """The fields of a stored dataclass that are not at their default, and its version."""
    defaults, nested = _KINDS.get(type(value)) or _kind(type(value))
    found = {
        name: field
        for name, field in vars(value).items()
        if field is not (default := defaults[name]) and field != default
    }
    for name in nested:
        if name in found:
            found[name] = fields_set(found[name])
    return found


def _kind(kind: type[Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    nested = _NESTED.get(kind.__name__, ())
    return _KINDS.setdefault(kind, ({**defaults, "v": None}, nested))  # the version is always said


_KINDS: dict[type[Any], tuple[dict[str, Any], tuple[str, ...]]] = {}
"""By class: the defaults, and the fields that hold stored dataclasses."""

_NESTED = {"Step": ("part",)}
"""By the names of the classes, which are not imported here."""
