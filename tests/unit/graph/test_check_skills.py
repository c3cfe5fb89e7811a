"""What is checked of the skills that a graph names (spec/coyote.md 12)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.agents.config_directory import skill_complaint
from sleipnir.graph.check import check
from sleipnir.graph.load import parse

GRAPH = "name: g\nstart: a\n{top}nodes:\n  a: {{type: llm, prompt: p, tools: [], {node}next: b}}\n  b: {{type: end}}\n"


@pytest.mark.conformance("CY54")
@pytest.mark.parametrize(
    ("top", "node", "expected"),
    [
        ("enabled_skills: [a, b]\n", "enabled_skills: [b], ", []),
        ("", "enabled_skills: [anything], ", []),
        (
            "enabled_skills: [a, b]\n",
            "enabled_skills: [b, c], ",
            ["[a] llm node 'enabled_skills' references 'c' which is not in graph-level 'enabled_skills' (a, b)"],
        ),
        ("enabled_skills: [../x]\n", "", ["graph 'enabled_skills' contains an invalid skill name: '../x'"]),
        ("enabled_skills: ['']\n", "", ["graph 'enabled_skills' contains an empty skill name"]),
    ],
)
def test_every_skill_can_be_one_and_those_of_nodes_are_of_the_graph(top: str, node: str, expected: list[str]) -> None:
    loaded = parse(GRAPH.format(top=top, node=node), "graph.yaml")
    assert loaded.graph is not None, loaded.problems
    found = check(loaded.graph, loaded.positions, "graph.yaml")
    assert [f"[{each.node}] {each.message}" if each.node else each.message for each in found] == expected


@pytest.mark.conformance("CY32")
def test_a_skill_that_is_not_installed_is_named_once(tmp_path: Path) -> None:
    """A warning, where Coyote refuses: the workers have skills of their own, and the node runs without this one."""
    installed = tmp_path / "skills" / "a" / "SKILL.md"
    installed.parent.mkdir(parents=True)
    installed.touch()
    env = {"COYOTE_CONFIG_DIR": str(tmp_path)}
    loaded = parse(GRAPH.format(top="enabled_skills: [a, b]\n", node="enabled_skills: [b], "), "graph.yaml")
    assert loaded.graph is not None, loaded.problems
    found = check(loaded.graph, loaded.positions, "graph.yaml", skills=lambda name: skill_complaint(name, env))
    assert [(each.level, each.line, each.code, each.message) for each in found] == [
        ("warning", 3, "SLP610", f"skill 'b' is not installed: there is no b/SKILL.md in {tmp_path / 'skills'}")
    ]
