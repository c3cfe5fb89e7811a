"""Structured output: from a model's text to a JSON value that matches a schema (spec 2.9).

Rules. First the text itself is parsed, without fences and leading think blocks. If the result is no JSON or does not
match the schema, the extractor rewrites the text; if its reply is unusable too, it gets one more call, with that reply.
Then the extraction fails. A schema that is not valid JSON Schema still guides the model, but is not checked: Loki never
checked it, and such agents exist.

`ask` calls the extractor; this module is independent of providers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeAlias

from sleipnir.errors import NodeFailed
from sleipnir.graph import schema as json_schema
from sleipnir.graph.model import Json

Ask: TypeAlias = Callable[[str, str], str]
"""(system message, user message) -> the reply's text."""

Note: TypeAlias = Callable[[str], None]
"""Takes one line of narration."""

HINT = (
    "Respond with a JSON object that matches this schema. "
    "Output ONLY the JSON object with no surrounding prose or markdown fences."
)

EXTRACTOR = """\
You turn text into data. You are given a JSON Schema and an input text. Reply with exactly one JSON value \
that satisfies the schema and carries what the input says.

- Write the JSON and nothing else: no explanation, no markdown fence, no thinking. For an object, the first \
character of your reply is { and the last one is }.
- Every required property is present, and every value has the type that the schema asks for.
- If the input already satisfies the schema, repeat it unchanged.
- If the input does not tell a value, use null where the schema permits null, otherwise the value that the \
input makes most likely.
- Add no property that the schema does not describe."""

REPAIR = (
    "Your previous reply could not be used: {problem}. Reply with only the JSON object that matches this "
    "schema, without prose and without markdown fences."
)

_THINKING = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_SHOWN_CHARACTERS = 2_000  # of an unusable reply, in the error message


class _Unusable(Exception):
    """A text is not a valid value; `str(error)` completes "the reply ..."."""

    def __init__(self, problem: str, *, is_json: bool) -> None:
        super().__init__(problem)
        self.is_json = is_json


def with_hint(text: str, schema: Json) -> str:
    """`text`, a blank line, and the request for JSON of this schema."""
    return f"{text}\n\n{HINT}\n\nSchema:\n{_pretty(schema)}"


def extract(text: str, schema: Json, ask: Ask, note: Note) -> Json:
    """The value in `text`, after at most two calls of `ask`.

    Raises NodeFailed (`structured`) if both replies are unusable, and what `ask` raises.
    """
    checked = schema if _is_schema(schema, note) else None
    try:
        return _usable(text, checked)
    except _Unusable as error:
        note(_raw_note(error))
    reply = ask(EXTRACTOR, _request(schema, text))
    try:
        return _usable(reply, checked)
    except _Unusable as error:
        note(_reply_note(error))
        repair = REPAIR.format(problem=error)
    reply = ask(EXTRACTOR, f"{repair}\n\n{_request(schema, reply)}")
    try:
        return _usable(reply, checked)
    except _Unusable as error:
        raise NodeFailed(_given_up(error, reply), "structured") from error


def _usable(text: str, schema: Json) -> Json:
    value = _parse(text)
    if schema is not None and (violation := _violation(schema, value)):
        raise _Unusable(f"it does not match the schema: {violation}", is_json=True)
    return value


def _parse(text: str) -> Json:
    try:
        return json.loads(_bare(text), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"it is not valid JSON: {error}", is_json=False) from None


def without_thinking(text: str) -> str:
    """`text` without leading think blocks."""
    start = 0
    while match := _THINKING.match(text, start):
        start = match.end()
    return text[start:]


def _bare(text: str) -> str:
    """`text` without leading think blocks and without one fence around it."""
    text = without_thinking(text).strip()
    for fence in ("```json", "```"):
        if text.startswith(fence):
            text = text.removeprefix(fence).lstrip()
            break
    return text.removesuffix("```").rstrip()


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _is_schema(schema: Json, note: Note) -> bool:
    """Whether the schema is valid; a note reports an invalid one. Raises NodeFailed for a schema that cannot be applied
    in bounded time, because nothing would be checked."""
    problem = json_schema.problem(schema)
    if problem is None:
        return True
    if problem.is_refused:
        raise NodeFailed(f"output_schema cannot be applied: {problem.message}", "structured")
    note(f"structured-output: output_schema is not valid JSON Schema ({problem.message}); not checked")
    return False


def _violation(schema: Json, value: Json) -> str | None:
    """The most relevant violation, as `$.items[0]: ...`; None without one, or if a $ref has no target."""
    try:
        return json_schema.violation(schema, value)
    except json_schema.Unresolvable:
        return None
    except json_schema.NotChecked as error:
        raise NodeFailed(f"the reply cannot be checked against output_schema: {error}", "structured") from None


def _request(schema: Json, text: str) -> str:
    return f"Schema:\n{_pretty(schema)}\n\nInput:\n{text}"


def _raw_note(error: _Unusable) -> str:
    if error.is_json:
        return f"structured-output: {error}, invoking extractor"
    return "structured-output: parsing raw output failed, invoking extractor"


def _reply_note(error: _Unusable) -> str:
    if error.is_json:
        return f"structured-output: extractor reply: {error}, retrying"
    return "structured-output: extractor returned invalid JSON, retrying"


def _given_up(error: _Unusable, reply: str) -> str:
    failed = "produce JSON that matches the schema" if error.is_json else "produce valid JSON"
    why = f" ({error})" if error.is_json else ""
    shown = _shortened(reply, _SHOWN_CHARACTERS)
    return f"Structured-output extractor failed to {failed} after repair retry{why}. Last response:\n{shown}"


def _pretty(schema: Json) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"
