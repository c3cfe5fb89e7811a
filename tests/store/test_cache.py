"""Cached results on a real Redis: who makes one, how long it is kept, and how much."""

from __future__ import annotations

import pytest

from sleipnir.runs.cached_results import CacheAnswer, CacheBusy, CacheHit, CacheLease, CachePlace
from sleipnir.store.cache import CacheStore
from sleipnir.store.store import Store
from tests.processes import wait_until

PLACE = CachePlace("agent", "node", "d1")


def leased(cache: CacheStore, place: CachePlace = PLACE, token: str = "mine") -> CacheLease:
    lease = cache.take(place, token)
    assert isinstance(lease, CacheLease), lease
    return lease


def keep(cache: CacheStore, digest: str, text: str = "{}", ttl_ms: int | None = 60_000, node: str = "node") -> None:
    assert cache.put(leased(cache, CachePlace("agent", node, digest)), text, ttl_ms)


def small(store: Store, *, lease_ms: int = 60_000, longest_ms: int = 60_000, node_bytes: int = 2**20) -> CacheStore:
    return CacheStore(store._client, store.keys, lease_ms=lease_ms, longest_ms=longest_ms, node_bytes=node_bytes)


def keys_of(store: Store) -> list[str]:
    return sorted(key for key in store._client.scan_iter(f"{store.keys.prefix}:*cache*"))


def test_one_execution_makes_the_result_and_all_others_get_it(store: Store) -> None:
    lease = leased(store.cache)
    again = leased(store.cache)
    assert (again.token, again.epoch) == (lease.token, lease.epoch), "a repeated call is the same call"
    busy = store.cache.take(PLACE, "other")
    assert isinstance(busy, CacheBusy)
    assert 0 < busy.lease_ms <= 15_000
    assert store.cache.put(lease, '{"delta":{}}', 60_000)
    assert store.cache.take(PLACE, "other") == store.cache.take(PLACE, "third") == CacheHit('{"delta":{}}')


def test_after_a_failure_exactly_one_other_executes(store: Store) -> None:
    lease = leased(store.cache)
    store.cache.release(lease)
    answers = [store.cache.take(PLACE, f"other-{number}") for number in range(5)]
    assert [type(answer) for answer in answers] == [CacheLease, *[CacheBusy] * 4]
    store.cache.release(lease)
    assert isinstance(store.cache.take(PLACE, "late"), CacheBusy), "a release of an earlier holder takes nothing away"


def test_the_lease_of_one_that_died_lapses_and_exactly_one_other_goes_on(store: Store) -> None:
    others = small(store, lease_ms=60_000)
    dead = leased(small(store, lease_ms=150))
    seen: list[CacheAnswer] = []

    def one_goes_on() -> bool:
        """It may be any of them: the lease lapses at any moment."""
        seen.extend(others.take(PLACE, f"other-{number}") for number in range(3))
        return any(isinstance(answer, CacheLease) for answer in seen)

    wait_until(one_goes_on, "the lease lapses")
    assert sum(isinstance(answer, CacheLease) for answer in seen) == 1
    assert not others.put(dead, "{}", 60_000), "the dead one's result comes too late"


def test_a_lease_that_is_renewed_does_not_lapse(store: Store) -> None:
    lease = leased(small(store, lease_ms=200))
    small(store, lease_ms=60_000).renew([lease])
    assert store._client.pttl(store.keys.of_cache("agent", "node").lease("d1")) > 10_000


@pytest.mark.conformance("CA-02")
def test_a_result_dies_with_its_time_to_live_by_the_clock_of_redis(store: Store) -> None:
    keep(store.cache, "d1", ttl_ms=20)
    wait_until(lambda: isinstance(store.cache.take(PLACE, "other"), CacheLease), "the result has expired")


