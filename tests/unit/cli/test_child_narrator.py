"""The narration of runs below the one that is followed."""

from __future__ import annotations

from typing import Any

from sleipnir.cli.runs.child_narrator import ChildrenNarrator, as_at_the_top, is_below
from sleipnir.runs.views import StreamEvent, TreeEvent


def event(run: str, type_: str, *path: str, **data: Any) -> TreeEvent:
    return TreeEvent("", 0, type_, data, "events", run=run, path=path or ("ask", "look"))


def test_lines_begin_with_the_path_to_their_run() -> None:
    narrator = ChildrenNarrator()
    opened = event("r", "visit_opened", seq=1, node="work", kind="script")
    assert narrator.lines(opened) == ["▸ ask/look: work (script)"]
    called = event("r", "tool_called", seq=1, node="work", call="c", name="count")
    assert [line.startswith("▸   ask/look: ") for line in narrator.lines(called)] == [True]


def test_visits_of_several_runs_are_told_apart() -> None:
    """The visits have the same numbers; each run has its own, so neither says that the other runs in parallel."""
    narrator = ChildrenNarrator()
    for run in ("one", "two"):
        assert narrator.lines(event(run, "visit_opened", run, seq=1, node=f"n-{run}", kind="script")) == [
            f"▸ {run}: n-{run} (script)"
        ]
    [line] = narrator.lines(event("one", "tool_called", "one", seq=1, node="n-one", call="c", name="count"))
    assert "n-one" not in line


def test_escape_sequences_of_a_path_are_not_printed() -> None:
    [line] = ChildrenNarrator().lines(event("r", "visit_opened", "\x1b[31mred", seq=1, node="n", kind="script"))
    assert "\x1b" not in line


def test_a_question_below_has_its_run_and_path() -> None:
    asked = as_at_the_top(event("r", "gate_opened", seq=1, node="n"))
    assert asked.data == {"seq": 1, "node": "n", "run": "r", "path": ["ask", "look"]}


def test_events_of_the_run_itself_are_not_below() -> None:
    assert is_below(event("r", "x"))
    assert not is_below(TreeEvent("", 0, "x", {}, "events", run="r"))
    assert not is_below(StreamEvent("", 0, "x", {}, "events"))
