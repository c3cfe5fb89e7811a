"""How commands say that visits of a run have failed."""

from __future__ import annotations

import pytest

from sleipnir.cli.reasons import end_in_words, failed_in_words
from sleipnir.cli.render import as_json
from sleipnir.messages import RunStatus
from sleipnir.runs import FailedVisits
from sleipnir.views import RunInfo


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
        "count": 1, "ending": 0, "first": [{"node": "a", "error": "no", "ends_run": False}], "v": 1,
    }  # fmt: skip
