"""The page for users names everything there is."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from sleipnir.testing import AskedQuestion, Reply, Rule, RunResult, Script, run

PAGE = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()


@pytest.mark.parametrize("described", [Reply, Rule, Script, RunResult, AskedQuestion])
def test_every_field_is_explained(described: type) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {field.name for field in dataclasses.fields(described)} - named == set()


def test_every_parameter_of_run_is_explained() -> None:
    assert set(inspect.signature(run).parameters) - set(re.findall(r"\w+", PAGE)) == set()
