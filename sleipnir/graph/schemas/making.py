"""Makes the JSON Schemas of graph.yaml from the loader's models: keys, types, defaults and required keys.

Rules. The models are the only definition (model.py, FIELDS of shape.py); this module adds only the short forms that the
loader accepts: `next: a`, `retry: {...}`, `state: {n: int}`. Null is an absent key. In version 1.0 unknown keys
are allowed, because the loader only warns about them; keys that need sleipnir/1 are not. In sleipnir/1 unknown keys are
errors.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from sleipnir.graph.model import (
    LOKI_NODE_TYPES,
    NODE_TYPES,
    Branch,
    Duration,
    Flag,
    Graph,
    Json,
    LlmNode,
    LookBack,
    MapNode,
    Number,
    Retry,
    Variable,
    WaitTime,
    sleipnir_keys,
)
from sleipnir.graph.schemas import FILES
from sleipnir.graph.shape import FIELDS, REQUIRED_BY_LOKI, SPELLINGS, declared, is_required

Schema = dict[str, Any]

_JSON_SCHEMA: Final = "http://json-schema.org/draft-07/schema#"  # the newest that all editors know
_DURATION: Final = r"^\s*[0-9]*\.?[0-9]+\s*(ms|s|m|h)?\s*$"
_SCALAR: Final[Schema] = {"type": ["string", "number", "boolean", "null"]}
_TEXT: Final[Schema] = {"type": "string"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_NAMES: Final[Schema] = {"anyOf": [_TEXT, {**_TEXTS, "minItems": 1}]}
_UPDATE: Final[Schema] = {"type": ["string", "number", "boolean", "null", "array", "object"]}
_JOIN: Final[Schema] = {
    "anyOf": [
        {**_TEXTS, "minItems": 1},
        {
            "type": "object",
            "properties": {"from": {**_TEXTS, "minItems": 1}, "min": {"type": "integer", "minimum": 1}},
            "required": ["from"],
            "additionalProperties": False,
        },
    ]
}
_CASE: Final[Schema] = {
    "anyOf": [
        {"$ref": "#/definitions/Choice"},
        {"type": "object", "properties": {"else": _TEXT}, "required": ["else"], "additionalProperties": False},
    ]
}
_CASES: Final[Schema] = {"type": "array", "items": _CASE, "minItems": 1}
_RETRY: Final[Schema] = {
    "anyOf": [{"$ref": "#/definitions/Retry"}, {"type": "array", "items": {"$ref": "#/definitions/Retry"}}]
}

SHORT_FORMS: Final[Mapping[str, Schema]] = {
    "next": _NAMES,
    "branch": {"anyOf": [{"$ref": "#/definitions/Branch"}, _CASES]},
    "ends": {"anyOf": [{"type": "object", "additionalProperties": _TEXT}, {**_TEXTS, "minItems": 1}]},
    "wait_for": {"anyOf": [_JOIN, {"type": "array", "items": _JOIN, "minItems": 1}]},
    "retry": _RETRY,
    "tool_retry": _RETRY,
    "parallel": {"anyOf": [{"type": "boolean"}, {"$ref": "#/definitions/ToolConcurrency"}]},
}
"""Keys of nodes with more written forms than the model holds."""


def schema_of(version: str) -> Schema:
    """The JSON Schema of graph.yaml in a version of the language."""
    is_strict = version != "1.0"
    node_types = NODE_TYPES if is_strict else LOKI_NODE_TYPES
    models = [model for model in FIELDS if model not in (Graph, *NODE_TYPES.values())]
    definitions = {model.__name__: _object(model, is_strict) for model in models if model.__name__ != "ConfigAgent"}
    definitions |= {f"node.{kind}": _node(kind, is_strict) for kind in node_types}
    kinds = [
        {
            "if": {"properties": {"type": {"const": kind}}, "required": ["type"]},
            "then": {"$ref": f"#/definitions/node.{kind}"},
        }
        for kind in node_types
    ]
    any_node = {
        "type": "object",
        "properties": {"type": {"enum": list(node_types)}},
        "required": ["type"],
        "allOf": kinds,
    }
    graph = _object(Graph, is_strict)
    graph["properties"]["version"] = {"const": version} if is_strict else {"enum": ["1.0", 1.0, None]}
    graph["properties"]["nodes"] = {"type": "object", "additionalProperties": {"$ref": "#/definitions/node"}}
    graph["properties"]["retry"] = _optional(_RETRY)
    if is_strict:
        graph["properties"]["graphs"] = _optional({"type": "object", "additionalProperties": {"$ref": "#"}})
    state: Schema = {"anyOf": [_TEXT, {"$ref": "#/definitions/StateField"}]}
    graph["properties"]["state"] = _optional({"type": "object", "additionalProperties": state})
    if is_strict:
        graph["required"].append("version")
    head = {"$schema": _JSON_SCHEMA, "title": f"graph.yaml of Sleipnir, version {version}"}
    return {**head, **graph, "definitions": {"node": any_node, **definitions}}


def texts() -> dict[str, str]:
    """The contents of the files of this folder, by name."""
    return {file: json.dumps(schema_of(version), indent=1) + "\n" for version, file in FILES.items()}


def _node(kind: str, is_strict: bool) -> Schema:
    model = NODE_TYPES[kind]
    made = _object(model, is_strict)
    properties = {"type": {"const": kind}, **made["properties"]}
    for key, form in SHORT_FORMS.items():
        if key in properties and not (model is MapNode and key == "branch"):
            properties[key] = _optional(form)
    required = ["type", *made["required"]]
    if is_strict:
        properties["state_updates"] = _optional({"type": "object", "additionalProperties": _UPDATE})
    elif model is LlmNode:
        required.append("prompt")
        properties["prompt"] = _TEXT
    return {**made, "properties": properties, "required": required}


def _object(model: type[Any], is_strict: bool) -> Schema:
    hints = get_type_hints(model, include_extras=True)
    own = {key: field for key, field in declared(model).items() if key in FIELDS[model]}
    required = [name for name, field in own.items() if is_required(field)]
    properties = {key: _property(hints[field.name], field) for key, field in own.items()}
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    required += () if is_strict else REQUIRED_BY_LOKI.get(model, ())
    if not is_strict:
        properties |= {key: {"type": "null"} for key in sleipnir_keys(model)}
    if model is MapNode:
        schema = _map(schema, hints)
    if model is Branch:
        properties["cases"] = _CASES
    if model is Retry:
        properties["on"] = _TEXTS
    if model is Variable:
        properties["default"] = _SCALAR
    return {**schema, "additionalProperties": not is_strict}


def _map(schema: Schema, hints: Mapping[str, Any]) -> Schema:
    """A map node has its keys in two spellings; one of each is required."""
    properties = {name: each for name, each in schema["properties"].items() if name not in SPELLINGS["loki"]}
    pairs: dict[str, list[str]] = {}
    for spelling in SPELLINGS.values():
        for field, key in spelling.items():
            properties[key] = _NAMES if field == "body" else _schema_of(hints[field])
            pairs.setdefault(field, []).append(key)
    one_of_each = [
        {"anyOf": [{"required": [key]} for key in dict.fromkeys(keys)]}
        for field, keys in pairs.items()
        if field != "max_concurrency"
    ]
    required = [name for name in schema["required"] if name not in SPELLINGS["loki"]]
    return {"type": "object", "properties": properties, "required": required, "allOf": one_of_each}


def _property(hint: Any, field: dataclasses.Field[Any]) -> Schema:
    made = _schema_of(hint)
    if is_required(field):
        return made
    default = field.default if field.default is not dataclasses.MISSING else None
    made = _optional(made)
    return {**made, "default": default} if isinstance(default, str | int | float | bool) else made


def _optional(schema: Schema) -> Schema:
    """The schema with null allowed, which means an absent key."""
    if isinstance(schema.get("type"), str):
        values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
        return schema if schema["type"] == "null" else {**schema, **values, "type": [schema["type"], "null"]}
    options = schema["anyOf"] if list(schema) == ["anyOf"] else [schema]
    return {"anyOf": [*options, {"type": "null"}]} if schema else schema


def _schema_of(hint: Any) -> Schema:
    """The schema of a type of the model."""
    if hint in (Duration, WaitTime, LookBack):
        return {"anyOf": [{"type": "string", "pattern": _DURATION}, {"type": "number", "minimum": 0}]}
    if hint == Number:
        return {"type": "number"}
    if hint == Flag:
        return {"type": "boolean"}
    if hint is Json or hint is Any:
        return {}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**_schema_of(arguments[0]), **_bounds(arguments[1:])}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        others = [_schema_of(each) for each in arguments if each is not type(None)]
        return others[0] if len(others) == 1 else {"anyOf": others}
    if origin is list:
        return {"type": "array", "items": _schema_of(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/definitions/{getattr(hint, '__name__', '')}"}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]}


def _bounds(annotations: tuple[Any, ...]) -> Schema:
    """The bounds of a whole number from its annotations."""
    bounds: Schema = {}
    for annotation in annotations:
        for constraint in getattr(annotation, "metadata", ()):
            for name, key in (("ge", "minimum"), ("le", "maximum")):
                if hasattr(constraint, name):
                    bounds[key] = getattr(constraint, name)
    return bounds
