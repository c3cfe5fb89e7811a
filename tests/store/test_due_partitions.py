"""Which partitions have something due: asked of all at once, so that an idle scheduler costs little."""

from __future__ import annotations

import math

import pytest

from sleipnir.store.store import Store
from sleipnir_scheduler.services import timers


def test_only_partitions_with_something_due_are_looked_into(store: Store) -> None:
    keys, partitions, now_ms = store.keys, store.partitions, store.now_ms()
    store._client.zadd(keys.of_partition(1).timers, {"run/a": now_ms - 5, "run/b": now_ms + 60_000})
    store._client.zadd(keys.of_partition(2).timers, {"run/c": now_ms + 60_000})
    store._client.zadd(keys.of_partition(3).leases, {"run/1/1": now_ms})
    store._client.zadd(keys.of_partition(3).outbox, {"run/1/1": 7.5})
    assert partitions.with_due_timers(range(4)) == [1]
    assert partitions.with_lapsed(range(4), dict.fromkeys(range(4), now_ms)) == [3]
    assert partitions.with_lapsed(range(4), dict.fromkeys(range(4), now_ms - 1)) == []
    assert partitions.next_checks_ms([0, 3]) == {0: math.inf, 3: 7.5}
    assert partitions.with_due_timers([]) == []


def test_a_damaged_index_does_not_hide_what_is_due_elsewhere(store: Store) -> None:
    keys = store.keys
    store._client.set(keys.of_partition(2).timers, "damaged")
    store._client.zadd(keys.of_partition(1).timers, {"run/a": 1})
    with pytest.raises(Exception, match="WRONGTYPE"):
        timers.run_once(store.partitions, range(4))
    assert store._client.zcard(keys.of_partition(1).timers) == 0
