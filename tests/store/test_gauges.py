"""What a look at the indices finds, on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.messages import ResultHeader, VisitCall
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import AwaitSignal
from sleipnir.settings import Settings
from sleipnir.store import gauges
from sleipnir.store.gauges import Gauges
from sleipnir.store.runs.requests import NO_FENCE
from sleipnir.store.scripts import run_in_order
from sleipnir.store.store import Store
from sleipnir_scheduler.dispatch import envelope
from tests.processes import RedisServer
from tests.store.test_advance import ASKS, advance_of

SCRIPTS = """
name: g
start: a
nodes:
  a: {type: script, script: s.sh, queue: QUEUE, next: e}
  e: {type: end}
"""
ALL = (0, 1)


@pytest.fixture
def looker(store: Store, redis_server: RedisServer, tmp_path: Path) -> Iterator[Gauges]:
    prefix = store.keys.prefix
    settings = Settings(**redis_server.addresses, home=tmp_path, key_prefix=prefix, partitions=2)
    made = Gauges(settings, store.keys, timeout_s=5)
    yield made
    made.close()


def submit(store: Store, graph: str, *runs: str) -> None:
    for run in runs:
        store.runs.create(run, RunSpec("agent", "digest"), {"initial_prompt": run})
    advance_of(store, graph).run_once()


def claim(store: Store, run: str, token: str = "t") -> VisitCall:
    call = VisitCall(run, "a", 1, 1, "agent", "digest")
    store.visits.claim(call, worker="w", token=token, lease_ms=60_000, wanted=())
    return call


def test_an_empty_deployment_has_nothing_of_anything(looker: Gauges) -> None:
    work = looker.work(ALL)
    assert (work.unfinished, work.finished, work.gates, work.inbox, work.late) == (0, 0, 0, 0, 0)
    assert (work.queued, work.leased, work.complete, work.paused) == ({}, {}, True, False)
    assert (work.gate_ms, work.inbox_ms, work.publishing_ms, work.reaping_ms) == (0, 0, 0, 0)


def test_visits_are_counted_by_queue_as_queued_and_as_leased(store: Store, looker: Gauges) -> None:
    submit(store, SCRIPTS.replace("QUEUE", "gpu"), "run000000001", "run000000002")
    submit(store, SCRIPTS.replace("QUEUE", "scripts"), "run000000003")
    claim(store, "run000000002")
    work = looker.work(ALL)
    assert work.queued == {"gpu": 1, "scripts": 1}
    assert work.leased == {"gpu": 1}
    assert work.unfinished == 3
    assert work.complete


def test_each_partition_is_counted_for_itself(store: Store, looker: Gauges) -> None:
    runs = ["run000000001", "run000000002"]
    assert {store.keys.partition_of(run) for run in runs} == {0, 1}
    submit(store, SCRIPTS.replace("QUEUE", "gpu"), *runs)
    assert [looker.work([partition]).queued for partition in ALL] == [{"gpu": 1}, {"gpu": 1}]
    assert looker.work([]).queued == {}


def test_counts_of_long_queues_are_estimates_that_add_up(
    store: Store, looker: Gauges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "SAMPLE", 5)
    runs = [f"run0000000{number:02d}" for number in range(40)]
    submit(store, SCRIPTS.replace("QUEUE", "gpu"), *runs)
    work = looker.work(ALL)
    assert work.queued == {"gpu": 40}
    assert not work.complete


def test_open_questions_have_an_age(store: Store, looker: Gauges) -> None:
    submit(store, ASKS, "run000000001")
    part = store.keys.of_partition(store.keys.partition_of("run000000001"))
    store.partitions._client.zadd(part.gates, {"run000000001/1": store.now_ms() - 90_000})
    work = looker.work(ALL)
    assert work.gates == 1
    assert 90_000 <= work.gate_ms < 120_000


def test_visits_that_wait_for_events_are_counted_and_have_an_age(store: Store, looker: Gauges) -> None:
    waits = [("a", False), ("a", False), ("b", True), ("b", False), ("c", True)]
    deliver = [
        store.signals.deliver(NO_FENCE, f"run{number:09}", AwaitSignal(name, 1, 1, 0, one=one))
        for number, (name, one) in enumerate(waits)
        for _ in range(2)
    ]
    assert not any(isinstance(reply, Exception) for reply in run_in_order(store._client, deliver))
    part = store.keys.of_partition(store.keys.of_signals("b").partition)
    store._client.zadd(part.awaited, {"b": store.now_ms() - 90_000})
    work = looker.work(ALL)
    assert (work.waits, 90_000 <= work.wait_ms < 120_000) == (5, True)
    for name in "ac":
        store.signals.send(name, "e1", "1")
    assert looker.work(ALL).waits == 5, "they wait until they have taken it"
    leave = [store.signals.gone(name, f"run{number:09}", 1, 1) for number, (name, _) in enumerate(waits) for _ in "12"]
    assert not any(isinstance(reply, Exception) for reply in run_in_order(store._client, leave))
    work = looker.work(ALL)
    assert (work.waits, work.wait_ms) == (0, 0)
    assert not store._client.exists(part.waiting, part.awaited)


def test_an_entry_that_is_not_yet_applied_has_an_age(store: Store, looker: Gauges) -> None:
    store.runs.create("run000000001", RunSpec("agent", "digest"), {})
    part = store.keys.of_partition(store.keys.partition_of("run000000001"))
    store.partitions._client.xadd(part.effects, {"run": "r", "e": "{}"}, id="5-0")
    work = looker.work(ALL)
    assert (work.inbox, work.effects) == (1, 1)
    assert work.effects_ms > 10**9


def test_a_late_result_is_counted_once(store: Store, looker: Gauges) -> None:
    submit(store, SCRIPTS.replace("QUEUE", "gpu"), "run000000001")
    call = claim(store, "run000000001")
    assert not store.visits.deliver(call, ResultHeader(ok=True), {}, worker="w", token="another")
    assert looker.work(ALL).late == 1
    assert looker.work(ALL).late == 0


def test_the_oldest_visit_of_a_queue_is_that_of_the_message_next_in_line(store: Store, looker: Gauges) -> None:
    submit(store, SCRIPTS.replace("QUEUE", "gpu"), "run000000001", "run000000002")
    calls = [VisitCall(f"run00000000{number}", "a", 1, 1, "agent", "digest") for number in (1, 2)]
    store.fleet.publish({"gpu": [envelope(call, "gpu") for call in calls], "llm": ["what is no message of Sleipnir"]})
    store.fleet.announce_worker("w@host", ["gpu"], {})
    claim(store, "run000000001")
    frontier = store.keys.of_run("run000000002").frontier
    visit = json.loads(store.partitions._client.hget(frontier, "1"))
    visit["opened_ms"] = store.now_ms() - 90_000
    store.partitions._client.hset(frontier, "1", json.dumps(visit))
    fleet = looker.fleet()
    assert fleet.messages["gpu"] == 2
    assert 90_000 <= fleet.oldest_ms["gpu"] < 120_000
    assert fleet.oldest_ms["llm"] == 0
    assert {"gpu", "scripts"} <= fleet.queues()


def test_messages_that_are_taken_and_put_back_keep_their_order(store: Store) -> None:
    store.fleet.publish({"gpu": list("abcdef")})
    assert store.fleet.take_messages("gpu", 0) == ([], 6)
    taken, left = store.fleet.take_messages("gpu", 4)
    assert (taken, left) == (list("abcd"), 2), "the next one first"
    store.fleet.put_back("gpu", taken[1:])
    assert store.fleet.take_messages("gpu", 9) == (list("bcdef"), 0)
    assert store.fleet.take_messages("gpu", 1) == ([], 0)


def test_of_the_fleet_a_look_finds_workers_and_memory(store: Store, looker: Gauges) -> None:
    store.fleet.announce_worker("w@host", ["gpu"], {"slots": 4, "busy": 3})
    fleet = looker.fleet()
    assert [(each.name, each.slots, each.busy) for each in fleet.workers] == [("w@host", 4, 3)]
    assert fleet.info["used_memory"] > 0
