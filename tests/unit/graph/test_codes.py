"""Codes of findings: every finding has one, every rule has its own, and the documentation lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sleipnir.graph import codes
from sleipnir.graph.check import RULES, validate

ROOT = Path(__file__).parents[3]
SOURCES = sorted(file for name in ("graph", "python_graph") for file in (ROOT / "sleipnir" / name).rglob("*.py"))


def test_every_rule_has_a_code_that_exists() -> None:
    assert {rule.__name__ for rule in RULES} == set(codes.CODE_OF_RULE)
    assert set(codes.CODE_OF_RULE.values()) <= set(codes.CODES)


def test_every_code_is_reported_somewhere_and_no_other() -> None:
    named = {code for file in SOURCES if file.name != "codes.py" for code in codes.CODE.findall(file.read_text())}
    assert named | set(codes.CODE_OF_RULE.values()) | {codes.GENERAL} == set(codes.CODES)


def test_every_finding_of_the_loader_names_its_code() -> None:
    calls = re.compile(r"_findings\.(?:graph_)?(?:error|warning)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
    loader = [file for file in SOURCES if file.name in ("load.py", "load_edges.py", "shape.py")]
    bare = [f"{file.name}: {call[0]}" for file in loader for call in calls.finditer(file.read_text())]
    assert len(bare) > 30
    assert [call for call in bare if "code=" not in call] == []


def test_every_code_belongs_to_a_subject() -> None:
    assert {name[3] for name in codes.CODES} == set(codes.SUBJECTS)
    assert list(codes.CODES) == sorted(codes.CODES)


def test_the_documentation_lists_every_code() -> None:
    page = (ROOT / "docs" / "validation.md").read_text()
    assert page.endswith("<!-- made by ops/generate -->\n\n" + codes.as_markdown()), (
        "run: .venv/bin/python ops/generate"
    )


@pytest.mark.parametrize("name", ["SLP403", "slp403", " SLP403 "])
def test_a_code_is_explained_in_any_case(name: str) -> None:
    text = codes.explain(name)
    assert text is not None
    assert text.startswith("SLP403: A name that nothing writes\n\n")


def test_an_unknown_code_has_no_explanation() -> None:
    assert codes.explain("SLP999") is None


def test_a_file_that_is_no_yaml_hides_neither_python_nor_its_code(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text("name: a\n\tstart: b\n")
    (tmp_path / "f.py").write_text("def f(:\n")
    assert [(Path(each.file).name, each.line, each.code) for each in validate(tmp_path)] == [
        ("graph.yaml", 2, "SLP101"),
        ("f.py", 1, "SLP503"),
    ]


def test_a_folder_without_a_definition_has_a_code(tmp_path: Path) -> None:
    (found,) = validate(tmp_path)
    assert found.code == "SLP107"
