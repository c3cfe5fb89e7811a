"""The structure of agents: nodes, every possible edge, surfaces, and an id that depends on nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, TypedDict

import pytest

from sleipnir import START, StateGraph
from sleipnir.cli import main
from sleipnir.client.agent_preparation import AgentPreparation
from sleipnir.commands import END
from sleipnir.errors import GraphError, UsageError
from sleipnir.graph import structure as structures
from sleipnir.graph.structure import Structure
from sleipnir.settings import Settings

PARENT = """
version: sleipnir/1
name: parent
model: openai:one
start: ask
on_error: last
nodes:
  ask:
    type: llm
    prompt: p
    instructions: Be brief.
    tools: [look, "mcp:web"]
    branch: {call: "work.py:choose", to: {again: ask, out: left}, default: right}
  left: {type: function, call: "work.py:choose", next: meet, ends: {done: last}}
  right: {type: script, script: s.sh, fallback: last, next: meet}
  meet: {type: agent, agent: child, prompt: p, wait_for: [left, right], next: end}
  last: {type: end}
mcp_servers: [web]
"""
CHILD = """
version: sleipnir/1
name: child
start: think
nodes:
  think: {type: llm, prompt: p, next: again}
  again: {type: agent, agent: child, prompt: p, next: done}
  done: {type: end}
"""


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    for name, text in (("parent", PARENT), ("child", CHILD)):
        (tmp_path / "agents" / name).mkdir(parents=True)
        (tmp_path / "agents" / name / "graph.yaml").write_text(text)
    (tmp_path / "agents" / "parent" / "work.py").write_text("def choose(state): return 'out'\n")
    (tmp_path / "agents" / "parent" / "tools.py").write_text('def look():\n    """Look."""\n')
    (tmp_path / "agents" / "parent" / "s.sh").write_text("echo '{}'\n")
    return tmp_path / "agents"


def structure(agents: Path, agent: str = "parent") -> Structure:
    return AgentPreparation(Settings(agents_dir=agents), packs=False).structure(agent)


def edges(found: Structure) -> set[tuple[str, str, str, str | None]]:
    return {(edge.source, edge.target, edge.kind, edge.label) for edge in found.edges}


@pytest.mark.conformance("SX-01", "SX-03", "SX-04")
def test_every_possible_edge_is_listed_and_a_child_is_below_its_node(agents: Path) -> None:
    found = structure(agents)
    assert (found.agent, found.entry) == ("parent", "ask")
    assert [(node.id, node.kind, node.again) for node in found.nodes] == [
        (".", "agent", False),
        ("ask", "llm", False),
        ("left", "function", False),
        ("right", "script", False),
        ("meet", "agent", False),
        ("meet/think", "llm", False),
        ("meet/again", "agent", True),
        ("meet/done", "end", False),
        ("last", "end", False),
        ("__end__", "end", False),
    ]
    assert edges(found) == {
        (".", "ask", "entry", None),
        (".", "last", "on_error", None),
        ("ask", "ask", "branch", "again"),
        ("ask", "left", "branch", "out"),
        ("ask", "right", "default", None),
        ("left", "last", "ends", "done"),
        ("left", "meet", "wait_for", None),
        ("right", "last", "fallback", None),
        ("right", "meet", "wait_for", None),
        ("meet", "meet/think", "entry", None),
        ("meet/think", "meet/again", "next", None),
        ("meet/again", "meet/done", "next", None),
        ("meet", "__end__", "next", None),
    }


@pytest.mark.conformance("SX-02", "SX-06")
def test_the_surfaces_of_llm_nodes_have_what_the_files_say_and_no_server_is_asked(agents: Path) -> None:
    assert [(each.id, each.value) for each in structure(agents).surfaces] == [
        ("ask#instruction", "Be brief."),
        ("ask#few_shot", None),
        ("ask#model", "openai:one"),
        ("ask#tools", ["look", "mcp:web"]),
        ("meet/think#instruction", None),
        ("meet/think#few_shot", None),
        ("meet/think#model", None),
        ("meet/think#tools", []),
    ]


@pytest.mark.conformance("SX-05")
def test_an_agent_that_is_missing_is_an_error(agents: Path) -> None:
    shutil.rmtree(agents / "child")
    with pytest.raises(GraphError, match="Agent 'child' not found"):
        structure(agents)


def test_the_id_is_the_same_elsewhere_and_another_one_after_a_change(
    agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = structure(agents)
    monkeypatch.setenv("PARENT_MODEL", "openai:two")
    shutil.copytree(agents, tmp_path / "else" / "where")
    assert structure(tmp_path / "else" / "where") == first
    assert str(tmp_path) not in json.dumps(first.to_json())
    (agents / "child" / "graph.yaml").write_text(
        CHILD.replace("prompt: p, next: again", "prompt: p, model: 'a:b', next: again")
    )
    assert structure(agents).id != first.id


class Words(TypedDict, total=False):
    word: str


def test_a_graph_in_python_has_the_graphs_of_its_nodes_below_them() -> None:
    inner = StateGraph(Words).add_llm_node("think", prompt="p").add_edge(START, "think").compile()
    outer = StateGraph(Words).add_node("expert", inner).add_edge(START, "expert").add_edge("expert", END)
    found = outer.compile().structure()
    assert [node.id for node in found.nodes if not node.id.endswith(("__start__", "__end__"))] == [
        ".",
        "expert",
        "expert/think",
    ]
    assert ("expert", "graph") in {(node.id, node.kind) for node in found.nodes}
    assert [each.id for each in found.surfaces][:1] == ["expert/think#instruction"]


def test_an_agent_of_too_many_nodes_is_refused(agents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structures, "MOST_NODES", 5)
    with pytest.raises(UsageError, match="more than 5 nodes"):
        structure(agents)


def test_the_command_prints_tables_or_json(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--agents-dir", str(agents), "structure", "export", "parent"]) == 0
    shown = capsys.readouterr().out
    assert "ask#tools" in shown and "look, mcp:web" in shown and "branch 'again'" in shown
    assert main(["--agents-dir", str(agents), "structure", "export", "parent", "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert data == json.loads(json.dumps(structure(agents).to_json()))
    assert main(["--agents-dir", str(agents), "structure", "export", "missing"]) == 2
