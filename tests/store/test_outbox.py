"""The outbox service on a real Redis: what is published again, and when."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from sleipnir.messages import VisitCall
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Visit, Work
from sleipnir.store.fleet import QueueBacklog
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.store import Store
from sleipnir_scheduler.dispatch import Dispatcher, Published, RedisDispatcher
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
    opened = Transition(open=(Visit(1, "a", "script", 1, entry.at_ms, body=Work("gpu")),))
    view = store.partitions.load([RUN])[RUN]
    assert store.partitions.commit([Commit(entry, view, opened)], epochs) == [1]
    return number


class Clocked(RedisDispatcher):
    """One whose clock is that of the test."""

    def __init__(self, store: Store) -> None:
        self.at_ms = store.now_ms()
        super().__init__(store, lambda: self.at_ms)


def outbox(store: Store, dispatcher: Dispatcher | None = None) -> Outbox:
    return Outbox(store.partitions, dispatcher or RedisDispatcher(store), patience_ms=PATIENCE_MS)


CALL = VisitCall(RUN, "a", 1, 1, "agent", "digest")
HOUR_MS = 3_600_000


def length(store: Store, queue: str = "gpu") -> int:
    return store.fleet.queue_lengths({queue})[queue]


def test_a_queue_without_workers_gets_one_message_per_visit_for_any_wait(store: Store, partition: int) -> None:
    """Finding C20 of the second review: 724 messages for each visit after a weekend."""
    dispatcher = Clocked(store)
    service, began_ms = outbox(store, dispatcher), store.now_ms()
    dispatcher.publish([(CALL, "gpu")])
    for after_ms in range(0, 72 * HOUR_MS, 5 * 60_000):
        dispatcher.at_ms = began_ms + after_ms
        service.run_once({partition: dispatcher.at_ms})
    assert length(store) == 1


def test_a_lost_message_is_published_again_while_others_wait(store: Store, partition: int) -> None:
    """Those in line were published later, so a worker has taken this one, and has not claimed the visit."""
    dispatcher = Clocked(store)
    service, began_ms = outbox(store, dispatcher), store.now_ms()
    dispatcher.publish([(CALL, "gpu")])
    key = store.keys.broker_prefix + "gpu"
    dispatcher.at_ms = began_ms + 20_000
    dispatcher.publish([(replace(CALL, run="another00001"), "gpu")])
    assert service.run_once({partition: began_ms + 21_000}) == 0, "it is in line"
    store._broker.rpop(key)
    published_ms = [
        after_ms
        for after_ms in range(22_000, 600_000, 1_000)
        if service.run_once({partition: began_ms + after_ms}) == 1
    ]
    assert len(published_ms) == 1, "and now it is in line again, though at its end"
    assert published_ms[0] < 60_000
    assert length(store) == 2


def test_the_message_of_a_later_attempt_goes_first_in_line_and_is_missed_when_it_is_not_there(
    store: Store, partition: int
) -> None:
    number, client = partition, store._client
    frontier = store.keys.of_run(RUN).frontier
    visit = json.loads(client.hget(frontier, "1")) | {"attempt": 2}
    client.hset(frontier, "1", json.dumps(visit))
    key = store.keys.of_partition(number).outbox
    client.delete(key)
    now_ms = store.now_ms()
    client.zadd(key, {f"{RUN}/1/2": now_ms})
    dispatcher = Clocked(store)
    dispatcher.at_ms = now_ms - HOUR_MS
    dispatcher.publish([(replace(CALL, run="another00001"), "gpu")])
    service = outbox(store, dispatcher)
    assert service.run_once({number: now_ms + 1}) == 1, "a long line of old messages, and none of a later attempt"
    assert [service.run_once({number: now_ms + after_ms}) for after_ms in (60_000, 120_000, 600_000)] == [0, 0, 0]


class Blind:
    """A broker that takes messages and says nothing."""

    def __init__(self, line: QueueBacklog | None = None) -> None:
        self.line, self.published = line, 0

    def publish(self, visits: Iterable[tuple[VisitCall, str]]) -> Published:
        count = len(list(visits))
        self.published += count
        return Published(count)

    def look(self, queues: Collection[str]) -> Mapping[str, QueueBacklog]:
        return {queue: self.line for queue in queues} if self.line else {}


@pytest.mark.parametrize("line", [None, QueueBacklog(5)])
def test_on_a_broker_without_queue_lengths_a_visit_has_three_messages_in_72_hours(
    store: Store, partition: int, line: QueueBacklog | None
) -> None:
    """Finding C20 of the second review."""
    blind = Blind(line)
    service, began_ms = outbox(store, blind), store.now_ms()
    at_ms = [
        after_ms
        for after_ms in range(0, 72 * HOUR_MS, 5 * 60_000)
        if service.run_once({partition: began_ms + after_ms}) == 1
    ]
    assert 1 <= blind.published <= 2, "and that of the commit"
    assert at_ms[0] >= HOUR_MS


def test_a_message_that_a_queue_of_another_broker_has_lost_is_published_soon(store: Store, partition: int) -> None:
    blind = Blind(QueueBacklog(0))
    service, now_ms = outbox(store, blind), store.now_ms() + 2 * PATIENCE_MS
    assert service.run_once({partition: now_ms}) == 1


def test_a_visit_that_was_published_late_is_not_published_twice(store: Store) -> None:
    """Finding C21 of the second review: a scheduler that was behind published everything again at once."""
    number = store.keys.partition_of(RUN)
    epochs = {number: store.partitions.own([number], "me", 60_000)[number].epoch}
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    [entry] = store.partitions.read([number], limit=10, block_ms=None)
    long_ago_ms = entry.at_ms - HOUR_MS
    view = store.partitions.load([RUN])[RUN]
    opened = Transition(open=(Visit(1, "a", "script", 1, long_ago_ms, body=Work("gpu")),))
    commit = Commit(replace(entry, id=f"{long_ago_ms}-0"), view, opened)
    assert store.partitions.commit([commit], epochs) == [1]
    service, now_ms = outbox(store), store.now_ms()
    assert [service.run_once({number: now_ms + after_ms}) for after_ms in (0, 1_000, 2_000, 5_000)] == [0] * 4
    assert service.run_once({number: now_ms + PATIENCE_MS + 1_000}) == 1


def test_a_visit_is_published_when_it_is_due_and_then_later_each_time(store: Store, partition: int) -> None:
    """Each message is taken from the queue, and no worker claims the visit."""
    service, now_ms = outbox(store), store.now_ms()
    published_after = [
        age_ms
        for age_ms in range(0, 100_000, 1_000)
        if _published(store, service, partition, now_ms + age_ms, others=bool(age_ms % 2_000))
    ]
    assert published_after[0] in (10_000, 11_000)
    waits = [later - earlier for earlier, later in pairwise(published_after)]
    assert waits == sorted(waits)
    assert len(published_after) <= 5


def _published(store: Store, service: Outbox, partition: int, now_ms: int, *, others: bool) -> bool:
    """One look at a queue that is empty, or holds another's message; never empty at two looks."""
    key = store.keys.broker_prefix + "gpu"
    store._broker.delete(key)
    if others:
        dispatcher = Clocked(store)
        dispatcher.at_ms = now_ms
        dispatcher.publish([(replace(CALL, run="another00001"), "gpu")])
    return service.run_once({partition: now_ms}) == 1


def test_a_message_that_an_empty_queue_has_lost_is_published_at_the_second_look(store: Store, partition: int) -> None:
    service, later_ms = outbox(store), store.now_ms() + 40_000
    assert service.run_once({partition: later_ms}) == 1, "it was due"
    store._broker.delete(store.keys.broker_prefix + "gpu")
    assert service.run_once({partition: later_ms + 1_000}) == 0, "one look may come between publication and claim"
    assert service.run_once({partition: later_ms + 2_000}) == 1
    assert store.fleet.queue_lengths({"gpu"})["gpu"] == 1
    assert service.run_once({partition: later_ms + 3_000}) == 0, "now it is in line"


def test_a_young_visit_is_not_taken_for_lost(store: Store, partition: int) -> None:
    service, now_ms = outbox(store), store.now_ms()
    assert [service.run_once({partition: now_ms + age_ms}) for age_ms in (1_000, 2_000, 3_000)] == [0, 0, 0]
