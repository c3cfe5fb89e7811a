"""The form of an answer, made from its JSON Schema, and the answer that a filled-in form is. Pure.

Scalars, choices, dates, lists of scalars and objects have fields of their own; anything else is a field for JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from sleipnir.graph.model import Json
from sleipnir.runs.interrupts import answer_of

FieldKind: TypeAlias = Literal["text", "long", "number", "integer", "choice", "flag", "date", "list", "json"]
PREFIX: Final = "f."
MOST_FIELDS: Final = 60
MOST_DEPTH: Final = 4
LONG: Final = 120
"""Characters from which a text has several lines."""
_SCALARS: Final[Mapping[str, FieldKind]] = {
    "string": "text", "number": "number", "integer": "integer", "boolean": "flag",
}  # fmt: skip


@dataclass(frozen=True)
class FormField:
    """`name` is that in the form, `path` the place in the answer. `proposed` is the text that it begins with, `text`
    what it shows; of a flag `true` or `false`. `options` are the JSON texts of a choice, with what is shown of them.
    `of` is the type of a list's items. `group` names the object that it is part of."""

    name: str
    path: tuple[str, ...]
    label: str
    kind: FieldKind
    hint: str = ""
    proposed: str = ""
    text: str = ""
    required: bool = False
    options: tuple[tuple[str, str], ...] = ()
    of: FieldKind = "text"
    group: str = ""
    problem: str = ""

    @property
    def is_changed(self) -> bool:
        return self.text != self.proposed


def fields_of(schema: Any, payload: Any) -> list[FormField]:
    """The fields for an answer. `payload` is what the question shows: a value there of a field's name is proposed."""
    if not isinstance(schema, dict):
        return [FormField(f"{PREFIX}answer", (), "Answer", "json", "JSON, or a text")]
    given = payload if isinstance(payload, dict) else {}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        found = list(_fields(schema, given, (), "", 1))
        if len(found) <= MOST_FIELDS:
            return found
        return [_field(("",), {"title": "Answer"}, {}, required=True, group="")]
    return [_field(("",), {"title": "Answer", **schema}, {}, required=True, group="")]


def _fields(
    schema: Mapping[str, Any], given: Mapping[str, Any], path: tuple[str, ...], group: str, depth: int
) -> Iterator[FormField]:
    listed = schema.get("required")
    required = listed if isinstance(listed, list) else []
    for name, part in schema["properties"].items():
        place = (*path, name)
        below = part if isinstance(part, dict) else {}
        value = given.get(name)
        if below.get("type") == "object" and isinstance(below.get("properties"), dict) and depth < MOST_DEPTH:
            label = f"{group} / {_label(name, below)}" if group else _label(name, below)
            yield from _fields(below, value if isinstance(value, dict) else {}, place, label, depth + 1)
        else:
            yield _field(place, below, given, required=name in required, group=group)


def _field(
    place: tuple[str, ...], schema: Mapping[str, Any], given: Mapping[str, Any], *, required: bool, group: str
) -> FormField:
    name = place[-1]
    is_whole = place == ("",)
    path: tuple[str, ...] = () if is_whole else place
    kind, of = _kind(schema)
    value = given[name] if not is_whole and name in given else schema.get("default")
    made = FormField(
        PREFIX + (".".join(path) if path else "answer"), path, _label(name, schema), kind, _hint(schema),
        required=required, of=of, group=group,
    )  # fmt: skip
    if kind == "choice":
        options = tuple((json.dumps(each, ensure_ascii=False), _shown(each)) for each in schema["enum"])
        text = json.dumps(value, ensure_ascii=False) if value in schema["enum"] else ""
        if required and not text:
            text = options[0][0]
        return replace(made, options=options, proposed=text, text=text)
    text = _text(kind, value)
    if kind == "text" and (len(text) > LONG or "\n" in text or schema.get("maxLength", 0) > LONG):
        made = replace(made, kind="long")
    return replace(made, proposed=text, text=text)


def _kind(schema: Mapping[str, Any]) -> tuple[FieldKind, FieldKind]:
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return "choice", "text"
    type_ = schema.get("type")
    if type_ == "string" and schema.get("format") == "date":
        return "date", "text"
    if isinstance(type_, str) and type_ in _SCALARS:
        return _SCALARS[type_], "text"
    items = schema.get("items")
    if type_ == "array" and isinstance(items, dict) and items.get("type") in ("string", "number", "integer"):
        return "list", _SCALARS[items["type"]]
    return "json", "text"


def _label(name: str, schema: Mapping[str, Any]) -> str:
    title = schema.get("title")
    return title if isinstance(title, str) and title else name.replace("_", " ").capitalize()


def _hint(schema: Mapping[str, Any]) -> str:
    parts = []
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        parts.append(f"{low:,} to {high:,}" if isinstance(low, int | float) and isinstance(high, int | float) else "")
    elif low is not None or high is not None:
        parts.append(f"at least {low}" if low is not None else f"at most {high}")
    if schema.get("type") == "array":
        parts.append("one in each line")
    if isinstance(description := schema.get("description"), str):
        parts.append(description)
    return ", ".join(part for part in parts if part)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text(kind: FieldKind, value: Any) -> str:
    if kind == "flag":
        return "true" if value is True else "false"
    if value is None:
        return ""
    if kind == "list" and isinstance(value, list):
        return "\n".join(_shown(each) for each in value)
    if kind == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return _shown(value)


def filled(fields: list[FormField], form: Mapping[str, str]) -> list[FormField]:
    """The fields with what was typed. A browser sends no flag that is off."""
    found = []
    for field in fields:
        typed = form.get(field.name, "").replace("\r\n", "\n")
        found.append(replace(field, text=("true" if typed == "true" else "false") if field.kind == "flag" else typed))
    return found


def answer_of_form(fields: list[FormField]) -> tuple[Json, list[FormField]]:
    """The answer, and the fields, of which those with a `problem` could not be read. An empty field that is not
    required is left out."""
    answer: Any = {}
    checked = []
    for field in fields:
        try:
            value, is_given = _value(field)
        except ValueError as error:
            checked.append(replace(field, problem=str(error)))
            continue
        checked.append(field)
        if not field.path:
            answer = value
        elif is_given:
            target = answer
            for part in field.path[:-1]:
                target = target.setdefault(part, {})
            target[field.path[-1]] = value
    return answer, checked


def _value(field: FormField) -> tuple[Json, bool]:
    """The value of a field, and whether it is part of the answer. Raises ValueError."""
    text = field.text
    if field.kind == "flag":
        return text == "true", True
    if text.strip() == "" and field.kind not in ("text", "long"):
        if field.required and field.kind != "list":
            raise ValueError("a value is needed")
        return ([] if field.kind == "list" else None), field.required or not field.path
    if field.kind in ("text", "long", "date"):
        return text, bool(text) or field.required or not field.path
    if field.kind == "list":
        return [_item(field.of, line.strip()) for line in text.splitlines() if line.strip()], True
    if field.kind == "choice":
        if text not in dict(field.options):
            raise ValueError("choose one of the options")
        return json.loads(text), True
    if field.kind == "json":
        return answer_of(text), True
    return _item(field.kind, text.strip()), True


def _item(kind: FieldKind, text: str) -> Json:
    if kind not in ("number", "integer"):
        return text
    try:
        number = float(text.replace(",", "")) if kind == "number" else int(text.replace(",", ""))
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no {'whole ' if kind == 'integer' else ''}number") from None
    if number in (float("inf"), float("-inf")) or number != number:
        raise ValueError(f"{text[:40]!r} is no number")
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) < 2**53 else number
