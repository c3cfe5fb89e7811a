"""What Flower shows of a visit's end: keys written and next edge, or the node's error; never a value of the state.

| the visit | in Flower | with |
|---|---|---|
| was delivered | SUCCESS | the result: `{'keys': ['word'], 'next': 'b'}` |
| was delivered, and its node failed | FAILURE | the node's error, and the result too |
| was put off, or handed back | RETRY | why; its next attempt is a task of its own |
| was not this message's (any more), or came too late | REVOKED | |

The text of a result holds all of it, because Celery carries only text from a pool to its events.
For Celery, the task of a failed node has succeeded: it was executed, and its message is acknowledged like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_ERROR = 400
MOST_RESULT = 1000
MOST_TEXT = 2 * (MOST_ERROR + MOST_RESULT)
"""Characters of a TaskSummary that Celery carries: more than one has."""
SHORTEST_VALUE = 6
"""Shorter values are words and numbers that any error may hold."""

_OF_ERRORS = ("_error", "last_error")
"""State keys that hold earlier errors, which contain the same words."""

_FAILED, _LATER, _VOID = "failed: ", "later: ", "void: "


class TaskSummary:
    """A visit's summary as a task's result. Celery prints a dict piece by piece, but asks an object for its repr."""

    def __init__(self, summary: Mapping[str, Any]) -> None:
        self._summary = summary

    def __repr__(self) -> str:
        summary = self._summary
        if "later" in summary:
            return f"{_LATER}{summary['later']}"
        if "refused" in summary or "lost" in summary:
            return f"{_VOID}{summary}"
        done = repr({name: value for name, value in summary.items() if name not in ("ok", "error")})
        result = done if len(done) <= MOST_RESULT else f"{done[:MOST_RESULT]} ..."
        return f"{_FAILED}{summary['error']}\n{result}" if "error" in summary else result


def event_of(text: str) -> tuple[str, dict[str, Any]]:
    """The event that ends a task, and its fields, from the text of its result (a TaskSummary)."""
    if text.startswith(_FAILED):
        error, _, result = text.removeprefix(_FAILED).partition("\n")
        return "task-failed", {"exception": error, "traceback": None, "result": result}
    if text.startswith(_LATER):
        return "task-retried", {"exception": text.removeprefix(_LATER), "traceback": None}
    if text.startswith(_VOID):
        # No other fields: Flower may know the same visit as a success, which they would overwrite.
        return "task-revoked", {"terminated": False, "signum": None, "expired": False}
    return "task-succeeded", {"result": text}


def shown_error(error: str, state: Mapping[str, str]) -> str:
    """One line. A value of the state that the error quotes is replaced by its key; `state` holds JSON text by key.

    An error that equals a value stays as it is: a graph may store an earlier error under any key.
    """
    quoted = {
        (value, key)
        for key, text in state.items()
        if key not in _OF_ERRORS
        for value in _leaves(json.loads(text))
        if len(value) >= SHORTEST_VALUE and value in error and value != error
    }
    for value, key in sorted(quoted, key=lambda quote: (-len(quote[0]), quote)):
        error = error.replace(value, f"<{key}>")
    line = " ".join(error.split())
    half = MOST_ERROR // 2  # the end of a long error says as much as its beginning
    return line if len(line) <= MOST_ERROR else f"{line[:half]} ... {line[-half:]}"


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
