"""What counts as a difference between two runs, how rows are counted, and what a judge says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from sleipnir.client.comparison import judge_of
from sleipnir.errors import UsageError
from sleipnir.runs.comparison import ComparedRun, Comparison, compared, summary_of


def side(state: Mapping[str, Any] | None = None, **fields: Any) -> ComparedRun:
    given = {"id": "r1", "status": "completed", "output": "yes", "path": ("ask", "done"), "visits": 2, **fields}
    return ComparedRun(**given, state={key: json.dumps(value) for key, value in (state or {}).items()})


def test_runs_that_did_the_same_are_the_same_whatever_they_took() -> None:
    found = compared(side({"x": [1, 2]}, tokens=5, took_ms=10), side({"x": [1, 2]}, id="r2", tokens=9, took_ms=99))
    assert (found.outcome, found.changed) == ("same", ())


def test_values_that_are_written_differently_are_the_same_value() -> None:
    a = ComparedRun("r1", "completed", state={"x": '{"a": 1, "b": 2}'})
    b = ComparedRun("r2", "completed", state={"x": '{"b":2,"a":1}'})
    assert compared(a, b).outcome == "same"


@pytest.mark.parametrize(
    ("fields", "aspects"),
    [
        ({"output": "no"}, ("output",)),
        ({"output": None, "status": "failed", "error": "at node 'x'"}, ("status", "output", "error")),
        ({"path": ("ask", "ask", "done"), "visits": 3}, ("path",)),
        ({"visits": 3}, ("path",)),
        ({"status": "running"}, ("status",)),
    ],
)
def test_each_aspect_that_differs_is_named(fields: Mapping[str, Any], aspects: tuple[str, ...]) -> None:
    assert compared(side(), side(**fields)).changed == aspects


def test_state_keys_that_differ_have_the_values_of_both_sides() -> None:
    found = compared(side({"same": 1, "gone": 2, "other": True}), side({"same": 1, "other": 1, "new": None}))
    assert found.changed == ("state",)
    assert found.state.changed == {"other": (True, 1)}, "true is not 1"
    assert (found.state.removed, found.state.added) == ({"gone": 2}, {"new": None})


def test_rows_are_counted_by_what_became_of_them() -> None:
    rows = [
        compared(side(tokens=2, cost_usd=0.5, took_ms=10), side(tokens=3, cost_usd=0.25, took_ms=5), "1"),
        compared(side(tokens=2, cost_usd=0.5), side(output="no", cost_usd=None), "2"),
        compared(side(), side(output=None, status="failed", error="no"), "3"),
        compared(side(), None, "4"),
        compared(None, side(output=None, status="running", path=("ask",), visits=1), "5"),
    ]
    summary = summary_of(rows)
    assert (summary.rows, summary.same, summary.changed, summary.only_a, summary.only_b) == (5, 1, 2, 1, 1)
    assert dict(summary.differing) == {"status": 1, "output": 2, "error": 1, "state": 0, "path": 0}
    assert (summary.unfinished, summary.verdicts, summary.has_changed) == (1, None, True)
    assert (summary.a.rows, summary.a.completed, summary.a.tokens, summary.a.cost_usd, summary.a.took_ms) == (
        4, 4, 4, 1.0, 10,
    )  # fmt: skip
    assert (summary.b.rows, summary.b.completed, summary.b.failed, summary.b.cost_usd) == (4, 2, 1, None)


@pytest.mark.parametrize(
    ("expression", "a", "b", "verdict"),
    [
        ("b.cost < a.cost", side(cost_usd=2.0), side(cost_usd=1.0), "better"),
        ("b.cost < a.cost", side(cost_usd=1.0), side(cost_usd=2.0), "worse"),
        ("b.cost < a.cost", side(cost_usd=1.0), side(cost_usd=1.0), "equal"),
        ('b.output.contains("total")', side(output="x"), side(output="total: 3"), "better"),
        ('b.output.contains("total")', side(output="total: 1"), side(output="total: 3"), "equal"),
        ('b.status == "completed"', side(), side(status="failed", output=None), "worse"),
        ("b.state.score > a.state.score", side({"score": 1}), side({"score": 2}), "better"),
        ("size(b.path) < size(a.path) && b.seconds <= 2", side(path=("x", "y"), took_ms=1), side(path=(), took_ms=1),
         "better"),
        ("b.cost < a.cost", side(cost_usd=None), side(), "undecided"),
        ("b.state.score > a.state.score", side(), side(), "undecided"),
        ("b.output", side(), side(), "undecided"),
    ],
)  # fmt: skip
def test_b_is_better_if_the_expression_holds_and_not_the_other_way_round(
    expression: str, a: ComparedRun, b: ComparedRun, verdict: str
) -> None:
    found = judge_of(expression)(compared(a, b))
    assert found.verdict == verdict
    assert (found.why is None) == (verdict != "undecided")


def test_a_row_that_only_one_side_has_is_not_judged() -> None:
    assert judge_of("b.cost < a.cost")(Comparison("1", side(), None)).verdict is None


@pytest.mark.parametrize("expression", ["b.cost <", "state.x == 1", "", "open('x')", "b.cost < a.cost and true"])
def test_a_judge_that_is_no_expression_over_a_and_b_is_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="the judge cannot be used: expression"):
        judge_of(expression)


def test_a_judge_that_finds_a_row_worse_or_cannot_decide_makes_the_whole_worse() -> None:
    judge = judge_of("b.cost < a.cost")
    better = judge(compared(side(cost_usd=2.0), side(cost_usd=1.0)))
    assert not summary_of([better]).is_worse
    undecided = judge(compared(side(cost_usd=None), side()))
    summary = summary_of([better, undecided])
    assert summary.is_worse and summary.verdicts == {"better": 1, "worse": 0, "equal": 0, "undecided": 1}
    assert summary.undecided_why is not None and "b.cost < a.cost" in summary.undecided_why
