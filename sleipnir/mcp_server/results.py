"""What tools return about runs: structured content, with the JSON Schema that clients check it against, and text.

Rule. Text that an agent, a model or a person wrote is passed on without control characters, but for a run's output,
which is what the agent made it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp.types import CallToolResult, TextContent

from sleipnir.messages import FINAL, STATUSES
from sleipnir.runs.plain_text import one_line, printable
from sleipnir.runs.reasons import end_in_words, failed_in_words, places
from sleipnir.runs.views import GateInfo, RunInfo

MOST_PLACES: Final = 12
MOST_QUESTIONS: Final = 50

QUESTION_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "run_id": {"type": "string", "description": "The run that asks: the run itself, or one below it."},
        "question_id": {"type": "string"},
        "node": {"type": "string"},
        "kind": {"type": "string"},
        "text": {"type": "string"},
        "options": {"type": "array", "items": {"type": "string"}},
        "default": {"type": "string"},
        "schema": {"description": "The JSON Schema of the answer."},
    },
    "required": ["run_id", "question_id", "node", "kind", "text"],
}

RUN_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "run_id": {"type": "string"},
        "agent": {"type": "string"},
        "status": {"type": "string", "enum": sorted(STATUSES)},
        "output": {"type": "string", "description": "The result, of a completed run."},
        "result": {"description": "The same as JSON, if the result is a JSON object or list."},
        "error": {"type": "string"},
        "failed_visits": {"type": "string", "description": "Failures that the run went on after."},
        "at": {"type": "array", "items": {"type": "string"}, "description": "Where a run is that is not over."},
        "questions": {"type": "array", "items": QUESTION_SCHEMA, "description": "Open questions to a person."},
        "usage": {
            "type": "object",
            "properties": {
                "calls": {"type": "integer"},
                "input_tokens": {"type": "integer"},
                "output_tokens": {"type": "integer"},
                "cost_usd": {"type": ["number", "null"]},
            },
        },
    },
    "required": ["run_id", "agent", "status"],
}


def run_content(
    info: RunInfo, output: str | None = None, gates: Sequence[GateInfo] = (), now_ms: int = 0
) -> dict[str, Any]:
    """A run, as RUN_SCHEMA has it. `output` is that of a completed one; `now_ms` is Redis' clock."""
    made: dict[str, Any] = {"run_id": info.id, "agent": info.agent, "status": info.status}
    if output is not None:
        made["output"] = output
        if (result := _as_json(output)) is not None:
            made["result"] = result
    if info.error:
        made["error"] = printable(info.error)
    if info.failed_visits.count:
        made["failed_visits"] = failed_in_words(info)
    if not info.is_final:
        made["at"] = [printable(place) for place in places(info, now_ms, MOST_PLACES)]
        made["questions"] = [_question(gate) for gate in gates[:MOST_QUESTIONS]]
    if info.usage.calls:
        names = ("calls", "input_tokens", "output_tokens", "cost_usd")
        made["usage"] = {name: getattr(info.usage, name) for name in names}
    return made


def _as_json(output: str) -> Any:
    """The object or the list that an output spells; None: it is a text."""
    if not output.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(output, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _question(gate: GateInfo) -> dict[str, Any]:
    made: dict[str, Any] = {
        "run_id": gate.run,
        "question_id": str(gate.seq),
        "node": printable(gate.address),
        "kind": gate.kind,
        "text": printable(gate.question),
        "options": list(gate.options),
    }
    if gate.default is not None:
        made["default"] = gate.default
    if gate.schema is not None:
        made["schema"] = gate.schema
    return made


def run_result(content: Mapping[str, Any], hint: str = "") -> CallToolResult:
    """The result of a tool for one run, as `run_content` has it. It is an error if the run failed or was cancelled.
    `hint` says how to go on with one that is not over."""
    status = content["status"]
    if status == "completed":
        text = content.get("output") or "The run has completed; its output is empty."
        failed = content.get("failed_visits")
        more = [f"The run went on after {failed}."] if failed else []
        return result_of(content, text, *more)
    if status in FINAL:
        error = f": {content['error']}" if content.get("error") else ""
        return result_of(content, f"run {content['run_id']} {status}{error}", is_error=True)
    lines = [f"run {content['run_id']} of {content['agent']} is not over: {status}", *content["at"]]
    lines += [_asked(question) for question in content["questions"]]
    return result_of(content, "\n".join([*lines, *([hint] if hint else [])]))


def _asked(question: Mapping[str, Any]) -> str:
    options = f" (options: {', '.join(question['options'])})" if question["options"] else ""
    return f"open question {question['question_id']} of run {question['run_id']}: {question['text']}{options}"


def result_of(content: Mapping[str, Any], *texts: str, is_error: bool = False) -> CallToolResult:
    """A result with structured content, and the same in words."""
    blocks = [TextContent(type="text", text=text) for text in texts]
    return CallToolResult(content=[*blocks], structured_content=dict(content), is_error=is_error)


def error_result(message: str) -> CallToolResult:
    """What a tool returns that could not do its work."""
    return CallToolResult(content=[TextContent(type="text", text=printable(message))], is_error=True)


def line_of(info: RunInfo) -> str:
    """One run in a list."""
    return f"{info.id} {one_line(info.agent)} {end_in_words(info)}"
