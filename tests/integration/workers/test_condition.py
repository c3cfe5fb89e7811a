"""Conditions that are evaluated in a process of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import Branch, Choice, LlmNode
from sleipnir.messages import VisitResult
from sleipnir_workers.nodes import condition
from sleipnir_workers.visits.guard import execute
from tests.unit.workers.visits import visit


def by_conditions(folder: Path, cases: Sequence[tuple[str, str]], state: dict[str, Any], **branch: Any) -> VisitResult:
    choices = [Choice(when=when, to=to) for when, to in cases]
    node = LlmNode(id="draft", prompt="p", branch=Branch(cases=choices, **branch))
    result = execute(visit(node, folder, role="branch", state=state))
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("state", "label"),
    [({"l": [1, 5]}, "five"), ({"l": [2, 4]}, "even"), ({"l": [1]}, "other")],
)
def test_conditions_that_loop_are_evaluated_in_a_process_of_their_own(
    tmp_path: Path, state: dict[str, Any], label: str
) -> None:
    """Finding S2."""
    cases = [("state.l.exists(x, x == 5)", "five"), ("state.l.all(x, x % 2 == 0)", "even")]
    result = by_conditions(tmp_path, cases, state, default="other")
    assert result == VisitResult(ok=True, next=label, notes=(f"branch chose '{label}'",))


def test_a_condition_that_never_ends_is_ended_and_the_next_one_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding S2: ten nested loops over a hundred items each are 10^20 steps."""
    monkeypatch.setattr(condition, "CONDITION_S", 0.5)
    loops = "".join(f"state.l.all(x{level}, " for level in range(10))
    result = by_conditions(tmp_path, [(f"{loops}x9 >= 0{')' * 10}", "a")], {"l": list(range(100))})
    assert result == VisitResult(
        ok=False,
        error="conditional edge evaluation failed: it took longer than 0.5 s and was ended",
        error_kind="timeout",
    )
    monkeypatch.setattr(condition, "CONDITION_S", 30.0)
    assert by_conditions(tmp_path, [("state.l.all(x, x >= 0)", "a")], {"l": [1]}).next == "a"


def test_a_condition_that_is_no_boolean_is_reported(tmp_path: Path) -> None:
    result = by_conditions(tmp_path, [("state.l.map(x, x)", "a")], {"l": [1]})
    assert result.error is not None
    assert "is neither true nor false" in result.error
    result = by_conditions(tmp_path, [("state.gone.all(x, x)", "a")], {"l": [1]})
    assert "conditional edge evaluation failed: expression `state.gone" in str(result.error)
