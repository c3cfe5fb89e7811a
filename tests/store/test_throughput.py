"""The history of throughput in Redis: records of several schedulers are added, damaged ones are left out."""

from __future__ import annotations

from sleipnir.runs.throughput import HOUR_MS, MINUTE_MS, NamespaceTotal, ThroughputTotal
from sleipnir.store.store import Store


def test_the_totals_of_schedulers_are_added_and_a_repeated_write_changes_nothing(store: Store) -> None:
    now_ms = store.now_ms()
    minute, hour = now_ms // MINUTE_MS - 1, now_ms // HOUR_MS
    total = ThroughputTotal(120, {12: 4}, {"default": NamespaceTotal(3, 1, 0.5), "b": NamespaceTotal(1, 0, 2.0)})
    for instance in ("one", "two", "one"):
        store.throughput.write(instance, {minute: total}, {hour: total})
    found = store.throughput.read("default", 8.0)
    assert sum(each.visits for each in found.minutes) in (240, 0)  # 0: the minute has become another one meanwhile
    assert (found.ended_day, found.failed_day, found.cost_today_usd) == (6, 2, 1.0)
    assert (found.daily_budget_usd, found.is_complete) == (8.0, True)
    assert store.throughput.read(None).cost_today_usd == 5.0


def test_a_damaged_record_is_left_out_and_reported(store: Store) -> None:
    now_ms = store.now_ms()
    key = store.keys.throughput_hour(now_ms // HOUR_MS)
    store._client.hset(key, "newer", '{"v": 99, "hops": 3}')
    store._client.expire(key, 60)
    store.throughput.write("one", {}, {now_ms // HOUR_MS: ThroughputTotal(1, {}, {"default": NamespaceTotal(1)})})
    found = store.throughput.read("default")
    assert (found.ended_day, found.is_complete) == (1, False)


def test_every_record_has_an_end(store: Store) -> None:
    store.throughput.write("one", {5: ThroughputTotal(1)}, {0: ThroughputTotal(1)})
    for key in (store.keys.throughput_minute(5), store.keys.throughput_hour(0)):
        assert 0 < store._client.ttl(key) <= 49 * 3600
