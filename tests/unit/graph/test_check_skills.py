"""What is checked of the skills that a graph names (spec/coyote.md 12)."""

from __future__ import annotations

import pytest

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
