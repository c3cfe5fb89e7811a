"""Graphs with errors are looked at as far as they can be read."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sleipnir.graph.check import validate
from sleipnir.graph.load import parse
from sleipnir.graph.source import read

ROOT = Path(__file__).parents[3]
GOOD = [*sorted(ROOT.glob("tests/fixtures/good/*/graph.yaml")), *sorted(ROOT.glob("agents/*/graph.yaml"))]
JUNK: list[Any] = [None, 5, -1, "", [], {}, "x", [1], {"a": 1}, True, [[]], {"from": []}, "{{a", [{"when": 1}], [None]]


def found(tmp_path: Path, text: str) -> list[tuple[int | None, str]]:
    (tmp_path / "graph.yaml").write_text(text)
    return [(problem.line, problem.code) for problem in validate(tmp_path)]


def test_an_error_in_one_node_hides_nothing_in_the_others(tmp_path: Path) -> None:
    """Finding U3 of the second review."""
    text = """\
name: g
start: a
nodes:
  a: {type: nonsense, next: b}
  b: {type: llm, prompt: "{{ initial_prompt }}", temperature: hot, next: c}
  c: {type: script, script: gone.py, next: d}
  d: {type: approval, question: q, options: [x], routes: {y: e}, on_other: e}
  e: {type: end}
"""
    assert found(tmp_path, text) == [
        (4, "SLP208"),
        (5, "SLP401"),
        (5, "SLP201"),
        (6, "SLP501"),
        (7, "SLP306"),
        (7, "SLP307"),
    ]


@pytest.mark.parametrize(
    ("node", "code"),
    [
        ("{type: llm, prompt: p, next: 5}", "SLP206"),
        ("{type: llm, prompt: p, next: {b: c}}", "SLP201"),
        ("{type: approval, question: q, options: x, routes: {x: b}, on_other: b}", "SLP201"),
        ("{type: rag, state_updates: {x: y}, next: b}", "SLP202"),
        ("{type: map, over: '{{initial_prompt}}', as: i, collect_into: c, next: b}", "SLP202"),
        ("{type: router, branch: {many: true}}", "SLP212"),
        ("[llm]", "SLP201"),
    ],
)
def test_what_is_left_out_for_an_error_is_not_reported_again(tmp_path: Path, node: str, code: str) -> None:
    codes = {each for _, each in found(tmp_path, f"name: g\nstart: a\nnodes:\n  a: {node}\n  b: {{type: end}}\n")}
    assert code in codes
    assert codes <= {code, "SLP206", "SLP301", "SLP303", "SLP304"}


def test_a_start_that_is_nearly_a_node_is_taken_for_it(tmp_path: Path) -> None:
    text = "name: g\nstart: finsh\nnodes:\n  finish: {type: end}\n  lost: {type: end}\n"
    assert found(tmp_path, text) == [(2, "SLP210"), (5, "SLP303")]


def test_without_nodes_there_is_nothing_to_look_at() -> None:
    loaded = parse("name: g\nstart: a\n", "g.yaml")
    assert loaded.graph is None
    assert loaded.salvaged is None


def test_a_graph_that_was_salvaged_never_runs() -> None:
    loaded = parse("name: g\nstart: a\nnodes:\n  a: {type: end, output: [1]}\n", "g.yaml")
    assert loaded.graph is None
    assert loaded.salvaged is not None


@pytest.mark.parametrize("seed", range(60))
def test_every_broken_graph_has_an_error_with_a_code(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = read(chance.choice(GOOD).read_text(), "g.yaml").data
    for _ in range(chance.randint(1, 4)):
        data = _broken(data, chance)
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    problems = validate(tmp_path)
    assert [problem for problem in problems if not problem.code] == []
    if parse((tmp_path / "graph.yaml").read_text(), "g.yaml").graph is None:
        assert any(problem.level == "error" for problem in problems)


def _broken(data: Any, chance: random.Random) -> Any:
    data = copy.deepcopy(data)
    path = chance.choice(list(_paths(data)) or [()])
    parent = data
    for part in path[:-1]:
        parent = parent[part]
    if path and chance.random() < 0.3:
        del parent[path[-1]]
    elif path:
        parent[path[-1]] = copy.deepcopy(chance.choice(JUNK))
    return data


def _paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for part, value in parts:
        yield (*path, part)
        yield from _paths(value, (*path, part))
