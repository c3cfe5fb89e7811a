"""The page for users names everything there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from sleipnir.testing import Reply, Rule, Script

PAGE = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()


@pytest.mark.parametrize("described", [Reply, Rule, Script])
def test_every_field_is_explained(described: type) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert {field.name for field in dataclasses.fields(described)} - named == set()
