"""Interrupts: the answers that an execution gets to what its node has asked in earlier executions of the visit.

An answer is JSON. It belongs to the visit and its key, or, without a key, to its position. The answers of a visit are
one text among the run's items (Work.given): they are no state, and are dropped when the visit ends. The visit of a
graph node, whose routers may ask after its run, is given the output of that run, a JSON string, in front of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sleipnir.decoding import read
from sleipnir.graph.plain import compact_json, first_not_json

if TYPE_CHECKING:
    from sleipnir.graph.model import Json
    from sleipnir.runs.run import Gate
    from sleipnir.runs.views import GateInfo

INTERRUPT: Final = "interrupt"
"""The kind of a gate that the code of a node has opened."""


TIMED_OUT: Final = {"timed_out": True}
"""The answer to a wait for a signal that has not come in time; that of a signal has other keys."""


@dataclass(frozen=True)
class UsedAnswer:
    """The answer to one interrupt of a visit: `key` and `at` are those of messages.InterruptQuestion."""

    key: str | None = None
    at: int = 0
    value: Any = None


def answers_text(answers: Sequence[UsedAnswer], output: str | None = None) -> str:
    """What a visit is given: these answers, and the `output` of its run, if it has one."""
    return compact_json([*([] if output is None else [output]), *(vars(answer) for answer in answers)])


def answers_of(text: str) -> list[UsedAnswer]:
    """The answers that a text holds, in order; an empty text holds none. Raises RecordUnreadable."""
    return [read(UsedAnswer, each, "answer") for each in _parts(text) if not isinstance(each, str)]


def output_of(text: str) -> str | None:
    """The output that a text holds. None: it has none."""
    parts = _parts(text)
    return parts[0] if parts and isinstance(parts[0], str) else None


def _parts(text: str) -> list[Any]:
    parts = json.loads(text) if text else []
    return [parts] if isinstance(parts, str) else list(parts)


def answer_of(text: str) -> Json:
    """The value of an answer that a person typed: JSON, or the text itself if it is no JSON that can be stored."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        compact_json(value).encode()
        return value
    except (ValueError, RecursionError):
        return text


def text_of(gate: Gate | GateInfo, value: Json) -> str:
    """An answer as it is sent: that to an interrupt as JSON, any other is a text. Raises ValueError, with the reason,
    for a value that the question does not accept."""
    if gate.kind != INTERRUPT:
        if isinstance(value, str):
            return value
        raise ValueError(f"the answer must be a text, not {compact_json(value)[:40]}")
    if problem := first_not_json({"answer": value}):
        raise ValueError(f"the answer must be JSON: {problem}")
    if problem := problem_of(gate.schema, value):
        raise ValueError(f"the answer does not match the schema of the question: {problem}")
    return compact_json(value)


def typed_answer(gate: Gate | GateInfo, text: str) -> Json:
    """The value of an answer that a person has typed."""
    return answer_of(text) if gate.kind == INTERRUPT else text


def problem_of(schema: Json, value: Json) -> str | None:
    """Why an answer does not match its schema (None: there is no schema); None if it does. The bound on the work is the
    scheduler's, so that a client refuses what a scheduler would."""
    if schema is None:
        return None
    from sleipnir.graph.schema import MOST_STEPS_OF_SCHEDULER, NotChecked, at_most, violation  # commands start fast

    try:
        with at_most(MOST_STEPS_OF_SCHEDULER):
            return violation(schema, value)
    except NotChecked as error:
        return f"it cannot be checked: {error}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
