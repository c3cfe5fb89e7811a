"""Detect that a model repeats the same call (spec/graph-agents.md 4.5.4). Pure: calls in, an alert out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sleipnir.graph.model import Json


@dataclass(frozen=True)
class PastCall:
    """A call that a model made; `arguments` are an object or JSON text."""

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True)
class RepeatRule:
    """A call like the last `repeats` calls is refused; the alert shows the last `chain` calls."""

    repeats: int
    chain: int


ROOT = RepeatRule(repeats=2, chain=3)
CHILD = RepeatRule(repeats=4, chain=10)
"""For an agent that another agent started."""


def alert(earlier: Sequence[PastCall], call: PastCall, patience: RepeatRule = ROOT) -> dict[str, Json] | None:
    """The answer in place of a result; None: the call may run. `earlier` are the conversation's calls, oldest first.

    The result does not depend on whether `earlier` includes refused calls.
    """
    last = earlier[-patience.repeats :]
    if len(last) < patience.repeats or any(not _same(past, call) for past in last):
        return None
    return {
        "tool_call_loop_alert": {
            "error": {
                "message": "⚠️ Tool-call loop detected! ⚠️",
                "code": 400,
                "param": "Use the output of the last call to this function with these arguments. Do not call it so "
                "again: call it with other arguments, call another function, or answer.",
            },
            "call_history": [
                {"name": past.name, "arguments": _parsed(past.arguments)} for past in earlier[-patience.chain :]
            ],
        }
    }


def _same(one: PastCall, other: PastCall) -> bool:
    return one.name == other.name and _parsed(one.arguments) == _parsed(other.arguments)


def _parsed(arguments: Mapping[str, Any] | str) -> Json:
    """The object, so that spaces and the order of keys make no difference. Text that is not JSON stays text."""
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        parsed: Json = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed
