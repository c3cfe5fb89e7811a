"""The tree of a run's children, as lines and as data."""

from __future__ import annotations

from sleipnir.cli.runs.tree import MOST, data_of, lines_of
from sleipnir.runs.views import RunInfo, RunTree

NOW_MS = 10_000


def run(name: str, *children: RunTree, status: str = "completed") -> RunTree:
    info = RunInfo(name, "a", status, 1_000, started_ms=1_000, ended_ms=3_500)  # type: ignore[arg-type]
    return RunTree(name, "a", info, children)


def test_each_run_below_has_a_line_under_its_parent() -> None:
    top = run("top", run("one", run("deep")), run("two", status="failed"))
    assert list(lines_of(top, NOW_MS)) == [
        "├─ one a  completed  2.50s",
        "│  └─ deep a  completed  2.50s",
        "└─ two a  failed  2.50s",
    ]


def test_further_children_are_counted() -> None:
    rest = [run("done"), run("bad", status="failed"), RunTree("old", "a", None)]
    *_, shown, counted = lines_of(run("top", *[run("first")] * MOST, *rest), NOW_MS)
    assert shown.startswith("├─ first")
    assert counted == "└─ and 3 more: 1 completed, 1 failed, 1 expired"


def test_as_data_children_hold_their_children() -> None:
    [one] = data_of(run("top", run("one", RunTree("gone", "b", None))))
    assert (one["id"], one["agent"], one["run"]["status"]) == ("one", "a", "completed")
    assert one["children"] == [{"id": "gone", "agent": "b", "run": None, "children": []}]
