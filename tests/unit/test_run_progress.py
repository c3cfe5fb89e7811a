"""What a run did, as its picture tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sleipnir.graph.draw import Mark
from sleipnir.messages import RunStatus
from sleipnir.runs.run import Breakpoint, Hold
from sleipnir.runs.run_progress import progress_of
from sleipnir.runs.views import Reason, RunInfo, StepInfo, VisitInfo, hold_info
from sleipnir.runs.visits import Part


def step(number: int, node: str | None, next_: str | None = None, *, ok: bool = True, took_ms: int = 100) -> StepInfo:
    return StepInfo(number, "script", 0, number, node, 1, ok, next_, None if ok else "broken", took_ms, "w", ())


def visit(node: str, state: str, *, seq: int = 9, attempt: int = 1, kind: str = "script") -> VisitInfo:
    return VisitInfo(seq, node, kind, attempt, state, 0, Reason("queued"))  # type: ignore[arg-type]


def run(status: RunStatus, *visits: VisitInfo, ended_ms: int | None = None) -> RunInfo:
    return RunInfo("run1", "agent", status, 0, 1_000, ended_ms, visits=visits)


def test_a_node_is_marked_by_its_last_visit_with_counts_and_the_mean_time() -> None:
    steps = [
        step(0, None),
        step(1, "a", "b"),
        step(2, "b", "a"),
        step(3, "a", "b", took_ms=300),
        step(4, "b", ok=False),
    ]
    progress = progress_of(run("failed", ended_ms=2_500), steps, 99_000)
    assert progress.marks == {
        "a": Mark("done", "done ×2 · 200ms each"),
        "b": Mark("failed", "done, failed · 100ms each"),
    }
    assert progress.ways == {("a", "b"), ("b", "a")}
    assert progress.caption == "run run1 · failed · 1.50s"


def test_a_fork_shows_what_its_source_did_at_nodes_that_it_has_not_visited() -> None:
    info = replace(run("completed", ended_ms=1_100), forked_from="run0", forked_at=2)
    past = [step(0, None), step(1, "a", "b"), step(2, "b", "c")]
    progress = progress_of(info, [step(0, None), step(1, "b", "c"), step(2, "c")], 99_000, past)
    assert progress.marks == {
        "b": Mark("done", "done · 100ms"),
        "c": Mark("done", "done · 100ms"),
        "a": Mark("done", "done · 100ms · before the fork"),
    }
    assert progress.ways == {("a", "b"), ("b", "c")}
    assert progress.caption == "run run1 · completed, forked from run0 after step 2 · 100ms"


def test_a_run_at_a_breakpoint_says_so_and_runs_no_map() -> None:
    stop = hold_info(Hold("breakpoint", 1_000, owner="person", breakpoint=Breakpoint("before", ("m",), ("m",))))
    info = replace(run("paused", visit("m", "ready", kind="map")), holds=(stop,))
    progress = progress_of(info, [], 1_250)
    assert progress.caption == "run run1 · paused, stopped before 'm' · 250ms"
    assert progress.marks == {"m": Mark("queued", "queued", ended=False)}


def test_a_live_visit_has_more_details_than_ended_ones() -> None:
    live = [
        visit("a", "queued"),
        visit("a", "started"),
        visit("a", "started"),
        visit("b", "waiting"),
        visit("c", "queued"),
    ]
    progress = progress_of(run("running", *live), [step(1, "a", "a")], 1_250)
    assert progress.marks == {
        "a": Mark("running", "running ×2, done · 100ms"),
        "b": Mark("waiting", "waiting", ended=False),
        "c": Mark("queued", "queued", ended=False),
    }
    assert progress.caption == "run run1 · running · 250ms"


def test_choosing_a_way_is_no_visit_of_the_node_but_its_way_is_taken() -> None:
    chosen = replace(step(2, "a", None), role="branch", next=("b", "c"))
    progress = progress_of(run("running"), [step(1, "a"), chosen], 1_000)
    assert progress.marks == {"a": Mark("done", "done · 100ms")}
    assert progress.ways == {("a", "b"), ("a", "c")}


def test_a_visit_that_has_ended_before_its_super_step_did_is_done() -> None:
    live = [visit("a", "waiting", seq=1), visit("b", "started", seq=2), visit("c", "queued", seq=3, attempt=2)]
    progress = progress_of(run("running", *live), [step(1, "a"), step(3, "c", ok=False)], 1_000)
    assert {node: mark.note for node, mark in progress.marks.items()} == {
        "a": "done · 100ms",
        "b": "running",
        "c": "queued, failed · 100ms",
    }


def test_a_map_that_waits_for_its_items_is_running_and_reports_how_far_it_is() -> None:
    at_work = replace(visit("m", "waiting", kind="map"), reason=Reason("items", progress=(237, 1_500)))
    assert progress_of(run("running", at_work), [], 1_000).marks["m"] == Mark(
        "running", "running 237/1,500", ended=False
    )


@pytest.mark.parametrize(
    ("parts", "mark"),
    [
        (["started"], Mark("running", "running, turn 2", ended=False)),
        (["queued", "started", "started"], Mark("running", "running, turn 2", ended=False)),
        (["queued", "waiting"], Mark("queued", "queued, turn 2", ended=False)),
        (["waiting", "waiting"], Mark("waiting", "waiting, turn 2", ended=False)),
    ],
)
def test_a_loop_is_one_visit_and_at_work_when_a_part_of_it_is(parts: list[str], mark: Mark) -> None:
    loop = replace(visit("ask", "waiting", seq=1), reason=Reason("turns", turn=1, progress=(0, len(parts))))
    calls = [replace(visit("ask", part, seq=2 + n), part=Part(1, 1, n), role="tool") for n, part in enumerate(parts)]
    assert progress_of(run("running", loop, *calls), [], 1_000).marks == {"ask": mark}


def test_a_run_that_is_over_has_no_node_under_way() -> None:
    assert progress_of(run("cancelled", visit("a", "started"), ended_ms=1_000), [step(0, None)], 0).marks == {}
