"""How schedulers divide the partitions by their loads."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from sleipnir_scheduler.counters.loads import OVER_S, PartitionLoads
from sleipnir_scheduler.partition_shares import TOLERANCE, PartitionShares, weight


def settled(
    weights: Mapping[int, float], owners: dict[int, str], instances: list[str], most: int = 50
) -> tuple[dict[int, str], int]:
    """The owners after rounds of all instances in which nothing moves any more, and how many partitions moved."""
    moves = 0
    for _ in range(most):
        before = dict(owners)
        for name in random.sample(instances, len(instances)):
            released = PartitionShares(weights, owners, instances).surplus(name, {})
            owners = {partition: owner for partition, owner in owners.items() if partition not in released}
            moves += len(released)
            for taker in random.sample(instances, len(instances)):
                free = [partition for partition in weights if partition not in owners]
                owners |= dict.fromkeys(PartitionShares(weights, owners, instances).wanted(taker, free), taker)
        assert owners.keys() == weights.keys(), "none is without an owner"
        if owners == before:
            return owners, moves
    raise AssertionError("partitions move back and forth")


@pytest.mark.parametrize("seed", range(40))
def test_any_loads_are_divided_as_evenly_as_their_heaviest_allows_and_then_nothing_moves(seed: int) -> None:
    random.seed(seed)
    instances = [f"s{number}" for number in range(random.randint(1, 16))]
    partitions = range(random.choice([16, 256]))
    weights = {number: weight(random.choice([0, 0, 1, 5, 50, 500]) * random.random()) for number in partitions}
    owners = {number: random.choice(instances) for number in partitions}
    owners, _ = settled(weights, owners, instances)
    shares = PartitionShares(weights, owners, instances)
    assert max(shares.has().values()) <= max((1 + TOLERANCE) * shares.average, shares.average + max(weights.values()))


def test_equal_partitions_are_divided_by_their_number() -> None:
    weights = dict.fromkeys(range(256), 1.0)
    owners, moves = settled(weights, dict.fromkeys(range(256), "a"), ["a", "b", "c"])
    assert sorted(PartitionShares(weights, owners, ["a", "b", "c"]).has().values()) == [84, 86, 86]
    assert moves == 170, "each of them moved once"


def test_small_differences_move_nothing() -> None:
    random.seed(1)
    owners = {number: "ab"[number % 2] for number in range(256)}
    for _ in range(100):
        weights = {number: weight(random.gauss(12, 2)) for number in range(256)}
        assert not any(PartitionShares(weights, owners, "ab").surplus(name, {}) for name in "ab")


def test_few_partitions_move_because_the_heaviest_move_first() -> None:
    weights = dict.fromkeys(range(256), weight(1)) | dict.fromkeys(range(3), weight(100))
    owners = dict.fromkeys(range(128), "a") | dict.fromkeys(range(128, 256), "b")
    owners, moves = settled(weights, owners, ["a", "b"])
    assert moves == 24, "a busy one and 23 others, instead of 74 others"
    assert {owners[number] for number in range(3)} == {"a", "b"}


def test_partitions_with_parked_runs_go_first() -> None:
    weights = dict.fromkeys(range(16), 1.0)
    released = PartitionShares(weights, dict.fromkeys(range(16), "a"), "ab").surplus("a", {3: 2, 5: 1})
    assert len(released) == 8
    assert {3, 5} < released


def test_the_one_that_has_least_takes_what_all_believe_to_be_the_business_of_others() -> None:
    """They look at different moments: the loads of the others may have been smaller a second before."""
    weights = {0: 9.0, 1: 9.0, 2: 1.0}
    shares = PartitionShares(weights, {0: "a", 1: "b"}, "ab")
    assert shares.wanted("a", [2]) == [2]
    busier = PartitionShares({**weights, 0: 20.0, 3: 0.1}, {0: "a", 1: "b"}, "ab")
    assert (busier.wanted("a", [2, 3]), busier.wanted("b", [2, 3])) == ([], [2, 3])


def test_rates_follow_loads_that_last_and_begin_with_what_the_last_owner_measured() -> None:
    now_s = [0.0]
    loads = PartitionLoads(lambda: now_s[0])
    loads.begin({1: 40.0})
    for _ in range(3):
        now_s[0] += 1.0
        loads.count([0] * 10)
        loads.count([1] * 40)
        rates = loads.rates([0, 1])
    assert 0.9 < rates[0] < 1.1
    assert rates[1] == pytest.approx(40)
    now_s[0] += 10 * OVER_S
    assert loads.rates([0]) == {0: pytest.approx(0, abs=0.01)}
    assert loads.rates([0, 1])[1] == 0, "another one owned it meanwhile"
