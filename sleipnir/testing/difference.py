"""The difference between two requests to a model in one line, and the nearest recorded request.

Requests are the plain dicts of tape.py, without empty fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.testing.request import text_of

AROUND = 30  # characters shown on each side of the first difference
SHOWN_CHARACTERS = 60  # of a message or a value that has no counterpart


def nearest(request: Mapping[str, Any], recorded: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the most similar recorded request: most equal messages, then the longest common beginning of the
    first different message, then most equal other fields. `recorded` must not be empty."""
    return max(sorted(recorded), key=lambda name: _likeness(recorded[name], request))


def difference(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first difference: of the messages, else of the other fields by name."""
    sent, before = _messages(now), _messages(recorded)
    number = _first_difference(before, sent)
    if number is None:
        names = [name for name in sorted({*recorded, *now}) if _differs(name, recorded, now)]
        return "; ".join(_field(name, recorded, now) for name in names)
    if number == len(before):
        return f"it has {len(before)} messages, and this one continues with {_shown(sent[number], number)}"
    if number == len(sent):
        return (
            f"this one has {len(sent)} messages, and the recorded one continues with {_shown(before[number], number)}"
        )
    return _of_message(number, before[number], sent[number])


def _likeness(recorded: Mapping[str, Any], request: Mapping[str, Any]) -> tuple[int, int, int, int]:
    before, sent = _messages(recorded), _messages(request)
    in_common = sum(_same(message, other) for message, other in zip(before, sent, strict=False))
    number = _first_difference(before, sent)
    beginning = 0
    if number is not None and number < min(len(before), len(sent)):
        beginning = _common(_canonical(before[number]), _canonical(sent[number]))
    fields = sum(not _differs(name, recorded, request) for name in {*recorded, *request})
    return in_common, beginning, fields, -abs(len(before) - len(sent))


def _of_message(number: int, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    where = f"message {number + 1} (role {now.get('role')})"
    if recorded.get("role") != now.get("role"):
        return f"{where} has role {recorded.get('role')} in the recording"
    old, new = text_of(recorded), text_of(now)
    if old == new:  # the calls, or an id
        old, new = _canonical(recorded), _canonical(now)
    at = _common(old, new)
    return f"{where}, at character {at + 1}: recorded {_around(old, at)}, now {_around(new, at)}"


def _around(text: str, at: int) -> str:
    start, end = max(0, at - AROUND), at + AROUND
    shown = json.dumps(text[start:end], ensure_ascii=False)
    return f"{'…' if start else ''}{shown}{'…' if end < len(text) else ''}"


def _field(name: str, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if name == "tools":
        old, new = _tools(recorded), _tools(now)
        if old != new:
            return f"tools: recorded {old}, now {new}"
        names = [part for part, a, b in zip(new, recorded[name], now[name], strict=True) if not _same(a, b)]
        return f"the declarations of the tools {', '.join(names)}"
    return f"{name}: recorded {_value(recorded.get(name))}, now {_value(now.get(name))}"


def _differs(name: str, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return not _same(recorded.get(name), now.get(name))


def _messages(request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(request.get("messages", []))


def _tools(request: Mapping[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request.get("tools", [])]


def _first_difference(before: list[Mapping[str, Any]], after: list[Mapping[str, Any]]) -> int | None:
    """The index of the first message that differs or that only one request has; None if all are equal."""
    for index, (left, right) in enumerate(zip(before, after, strict=False)):
        if not _same(left, right):
            return index
    return None if len(before) == len(after) else min(len(before), len(after))


def _common(before: str, after: str) -> int:
    """The length of the common beginning of two texts."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(before), len(after)))


def _same(left: Any, right: Any) -> bool:
    """Whether two values are equal as JSON: true is not 1."""
    return _canonical(left) == _canonical(right)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _shown(message: Mapping[str, Any], number: int) -> str:
    text = text_of(message)
    return f"message {number + 1} (role {message.get('role')}): {_value(text)}"


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
