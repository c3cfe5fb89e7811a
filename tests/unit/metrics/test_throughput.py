"""What is counted of each minute: sums, percentiles, and the records that schedulers store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir.errors import RecordUnreadable
from sleipnir.runs.throughput import (
    HOUR_MS,
    MINUTE_MS,
    NamespaceTotal,
    ThroughputTotal,
    bucket_of,
    sum_of,
    throughput_of,
    total_of,
    total_text,
)
from sleipnir_scheduler.counters.throughput import MOST_NAMESPACES, OTHER, ThroughputCounter

NOON_MS = 20_000 * 24 * HOUR_MS + 12 * HOUR_MS


@given(st.lists(st.floats(min_value=1, max_value=1e7), min_size=1), st.sampled_from([0.5, 0.99]))
def test_a_percentile_is_at_most_a_fifth_off(times_ms: list[float], share: float) -> None:
    hops: dict[int, int] = {}
    for ms in times_ms:
        hops[bucket_of(ms)] = hops.get(bucket_of(ms), 0) + 1
    exact = sorted(times_ms)[min(len(times_ms) - 1, max(0, -(-int(share * len(times_ms) * 1000) // 1000) - 1))]
    found = ThroughputTotal(len(times_ms), hops).percentile_ms(share)
    assert found is not None
    assert any(0.83 * each <= found <= 1.2 * each for each in times_ms)
    if len(times_ms) == 1:
        assert 0.83 * exact <= found <= 1.2 * exact


def test_what_is_stored_is_read_again() -> None:
    total = ThroughputTotal(7, {0: 1, 12: 6}, {"default": NamespaceTotal(3, 1, 0.25), "b": NamespaceTotal(1, 0, 0.0)})
    assert total_of(total_text(total)) == total
    assert total_of("{}") == ThroughputTotal()
    for text in ("[]", "x", '{"hops": 3}', '{"of": {"a": [1]}}', '{"visits": "x"}'):
        with pytest.raises(RecordUnreadable):
            total_of(text)


def test_an_hour_is_the_sum_of_its_minutes_and_is_stored_when_it_changes() -> None:
    counter = ThroughputCounter()
    counter.visit(NOON_MS)
    counter.visit(NOON_MS + MINUTE_MS)
    counter.hop(NOON_MS + MINUTE_MS, 20)
    counter.ended(NOON_MS, "default", is_failed=True)
    counter.cost(NOON_MS, "default", 0.5)
    minute, hour = NOON_MS // MINUTE_MS, NOON_MS // HOUR_MS
    minutes, hours = counter.changed(NOON_MS + MINUTE_MS)
    assert {at: each.visits for at, each in minutes.items()} == {minute: 1, minute + 1: 1}
    assert hours == {hour: ThroughputTotal(2, {bucket_of(20): 1}, {"default": NamespaceTotal(1, 1, 0.5)})}
    counter.stored(minutes)
    assert counter.changed(NOON_MS + MINUTE_MS) == ({}, {})
    counter.visit(NOON_MS + MINUTE_MS)
    minutes, hours = counter.changed(NOON_MS + MINUTE_MS)
    assert (minutes[minute + 1].visits, hours[hour].visits) == (2, 3)
    assert counter.changed(NOON_MS + 3 * HOUR_MS) == ({}, {})


def test_a_write_that_failed_is_repeated() -> None:
    counter = ThroughputCounter()
    counter.visit(NOON_MS)
    assert counter.changed(NOON_MS) == counter.changed(NOON_MS) != ({}, {})


def test_very_many_namespaces_are_counted_together() -> None:
    counter = ThroughputCounter()
    for number in range(MOST_NAMESPACES + 10):
        counter.ended(NOON_MS, f"n{number}", is_failed=False)
    [total] = counter.changed(NOON_MS)[0].values()
    assert len(total.namespaces) == MOST_NAMESPACES + 1
    assert total.of(OTHER).ended == 10
    assert total.of(None).ended == MOST_NAMESPACES + 10


def test_the_figures_of_an_overview() -> None:
    minute, hour = NOON_MS // MINUTE_MS, NOON_MS // HOUR_MS
    minutes = {
        minute: ThroughputTotal(30, {bucket_of(8): 1}),
        minute - 1: ThroughputTotal(60, {bucket_of(8): 98, bucket_of(64): 2}),
        minute - 61: ThroughputTotal(1_000),
    }
    hours = {
        hour: ThroughputTotal(namespaces={"a": NamespaceTotal(5, 1, 2.0), "b": NamespaceTotal(7, 7, 7.0)}),
        hour - 20: ThroughputTotal(namespaces={"a": NamespaceTotal(5, 2, 4.0)}),
        hour - 24: ThroughputTotal(namespaces={"a": NamespaceTotal(100, 100, 100.0)}),
    }
    found = throughput_of(NOON_MS + 30_000, minutes, hours, namespace="a", daily_budget_usd=10.0)
    assert len(found.minutes) == 60
    assert found.minutes[-1].visits == 60
    assert found.visits_per_s == 1.0
    assert found.visits_hour == 90
    assert found.hop_p50_ms is not None and 6.7 < found.hop_p50_ms < 9.6
    assert found.hop_p99_ms is not None and 53 < found.hop_p99_ms < 77
    assert (found.ended_day, found.failed_day, found.cost_today_usd) == (10, 3, 2.0)
    assert throughput_of(NOON_MS, {}, hours, namespace=None).failed_day == 10
    assert throughput_of(NOON_MS, {}, {}, namespace=None).hop_p99_ms is None


def test_a_clock_that_was_set_back_counts_as_no_time() -> None:
    assert bucket_of(-5) == bucket_of(0) == 0
    assert bucket_of(1e12) == 100
    assert sum_of([]) == ThroughputTotal()
