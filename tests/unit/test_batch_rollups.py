"""Rates from how many rows had ended when."""

from __future__ import annotations

import pytest

from sleipnir.batches.rollups import EndedRows, rows_per_minute


def test_a_steady_batch_has_the_same_rate_in_each_part() -> None:
    points = [EndedRows(at_s * 1000, at_s * 2) for at_s in range(0, 601, 30)]
    assert rows_per_minute(points, 5) == pytest.approx([120] * 5)


def test_a_pause_is_a_rate_of_nought() -> None:
    points = [EndedRows(0, 0), EndedRows(60_000, 60), EndedRows(180_000, 61), EndedRows(240_000, 120)]
    rates = rows_per_minute(points, 4)
    assert rates[0] == pytest.approx(60)
    assert max(rates[1:3]) < 1
    assert rates[3] == pytest.approx(59)
    assert sum(rates) == pytest.approx(120)


def test_points_at_one_time_have_no_rate() -> None:
    assert rows_per_minute([], 3) == rows_per_minute([EndedRows(5, 1)], 3) == []
    assert rows_per_minute([EndedRows(5, 1), EndedRows(5, 9)], 3) == []
