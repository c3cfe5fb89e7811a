"""What clients look at: one record that cannot be read hides no other. Findings C1 and C23 of the second review."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sleipnir.runs.run import Parked, RunSpec
from sleipnir.settings import Settings
from sleipnir.store.gauges import Gauges
from sleipnir.store.record_text import record
from sleipnir.store.store import Store
from tests.processes import RedisServer
from tests.store.test_advance import ASKS
from tests.store.test_parking import OTHERS, RECORDS, STRANGE, Bench, keep
from tests.unreadable import Unreadable, cases


@pytest.fixture
def bench(store: Store) -> Iterator[Bench]:
    yield Bench(store, ASKS)
    store._client.flushdb()


@pytest.mark.parametrize("case", RECORDS, ids=str)
def test_an_unreadable_run_hides_no_other_and_has_the_reason(bench: Bench, case: Unreadable) -> None:
    """Finding C1: clients read as strictly as schedulers."""
    bench.submit(STRANGE, *OTHERS)
    bench.plan()
    keep(bench, case)
    bench.plant({"t": "teleported", "run": STRANGE})
    bench.advance = bench.scheduler()
    bench.plan()
    infos = {info.id: info for info in bench.store.runs.recent(100)}
    assert set(infos) == {STRANGE, *OTHERS}
    assert {infos[run].status for run in OTHERS} == {"waiting"}
    assert {infos[run].unreadable for run in OTHERS} == {None}
    mark = infos[STRANGE].parked
    assert mark is not None
    # Clients do not read all of what a scheduler reads.
    assert infos[STRANGE].unreadable or "cannot be read" in mark.reason
    assert {*OTHERS} <= {gate.run for gate in bench.store.runs.open_gates()}


@pytest.mark.parametrize("case", cases("gate"), ids=str)
def test_a_question_that_cannot_be_read_hides_no_other(bench: Bench, case: Unreadable) -> None:
    """Finding C1."""
    bench.submit(STRANGE, OTHERS[0])
    bench.plan()
    bench.client.hset(bench.store.keys.of_run(STRANGE).gates, "1", case.of(STRANGE))
    found = {gate.run: gate for gate in bench.store.runs.open_gates()}
    assert found[OTHERS[0]].question == "hi?"
    assert (found[STRANGE].kind, "cannot be read" in found[STRANGE].question) == ("unreadable", True)


@pytest.mark.parametrize("case", cases("worker"), ids=str)
def test_an_announcement_that_cannot_be_read_hides_no_worker_and_is_dropped(store: Store, case: Unreadable) -> None:
    """Finding C1."""
    store.fleet.announce_worker("good", ["scripts"], {"pid": 7})
    store._client.hset(store.keys.workers, "strange", case.of(""))
    assert [worker.name for worker in store.health().workers] == ["good"]
    assert "good" in [worker.name for worker in store.fleet.workers()[0]]
    store.fleet.forget_silent(store.now_ms() - 60_000)
    assert store._client.hexists(store.keys.workers, "good")


def test_what_was_set_aside_is_counted_and_late_events_of_parked_runs_are_no_lag(
    bench: Bench, redis_server: RedisServer
) -> None:
    """Findings C1 and C23: what doctor, metrics and alerts say."""
    bench.submit(STRANGE, OTHERS[0])
    bench.plan()
    inbox = bench.store.keys.of_partition(bench.store.keys.partition_of(STRANGE)).inbox
    bench.client.xadd(inbox, {"t": "teleported", "run": STRANGE})
    effects = bench.store.keys.of_partition(0).effects
    assert bench.store.dead_letters.bury(0, str(bench.client.xadd(effects, {"run": STRANGE, "e": "{"})), "why")
    bench.plan()
    health = bench.store.health()
    assert (health.parked, health.dead_letters) == (1, 1)
    assert health.parked_reasons[0].startswith(f"{STRANGE}: inbox entry 'teleported' cannot be read")
    settings = Settings(**redis_server.addresses, key_prefix=bench.store.keys.prefix, partitions=2)
    gauges = Gauges(settings, bench.store.keys, timeout_s=5)
    work = gauges.work([0, 1])
    gauges.close()
    assert (work.parked, work.dead_letters, work.inbox, work.inbox_ms) == (1, 1, 1, 0)


def test_a_mark_of_another_release_is_shown_as_far_as_it_can_be_read(store: Store) -> None:
    store.runs.create(STRANGE, RunSpec("agent", "digest"), {})
    parked = store.keys.of_partition(store.keys.partition_of(STRANGE)).parked
    for text, reason in (
        (record(Parked("because", 5, "me", "9.9")), "because"),
        (json.dumps({"reason": "because", "at_ms": 5, "colour": "red"}), "because"),
        ("{", "damaged: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ):
        store._client.hset(parked, STRANGE, text)
        mark = store.runs.info(STRANGE).parked
        assert mark is not None
        assert mark.reason == reason
    store._client.delete(parked)
