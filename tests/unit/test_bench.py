"""The bench's judgement and table, on literals. Nothing is timed here: speed lives in ops/bench."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench import limits, models, report, scaling
from ops.bench.figures import (
    FIGURES,
    RATIOS,
    SECTIONS,
    BenchFailed,
    Figure,
    medians,
    missed,
    table,
    with_ratio_reasons,
    with_ratios,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("figure", "value", "verdict"),
    [
        (Figure("f", "f", at_least=2.5), 2.5, "reached"),
        (Figure("f", "f", at_least=2.5, digits=1), 2.4999, "MISSED"),  # although it prints as 2.5
        (Figure("f", "f", at_most=12), 12, "reached"),
        (Figure("f", "f", at_most=12), 12.01, "MISSED"),
        (Figure("f", "f"), 7, ""),
    ],
)
def test_a_target_is_reached_at_its_bound_and_missed_beyond(figure: Figure, value: float, verdict: str) -> None:
    assert figure.verdict(value) == verdict


def test_ratios_are_taken_within_a_round_and_only_of_what_was_measured() -> None:
    values = {"visits_per_s": 3000.0, "celery_tasks_per_s": 1000.0, "dbos_postgres_per_s": 500.0}
    assert with_ratios(values) == {**values, "ratio_celery_tasks": 3.0, "ratio_dbos_postgres": 6.0}
    assert with_ratios({"celery_tasks_per_s": 1000.0}) == {"celery_tasks_per_s": 1000.0}


def test_the_rate_of_calls_is_that_of_the_time_in_which_all_threads_are_busy() -> None:
    waves = [wave * models.LATENCY_S for wave in range(10) for _ in range(models.THREADS)]
    assert models.rate(waves) == models.POSSIBLE_PER_S
    slow_to_start = [0.0] * models.THREADS + [at_s + 60 for at_s in waves[models.THREADS :]]
    assert models.rate(slow_to_start) == models.POSSIBLE_PER_S


def test_the_rate_of_rows_is_that_of_the_middle_of_a_batch() -> None:
    waves = {8 * wave: 500 * wave for wave in range(1, 20)}
    assert scaling.middle_rate(waves, 160) == 16.0
    assert (
        scaling.middle_rate({0: 0, 1: 9_000} | {ended: at_ms + 10_000 for ended, at_ms in waves.items()}, 160) == 16.0
    )
    with pytest.raises(BenchFailed):
        scaling.middle_rate({0: 0, 160: 500}, 160)


def test_the_worst_window_is_found_at_any_start() -> None:
    assert limits.worst_window([0.0, 59.9, 60.0, 119.8, 120.5, 200.0]) == 3
    assert limits.worst_window([5.0]) == 1


def test_the_median_of_a_figure_is_over_the_rounds_that_have_it() -> None:
    assert medians([{"a": 1, "b": 10}, {"a": 3}, {"a": 2, "b": 20}]) == {"a": 2, "b": 15}


def test_the_table_has_value_target_and_verdict_and_the_reason_for_missing_figures() -> None:
    values = {"visits_per_s": 2964.4, "ratio_celery_tasks": 2.41, "hop_p50_ms": 2.0}
    reasons = with_ratio_reasons({"langgraph_postgres_per_s": "PostgreSQL not found"})
    assert table(values, reasons) == (
        "Throughput\n"
        "  engine: visits                                 2,964 /s\n"
        "    engine / Celery tasks                         2.41 x     >= 2.5  MISSED\n"
        "  LangGraph, PostgreSQL: nodes                       -               not measured: PostgreSQL not found\n"
        "    engine / LangGraph, PostgreSQL                   -         >= 3  not measured: PostgreSQL not found\n"
        "    engine / the same, appendfsync always            -       >= 1.3  not measured: PostgreSQL not found\n"
        "\n"
        "Latency\n"
        "  hop between two nodes, p50                       2.0 ms      <= 5  reached"
    )
    assert missed(values) == ["engine / Celery tasks"]


def test_every_ratio_names_figures_and_every_figure_has_one_name() -> None:
    names = [figure.name for section in SECTIONS for figure in section.figures]
    assert sorted(names) == sorted(set(names))
    assert RATIOS.keys() | {name for pair in RATIOS.values() for name in pair} <= FIGURES.keys()


def test_the_page_takes_new_figures_and_keeps_everything_else() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    once = report.refreshed(page, "old table")
    twice = report.refreshed(once, "new table")
    assert "old table" in once and "old table" not in twice
    assert twice == once.replace("old table", "new table")
    assert twice.partition(report.BEGIN)[0] == page.partition(report.BEGIN)[0]
    assert twice.partition(report.END)[2] == page.partition(report.END)[2]
