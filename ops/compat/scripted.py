"""What the scripted model of a compatibility run says: enough for every shipped agent to go its whole way.

Where a value of a schema is asked for, it gives the least that the schema permits. Where tools are offered, it calls
one that only reads, if there is one, and asks which agents there are, and then answers. It never asks a person.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.testing import Call, Reply, Request

SAID = "The scripted model has answered."
HEADING = "Schema:\n"
READING = (
    "fs_ls", "fs_cat", "fs_read", "get_structure", "get_project_info", "list_directory", "list_files", "get_project",
    "search_files", "search_content", "get_diff", "get_changed_files", "get_current_time", "get_ipinfo", "demo_py",
)  # fmt: skip
"""Tools that read, those first that shipped agents have most."""


def answer(request: Request) -> Reply:
    """The reply to a call of the model."""
    schema = schema_in(request)
    if schema is not None:
        return Reply(json.dumps(least_of(schema)))
    if request.turn == 1 and (calls := first_calls(request)):
        return Reply(calls=calls)
    return Reply(SAID)


def first_calls(request: Request) -> list[Call]:
    """A tool that reads, and the list of agents that may be started, where they are offered."""
    declared = {each["function"]["name"]: each["function"] for each in request.body.get("tools") or []}
    name = next((name for name in READING if name in declared), None)
    calls = [] if name is None else [Call(name, least_of(declared[name].get("parameters") or {}))]
    return calls + [Call(each, {}) for each in ("agent__list_available", "skill__list") if each in declared]


def schema_in(request: Request) -> dict[str, Any] | None:
    """The JSON Schema that an llm node asks for: in its request, or behind a heading in what it says."""
    wanted = request.body.get("response_format") or {}
    if isinstance(found := (wanted.get("json_schema") or {}).get("schema"), dict):
        return found
    for message in request.messages:
        _, heading, text = str(message.get("content") or "").rpartition(HEADING)
        if heading:
            try:
                found, _ = json.JSONDecoder().raw_decode(text.lstrip())
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return None


def least_of(schema: Mapping[str, Any]) -> Any:
    """A small value that the schema permits."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return least_of(schema[several][0])
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    match kind:
        case "object":
            known = schema.get("properties") or {}
            return {name: least_of(known.get(name, {})) for name in schema.get("required") or []}
        case "array":
            return [least_of(schema.get("items") or {})] * int(schema.get("minItems", 0))
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return True
        case "null":
            return None
    return "." * max(1, int(schema.get("minLength", 1)))
