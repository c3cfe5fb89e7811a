"""Shares of batches: by weight, whatever their sizes, and nobody stands still."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sleipnir_scheduler.fair_shares import BatchDemand, share


def served(claims: list[BatchDemand], rounds: list[int]) -> Counter[str]:
    """What each batch got in rounds of these capacities."""
    got: Counter[str] = Counter()
    times: dict[str, float] = {}
    for capacity in rounds:
        shares = share(claims, capacity, times)
        got.update(shares.rows)
        times = dict(shares.times)
    return got


def test_rows_are_shared_by_weight_even_in_small_numbers() -> None:
    claims = [BatchDemand("a", 3, 1000), BatchDemand("b", 1, 1000)]
    assert served(claims, [1] * 400) == {"a": 300, "b": 100}
    assert served(claims, [400]) == {"a": 300, "b": 100}
    assert served([BatchDemand("a", 2, 1000), BatchDemand("b", 2, 1000)], [1] * 100) == {"a": 50, "b": 50}


def test_what_one_cannot_take_the_others_get() -> None:
    assert share([BatchDemand("a", 5, 2), BatchDemand("b", 1, 100)], 10, {}).rows == {"a": 2, "b": 8}
    assert share([BatchDemand("a", 5, 2)], 10, {}).rows == {"a": 2}


def test_who_was_away_has_no_claim_to_what_was_missed() -> None:
    shares = share([BatchDemand("old", 1, 1000)], 500, {})
    late = share([BatchDemand("old", 1, 1000), BatchDemand("new", 1, 1000)], 10, shares.times)
    assert late.rows == {"old": 5, "new": 5}


def test_an_idle_batch_gets_a_row_though_others_have_taken_all() -> None:
    claims = [BatchDemand("stuck", 5, 100), BatchDemand("idle", 1, 100, idle=True)]
    assert share(claims, 0, {}).rows == {"stuck": 0, "idle": 1}
    assert share(claims, -20, {}).rows == {"stuck": 0, "idle": 1}
    assert share([], 5, {"gone": 1.0}).times == {}


CLAIMS = st.lists(
    st.builds(BatchDemand, st.uuids().map(str), st.integers(1, 5), st.integers(1, 50), st.booleans()),
    max_size=8,
    unique_by=lambda claim: claim.id,
)


@given(CLAIMS, st.integers(-5, 100))
def test_no_batch_gets_more_than_it_has_and_no_room_remains(claims: list[BatchDemand], capacity: int) -> None:
    rows = share(claims, capacity, {}).rows
    assert all(0 <= rows[claim.id] <= claim.most for claim in claims)
    wanted = sum(claim.most for claim in claims)
    beyond = sum(claim.idle for claim in claims)
    assert min(wanted, max(capacity, 0)) <= sum(rows.values()) <= min(wanted, max(capacity, 0)) + beyond


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.lists(st.integers(0, 9), min_size=20, max_size=60))
def test_over_time_no_batch_is_more_than_a_row_away_from_its_share(weights: list[int], rounds: list[int]) -> None:
    claims = [BatchDemand(str(number), weight, 10_000) for number, weight in enumerate(weights)]
    got = served(claims, rounds)
    total, weight = sum(rounds), sum(weights)
    for claim in claims:
        assert abs(got[claim.id] - total * claim.weight / weight) <= claim.weight + len(claims)
