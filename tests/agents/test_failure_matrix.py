"""Every test that the failure matrix or the threat model names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_names_a_test_that_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/failure-matrix.md").read_text())
    assert len(named) > 10
    assert [f"{file}::{test}" for file, test in named if not _exists(file, test)] == []


def test_every_defence_of_the_threat_model_names_tests_that_exist() -> None:
    text = (ROOT / "docs/threat-model.md").read_text()
    files = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    attacks = [("tests/system/test_attacks.py", test) for test in re.findall(r"`(test_\w+)`", text)]
    assert len(attacks) > 30
    assert [f"{file}::{test}" for file, test in files + attacks if not _exists(file, test)] == []
    tried = set(re.findall(r"^def (test_\w+)", (ROOT / "tests/system/test_attacks.py").read_text(), re.MULTILINE))
    assert len(tried) >= 40
    assert tried - {test for _, test in attacks} == set(), "every attack is in the threat model"


def _exists(file: str, test: str) -> bool:
    path = ROOT / file
    return path.is_file() and (not test or f"def {test}(" in path.read_text())
