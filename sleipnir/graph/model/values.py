"""The types of the values that a graph's keys have. A reader of YAML checks them; the classes do not."""

from __future__ import annotations

from typing import Annotated, Any, Final, NewType, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from sleipnir.graph.duration import milliseconds, seconds

NodeId = NewType("NodeId", str)

Json: TypeAlias = Any
"""Any JSON value: None, bool, int, float, str, list of Json, dict of str to Json."""


Whole: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)]
"""A whole number, not negative; JSON readers round numbers above 2**53."""

Count: TypeAlias = Annotated[int, Field(strict=True, ge=1, le=2**53 - 1)]
"""A whole number from 1."""

Seconds: TypeAlias = Annotated[Whole, BeforeValidator(seconds)]
"""Whole seconds, written as a number or as `30s`, `5m`, `2h`."""

Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]

Flag: TypeAlias = Annotated[bool, Field(strict=True)]

Duration: TypeAlias = Annotated[int, BeforeValidator(milliseconds)]
"""Milliseconds, written as `500ms`, `8s`, `5m`, `2h` or a number of seconds."""

LONGEST_WAIT_MS: Final = 365 * 24 * 3_600_000


def _wait_time(value: object) -> int:
    ms = milliseconds(value)
    if not 0 < ms <= LONGEST_WAIT_MS:
        raise PydanticCustomError("wait_time", "not the time of a wait node")
    return ms


WaitTime: TypeAlias = Annotated[int, BeforeValidator(_wait_time)]
"""A duration longer than 0, and at most 365 days."""

LONGEST_LOOK_BACK_MS: Final = 24 * 3_600_000


def _look_back(value: object) -> int:
    ms = milliseconds(value)
    if ms > LONGEST_LOOK_BACK_MS:
        raise PydanticCustomError("look_back", "not the time that a wait node looks back")
    return ms


LookBack: TypeAlias = Annotated[int, BeforeValidator(_look_back)]
"""A duration of at most 24 hours."""
