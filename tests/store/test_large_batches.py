"""Batches with many rows, and many batches, on a real Redis: work is done in pieces that anybody goes on with, nothing
is read whole, and what did not change is not read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sleipnir.batches.records import BatchPlan, place_of, row_run_id
from sleipnir.client.batch import MOST_GROUPS, OTHER_MESSAGES, Batch
from sleipnir.client.client import Client
from sleipnir.errors import BatchNotFound
from sleipnir.messages import Usage
from sleipnir.settings import Settings
from sleipnir.store.batches import results as results_module
from sleipnir.store.batches.admission import CHANGED
from sleipnir.store.batches.rows import STATES_PAGE
from sleipnir.store.namespaced import note_complete
from sleipnir.store.record_text import record
from sleipnir.store.scripts import run_in_order
from sleipnir.store.store import Store
from sleipnir_scheduler.services import admission as admission_module
from sleipnir_scheduler.services.admission import CANCELLED_AT_ONCE, Admission
from tests.lost_replies import lost_reply
from tests.store.test_batches import HELD, ID, SPEC, World, rows
from tests.unreadable import Unreadable, cases

EPOCH = 1
PIECE = 250  # rows that batch_work.lua retries at once


@contextmanager
def counted(store: Store) -> Iterator[dict[str, int]]:
    """How often each command was called while the block ran, also by scripts. For after the block."""
    calls: dict[str, int] = {}
    before = store._client.info("commandstats")
    yield calls
    for name, stats in store._client.info("commandstats").items():
        more = stats["calls"] - before.get(name, {"calls": 0})["calls"]
        if more and name != "cmdstat_info":
            calls[name.removeprefix("cmdstat_")] = more


def failed_batch(store: Store, count: int) -> Batch:
    """A batch that is over, of which all rows have failed."""
    for at in range(0, count, 500):
        store.batches.add(ID, SPEC, BatchPlan(parallel=count), rows(*range(at, min(at + 500, count))))
    store.batches.seal(ID)
    while (opened := store.batches.look({}).batches[ID]) is not None and opened.kept.waiting:
        store.batches.admit([(opened, count)], 1)
    store._client.delete(store.keys.of_partition(store.keys.partition_of_batch(ID)).effects)  # no run is started
    fail(store, range(count), version=1)
    assert store.batches.info(ID).state == "done"
    return Batch(store, ID)


def fail(store: Store, rows: range, version: int) -> None:
    ends = [store.batches.ended(place_of(ID, row), "failed", version, Usage()) for row in rows]
    assert run_in_order(store._client, ends) == [1] * len(ends)


def synthetic(store: Store, batch: str, states: str, **fields: object) -> None:
    """A batch of rows in these states, that is made without its rows."""
    keys, part = store.keys.of_batch(batch), store.keys.of_partition(store.keys.partition_of_batch(batch))
    counts = {"waiting": states.count("w"), "active": states.count("a"), "failed": states.count("f")}
    plan = {"spec": record(SPEC), "plan": record(BatchPlan(parallel=1)), "created_ms": 1, "total": len(states)}
    pipe = store._client.pipeline()
    pipe.hset(keys.batch, mapping={**plan, **counts, "admitted": counts["active"], "cancelled": 0, **fields})
    pipe.set(keys.states, states)
    pipe.sadd(part.open_batches, batch)
    pipe.zadd(part.batches, {batch: 1})
    pipe.execute()


@pytest.mark.parametrize(("plan", "states"), [(BatchPlan(parallel=1), "aww"), (BatchPlan(canary=2), "aaw")])
def test_rows_are_admitted_once_though_the_reply_is_lost_and_the_call_is_repeated(
    store: Store, plan: BatchPlan, states: str
) -> None:
    """Finding C7 of the second review."""
    world = World(store, plan)
    with lost_reply(store._client, "batch_admit") as calls:
        world.admit()
    assert (len(calls), world.states) == (2, states)
    world.go_on()
    assert world.states == states
    assert len(store.runs.gates(row_run_id(ID, 0))) == 1


def test_a_decision_that_was_made_before_a_pause_admits_nothing(store: Store) -> None:
    world = World(store)
    opened = store.batches.look({}).batches[ID]
    assert opened is not None
    world.batch.pause()
    assert store.batches.admit([(opened, 3)], 1) == [CHANGED]
    assert world.states == "www"


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_retry_failed_reports_all_rows_though_a_reply_is_lost(store: Store, nth: int) -> None:
    """Finding C14 of the second review."""
    batch = failed_batch(store, 2 * PIECE + 100)
    with lost_reply(store._client, "batch_work", nth) as calls:
        assert batch.retry_failed() == 2 * PIECE + 100
    assert len(calls) == 3 + (nth == 3)
    info = batch.info()
    assert (info.state, info.waiting, info.failed) == ("running", 2 * PIECE + 100, 0)
    assert store._client.llen(store.keys.of_batch(ID).rows) == 2 * PIECE + 100
    assert batch.retry_failed() == 0


def test_retry_failed_continues_when_its_client_is_dead(store: Store) -> None:
    """Finding C14 of the second review."""
    failed_batch(store, 3 * PIECE)
    assert store.batches._work(ID, "client") == (1, PIECE)  # and dies
    fail(store, range(10), version=2)
    info = store.batches.info(ID)
    assert (info.state, info.waiting, info.failed) == ("running", PIECE - 10, 2 * PIECE + 10)
    admission = Admission(store, window=1)
    while store.batches.info(ID).failed > 10:
        admission.run_once({0: EPOCH}, HELD)
    assert store.batches._work(ID, "client") == (0, 3 * PIECE), "rows that failed since are not its own"
    assert Batch(store, ID).retry_failed() == 10
    keys = store.keys.of_batch(ID)
    assert all(store._client.ttl(key) == -1 for key in keys.all().values() if store._client.exists(key))


def test_two_retries_share_the_rows(store: Store) -> None:
    batch = failed_batch(store, PIECE + 1)
    assert store.batches._work(ID, "first") == (1, PIECE)
    assert batch.retry_failed() == 0
    assert store.batches._work(ID, "first") == (0, PIECE + 1)


def test_a_batch_is_not_over_while_a_retry_is_under_way(store: Store) -> None:
    failed_batch(store, PIECE + 1)
    store.batches._work(ID, "client")
    fail(store, range(PIECE), version=2)
    assert store.batches.info(ID).state == "running"
    store.batches.cancel(ID)
    info = store.batches.info(ID)
    assert (info.state, info.failed, info.ended_ms is not None) == ("cancelled", PIECE + 1, True)


def test_a_cancel_of_many_rows_is_done_in_pieces_and_continues_when_its_client_is_dead(store: Store) -> None:
    """Finding C14 of the second review."""
    synthetic(store, ID, "w" * (2 * STATES_PAGE) + "cwf")
    assert store.batches._change(ID, "cancel") == 0  # and dies
    assert store.batches.info(ID).state == "cancelling"
    with lost_reply(store._client, "batch_work"):
        assert store.batches.work(ID)
    assert store.batches.info(ID).waiting == 1
    Admission(store, window=1).run_once({0: EPOCH})
    info = store.batches.info(ID)
    assert (info.state, info.cancelled, info.failed) == ("cancelled", 2 * STATES_PAGE + 1, 1)
    assert store.batches.states(ID, 2 * STATES_PAGE, 3 * STATES_PAGE) == "cxf"


def test_the_runs_of_a_cancelled_batch_are_cancelled_some_at_a_time(own_store: Store) -> None:
    count = 2 * CANCELLED_AT_ONCE + 1
    synthetic(own_store, ID, "a" * count)
    own_store.batches.cancel(ID)
    run_in_order(own_store._client, [own_store.runs.notification("none", "cancelled")])
    admission = Admission(own_store, window=1)
    for left in (CANCELLED_AT_ONCE, CANCELLED_AT_ONCE, 1, 0):
        with counted(own_store) as calls:
            admission.run_once({0: EPOCH})
        assert calls.get("hget", 0) == left  # a status is looked at for each run that is told


def test_cancel_leaves_a_batch_alone_that_is_over_and_it_takes_more_rows(store: Store) -> None:
    """Finding C26 of the second review."""
    world = World(store, count=1)
    world.go_on()
    world.answer(0, "yes")
    assert world.batch.cancel() is False
    assert store.batches.info(ID).state == "done"
    assert store.batches.add(ID, SPEC, BatchPlan(), rows(1)).added == 1
    assert world.batch.cancel() is True
    assert store.batches.info(ID).state == "cancelled"
    assert world.batch.cancel() is False


def test_batches_in_which_nothing_happens_are_not_read(own_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding C24 of the second review."""
    monkeypatch.setattr(admission_module, "LOOK_AT_ALL_MS", 3_600_000)  # a busy machine takes seconds for this test
    for number in range(300):
        synthetic(own_store, f"b{number}", "aw")
    admission = Admission(own_store, window=1)
    admission.run_once({0: EPOCH})
    with counted(own_store) as calls:
        for _ in range(10):
            admission.run_once({0: EPOCH})
    assert calls == {"time": 10, "zrangebyscore": 10}
    own_store.batches.seal("b7")
    with counted(own_store) as calls:
        admission.run_once({0: EPOCH})
    assert calls == {"time": 1, "zrangebyscore": 1, "hmget": 1}


