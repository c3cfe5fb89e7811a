"""How schedulers share the partitions, on a real Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_scheduler.instance import Instance
from sleipnir_scheduler.services.ownership import Ownership
from tests.processes import RedisServer, wait_until

TTL_MS = 2_000


@pytest.fixture
def sixteen(redis_server: RedisServer, tmp_path: Path) -> Iterator[Store]:
    """A store with as many partitions as a new deployment has at least."""
    settings = Settings(redis_url=redis_server.url, home=tmp_path, key_prefix=f"own-{tmp_path.name}", partitions=16)
    with Store.open(settings) as opened:
        yield opened


def instance(store: Store, name: str, ttl_ms: int = TTL_MS) -> Ownership:
    return Ownership(store.partitions, partitions=16, instance=name, ttl_ms=ttl_ms)


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


def test_a_partition_is_worked_on_to_the_end_of_a_round_before_another_has_it(sixteen: Store) -> None:
    """Finding C12: runs of a partition that changes its owner are not held up by refused commits."""
    a, b = instance(sixteen, "a"), instance(sixteen, "b")
    a.run_once()
    b.run_once()
    a.run_once()
    assert len(a.epochs) == 8, "a works on these alone from now on"
    b.run_once()
    assert (len(b.epochs), Counter(sixteen.partitions.owners().values())) == (0, {"a": 16})
    a.run_once()
    b.run_once()
    assert Counter(sixteen.partitions.owners().values()) == {"a": 8, "b": 8}


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


def test_two_schedulers_with_one_host_name_and_one_process_id_are_two(sixteen: Store, tmp_path: Path) -> None:
    """Finding C13 of the second review: containers with host networking, in each of which it is process 1."""
    settings = Settings(redis_url=sixteen.url, home=tmp_path, key_prefix=sixteen.keys.prefix)
    import threading

    names = {Instance(settings, sixteen, threading.Event()).ownership.instance for _ in range(2)}
    assert len(names) == 2
    assert len({name.rpartition(":")[0] for name in names}) == 1
