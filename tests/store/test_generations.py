"""Generations on a real Redis: what begins one, and when leases can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.errors import StoreUnavailable
from sleipnir.messages import VisitCall
from sleipnir.runs.claims import Claim, ClaimRefused
from sleipnir.runs.events import LeaseLost
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir.runs.views import Generation
from sleipnir.runs.visits import Visit, Work
from sleipnir.settings import Settings
from sleipnir.store.generations import gap_ms
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.store import Store
from sleipnir_scheduler.services import reaper
from sleipnir_scheduler.services.generation import GenerationWatch
from tests.processes import RedisServer

RUN = "run000000001"
LEASE_MS, GAP_MS = 15_000, 5_000


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer("--enable-debug-command", "yes") if _is_seven() else RedisServer()
    yield made
    made.stop()


def _is_seven() -> bool:
    from sleipnir.local.supervisor import _version_of, find_server

    return _version_of(find_server()) >= (7, 0)


@pytest.fixture
def own(server: RedisServer, tmp_path: Path) -> Iterator[Store]:
    """A store on a server of its own."""
    with Store.open(Settings(**server.addresses, home=tmp_path, partitions=2)) as opened:
        yield opened


def pulse(store: Store, seen: Generation | None = None, **options: bool) -> Generation:
    return store.generations.pulse(seen, lease_ms=LEASE_MS, gap_ms=GAP_MS, **options)


def age(store: Store, ms: int) -> None:
    """As if the last pulse were `ms` older."""
    key = store.keys.generation_of(0)
    store._client.hset(key, mapping={"pulse_ms": store.now_ms() - ms, "steady_ms": 0})


def settled(store: Store) -> Generation:
    """A generation whose leases can be trusted."""
    pulse(store)
    age(store, 100)
    return pulse(store)


def test_the_first_generation_begins_once_for_all_schedulers(own: Store) -> None:
    one, other = pulse(own), pulse(own)
    assert (one.why, one.data) == ("first", one.id)
    assert other.id == one.id
    assert other.pulse > one.pulse


def test_leases_of_a_redis_that_just_started_cannot_be_trusted_and_those_of_an_old_one_can(store: Store) -> None:
    uptime_ms = int(store._client.info("server")["uptime_in_seconds"]) * 1000
    first = pulse(store)
    assert first.is_steady == (uptime_ms >= LEASE_MS)
    assert max(0, first.steady_ms - first.now_ms) <= LEASE_MS - min(LEASE_MS, uptime_ms)


def test_a_redis_that_restarted_begins_a_generation_in_which_nothing_is_trusted_for_a_lease(
    own: Store, server: RedisServer
) -> None:
    """Findings C4 and C6 of the second review."""
    before = settled(own)
    server.kill()
    server.start()
    after = pulse(own, before)
    assert (after.why, after.id == before.id, after.data) == ("restarted", False, after.id)
    assert after.steady_ms - after.now_ms == LEASE_MS
    other = pulse(own, before)
    assert other.id == after.id, "another scheduler joins this generation"


def test_a_new_scheduler_detects_a_restart_of_redis(own: Store, server: RedisServer) -> None:
    before = settled(own)
    server.kill()
    server.start()
    assert pulse(own, None).id != before.id


def test_a_redis_that_was_stopped_after_all_services_has_lost_nothing(own: Store, server: RedisServer) -> None:
    """Finding C5: a clean stop leaves nothing of `effect: once` in doubt."""
    before = settled(own)
    own.generations.stopped()
    server.kill()
    server.start()
    after = pulse(own)
    assert (after.why, after.data, after.id == before.id) == ("stopped_cleanly", before.data, False)
    server.kill()
    server.start()
    assert pulse(own, after).why == "restarted", "the mark counts once"


def test_a_pulse_removes_the_record_of_an_orderly_stop(own: Store, server: RedisServer) -> None:
    before = settled(own)
    own.generations.stopped()
    before = pulse(own, before)
    server.kill()
    server.start()
    assert pulse(own, before).why == "restarted"


def test_a_lost_tail_is_noticed_though_the_server_is_the_same(own: Store) -> None:
    """Finding C6 of the second review."""
    before = settled(own)
    own._client.hset(own.keys.generation_of(0), "pulse", before.pulse - 1)
    after = pulse(own, before)
    assert (after.why, after.data == after.id, after.id == before.id) == ("went_back", True, False)
    own._client.flushall()
    assert pulse(own, after).why == "emptied"


def test_a_person_can_begin_a_generation_after_a_restore(own: Store) -> None:
    before = settled(own)
    after = pulse(own, None, restored=True)
    assert (after.why, after.data == after.id, after.id == before.id) == ("restored", True, False)
    assert not after.is_steady


def test_a_clock_that_stepped_makes_leases_wait_and_puts_no_data_in_doubt(own: Store) -> None:
    before = settled(own)
    after = pulse(own, before, stepped=True)
    assert (after.why, after.data) == ("clock_stepped", before.data)
    assert not after.is_steady
    assert pulse(own, before, stepped=True).id == after.id, "two schedulers that see one step begin one generation"


def test_a_clock_that_was_set_back_is_noticed_by_a_scheduler_without_memory(own: Store) -> None:
    settled(own)
    age(own, -60_000)
    own._client.hset(own.keys.generation_of(0), "steady_ms", own.now_ms() + 3_600_000)
    after = pulse(own)
    assert after.why == "clock_stepped"
    assert after.steady_ms - after.now_ms == LEASE_MS


def test_after_a_time_in_which_no_scheduler_reached_redis_leases_wait(own: Store) -> None:
    """Finding C4 of the second review: workers may have been cut off too."""
    before = settled(own)
    assert before.is_steady
    age(own, GAP_MS + 1_000)
    after = pulse(own, None)
    assert after.id == before.id
    assert after.steady_ms - after.now_ms == LEASE_MS
    age(own, GAP_MS - 1_000)
    assert pulse(own, None).is_steady, "a scheduler that was replaced soon holds nothing up"


class Clock:
    def __init__(self) -> None:
        self.ahead_ms = 0.0

    def __call__(self) -> float:
        import time

        return time.monotonic() * 1000 + self.ahead_ms


def test_a_step_of_the_clock_of_redis_is_seen_by_ours(own: Store) -> None:
    began: list[str] = []
    clock = Clock()
    watch = GenerationWatch(own.generations, lease_s=15, heartbeat_s=5, began=began.append, monotonic_ms=clock)
    first = watch.run_once()
    assert watch.run_once().id == first.id
    clock.ahead_ms -= 60_000  # while the clock here stood still, that of Redis went on by a minute
    assert watch.run_once().why == "clock_stepped"
    clock.ahead_ms += 60_000
    assert watch.run_once().why == "clock_stepped"
    assert watch.run_once().id == watch.id
    assert began == ["first", "clock_stepped", "clock_stepped"]


def test_the_gap_leaves_workers_time_to_come_back() -> None:
    assert gap_ms(15, 5) == 5_000
    assert gap_ms(2, 0.5) == 1_000


# The reaper


@pytest.fixture
def leased(own: Store) -> VisitCall:
    """A visit whose lease has lapsed."""
    number = own.keys.partition_of(RUN)
    epochs = {number: own.partitions.own([number], "me", 60_000)[number].epoch}
    own.runs.create(RUN, RunSpec("agent", "digest"), {})
    [entry] = own.partitions.read([number], limit=10, block_ms=None)
    opened = Transition(open=(Visit(1, "a", "script", 1, entry.at_ms, body=Work("scripts")),))
    view = own.partitions.load([RUN])[RUN]
    assert own.partitions.commit([Commit(entry, view, opened)], epochs) == [1]
    call = VisitCall(RUN, "a", 1, 1, "agent", "digest")
    own.visits.claim(call, worker="w1", token="t1", lease_ms=-1, wanted=())
    return call


def reap(store: Store, generation: Generation) -> int:
    return reaper.run_once(store.partitions, [0, 1], generation, lease_ms=LEASE_MS, gap_ms=GAP_MS)


def test_the_reaper_waits_until_leases_can_be_trusted(own: Store, server: RedisServer, leased: VisitCall) -> None:
    """Finding C4 of the second review."""
    before = settled(own)
    server.kill()
    server.start()
    after = pulse(own, before)
    assert reap(own, after) == 0
    assert own.visits.heartbeat([leased], LEASE_MS) == set(), "the worker is back, and keeps its visit"
    own._client.zadd(own.keys.of_partition(own.keys.partition_of(RUN)).leases, {f"{RUN}/1/1": 1})
    age(own, 100)
    assert reap(own, pulse(own, after)) == 1


def test_a_decision_to_take_back_that_redis_gets_too_late_has_no_effect(own: Store, leased: VisitCall) -> None:
    """Finding C4: Redis is away between the pulse of a round and its call, which is repeated when it is there again."""
    now = settled(own)
    part = own.keys.partition_of(RUN)
    assert own.partitions.take_back(part, now.now_ms, now.now_ms - 1, 10) == 0
    assert own.partitions.take_back(part, now.now_ms, now.now_ms + GAP_MS, 10) == 1


def test_a_full_redis_takes_nothing_from_living_workers(own: Store, leased: VisitCall) -> None:
    """Finding C4b of the second review: renewals are refused, so nothing may be taken back."""
    now = settled(own)
    own._client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="refuses to write"), own.errors():
            own.visits.heartbeat([leased], LEASE_MS)
        with pytest.raises(StoreUnavailable, match="refuses to write"), own.errors():
            pulse(own, now)
        with pytest.raises(StoreUnavailable, match="refuses to write"), own.errors():
            reap(own, now)
    finally:
        own._client.config_set("maxmemory", "0")
    assert own.visits.heartbeat([leased], LEASE_MS) == set()


def test_leases_from_before_a_clock_was_set_back_do_not_outlive_it(own: Store, leased: VisitCall) -> None:
    leases = own.keys.of_partition(own.keys.partition_of(RUN)).leases
    own._client.zadd(leases, {f"{RUN}/1/1": own.now_ms() + 3_600_000})
    stepped = pulse(own, settled(own), stepped=True)
    assert reap(own, stepped) == 0
    assert own._client.zscore(leases, f"{RUN}/1/1") == stepped.now_ms + 2 * LEASE_MS


# `effect: once`


def queued(store: Store, generation: str | None) -> VisitCall:
    """A visit that must happen once, queued in that generation."""
    number = store.keys.partition_of(RUN)
    epochs = {number: store.partitions.own([number], "me", 60_000)[number].epoch}
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    [entry] = store.partitions.read([number], limit=10, block_ms=None)
    opened = Transition(open=(Visit(1, "a", "script", 1, entry.at_ms, body=Work("scripts", generation=generation)),))
    view = store.partitions.load([RUN])[RUN]
    assert store.partitions.commit([Commit(entry, view, opened)], epochs) == [1]
    return VisitCall(RUN, "a", 1, 1, "agent", "digest")


def claim(store: Store, call: VisitCall, token: str = "t1") -> object:
    return store.visits.claim(call, worker="w1", token=token, lease_ms=LEASE_MS, wanted=())


def test_a_visit_that_must_happen_once_is_claimed_in_its_own_generation(own: Store) -> None:
    call = queued(own, settled(own).data)
    assert isinstance(claim(own, call), Claim)
    assert isinstance(claim(own, call), Claim), "the reply of the first call was lost"


def test_a_visit_that_must_happen_once_and_was_queued_before_a_restore_is_asked_about(
    own: Store, server: RedisServer
) -> None:
    """Finding C5 of the second review."""
    before = settled(own)
    call = queued(own, before.data)
    server.kill()
    server.start()
    assert claim(own, call) == ClaimRefused("unsettled"), "no scheduler has seen the restart yet"
    pulse(own, before)
    assert claim(own, call) == ClaimRefused("restored")
    assert claim(own, call) == ClaimRefused("taken"), "asked once"
    number = own.keys.partition_of(RUN)
    [entry] = own.partitions.read([number], limit=10, block_ms=None)
    assert entry.event == LeaseLost(1, 1, "w1", restored=True)
    assert own._client.zcard(own.keys.of_partition(number).outbox) == 0


def test_a_step_of_the_clock_and_a_clean_stop_leave_nothing_in_doubt(own: Store, server: RedisServer) -> None:
    before = settled(own)
    call = queued(own, before.data)
    stepped = pulse(own, before, stepped=True)
    own.generations.stopped()
    server.kill()
    server.start()
    assert pulse(own, None).id not in (before.id, stepped.id)
    assert isinstance(claim(own, call), Claim)


def test_other_visits_are_claimed_after_any_loss_of_redis(own: Store, server: RedisServer) -> None:
    before = settled(own)
    call = queued(own, None)
    server.kill()
    server.start()
    assert isinstance(claim(own, call), Claim)
    assert pulse(own, before).id != before.id


def test_a_claim_is_replicated_once_so_many_replicas_have_it(own: Store) -> None:
    """Finding C5 of the second review: a fail-over must not forget that the visit has begun."""
    call = queued(own, settled(own).data)
    claim(own, call)
    assert own.visits.is_replicated(call, lease_ms=LEASE_MS, replicas=0, timeout_ms=100)
    assert not own.visits.is_replicated(call, lease_ms=LEASE_MS, replicas=1, timeout_ms=100)
