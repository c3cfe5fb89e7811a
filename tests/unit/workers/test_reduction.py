"""Reducers of the agent's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import FunctionNode, StateField
from sleipnir.messages import VisitResult
from sleipnir_workers.visits.guard import execute
from tests.unit.workers.visits import visit

REDUCERS = """
loads = []
def join(current, incoming): return (current or "") + incoming
def longest(current, incoming):
    if current is None: return incoming
    current.extend([0]) if len(current) == len(incoming) else None
    return max(current, incoming, key=len)
def bad(current, incoming): return {incoming}
def crash(current, incoming): return current["gone"]
"""


def fold(folder: Path, **overlay: Any) -> VisitResult:
    """The result of a visit that folds this, by state key."""
    (folder / "merge.py").write_text(REDUCERS)
    names = {"log": "join", "text": "join", "best": "longest", "bad": "bad", "crash": "crash"}
    graph = {"state": {key: StateField(reducer=f"merge.py:{name}") for key, name in names.items()}}
    node = FunctionNode(id="step", call="steps.py:step")
    result = execute(visit(node, folder, graph=graph, role="reduce", state=overlay))
    assert result is not None
    return result


def test_values_are_folded_one_after_the_other_in_their_order(tmp_path: Path) -> None:
    result = fold(tmp_path, log={"current": "a", "incoming": ["b", "c"]}, text={"incoming": ["x", "y"]})
    assert result == VisitResult(ok=True, delta={"log": "abc", "text": "xy"}, notes=("reduced: log, text",))


def test_a_reducer_may_change_what_it_is_given(tmp_path: Path) -> None:
    result = fold(tmp_path, best={"current": [1], "incoming": [[2], [3, 3, 3]]})
    assert result.delta == {"best": [3, 3, 3]}


def test_without_incoming_values_the_current_one_stays(tmp_path: Path) -> None:
    assert fold(tmp_path, log={"current": "a", "incoming": []}).delta == {"log": "a"}


@pytest.mark.parametrize(
    ("key", "incoming", "problem", "type_"),
    [
        (
            "crash",
            1,
            "Function 'merge.py:crash' raised TypeError: 'NoneType' object is not subscriptable "
            '(merge.py:9: def crash(current, incoming): return current["gone"])',
            "builtins:TypeError",
        ),
        (
            "bad",
            1,
            "Function 'merge.py:bad' returned something that is not JSON: key 'bad' is a set, which is not JSON",
            None,
        ),
        ("other", 1, "the graph declares none", None),
    ],
)
def test_a_reducer_that_fails_is_named_with_its_key(
    tmp_path: Path, key: str, incoming: Any, problem: str, type_: str | None
) -> None:
    result = fold(tmp_path, **{key: {"incoming": [incoming]}})
    assert (result.ok, result.error_type, result.delta) == (False, type_, {})
    assert result.error == f"the reducer of state key '{key}' failed: {problem}"
