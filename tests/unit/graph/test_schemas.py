"""The JSON Schemas of graph.yaml that ship: they say what the loader's models say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sleipnir.graph.load import parse
from sleipnir.graph.model import NODE_TYPES, Graph, GraphNode, MapNode, ToolsNode, WaitNode
from sleipnir.graph.schemas import FILES, VERSIONS, making, schema_text, schema_text_of_all
from sleipnir.graph.shape import FIELDS, SPELLINGS, declared, is_required
from sleipnir.graph.source import read

ROOT = Path(__file__).parents[3]
MODELS = [model for model in FIELDS if model.__name__ != "ConfigAgent"]
GOOD = [
    file
    for root in (ROOT / "agents", ROOT / "tests/fixtures/agents", ROOT / "tests/fixtures/good")
    for file in sorted(root.glob("*/graph.yaml"))
]

SCHEMA_OF_ALL: dict[str, Any] = json.loads(schema_text_of_all())


def schema(version: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(schema_text(version))
    return loaded


def part_of(version: str, model: type[Any]) -> dict[str, Any]:
    whole = schema(version)
    if model is Graph:
        return whole
    kinds = {node: f"node.{kind}" for kind, node in NODE_TYPES.items()}
    found: dict[str, Any] = whole["definitions"][kinds.get(model, model.__name__)]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_file_that_ships_is_made_from_the_models(version: str) -> None:
    assert schema_text(version) == making.texts()[FILES[version]], "run: .venv/bin/python ops/generate"


@pytest.mark.parametrize(
    ("version", "model"),
    [
        (version, model)
        for version in VERSIONS
        for model in MODELS
        if version != "1.0" or model not in (WaitNode, GraphNode, ToolsNode)
    ],
)
def test_the_schema_has_the_keys_of_the_loader(version: str, model: type[Any]) -> None:
    part = part_of(version, model)
    also = {"type"} if model in NODE_TYPES.values() else set()
    assert set(part["properties"]) == set(FIELDS[model]) | also
    assert part["additionalProperties"] is (version == "1.0")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_schema_requires_what_the_loader_requires(model: type[Any]) -> None:
    required = {key for key, field in declared(model).items() if is_required(field)}
    if model is MapNode:
        required -= SPELLINGS["loki"].keys()
    assert set(part_of("sleipnir/1", model).get("required", ())) - {"type", "version"} == required


def test_the_schema_of_version_1_0_has_no_wait_node() -> None:
    node = {"name": "g", "start": "a", "nodes": {"a": {"type": "wait", "for": "30s"}}}
    assert not jsonschema.Draft7Validator(schema("1.0")).is_valid(node)
    assert jsonschema.Draft7Validator(schema("sleipnir/1")).is_valid({**node, "version": "sleipnir/1"})


@pytest.mark.parametrize(
    ("top", "node"),
    [
        ({"state_classes": ["g.py:State"]}, {}),
        ({}, {"protocol": "state_graph"}),
        ({}, {"reads": ["topic"]}),
        ({}, {"state_class": "g.py:State"}),
        ({}, {"routers": [{"call": "g.py:choose", "to": {"yes": "a"}}]}),
    ],
)
def test_the_schema_of_version_1_0_has_no_key_of_a_graph_in_python(top: dict[str, Any], node: dict[str, Any]) -> None:
    nodes = {"a": {"type": "function", "call": "g.py:step", **node}}
    graph = {"name": "g", "start": "a", "nodes": nodes, **top}
    assert not jsonschema.Draft7Validator(schema("1.0")).is_valid(graph)
    assert jsonschema.Draft7Validator(schema("sleipnir/1")).is_valid({**graph, "version": "sleipnir/1"})


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_is_a_schema(version: str) -> None:
    jsonschema.Draft7Validator.check_schema(schema(version))


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.parent.name)
def test_a_graph_that_the_loader_takes_fits_the_schema(file: Path) -> None:
    """Keys that were added by Sleipnir are allowed in both versions."""
    data = read(file.read_text(), str(file)).data
    for checked_by in (schema(str(data.get("version") or "1.0")), SCHEMA_OF_ALL):
        assert [error.message for error in jsonschema.Draft7Validator(checked_by).iter_errors(data)] == []


@pytest.mark.parametrize(
    "nodes",
    [
        "a: {type: llm}",
        "a: {type: lm, prompt: x}",
        "a: {prompt: x}",
        "a: {type: llm, prompt: x, timeout: '5'}",
        "a: {type: llm, prompt: x, timeout: -1}",
        "a: {type: llm, prompt: [x]}",
        "a: {type: llm, prompt: x, next: {a: b}}",
        "a: {type: llm, prompt: x, tool_timeout: soon}",
        "a: {type: llm, prompt: x, wait_for: {min: 1}}",
        "a: {type: llm, prompt: x, retry: {jitter: maybe}}",
        "a: {type: map, as: i, node: b, collect: c}",
        "a: {type: map, over: x, as: i, branch: b, collect_into: c, on_item_error: stop}",
    ],
)
def test_what_the_loader_refuses_the_schema_refuses(nodes: str) -> None:
    text = f"name: g\nstart: a\nnodes:\n  {nodes}\n"
    assert parse(text, "g.yaml").graph is None
    assert not jsonschema.Draft7Validator(schema("1.0")).is_valid(read(text, "g.yaml").data)


@pytest.mark.parametrize("checked_by", [schema("sleipnir/1"), SCHEMA_OF_ALL], ids=["its-own", "of-all"])
def test_sleipnir_1_refuses_unknown_keys_at_every_level(checked_by: dict[str, Any]) -> None:
    checker = jsonschema.Draft7Validator(checked_by)
    graph: dict[str, Any] = {"name": "g", "version": "sleipnir/1", "start": "a", "nodes": {"a": {"type": "end"}}}
    assert checker.is_valid(graph)
    assert not checker.is_valid({**graph, "checkpoint": True})
    assert not checker.is_valid({**graph, "limits": {"max_stpes": 3}})
    assert not checker.is_valid({**graph, "nodes": {"a": {"type": "end", "outptu": "x"}}})


@pytest.mark.parametrize("version", [{}, {"version": None}, {"version": "1.0"}, {"version": 1.0}])
def test_version_1_0_ignores_unknown_keys(version: dict[str, Any]) -> None:
    graph = {"name": "g", "start": "a", "nodes": {"a": {"type": "end", "outptu": "x"}}, "checkpoint": True, **version}
    for checked_by in (schema("1.0"), SCHEMA_OF_ALL):
        assert jsonschema.Draft7Validator(checked_by).is_valid(graph)


def test_the_schema_of_a_version_is_for_files_that_name_it() -> None:
    graph: dict[str, Any] = {"name": "g", "start": "a", "nodes": {"a": {"type": "end"}}}
    assert not jsonschema.Draft7Validator(schema("sleipnir/1")).is_valid(graph)
    assert not jsonschema.Draft7Validator(schema("sleipnir/1")).is_valid({**graph, "version": "1.0"})
    assert not jsonschema.Draft7Validator(schema("1.0")).is_valid({**graph, "version": "sleipnir/1"})
    assert not jsonschema.Draft7Validator(SCHEMA_OF_ALL).is_valid({**graph, "version": "2"})
