"""The function of a conditional edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import Branch, LlmNode
from sleipnir.messages import VisitResult
from sleipnir_workers.visits.guard import execute
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
