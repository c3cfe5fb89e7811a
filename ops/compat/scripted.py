"""The answers of the scripted model of a compatibility run, enough for every shipped agent to complete. The answer to a
request with a schema is the smallest value that the schema permits. If tools are offered, it first calls all tools that
need only the project in its directory, and lists the agents and skills; then it loads the first of these skills, and
then it answers. It never asks a person, and starts no agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.testing import Call, Reply, Request

SAID = "The scripted model has answered."
HEADING = "Schema:\n"
TOOLS = (
    "fs_ls", "fs_cat", "fs_read", "fs_grep", "fs_glob", "fs_write", "execute_command", "get_structure",
    "get_project_info", "get_project_structure", "list_directory", "read_file", "find_similar", "search_files",
    "search_content", "search_code", "analyze_with_command", "get_diff", "get_changed_files", "verify_build",
    "run_build", "run_tests", "classify_source", "get_current_time", "demo_py",
)  # fmt: skip
"""Tools of shipped agents that need no other program and no internet."""

LISTS = ("agent__list_available", "skill__list")

VALUES = {
    "path": "README.md", "pattern": "add", "content": "It adds.\n", "contents": "It adds.\n", "command": "ls",
    "url": "https://example.org/",
}  # fmt: skip
"""Values of these tools' parameters, by name; others get the smallest valid value."""


def answer(request: Request) -> Reply:
    """The reply to a call of the model."""
    schema = schema_in(request)
    if schema is not None:
        return Reply(json.dumps(least_of(schema)))
    calls = {1: first_calls, 2: loading}.get(request.turn, lambda _: [])(request)
    return Reply(calls=calls) if calls else Reply(SAID)


def first_calls(request: Request) -> list[Call]:
    """Calls of every declared tool of TOOLS, and of the lists of agents and skills if they are declared."""
    declared = {each["function"]["name"]: each["function"] for each in request.body.get("tools") or []}
    calls = [Call(name, arguments_of(declared[name].get("parameters") or {})) for name in TOOLS if name in declared]
    return calls + [Call(name, {}) for name in LISTS if name in declared]


def arguments_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    known = parameters.get("properties") or {}
    return {name: VALUES.get(name, least_of(known.get(name, {}))) for name in parameters.get("required") or []}


def loading(request: Request) -> list[Call]:
    """A call that loads the first of the listed skills."""
    listed = next((each.text for each in request.tool_results if each.name == "skill__list"), "{}")
    skills = json.loads(listed).get("skills") or []
    return [Call("skill__load", {"name": skills[0]["name"]})] if skills else []


def schema_in(request: Request) -> dict[str, Any] | None:
    """The JSON Schema that an llm node asks for: in its request, or behind a heading in its prompt."""
    wanted = request.body.get("response_format") or {}
    if isinstance(schema := (wanted.get("json_schema") or {}).get("schema"), dict):
        return schema
    for message in request.messages:
        _, heading, text = str(message.get("content") or "").rpartition(HEADING)
        if heading:
            try:
                schema, _ = json.JSONDecoder().raw_decode(text.lstrip())
            except ValueError:
                continue
            if isinstance(schema, dict):
                return schema
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
