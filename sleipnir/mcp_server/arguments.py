"""The arguments of an agent's tool: their JSON Schema, made from the agent's definition, and what a call gives.

    {"prompt": "the build is red", "state": {"severity": 2}, "variables": {"team": "web"}, "thread": "ann"}

Values of the environment are not in the schema: a variable that is set there is only no longer required.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sleipnir.agents.variables import env_name
from sleipnir.errors import UsageError
from sleipnir.graph import schema as json_schema
from sleipnir.graph.message_keys import BUILT_IN, MESSAGES, SUMMARIES
from sleipnir.graph.model import Graph, StateField, Variable
from sleipnir.redaction import is_secret_name

Schema = dict[str, Any]

_TYPES: Final[Mapping[str, Schema]] = {
    "string": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array"},
    "object": {"type": "object"},
    "messages": {"type": "array"},
    "datetime": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "contentEncoding": "base64"},
}
_OURS: Final = {MESSAGES, *BUILT_IN, *SUMMARIES, "initial_prompt"}
"""Keys that the prompt fills, or the engine."""

REQUEST_ID: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 200,
    "description": "Names this call, so that it can be repeated safely: the same id again is the same run.",
}


@dataclass(frozen=True)
class CallArguments:
    """What a call gives to its run."""

    prompt: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    thread: str | None = None
    session: str | None = None
    request_id: str | None = None


def input_schema(graph: Graph, env: Mapping[str, str]) -> Schema:
    """The JSON Schema of the arguments. A prompt is required, unless the agent requires state keys."""
    state, variables = _state(graph), _variables(graph.variables, env)
    properties: Schema = {"prompt": {"type": "string", "description": "The task or the question, in words."}}
    if state["properties"] or graph.loop is None:
        properties["state"] = state
    if graph.variables:
        properties["variables"] = variables
    if graph.loop is None:
        properties["thread"] = _name("Go on with this thread of runs, or begin it: its state is kept.")
    else:
        properties["session"] = _name("Go on with this conversation, or begin it: its messages are kept.")
    properties["request_id"] = REQUEST_ID
    required = [name for name, part in (("state", state), ("variables", variables)) if part.get("required")]
    if "state" not in required:
        required.insert(0, "prompt")
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _name(description: str) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": 128, "description": description}


def _state(graph: Graph) -> Schema:
    """The first values of state keys. An agent that declares its keys takes no others."""
    declared = {key: each for key, each in graph.state.items() if key not in _OURS and not key.startswith("_")}
    properties = {key: _key(each, shows_default=not is_secret_name(key)) for key, each in declared.items()}
    for key, value in graph.initial_state.items():
        if key not in _OURS and not is_secret_name(key):
            properties[key] = {**properties.get(key, {}), "default": value}
    required = [key for key, each in declared.items() if each.required and key not in graph.initial_state]
    made: Schema = {
        "type": "object",
        "description": "First values of the agent's state.",
        "properties": properties,
        "additionalProperties": not declared,
    }
    return {**made, "required": required} if required else made


def _key(declared: StateField, *, shows_default: bool) -> Schema:
    """One state key. A schema with references is left out, because they mean places in the agent's own document: the
    submission applies it."""
    made = dict(_TYPES.get(declared.type, {}))
    if declared.type == "list" and declared.items is not None and declared.items in _TYPES:
        made["items"] = dict(_TYPES[declared.items])
    if declared.schema is not None and not _has_references(declared.schema):
        made |= declared.schema
    if declared.description:
        made["description"] = declared.description
    if declared.default is not None and shows_default:
        made["default"] = declared.default
    return made


def _has_references(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return any(key.startswith("$") or _has_references(value) for key, value in schema.items())
    return isinstance(schema, list) and any(map(_has_references, schema))


def _variables(variables: list[Variable], env: Mapping[str, str]) -> Schema:
    properties: Schema = {}
    for each in variables:
        properties[each.name] = {"type": "string", "description": each.description}
        if each.default is not None and not is_secret_name(each.name):
            properties[each.name]["default"] = each.default
    required = [each.name for each in variables if each.default is None and not env.get(env_name(each.name))]
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": required} if required else made


def checked(schema: Schema, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of a call. Raises UsageError with what is wrong."""
    given = dict(arguments or {})
    try:
        wrong = json_schema.violation(schema, given)
    except json_schema.NotChecked as error:
        wrong = f"they cannot be checked: {error}"
    if wrong is not None:
        raise UsageError(f"the arguments do not fit: {wrong}")
    return given


def read(schema: Schema, arguments: Mapping[str, Any] | None) -> CallArguments:
    """What a call of an agent's tool gives. Raises UsageError."""
    return CallArguments(**checked(schema, arguments))
