"""A crash of a node, where the machine is checked too."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.model import FunctionNode
from sleipnir_workers.visits.guard import execute
from tests.unit.workers.visits import visit


@pytest.mark.conformance("LM-09")
@pytest.mark.parametrize("crash", ["raise MemoryError", "raise SystemExit(3)", "raise GeneratorExit", "return 1 / 0"])
def test_a_crash_in_a_node_is_a_failure_that_names_it(tmp_path: Path, crash: str) -> None:
    (tmp_path / "steps.py").write_text(f"def crash(state): {crash}\ndef fine(state): return {{'n': 1}}\n")
    crashing = FunctionNode(id="boom", call="steps.py:crash")
    result = execute(visit(crashing, tmp_path))
    assert result is not None
    assert not result.ok
    assert result.delta["_error"] == {"node": "boom", "message": result.error}
    fine = FunctionNode(id="fine", call="steps.py:fine")
    after = execute(visit(fine, tmp_path))
    assert after is not None
    assert after.delta == {"n": 1}
