"""Every agent that ships is one a user could have written without a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sleipnir.graph.check import validate
from sleipnir.graph.load import load_file, read_agent

AGENTS = Path(__file__).parents[2] / "agents"
SHIPPED = sorted(folder for folder in AGENTS.iterdir() if folder.is_dir() and not folder.name.startswith("."))


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_a_shipped_agent_has_no_problem_but_nodes_that_a_script_alone_leads_to(folder: Path) -> None:
    scripts = "".join(script.read_text() for script in folder.rglob("*.py"))
    expected = {node for node in _nodes(folder) if json.dumps(node) in scripts}
    problems = validate(folder)
    assert [
        problem for problem in problems if problem.node not in expected or "unreachable" not in problem.message
    ] == []


def _nodes(folder: Path) -> set[str]:
    graph = load_file(folder).graph
    return set(graph.nodes) if graph else set()


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_a_shipped_agent_is_a_graph_named_like_its_folder_and_described(folder: Path) -> None:
    graph = load_file(read_agent(folder).file).graph
    assert graph is not None
    assert graph.name == folder.name
    assert graph.description


def test_these_agents_ship() -> None:
    assert [folder.name for folder in SHIPPED] == [
        "code-review", "coder", "deep-research", "demo", "explore", "hello", "log-triage", "oracle", "orchestrator",
        "sql", "support-triage",
    ]  # fmt: skip
