"""Every test that the failure matrix names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_names_a_test_that_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs/failure-matrix.md").read_text())
    assert len(named) > 10
    assert [f"{file}::{test}" for file, test in named if not _exists(file, test)] == []


def _exists(file: str, test: str) -> bool:
    path = ROOT / file
    return path.is_file() and (not test or f"def {test}(" in path.read_text())