@pytest.mark.one_redis  # in a cluster they are in many partitions
def test_more_changes_than_one_look_reads_are_read_by_the_next(store: Store) -> None:
    for number in range(250):
        synthetic(store, f"b{number}", "aw", waiting=0)
    admission = Admission(store, window=1)
    admission.run_once({0: EPOCH}, HELD)
    for number in range(250):
        store.batches.hold(f"b{number}")
    for paused in (100, 200, 250):
        admission.run_once({0: EPOCH}, HELD)
        assert sum(batch.kept.paused for batch in admission._batches.values()) == paused


def test_a_change_by_an_earlier_release_is_seen_at_the_next_look_at_all(store: Store) -> None:
    synthetic(store, "known", "w")
    admission = Admission(store, window=1)
    admission.run_once({0: EPOCH}, HELD)
    synthetic(store, "other", "w")  # as a client does that does not say what it changes
    store._client.srem(store.keys.of_partition(store.keys.partition_of_batch("known")).open_batches, "known")
    admission.run_once({0: EPOCH}, HELD)
    assert admission._claims.keys() == {"known"}
    admission._looked_at_all_ms = 0
    admission.run_once({0: EPOCH}, HELD)
    assert admission._claims.keys() == {"other"}


def test_after_an_error_and_under_another_epoch_all_batches_are_read_again(store: Store) -> None:
    synthetic(store, "known", "w")
    admission = Admission(store, window=1)
    admission.run_once({0: EPOCH}, HELD)
    for again in ({0: EPOCH + 1}, {1: 1}, {0: EPOCH + 1}):
        store._client.delete(store.keys.of_batch("known").batch)
        synthetic(store, "other", "w")
        admission.run_once(again, HELD)
        assert ("other" in admission._claims) == (0 in again)
        store._client.srem(store.keys.of_partition(store.keys.partition_of_batch("other")).open_batches, "other")


