"""Owners of partitions publish how much work these have, for the scheduler that admits rows."""

from __future__ import annotations

import json

import pytest
import redis

from sleipnir.store import outstanding
from sleipnir.store.store import Store
from sleipnir_scheduler.services.outstanding import FRESH_MS, OutstandingCounts, OutstandingTotal
from tests.waiting import wait_until


def entries(store: Store, **counts: int) -> None:
    """Add so many events and visits on workers to the partitions p0 and p1."""
    for name, count in counts.items():
        part = store.keys.of_partition(int(name[1:]))
        for _ in range(count):
            entry = store._client.xadd(part.inbox, {"run": "some"})
            store._client.zadd(part.leases, {f"{entry}/1/1": 1})


def total(store: Store) -> OutstandingTotal:
    return OutstandingTotal(store.outstanding, partitions=2, published=True)


def test_a_count_includes_events_and_visits_on_workers(store: Store) -> None:
    entries(store, p0=2, p1=3)
    assert [store.outstanding.count([number]) for number in (0, 1)] == [4, 6]
    assert store.outstanding.count([0, 1]) == 10
    assert store.outstanding.count([]) == 0


def test_nothing_is_counted_until_somebody_wants_to_know_it(store: Store) -> None:
    counts = OutstandingCounts(store.outstanding, "other")
    entries(store, p0=1, p1=3)
    assert not counts.run_once([1])
    assert total(store).look([0]) == 8, "counted by admission itself"
    assert counts.run_once([1])
    entries(store, p1=1)
    assert total(store).look([0]) == 8, "what was published"
    assert counts.run_once([1])
    assert total(store).look([0]) == 10
    assert total(store).look([0, 1]) == 10, "all are its own: nothing that was published counts"


def test_nothing_is_published_while_the_node_that_has_the_counts_is_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> bool:
        raise redis.exceptions.ConnectionError("refused")

    counts = OutstandingCounts(store.outstanding, "other")
    monkeypatch.setattr(store.outstanding, "publish", away)
    assert not counts.run_once([1])


def test_counts_end_when_nobody_reads_them_and_their_key_dies(store: Store) -> None:
    counts = OutstandingCounts(store.outstanding, "other")
    store.outstanding.published(FRESH_MS)
    assert counts.run_once([1])
    assert 0 < store._client.pttl(store.keys.of_partition(0).outstanding) <= outstanding.FORGOTTEN_MS
    wait_until(lambda: not counts.run_once([1]), "nobody wants to know it any more")


def test_partitions_of_which_nothing_was_published_lately_are_counted_by_admission(store: Store) -> None:
    counts = OutstandingCounts(store.outstanding, "dead")
    total(store).look([0])
    assert counts.run_once([1])
    entries(store, p1=1)
    wait_until(lambda: total(store).look([0]) == 2, "the count is too old")


def test_a_count_that_overlaps_or_cannot_be_read_is_not_used(store: Store) -> None:
    entries(store, p0=1, p1=2)
    store.outstanding.published(FRESH_MS)
    store.outstanding.publish("moved it", [0, 1])
    key = store.keys.of_partition(0).outstanding
    store._client.hset(key, "newer", json.dumps({"of": "another release"}))
    entries(store, p1=1)
    assert total(store).look([0]) == 8, "of `moved it` is one that admission owns itself"
    store.outstanding.publish("first", [1])
    store.outstanding.publish("second", [1])
    assert total(store).look([0]) == 8, "each partition once"


def test_the_record_of_an_instance_that_is_gone_is_removed(store: Store) -> None:
    store.outstanding.published(FRESH_MS)
    key, old_ms = store.keys.of_partition(0).outstanding, store.now_ms() - outstanding.FORGOTTEN_MS - 1_000
    store._client.hset(key, "gone", json.dumps({"at_ms": old_ms, "partitions": [1], "count": 5}))
    assert store.outstanding.published(FRESH_MS) == []
    assert not store._client.hexists(key, "gone")


def test_rows_that_counts_cannot_include_yet_are_added_in_proportion(store: Store) -> None:
    counts, admission = OutstandingCounts(store.outstanding, "other"), total(store)
    store.outstanding.published(FRESH_MS)
    counts.run_once([1])
    admission.admitted(10, store.now_ms() + 60_000)
    assert admission.look([0]) == 5, "half of the partitions are those of which a count was published"
    admission.admitted(10, 0)
    assert admission.look([0]) == 10
    seen = total(store)
    seen.admitted(10, 0)
    assert seen.look([0]) == 0, "the count is newer"
