"""The declared state holds for what a script prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import NodeFailed
from sleipnir_workers.nodes.script import run_script
from sleipnir_workers.results import typed_state
from tests.unit.workers.test_typed_state import FIELDS
from tests.unit.workers.visits import host, script, visit


@pytest.mark.parametrize(("printed", "ok"), [({"n": 1, "when": "2026-01-02T03:04:05"}, True), ({"n": "1"}, False)])
def test_the_output_of_a_script_is_checked_too(tmp_path: Path, printed: dict[str, Any], ok: bool) -> None:
    node = script(tmp_path, "step.sh", f"echo '{json.dumps(printed)}'")
    its_visit = visit(node, tmp_path, graph={"state": FIELDS})
    result = run_script(node, its_visit, host())
    if ok:
        assert typed_state.checked(its_visit, result).delta == printed
    else:
        with pytest.raises(NodeFailed, match="state key 'n' must be int, not string '1'"):
            typed_state.checked(its_visit, result)
