"""What the verdict of `ops/chaos/batch.py` takes for a broken promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from ops.chaos.batch import all_rows, of_counts, of_executions, of_lines, of_runs, output_of
from ops.chaos.verdict import Wrong
from sleipnir.batches.records import BatchInfo, row_run_id

ROWS_OF = {"fire-1": 2, "fire-3": 1}
RUN_IDS = [row_run_id(*row) for row in all_rows(ROWS_OF)]


def line(row: int, **values: Any) -> Mapping[str, Any]:
    """A row of `sleipnir batch results`."""
    own = {"row": row + 1, "key": str(row), "status": "completed", "output": output_of("fire-1", row)}
    return own | {"run": row_run_id("fire-1", row)} | values


def info(**counts: int) -> BatchInfo:
    every: dict[str, Any] = {"total": 2, "waiting": 0, "active": 0, "completed": 2, **counts}
    return BatchInfo("fire-1", "row", "done", created_ms=0, now_ms=0, **every)


def kinds(wrongs: Any) -> list[str]:
    return [wrong.kind for wrong in wrongs]


def test_a_batch_whose_rows_have_one_result_each_is_right() -> None:
    assert not [*of_counts("fire-1", info(), 2), *of_lines("fire-1", [line(0), line(1)], 2)]
    assert not [*of_runs(RUN_IDS, ROWS_OF)]


@pytest.mark.parametrize(
    "counts", [{"total": 3}, {"completed": 1}, {"completed": 1, "failed": 1}, {"waiting": 1}, {"active": 1}]
)
def test_counts_that_do_not_agree_are_wrong(counts: Mapping[str, int]) -> None:
    assert kinds(of_counts("fire-1", info(**counts), 2)) == ["lost"]


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([line(0)], ["lost", "double"]),
        ([line(0), line(1), line(1)], ["double", "double"]),
        ([line(0), line(1, output=output_of("fire-1", 0))], ["differs"]),
        ([line(0), line(1, output=output_of("fire-3", 1))], ["differs"]),
        ([line(0), line(1, status="failed")], ["differs"]),
        ([line(0), line(1, run=row_run_id("fire-3", 1))], ["differs"]),
    ],
)
def test_a_row_without_its_own_result_is_wrong(lines: list[Mapping[str, Any]], wrong: list[str]) -> None:
    assert kinds(of_lines("fire-1", lines, 2)) == wrong


def test_a_row_of_any_batch_without_its_run_and_a_run_of_no_row_are_wrong() -> None:
    missing, stranger = row_run_id("fire-3", 0), row_run_id("fire-3", 1)
    assert [*of_runs([*RUN_IDS, stranger], ROWS_OF)] == [Wrong("double", f"{stranger}: a run that is of no row")]
    assert [*of_runs(RUN_IDS[:-1], ROWS_OF)] == [Wrong("lost", f"{missing}: a row without a run")]


@pytest.mark.parametrize(("times", "is_wrong"), [(0, True), (1, False), (2, False), (3, True)])
def test_a_node_runs_at_least_once_and_again_only_for_a_death_or_a_loss(times: int, is_wrong: bool) -> None:
    assert bool([*of_executions("run", "fire-1.0.take", Counter({"fire-1.0.take": times}), 2)]) is is_wrong
