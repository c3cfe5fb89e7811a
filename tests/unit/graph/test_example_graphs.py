"""Whole agent folders load and pass every rule unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.check import validate
from sleipnir.graph.draw import dot, mermaid
from sleipnir.graph.load import load_file
from sleipnir.graph.model import NODE_TYPES, AgentNode, ApprovalNode, ConfigAgent, LlmNode
from sleipnir.graph.shape import FIELDS

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures" / "agents"
FOLDERS = [file.parent for root in (FIXTURES, ROOT / "agents") for file in sorted(root.glob("*/graph.yaml"))]
REFERENCES = sorted(ROOT.parent.glob("shared/spec/sources/*graph*.yaml"))
"""Reference files that some checkouts have beside the repository; none is needed."""


def folder_of(name: str) -> Path | None:
    return FIXTURES / name if (FIXTURES / name).is_dir() else None


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_agent_folder_has_no_errors(folder: Path) -> None:
    found = validate(folder, agents=folder_of)
    assert [str(problem) for problem in found if problem.level == "error"] == []


@pytest.mark.parametrize(
    "file",
    [*(folder / "graph.yaml" for folder in FOLDERS), *REFERENCES],
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_a_graph_file_loads_without_problems_and_can_be_drawn(file: Path) -> None:
    loaded = load_file(file)
    assert loaded.problems == ()
    assert loaded.graph is not None
    pictures = (mermaid(loaded.graph), dot(loaded.graph))
    assert [node for node in loaded.graph.nodes for picture in pictures if node not in picture] == []


def test_the_full_example_gives_no_false_alarm() -> None:
    found = validate(FIXTURES / "example-graph-agent", agents=folder_of)
    assert [(problem.level, problem.node) for problem in found] == []


def test_the_full_example_uses_every_key_of_every_node_type() -> None:
    graph = load_file(FIXTURES / "example-graph-agent").graph
    assert graph is not None
    assert {type(node) for node in graph.nodes.values()} == set(NODE_TYPES.values())
    text = (FIXTURES / "example-graph-agent" / "graph.yaml").read_text(encoding="utf-8")
    keys = {key for model, fields in FIELDS.items() if model is not ConfigAgent for key in fields}
    assert {key for key in keys if f"{key}:" not in text} == set()


def test_the_full_example_is_read_correctly() -> None:
    graph = load_file(FIXTURES / "example-graph-agent").graph
    assert graph is not None
    review, sort = graph.nodes["review"], graph.nodes["sort"]
    assert isinstance(review, ApprovalNode)
    assert isinstance(sort, LlmNode)
    assert review.routes == {"yes": "polish", "no": "dropped"}
    assert (graph.nodes["decide"].next, sort.tools, graph.top_p) == ("answer", [], None)
    assert (graph.is_loki, graph.nodes["spread"].next) == (False, ["look_up", "each_aspect"])
    assert graph.initial_state["limits"] == {"minutes": 30, "tools": ["spanner", "truing stand"], "strict": "yes"}
    assert graph.can_spawn_agents


def test_the_structured_sample_needs_only_its_file() -> None:
    assert validate(FIXTURES / "structured-test") == []


@pytest.mark.conformance("O02")
def test_the_schema_of_an_agent_node_leaves_its_prompt_as_it_was_written() -> None:
    graph = load_file(FIXTURES / "example-graph-agent").graph
    assert graph is not None
    node = graph.nodes["research"]
    assert isinstance(node, AgentNode)
    assert node.output_schema is not None
    assert node.prompt is not None
    assert "JSON" not in node.prompt
    assert "matches this schema" not in node.prompt