def test_states_and_runs_of_rows_are_read_in_pages(own_store: Store) -> None:
    states = "c" * STATES_PAGE + "a" + "c" * STATES_PAGE + "fa"
    synthetic(own_store, ID, states)
    with counted(own_store) as calls:
        assert list(own_store.batches.rows_in(ID, "active")) == [STATES_PAGE, 2 * STATES_PAGE + 2]
        assert list(own_store.batches.rows_in(ID, "failed")) == [2 * STATES_PAGE + 1]
    assert calls == {"getrange": 8}
    with Client(
        Settings(
            redis_url=own_store.url,
            broker_url=own_store._settings.broker_url,
            key_prefix=own_store.keys.prefix,
            partitions=2,
        )
    ) as client:
        assert client.runs(batch="none") == []


def test_outputs_are_read_some_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    synthetic(store, ID, "ccc")
    for row, size in enumerate((70, 20, 90)):
        store._client.rpush(store.keys.of_batch(ID).names, f"k{row}")
        store._client.set(store.keys.of_run(row_run_id(ID, row)).output, "x" * size)
    monkeypatch.setattr(results_module, "OUTPUT_BYTES", 95)
    results = Batch(store, ID).results()
    assert [len(result.output or "") for result in results] == [70, 20, 90]


def test_errors_that_all_differ_are_summed_up(store: Store) -> None:
    count = MOST_GROUPS + 20
    synthetic(store, ID, "f" * count)
    keys = store.keys.of_batch(ID)
    store._client.rpush(keys.names, *map(str, range(count)))
    store._client.hset(
        keys.failures, mapping={str(n): f'{{"version":0,"usage":{{}},"error":"e{n}"}}' for n in range(count)}
    )
    groups = Batch(store, ID).errors()
    assert (len(groups), groups[0].message, groups[0].count) == (MOST_GROUPS + 1, OTHER_MESSAGES, 20)
    assert sum(group.count for group in groups) == count


