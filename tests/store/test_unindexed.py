"""Queued visits that are in no index, on a real Redis."""

from __future__ import annotations

import json

import pytest

from sleipnir.messages import VisitCall
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Visit, Work
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.store import Store
from sleipnir_scheduler.services.unindexed import UnindexedVisits

RUN = "run000000001"
LEASE_MS = 15_000


@pytest.fixture
def call(store: Store) -> VisitCall:
    """A queued visit."""
    number = store.keys.partition_of(RUN)
    epochs = {number: store.partitions.own([number], "me", 60_000)[number].epoch}
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    [entry] = store.partitions.read([number], limit=10, block_ms=None)
    opened = Transition(open=(Visit(1, "a", "script", 1, entry.at_ms, body=Work("gpu")),))
    view = store.partitions.load([RUN])[RUN]
    assert store.partitions.commit([Commit(entry, view, opened)], epochs) == [1]
    return VisitCall(RUN, "a", 1, 1, "agent", "digest")


def look(store: Store) -> int:
    return UnindexedVisits(store.partitions, lease_ms=LEASE_MS).run_once([0, 1])


def test_a_visit_in_its_index_is_left_alone(store: Store, call: VisitCall) -> None:
    part = store.keys.of_partition(store.keys.partition_of(RUN))
    before = store._client.zrange(part.outbox, 0, -1, withscores=True)
    assert look(store) == 0
    assert store._client.zrange(part.outbox, 0, -1, withscores=True) == before
    store.visits.claim(call, worker="w", token="t", lease_ms=LEASE_MS, wanted=())
    assert look(store) == 0


def test_a_queued_visit_in_no_index_is_put_back_into_the_outbox(store: Store, call: VisitCall) -> None:
    """Finding C23 of the second review: it waited for ever."""
    part = store.keys.of_partition(store.keys.partition_of(RUN))
    store._client.delete(part.outbox)
    assert look(store) == 1
    assert store._client.zrange(part.outbox, 0, -1) == [f"{RUN}/1/1"]
    assert look(store) == 0
    assert [due.call for due in store.partitions.due(store.keys.partition_of(RUN), store.now_ms(), 10)] == [call]


def test_a_claimed_visit_in_no_index_gets_a_lease_and_its_worker_delivers_it_or_is_found_dead(
    store: Store, call: VisitCall
) -> None:
    """Finding C23 of the second review."""
    part = store.keys.of_partition(store.keys.partition_of(RUN))
    store.visits.claim(call, worker="w", token="t", lease_ms=LEASE_MS, wanted=())
    store._client.delete(part.leases)
    assert look(store) == 1
    assert store._client.zrange(part.leases, 0, -1) == [f"{RUN}/1/1"]
    assert store._client.exists(part.outbox) == 0
    assert store.visits.heartbeat([call], LEASE_MS) == set()


@pytest.mark.parametrize(
    "change",
    [{"ready": True}, {"wake_ms": 5}, {"failed": True}, {"queue": None}, {"attempt": 2}],
    ids=["ready", "waits", "failed", "no queue", "another attempt"],
)
def test_a_visit_that_is_not_queued_is_not_put_back(store: Store, call: VisitCall, change: dict[str, object]) -> None:
    number = store.keys.partition_of(RUN)
    frontier, part = store.keys.of_run(RUN).frontier, store.keys.of_partition(number)
    store._client.delete(part.outbox)
    names = store.partitions._queued(RUN)
    assert list(names) == [f"{RUN}/1/1"]
    visit = json.loads(store._client.hget(frontier, "1")) | change
    store._client.hset(frontier, "1", json.dumps({name: value for name, value in visit.items() if value is not None}))
    store.partitions._queued = lambda run_id: iter([f"{RUN}/1/1"])  # type: ignore[method-assign]  # read before that
    assert look(store) == 0


def test_all_runs_are_looked_at_in_pieces(store: Store, call: VisitCall, monkeypatch: pytest.MonkeyPatch) -> None:
    number = store.keys.partition_of(RUN)
    store._client.delete(store.keys.of_partition(number).outbox)
    for other in range(1_000):
        store._client.zadd(store.keys.of_partition(number).runs, {f"expired{other:05}": other})
    monkeypatch.setattr("sleipnir_scheduler.services.unindexed.AT_ONCE", 50)
    service = UnindexedVisits(store.partitions, lease_ms=LEASE_MS)
    found = [service.run_once([number]) for _ in range(60)]
    assert sum(found) == 1
    store._client.zremrangebyscore(store.keys.of_partition(number).runs, 0, 1_000)
