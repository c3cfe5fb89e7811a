"""How commands say that visits of a run have failed."""

from __future__ import annotations

import pytest

from sleipnir.cli.runs.show import _failed_visits
from sleipnir.cli.terminal.render import as_json
from sleipnir.messages import RunStatus
from sleipnir.runs.reasons import end_in_words, failed_in_words
from sleipnir.runs.run import FailedVisits
from sleipnir.runs.views import RunInfo
from sleipnir.runs.visits import Child


def run(*failed: tuple[str, str], status: RunStatus = "completed", **more: str) -> RunInfo:
    visits = FailedVisits()
    for node, error in failed:
        visits = visits.plus(node, error, ends_run=False)
    return RunInfo("r1", "x", status, 0, failed_visits=visits, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (run(), "completed"),
        (run(("ask", "provider answered 500")), "completed, 1 failed visit: ask (provider answered 500)"),
        (
            run(("report", "TypeError: x"), ("ask", "provider answered 500")),
            "completed, 2 failed visits: report (TypeError: x), ask (provider answered 500)",
        ),
        (
            run(*[(f"n{number}", "no") for number in range(9)]),
            "completed, 9 failed visits: n0 (no), n1 (no), n2 (no) and 6 more",
        ),
        (run(("a", "no"), stopped_by="max_steps"), "completed, stopped at max_steps, 1 failed visit: a (no)"),
    ],
)
def test_the_line_at_the_end_names_failed_visits(info: RunInfo, words: str) -> None:
    """Finding U1 of the second review."""
    assert end_in_words(info) == words


def test_an_error_of_several_lines_is_one_line() -> None:
    assert failed_in_words(run(("a", "x\ny"))).count("\n") == 0


def test_json_has_the_number_and_the_first_errors() -> None:
    assert as_json(run(("a", "no")))["failed_visits"] == {
        "count": 1,
        "ending": 0,
        "first": [{"node": "a", "error": "no", "ends_run": False, "run": None}],
        "of_children": 0,
        "v": 1,
    }


def test_those_of_a_child_run_name_their_run() -> None:
    visits = FailedVisits().plus("a", "no", ends_run=False)
    of_child = FailedVisits().plus("search", "x", ends_run=False).plus("rank", "y", ends_run=False)
    visits = visits.plus_child("ask", Child("c1", "helper"), of_child)
    info = RunInfo("r1", "x", "completed", 0, failed_visits=visits)
    assert end_in_words(info) == "completed, 3 failed visits: a (no), ask/search (x), ask/rank (y)"
    assert _failed_visits(info) == "a: no\nask/search: x (run c1)\nask/rank: y (run c1)"
    many = RunInfo("r1", "x", "completed", 0, failed_visits=visits.plus_child("ask", Child("c2", "helper"), of_child))
    more = RunInfo("r1", "x", "completed", 0, failed_visits=many.failed_visits.plus("z", "no", ends_run=False))
    assert _failed_visits(more).endswith("and 1 more; `sleipnir history r1` and those of its child runs have all")
