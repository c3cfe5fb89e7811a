"""What wait nodes and `wait()` wait for: times as texts, the names of signals, and filters of them.

A time has a zone or is in Unix seconds, so it means the same on every machine, whatever the season. Filters run in
the scheduler, which serves all runs: one that loops is refused where it is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from sleipnir.graph.model import LONGEST_WAIT_MS, Json

FILTER_NAMES: Final = ("event", "state")
"""What a filter reads."""

MOST_FILTER_WEIGHT: Final = 20_000
"""The largest weight of the values that a filter reads: about 60 ms of the scheduler."""

_SECONDS: Final = re.compile(r"-?\d{1,12}(?:\.\d{1,9})?")


class TimeError(ValueError):
    """A text is no time that can be waited for. The message says why."""


class FilterError(ValueError):
    """Why a filter could not be applied to a signal, which counts as one that does not match."""


def time_ms(text: str, now_ms: int) -> int:
    """The time that a text names, in milliseconds since the epoch: ISO 8601 with a zone, or Unix seconds. Raises
    TimeError, also for one that is too far away."""
    if problem := time_problem(text):
        raise TimeError(problem)
    at_ms = _parsed_ms(text)
    if at_ms - now_ms > LONGEST_WAIT_MS:
        raise TimeError(f"{_shown(text)} is more than 365 days away")
    return at_ms


def time_problem(text: str) -> str | None:
    """Why a text names no time; None: it does."""
    try:
        _parsed_ms(text)
    except TimeError as error:
        return str(error)
    return None


def _parsed_ms(text: str) -> int:
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return round(float(text) * 1000)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise TimeError(f"{_shown(text)} is no time: neither ISO 8601 with a zone nor Unix seconds") from None
    if at.tzinfo is None:
        raise TimeError(f"{_shown(text)} has no zone: add Z, or an offset such as +01:00")
    try:
        return math.floor(at.timestamp() * 1000)
    except (OverflowError, ValueError):  # the year 1, in a zone ahead of UTC
        raise TimeError(f"{_shown(text)} is no time that can be counted") from None


def iso(at_ms: int) -> str:
    """`2030-01-31T08:00:00.000Z`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def filter_problem(text: str) -> str | None:
    """Why an expression cannot be a filter; None: it can."""
    from sleipnir.graph.expression import ExpressionError, parse

    try:
        expression = parse(text, FILTER_NAMES)
    except ExpressionError as error:
        return str(error)
    if expression.is_costly:
        return "a filter may not loop (all, exists, filter, map) or build a pattern: decide that in a node after it"
    return None


def state_keys(text: str) -> frozenset[str] | None:
    """The state keys that a filter reads; None: the whole state. Raises FilterError."""
    from sleipnir.graph.expression import ExpressionError, parse

    try:
        return parse(text, FILTER_NAMES).keys
    except ExpressionError as error:
        raise FilterError(str(error)) from None


def matches(text: str, event: Json, state: Mapping[str, Json]) -> bool:
    """Whether a filter is true for a signal and the state. Raises FilterError."""
    from sleipnir.graph.expression import ExpressionError, parse, weight

    try:
        expression = parse(text, FILTER_NAMES)
        values = {"event": event, "state": dict(state)}
        if expression.is_costly or weight(values) > MOST_FILTER_WEIGHT:
            raise FilterError("the values that the filter reads are too large for the scheduler")
        return expression.is_true(values)
    except ExpressionError as error:
        raise FilterError(str(error)) from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
