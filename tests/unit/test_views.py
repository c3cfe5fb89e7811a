"""Views of runs are kept by what they weigh."""

from __future__ import annotations

from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import RunSpec, RunView
from sleipnir.runs.visits import Visit, Work
from sleipnir_scheduler.services.views import VIEW_BYTES, VISIT_BYTES, RunViews


def view(run: str, visits: int = 1) -> RunView:
    live = {seq: Visit(seq, "a", "script", 1, 0, body=Work("scripts")) for seq in range(1, visits + 1)}
    return RunView(run, RunSpec("agent", "digest"), frontier=Frontier.of(live))


def test_a_wide_run_counts_for_the_narrow_ones_that_it_weighs_as_much_as() -> None:
    """Finding C23 of the second review: views were counted, not weighed."""
    views = RunViews(most_bytes=100 * (VIEW_BYTES + VISIT_BYTES))
    for number in range(100):
        views.put(view(f"narrow{number}"))
    views.shrink(0)
    assert len(views) == 100
    views.put(view("wide", visits=1_000))
    views.shrink(1)
    assert list(views) == ["wide"], "what is needed now stays, however much it weighs"
    views.put(view("narrow"))
    views.shrink(1)
    assert list(views) == ["narrow"]
    assert views.bytes == VIEW_BYTES + VISIT_BYTES


def test_the_views_used_last_are_kept_and_a_dropped_one_weighs_nothing() -> None:
    views = RunViews(most_bytes=2 * (VIEW_BYTES + VISIT_BYTES))
    for run in "abc":
        views.put(view(run))
    views.use(["a"])
    views.shrink(1)
    assert list(views) == ["c", "a"]
    views.put(view("a", visits=2))
    views.drop("a")
    views.drop("a")
    assert (list(views), views.bytes) == (["c"], VIEW_BYTES + VISIT_BYTES)
    views.clear()
    assert views.bytes == 0
