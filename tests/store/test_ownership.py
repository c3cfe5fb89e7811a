"""How schedulers share the partitions, on a real Redis."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.settings import Settings
from sleipnir.store.partitions.ownership import PartitionState
from sleipnir.store.store import Store
from sleipnir_scheduler.counters.loads import PartitionLoads
from sleipnir_scheduler.instance import Instance
from sleipnir_scheduler.services import ownership
from sleipnir_scheduler.services.ownership import Ownership
from tests.processes import RedisServer, wait_until

TTL_MS = 2_000


@pytest.fixture
def sixteen(redis_server: RedisServer, tmp_path: Path) -> Iterator[Store]:
    """A store with as many partitions as a new deployment has at least."""
    settings = Settings(**redis_server.addresses, home=tmp_path, key_prefix=f"own-{tmp_path.name}", partitions=16)
    with Store.open(settings) as opened:
        yield opened


def instance(store: Store, name: str, ttl_ms: int = TTL_MS, loads: PartitionLoads | None = None) -> Ownership:
    return Ownership(store.partitions, partitions=16, instance=name, ttl_ms=ttl_ms, loads=loads)


class Work:
    """The loads of an instance, by a clock of the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.loads = PartitionLoads(lambda: self.now_s)


def rounds(*instances: Ownership, count: int = 4) -> list[int]:
    for _ in range(count):
        for each in instances:
            each.run_once()
    return [len(each.epochs) for each in instances]


def test_the_only_scheduler_owns_all_partitions_at_once(sixteen: Store) -> None:
    assert instance(sixteen, "a").run_once() == 16


def test_two_share_eight_each_and_nothing_moves_after_that(sixteen: Store) -> None:
    """Finding C12 of the second review: the first one kept all 16."""
    a, b = instance(sixteen, "a"), instance(sixteen, "b")
    a.run_once()
    assert rounds(b, a) == [8, 8]
    assert a.epochs.keys() | b.epochs.keys() == set(range(16))
    before = a.epochs, b.epochs
    assert rounds(a, b, count=20) == [8, 8]
    assert (a.epochs, b.epochs) == before
    assert a.is_settled
    assert b.is_settled


def test_three_own_no_more_than_six_each_and_all_together(sixteen: Store) -> None:
    three = [instance(sixteen, name) for name in "abc"]
    rounds(*three[:1])
    rounds(*three[:2])
    counts = rounds(*three)
    assert sum(counts) == 16
    assert max(counts) == 6
    before = [each.epochs for each in three]
    rounds(*three, count=20)
    assert [each.epochs for each in three] == before


