"""Open questions as elicitations: forms that a client shows to its user.

A form has fields of plain types only. A question whose schema is an object of such fields has them; one whose schema is
plain, or that has none, has the single field `answer`. Every other answer is typed as JSON text. The run checks the
answer against the whole schema, whatever the form could express.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from mcp.types import ClientCapabilities, ElicitRequestFormParams

from sleipnir.runs.interrupts import INTERRUPT, answer_of
from sleipnir.runs.plain_text import printable
from sleipnir.runs.views import GateInfo

ANSWER: Final = "answer"
"""The only field of a form that is not an object."""

MOST_FIELDS: Final = 30
_KEPT: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset(("minLength", "maxLength", "format", "default")),
    "number": frozenset(("minimum", "maximum", "default")),
    "integer": frozenset(("minimum", "maximum", "default")),
    "boolean": frozenset(("default",)),
}
_FORMATS: Final = ("email", "uri", "date", "date-time")

Schema = dict[str, Any]


def can_elicit(capabilities: ClientCapabilities | None) -> bool:
    """Whether the client shows forms to its user."""
    elicits = capabilities.elicitation if capabilities is not None else None
    return elicits is not None and (elicits.form is not None or elicits.url is None)


def form_of(gate: GateInfo, agent: str, problem: str | None = None) -> ElicitRequestFormParams:
    """The form for a question. `problem` is why the run refused the last answer."""
    asked = f"{agent} (run {gate.run}) asks at {gate.address}:\n\n{gate.question}"
    message = printable(f"{asked}\n\nThe last answer does not fit: {problem}" if problem else asked)
    return ElicitRequestFormParams(message=message, requested_schema=_form(gate))


def _form(gate: GateInfo) -> Schema:
    if (fields := _fields(gate)) is not None:
        return {"type": "object", "properties": fields, "required": _required(gate.schema, fields)}
    field = _single(gate)
    return {"type": "object", "properties": {ANSWER: field}, "required": [] if "default" in field else [ANSWER]}


def _fields(gate: GateInfo) -> dict[str, Schema] | None:
    """The fields of an object; None: the answer is none, or one that no form expresses."""
    properties = gate.schema.get("properties") if _is_schema(gate, "object") else None
    if not isinstance(properties, dict) or not 0 < len(properties) <= MOST_FIELDS:
        return None
    fields = {name: _plain(schema) for name, schema in properties.items()}
    made = {name: field for name, field in fields.items() if field is not None}
    return made if len(made) == len(fields) and set(_required(gate.schema)) <= made.keys() else None


def _required(schema: Any, fields: Mapping[str, Schema] | None = None) -> list[str]:
    named = schema.get("required")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    return names if fields is None else [name for name in names if name in fields]


def _is_schema(gate: GateInfo, type_: str | None = None) -> bool:
    of_interrupt = gate.kind == INTERRUPT and isinstance(gate.schema, dict)
    return of_interrupt and (type_ is None or gate.schema.get("type") == type_)


def _single(gate: GateInfo) -> Schema:
    if _is_schema(gate):
        return _plain(gate.schema) or {"type": "string", "title": "Answer", "description": _json_description(gate)}
    field: Schema = {"type": "string", "title": "Answer"}
    if gate.kind == INTERRUPT:
        return {**field, "description": "JSON, or a text"}
    if gate.options:
        field["enum"] = list(gate.options)
    if gate.default is not None and (not gate.options or gate.default in gate.options):
        field["default"] = gate.default
    return field


def _json_description(gate: GateInfo) -> str:
    return printable(f"JSON that matches this schema: {json.dumps(gate.schema)[:2_000]}")


def _plain(schema: Any) -> Schema | None:
    """A schema as a field of a form. None: there is no such field."""
    if not isinstance(schema, dict):
        return None
    if (inner := _not_null(schema)) is not None:
        return _plain({**inner, **{name: value for name, value in schema.items() if name not in ("anyOf", "default")}})
    told = {name: printable(schema[name]) for name in ("title", "description") if isinstance(schema.get(name), str)}
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None:
        if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
            return None
        default = {"default": schema["default"]} if schema.get("default") in choices else {}
        return {"type": "string", **told, "enum": choices, **default}
    type_ = schema.get("type")
    if not isinstance(type_, str) or type_ not in _KEPT:
        return None
    field = {name: value for name, value in schema.items() if name in _KEPT[type_]}
    if field.get("format") not in _FORMATS:
        field.pop("format", None)
    if not _is_of(type_, field.get("default")):
        field.pop("default", None)
    return {"type": type_, **told, **field}


def _not_null(schema: Schema) -> Schema | None:
    """The only schema besides null of an `anyOf`, as optional fields of models have it."""
    some = schema.get("anyOf")
    others = [each for each in some if each != {"type": "null"}] if isinstance(some, list) else []
    return others[0] if len(others) == 1 and isinstance(others[0], dict) else None


def _is_of(type_: str, value: Any) -> bool:
    match type_:
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str)


def answer_in(gate: GateInfo, content: Mapping[str, Any] | None) -> Any:
    """The answer that a form was filled in with."""
    given = dict(content or {})
    if _fields(gate) is not None:
        return given
    field = _single(gate)
    value = given.get(ANSWER, field.get("default", ""))
    if gate.kind != INTERRUPT:
        return value if isinstance(value, str) else json.dumps(value)
    is_plain = _is_schema(gate) and _plain(gate.schema) is not None
    return value if is_plain or not isinstance(value, str) else answer_of(value)
