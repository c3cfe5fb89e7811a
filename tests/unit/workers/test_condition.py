"""The function of a conditional edge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import Branch, Choice, LlmNode
from sleipnir.messages import VisitResult
from sleipnir_workers import condition
from sleipnir_workers.worker import execute
from tests.unit.workers.visits import visit


def choose(folder: Path, returned: str, *, many: bool = False, **fields: Any) -> VisitResult:
    """The result of the conditional edge of an llm node whose function returns this."""
    (folder / "ways.py").write_text(f"def pick(state):\n    return {returned}\n")
    branch = Branch(call="ways.py:pick", many=many)
    node = LlmNode(id="draft", prompt="p", state_updates={"text": "{{output}}"}, branch=branch)
    result = execute(visit(node, folder, role="branch", **fields))
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("returned", "label", "told"),
    [
        ("'long' if len(state['text']) > 3 else 'short'", "long", "'long'"),
        ("None", "", "no route"),
        ("''", "", "no route"),
    ],
)
def test_a_label_is_chosen_by_the_state(tmp_path: Path, returned: str, label: str, told: str) -> None:
    result = choose(tmp_path, returned, state={"text": "abcd"})
    assert result == VisitResult(ok=True, next=label, notes=(f"branch 'ways.py:pick' chose {told}",))


@pytest.mark.conformance("RT-09")
@pytest.mark.parametrize(
    ("returned", "labels"),
    [
        ("['b', 'b', 'c']", ("b", "b", "c")),
        ("('b', '', None, 'a')", ("b", "a")),
        ("{'c', 'a', 'b'}", ("a", "b", "c")),
        ("'b'", "b"),
        ("[]", ""),
        ("['']", ""),
        ("None", ""),
    ],
)
def test_many_labels_may_be_chosen(tmp_path: Path, returned: str, labels: Any) -> None:
    assert choose(tmp_path, returned, many=True).next == labels


@pytest.mark.parametrize(
    ("returned", "many", "problem"),
    [
        ("['a']", False, "returned a list; return a label; a list of labels needs `many: true`"),
        ("5", False, "returned a int; return a label; a list of labels needs `many: true`"),
        ("{'a': 1}", True, "returned a dict; return a list of labels"),
        ("['a', 5]", True, "returned a list that holds a int; return a list of labels"),
    ],
)
def test_anything_else_fails(tmp_path: Path, returned: str, many: bool, problem: str) -> None:
    message = f"conditional edge evaluation failed: Function 'ways.py:pick' {problem}"
    assert choose(tmp_path, returned, many=many) == VisitResult(ok=False, error=message, error_kind="output")


@pytest.mark.conformance("RT-06", "RT-10")
@pytest.mark.parametrize("many", [False, True])
def test_an_exception_is_a_failed_evaluation_and_leaves_nothing_in_the_state(tmp_path: Path, many: bool) -> None:
    result = choose(tmp_path, "state['gone']", many=many)
    assert result == VisitResult(
        ok=False,
        error="conditional edge evaluation failed: Function 'ways.py:pick' raised KeyError: 'gone' "
        "(ways.py:2: return state['gone'])",
        error_kind="exception",
        error_type="builtins:KeyError",
    )


def test_the_state_is_a_copy(tmp_path: Path) -> None:
    state = {"l": [1]}
    assert choose(tmp_path, "str(state['l'].pop())", state=state).next == "1"
    assert state == {"l": [1]}


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


def test_a_condition_that_is_neither_true_nor_false_says_so(tmp_path: Path) -> None:
    result = by_conditions(tmp_path, [("state.l.map(x, x)", "a")], {"l": [1]})
    assert result.error is not None
    assert "is neither true nor false" in result.error
    result = by_conditions(tmp_path, [("state.gone.all(x, x)", "a")], {"l": [1]})
    assert "conditional edge evaluation failed: expression `state.gone" in str(result.error)