def test_what_was_begun_is_committed_before_another_has_the_partition(
    sixteen: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C12: runs of a partition that changes its owner are not held up by refused commits."""
    monkeypatch.setattr(ownership, "COMMIT_S", 0.01)
    a, b = instance(sixteen, "a"), instance(sixteen, "b")
    a.run_once()
    b.run_once()
    with a.working:
        a.run_once()
        assert len(a.epochs) == 8, "a begins work on these alone from now on"
        b.run_once()
        assert (len(b.epochs), Counter(sixteen.partitions.owners().values())) == (0, {"a": 16})
    a.run_once()
    b.run_once()
    assert Counter(sixteen.partitions.owners().values()) == {"a": 8, "b": 8}


def test_two_that_take_free_partitions_at_the_same_moment_leave_none(
    sixteen: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = instance(sixteen, "a"), instance(sixteen, "b")
    sixteen.partitions.join("a", TTL_MS)
    sixteen.partitions.join("b", TTL_MS)
    states = sixteen.partitions.states

    def states_before_a_takes_its_share(*args: Any) -> dict[int, PartitionState]:
        seen = states(*args)
        monkeypatch.setattr(sixteen.partitions, "states", states)
        assert a.run_once() == 8
        return seen

    monkeypatch.setattr(sixteen.partitions, "states", states_before_a_takes_its_share)
    assert b.run_once() == 8
    assert Counter(sixteen.partitions.owners().values()) == {"a": 8, "b": 8}
    assert sixteen.partitions.own([], "a", TTL_MS) == {}


def test_others_look_at_once_when_one_comes_releases_partitions_or_goes(sixteen: Store) -> None:
    a, b, stop = instance(sixteen, "a", 60_000), instance(sixteen, "b", 60_000), threading.Event()
    a.run_once()
    waiting = threading.Thread(target=lambda: [(a.wait(60, stop), a.run_once()) for _ in range(8)], daemon=True)
    waiting.start()
    b.run_once()
    wait_until(lambda: len(a.epochs) == 8, "a has released its surplus")
    b.wait(60, stop)
    wait_until(lambda: b.run_once() == 8, "b has them")
    b.give_back()
    wait_until(lambda: len(a.epochs) == 16, "a has all again")
    stop.set()
    assert b.run_once() == 0, "it has left"
    waiting.join(10)


def test_a_wait_for_a_change_ends_at_its_time_and_at_a_stop(sixteen: Store) -> None:
    a, stop = instance(sixteen, "a"), threading.Event()
    a.wait(0.01, stop)
    stop.set()
    a.wait(3600, stop)


def test_the_partitions_of_a_dead_scheduler_are_taken_once_its_lease_lapses(sixteen: Store) -> None:
    a, b = instance(sixteen, "a"), instance(sixteen, "b", ttl_ms=TTL_MS)
    a.run_once()
    rounds(b, a)
    wait_until(lambda: rounds(a, count=1) == [16], "a has all partitions again")
    assert b.run_once() <= 8, "b wakes up, and has lost them"
    assert rounds(a, b) == [8, 8]


def test_a_clean_stop_gives_all_to_the_others_at_once(sixteen: Store) -> None:
    a, b = instance(sixteen, "a", 60_000), instance(sixteen, "b", 60_000)
    a.run_once()
    rounds(b, a)
    b.give_back()
    assert rounds(a, count=1) == [16]


def test_one_of_an_earlier_release_counts_and_keeps_what_it_has(sixteen: Store) -> None:
    sixteen.partitions.own(range(16), "earlier", 15_000)
    a = instance(sixteen, "a")
    assert rounds(a) == [0]
    sixteen.partitions.own(range(10), "earlier", 0)
    assert rounds(a) == [8], "no more than a fair share beside it"


def test_partitions_with_parked_runs_are_given_away_first(sixteen: Store) -> None:
    """Finding C12: the other one may be of a release that can read them."""
    a, b = instance(sixteen, "a"), instance(sixteen, "b")
    a.run_once()
    sixteen._client.hset(sixteen.keys.of_partition(3).parked, "run", "{}")
    assert rounds(b, a) == [8, 8]
    assert 3 in b.epochs


def test_the_owner_of_a_busy_partition_gives_others_away_and_nothing_moves_after_that(sixteen: Store) -> None:
    work = {name: Work() for name in "ab"}
    a, b = (instance(sixteen, name, 60_000, each.loads) for name, each in work.items())
    a.run_once()
    assert rounds(b, a) == [8, 8]
    busy = min(a.epochs)

    def pass_time(seconds: int) -> None:
        for _ in range(seconds):
            for each, at in ((a, work["a"]), (b, work["b"])):
                at.now_s += 1.0
                at.loads.count(partition for partition in each.epochs for _ in range(20 if partition == busy else 1))
                each.run_once()

    pass_time(200)
    assert len(a.epochs) <= 4, "21 and 3 of 2, against 12 of 2; 25.5 is the average"
    assert busy in a.epochs
    before = a.epochs, b.epochs
    pass_time(100)
    assert (a.epochs, b.epochs) == before
    b.give_back()
    rounds(a)
    assert a.epochs.keys() == set(range(16))
    assert rounds(instance(sixteen, "c", 60_000), a) == [3, 13], "the busy one and two others: their loads are recorded"


def test_beside_one_of_an_earlier_release_only_the_number_of_partitions_counts(sixteen: Store) -> None:
    """It takes no more than half, so what is released beyond that would have no owner."""
    work = Work()
    a = instance(sixteen, "a", 60_000, work.loads)
    a.run_once()
    sixteen.partitions.join("earlier", 60_000)
    a.run_once()
    free = sorted(set(range(16)) - sixteen.partitions.owners().keys())
    assert sixteen.partitions.own(free, "earlier", 60_000).keys() == set(free)
    for _ in range(100):
        work.now_s += 1
        work.loads.count([min(a.epochs)] * 100)
        a.run_once()
    assert len(a.epochs) == 8


def test_two_schedulers_with_one_host_name_and_one_process_id_are_two(sixteen: Store, tmp_path: Path) -> None:
    """Finding C13 of the second review: containers with host networking, in each of which it is process 1."""
    settings = Settings(
        redis_url=sixteen.url, broker_url=sixteen._settings.broker_url, home=tmp_path, key_prefix=sixteen.keys.prefix
    )

    names = {Instance(settings, sixteen, threading.Event()).ownership.instance for _ in range(2)}
    assert len(names) == 2
    assert len({name.rpartition(":")[0] for name in names}) == 1


def test_sixteen_share_256_and_whoever_comes_or_goes_leaves_none_without_an_owner(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = Settings(**redis_server.addresses, home=tmp_path, key_prefix=f"many-{tmp_path.name}", partitions=256)
    with Store.open(settings) as store:
        all_of_them = [Ownership(store.partitions, partitions=256, instance=f"s{n}", ttl_ms=60_000) for n in range(16)]
        for count in (1, 2, 4, 16):
            assert sorted(rounds(*all_of_them[:count], count=3)) == [256 // count] * count
        for gone in all_of_them[4:]:
            gone.give_back()
        assert rounds(*all_of_them[:4], count=1) == [64] * 4
        owned = Counter(partition for each in all_of_them for partition in each.epochs)
        assert owned == Counter(range(256))