def test_batches_that_are_kept_do_not_keep_the_janitor_from_those_that_have_expired(store: Store) -> None:
    for number in range(6):
        synthetic(store, f"b{number}", "a")
    for number in (1, 4, 5):
        store._client.delete(store.keys.of_batch(f"b{number}").batch)
    everywhere = range(store.keys.partitions)
    dropped = [store.batches.forget_expired(everywhere, store.now_ms(), 2) for _ in range(5)]
    assert sum(dropped) == 3 and (store.keys.of_cluster or dropped == [1, 0, 2, 0, 0])
    assert {info.id for info in store.batches.recent(10)} == {"b0", "b2", "b3"}
    assert store.batches.pinned().bundles == {"digest"}


@pytest.mark.parametrize("namespace", [None, "default"])
def test_batches_are_read_in_pages_and_expired_ones_shorten_none(store: Store, namespace: str | None) -> None:
    for number in range(7):
        store.batches.add(f"b{number}", SPEC, BatchPlan(), rows(1))
    for number in (2, 5):
        store._client.delete(store.keys.of_batch(f"b{number}").batch)
    pages, after = [], None
    while page := [info.id for info in store.batches.recent(2, namespace, after)]:
        pages.append(page)
        after = page[-1]
    assert [each for page in pages for each in page] == [info.id for info in store.batches.recent(10, namespace)]
    assert [len(page) for page in pages] == [2, 2, 1]
    with pytest.raises(BatchNotFound):
        store.batches.recent(2, namespace, "gone")


def test_a_page_does_not_begin_after_a_batch_of_another_namespace(store: Store) -> None:
    for name in (ID, "other"):
        store.batches.add(name, replace(SPEC, namespace="default" if name == ID else "team-a"), BatchPlan(), rows(1))
    for partition in store.keys.batch_partitions:
        note_complete(store._client, store.keys.of_partition(partition).batches)
    assert store.batches.recent(2, "team-a", "other") == []
    with pytest.raises(BatchNotFound):
        store.batches.recent(2, "default", "other")


def test_batches_that_began_at_once_are_on_one_page_each(store: Store) -> None:
    ids = [f"b{number:02}" for number in range(40)]
    for id_ in ids:
        store.batches.add(id_, SPEC, BatchPlan(), rows(1))
        store._client.zadd(store.keys.of_partition(store.keys.partition_of_batch(id_)).batches, {id_: 7})
    listed, after = [], None
    while page := [info.id for info in store.batches.recent(3, None, after)]:
        listed += page
        after = page[-1]
    assert listed == sorted(ids, reverse=True)
    assert store.batches.ids_starting_with("b3") == ids[30:]


@pytest.mark.parametrize("case", cases("batch"), ids=str)
def test_a_batch_that_cannot_be_read_waits_alone_and_continues_when_it_can(store: Store, case: Unreadable) -> None:
    """Finding C1 of the second review."""
    for batch in (ID, "other"):
        store.batches.add(batch, SPEC, BatchPlan(), rows(0))
    key = store.keys.of_batch(ID).batch
    before = store._client.hgetall(key)
    store._client.hset(key, mapping=case.of(""))
    admission = Admission(store, window=10)
    admission.run_once({0: EPOCH})
    infos = {info.id: info for info in store.batches.recent(10)}
    assert infos[ID].state == "unreadable" and infos[ID].unreadable
    assert infos["other"].state == "accepting" and store.batches.states("other") == "a"
    if "spec" not in case.fields:
        assert store.batches.states(ID) == "w"
    store._client.hset(key, mapping={name: before[name] for name in case.fields})
    admission._looked_at_all_ms = 0
    admission.run_once({0: EPOCH})
    assert store.batches.states(ID) == "a"
