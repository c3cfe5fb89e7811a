"""Comments that leave findings out."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.check import validate


def found(tmp_path: Path, text: str) -> list[tuple[int | None, str]]:
    (tmp_path / "graph.yaml").write_text(text)
    return [(problem.line, problem.code) for problem in validate(tmp_path)]


def graph(prompt: str, *, node: str = "", nodes: str = "", before: str = "") -> str:
    return f"""\
name: g
start: ask
nodes:{nodes}
{before}  ask:{node}
    type: llm
    prompt: {prompt}
    next: done
  done: {{type: end}}
"""


def test_a_finding_is_reported_without_a_comment(tmp_path: Path) -> None:
    assert found(tmp_path, graph('"{{ x }} {{y}}"')) == [(5 + 1, "SLP401"), (6, "SLP403")]


@pytest.mark.parametrize(
    "text",
    [
        graph('"{{ x }} {{y}}"  # sleipnir: ignore SLP401, SLP403'),
        graph('"{{ x }} {{y}}"  # sleipnir: ignore SLP401 SLP403'),
        graph('"{{ x }} {{y}}"', node="  # sleipnir: ignore SLP401, SLP403"),
        graph('"{{ x }} {{y}}"', nodes="  #sleipnir:ignore SLP401,SLP403"),
        graph('"{{ x }} {{y}}"', before="  # sleipnir: ignore SLP401, SLP403\n  # because\n\n"),
        graph("|  # sleipnir: ignore SLP401, SLP403\n      {{ x }}\n      {{y}}"),
    ],
    ids=["line", "without commas", "node", "nodes", "line before", "block"],
)
def test_a_comment_is_about_what_begins_on_its_line(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_a_comment_ignores_its_codes_alone(tmp_path: Path) -> None:
    assert found(tmp_path, graph('"{{ x }} {{y}}"  # sleipnir: ignore SLP401')) == [(6, "SLP403")]


def test_a_comment_of_another_node_ignores_nothing(tmp_path: Path) -> None:
    text = graph('"{{ x }}"').replace("{type: end}", "{type: end}  # sleipnir: ignore SLP401")
    assert found(tmp_path, text) == [(6, "SLP401")]


def test_a_text_that_looks_like_a_comment_ignores_nothing(tmp_path: Path) -> None:
    text = graph("|\n      {{ x }} # sleipnir: ignore SLP401")
    assert found(tmp_path, text) == [(7, "SLP401")]
    assert found(tmp_path, graph('"{{ x }} # sleipnir: ignore SLP401"')) == [(6, "SLP401")]


def test_an_error_cannot_be_ignored_and_the_comment_is_reported(tmp_path: Path) -> None:
    text = graph('"x"').replace("next: done", "next: nowhere  # sleipnir: ignore SLP301")
    assert found(tmp_path, text)[:3] == [(2, "SLP304"), (7, "SLP301"), (7, "SLP106")]


@pytest.mark.parametrize("comment", ["# sleipnir: ignore", "# sleipnir: ignore SLP999", "# sleipnir: ignore typos"])
def test_a_comment_without_a_known_code_is_reported(tmp_path: Path, comment: str) -> None:
    assert found(tmp_path, graph(f'"x"  {comment}')) == [(6, "SLP106")]
