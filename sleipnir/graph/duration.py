"""Durations as people write them: `500ms`, `1.5s`, `30s`, `5m`, `2h`, or a bare number of seconds."""

from __future__ import annotations

import re

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
MOST_MS = 2**53 - 1


def milliseconds(value: object) -> int:
    """Whole milliseconds. Raises ValueError for anything that is not a duration, below 0 or beyond 285,000 years."""
    if isinstance(value, bool):
        raise ValueError("a boolean is not a duration")
    written = _WRITTEN.fullmatch(value.strip() if isinstance(value, str) else repr(value))
    if written is None:
        raise ValueError(f"{value!r} is not a duration")
    ms = round(float(written[1]) * _UNITS_MS[written[2] or "s"])
    if ms > MOST_MS:
        raise ValueError(f"{value!r} is too long")
    return ms


def seconds(value: object) -> object:
    """A text with a unit as a number of seconds, an int if it is whole; anything else unchanged, for later checks."""
    written = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
    if written is None or written[2] is None:
        return value
    ms = milliseconds(value)
    return ms // 1000 if ms % 1000 == 0 else ms / 1000
