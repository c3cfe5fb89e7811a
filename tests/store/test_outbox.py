"""The outbox service on a real Redis: what is published again, and when."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sleipnir.runs import RunSpec, Visit
from sleipnir.store.partitions import Commit
from sleipnir.store.store import Store
from sleipnir.transitions import Transition
from sleipnir_scheduler.dispatch import RedisDispatcher
from sleipnir_scheduler.services.outbox import Outbox

RUN = "run000000001"
PATIENCE_MS = 10_000


@pytest.fixture
def partition(store: Store) -> int:
    """A partition with one queued visit, opened now, published to nobody."""
    number = store.keys.partition_of(RUN)
    epochs = {number: store.partitions.own([number], "me", 60_000)[number].epoch}
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    [entry] = store.partitions.read([number], limit=10, block_ms=None)
    opened = Transition(open=(Visit(1, "a", "script", 1, entry.at_ms, "gpu"),))
    view = store.partitions.load([RUN])[RUN]
    assert store.partitions.commit([Commit(entry, view, opened)], epochs) == [1]
    return number


def outbox(store: Store) -> Outbox:
    return Outbox(store.partitions, store.fleet, RedisDispatcher(store), patience_ms=PATIENCE_MS)


def test_a_visit_is_published_when_it_is_due_and_then_later_each_time(store: Store, partition: int) -> None:
    service, now_ms = outbox(store), store.now_ms()
    published_after = [
        age_ms for age_ms in range(0, 100_000, 1_000) if _published(store, service, partition, now_ms + age_ms)
    ]
    assert published_after[0] in (10_000, 11_000)
    waits = [later - earlier for earlier, later in pairwise(published_after)]
    assert waits == sorted(waits)
    assert len(published_after) <= 5


def _published(store: Store, service: Outbox, partition: int, now_ms: int) -> bool:
    """One look, with the queue never empty: the messages stay where they are put."""
    store._client.lpush(store.keys.broker_prefix + "gpu", "somebody else's message")
    return service.run_once([partition], now_ms) == 1


def test_a_message_that_an_empty_queue_has_lost_is_published_at_the_second_look(store: Store, partition: int) -> None:
    service, later_ms = outbox(store), store.now_ms() + 40_000
    assert service.run_once([partition], later_ms) == 1, "it was due"
    store._client.delete(store.keys.broker_prefix + "gpu")
    assert service.run_once([partition], later_ms + 1_000) == 0, "one look may come between publication and claim"
    assert service.run_once([partition], later_ms + 2_000) == 1
    assert store.fleet.queue_lengths({"gpu"})["gpu"] == 1
    assert service.run_once([partition], later_ms + 3_000) == 0, "now it is in line"


def test_a_young_visit_is_not_taken_for_lost(store: Store, partition: int) -> None:
    service, now_ms = outbox(store), store.now_ms()
    assert [service.run_once([partition], now_ms + age_ms) for age_ms in (1_000, 2_000, 3_000)] == [0, 0, 0]
