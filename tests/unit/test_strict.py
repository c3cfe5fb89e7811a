"""Which runs are strict: what is typed, else the setting, else those whose models' answers are replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.agent_preparation import AgentPreparation
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings


def spec(folder: Path, typed: bool | None, /, **settings: Any) -> RunSpec:
    (folder / "a").mkdir()
    (folder / "a" / "graph.yaml").write_text("name: a\nstart: e\nnodes: {e: {type: end}}\n")
    preparation = AgentPreparation(Settings(home=folder / "home", **settings))
    return preparation.spec(preparation.roster(folder / "a"), {"strict": typed}, {})


@pytest.mark.parametrize(
    ("strict", "settings", "expected"),
    [
        (None, {}, False),
        (True, {}, True),
        (None, {"strict": True}, True),
        (False, {"strict": True}, False),
        (None, {"replay": "tape"}, True),
        (False, {"replay": "tape"}, False),
    ],
)
def test_a_run_is_strict_as_typed_else_as_set_else_when_it_is_replayed(
    tmp_path: Path, strict: bool | None, settings: dict[str, Any], expected: bool
) -> None:
    """Finding U1 of the second review."""
    assert spec(tmp_path, strict, **settings).strict is expected


def test_a_submitted_run_records_that_its_version_selects_the_language(tmp_path: Path) -> None:
    assert spec(tmp_path, None).by_version is True
    assert RunSpec("a", "digest").by_version is False, "what an earlier release has submitted"