def test_without_a_time_to_live_a_result_is_kept_for_the_retention(store: Store) -> None:
    keep(small(store, longest_ms=70_000), "d1", ttl_ms=None)
    keep(small(store, longest_ms=70_000), "d2", ttl_ms=10**12)
    keys = store.keys.of_cache("agent", "node")
    assert [60_000 < store._client.pttl(keys.entry(digest)) <= 70_000 for digest in ("d1", "d2")] == [True, True]


def test_no_key_of_a_cache_lives_for_ever(store: Store) -> None:
    keep(store.cache, "d1")
    leased(store.cache, CachePlace("agent", "node", "d2"))
    store.cache.clear("agent", "other")
    lasting = [key for key in keys_of(store) if store._client.pttl(key) < 0 and key != store.keys.caches]
    assert lasting == []


@pytest.mark.conformance("CA-05")
def test_clearing_a_node_leaves_the_others_and_keeps_nothing_that_began_before(store: Store) -> None:
    keep(store.cache, "d1")
    keep(store.cache, "d1", node="other")
    running = leased(store.cache, CachePlace("agent", "node", "d2"))
    assert store.cache.clear("agent", "node") == 1
    assert not store.cache.put(running, "{}", 60_000)
    assert isinstance(leased(store.cache), CacheLease)
    assert isinstance(store.cache.take(CachePlace("agent", "other", "d1"), "x"), CacheHit)
    assert store.cache.clear("agent") == 1
    assert store.cache.uses() == []


def test_thousands_of_results_are_cleared_in_pages(store: Store) -> None:
    for number in range(2_100):
        keep(store.cache, f"d{number}")
    assert [use.entries for use in store.cache.uses()] == [2_100]
    assert store.cache.clear() == 2_100
    assert [key for key in keys_of(store) if ":entry:" in key] == []


def test_the_results_of_a_node_stay_below_its_size_and_those_that_expire_first_make_room(store: Store) -> None:
    cache = small(store, node_bytes=100)
    for number in range(10):
        keep(cache, f"d{number}", "x" * 30, ttl_ms=10_000 + number)
    [use] = cache.uses()
    assert (use.entries, use.bytes_) == (3, 90)
    found = [isinstance(cache.take(CachePlace("agent", "node", f"d{number}"), "x"), CacheHit) for number in range(10)]
    assert found == [False] * 7 + [True] * 3


def test_a_larger_result_takes_the_place_of_a_smaller_one(store: Store) -> None:
    keep(store.cache, "d1", "x" * 10)
    fresh = store.cache.take(PLACE, "again", fresh=True)
    assert isinstance(fresh, CacheLease), "what is there cannot be read"
    assert store.cache.put(fresh, "x" * 25, 60_000)
    [use] = store.cache.uses("agent", "node")
    assert (use.entries, use.bytes_) == (1, 25)


def test_losing_all_of_it_loses_only_the_results(store: Store) -> None:
    lease = leased(store.cache)
    keep(store.cache, "d2")
    store._client.delete(*keys_of(store))
    assert not store.cache.put(lease, "{}", 60_000)
    assert store.cache.uses() == []
    keep(store.cache, "d1")
    assert isinstance(store.cache.take(PLACE, "x"), CacheHit)


@pytest.mark.parametrize("agent", ["agent", None])
def test_clearing_an_agent_keeps_no_first_result_that_is_still_being_made(store: Store, agent: str | None) -> None:
    first = leased(store.cache)
    assert store.cache.clear(agent) == 0
    assert not store.cache.put(first, "{}", 60_000)
    wait_until(lambda: keep_next(store), "a result that was begun later is kept")
    assert isinstance(store.cache.take(PLACE, "other"), CacheHit)


def keep_next(store: Store) -> bool:
    """Whether a result that is begun now is kept: in the millisecond of a clearing none is."""
    lease = store.cache.take(PLACE, "next")
    return isinstance(lease, CacheLease) and store.cache.put(lease, "{}", 60_000)


def test_clearing_another_agent_changes_nothing(store: Store) -> None:
    first = leased(store.cache)
    store.cache.clear("another")
    assert store.cache.put(first, "{}", 60_000)
