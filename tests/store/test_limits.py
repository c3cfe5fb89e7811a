"""The limits of models on a real Redis. Time is an argument, but where processes race."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from sleipnir.models.limits import GrantedPermit, HeldPermit, Limit, LimitChange, LimitReached, LimitUse
from sleipnir.store.connect import connect
from sleipnir.store.keys import Keys
from sleipnir.store.limits import PATIENCE_MS, Limiter
from sleipnir.store.store import Store
from tests.processes import RedisServer, wait_until

T = 1_800_000_000_000
MINUTE, LEASE = 60_000, 15_000
ONE = Limit("a:*", requests_per_minute=1)
TWO = Limit("a:*", requests_per_minute=2)
SLOT = Limit("a:one", max_parallel=1)

_prefixes = (f"limits{number}" for number in itertools.count())


@pytest.fixture
def limiter(store: Store) -> Limiter:
    return store.limiter


def take(limiter: Limiter, limit: Limit, holder: str, at_ms: int = T, tokens: int = 0) -> GrantedPermit | LimitReached:
    return limiter.take([limit], holder, tokens, now_ms=at_ms)


def granted(answer: GrantedPermit | LimitReached) -> GrantedPermit:
    assert isinstance(answer, GrantedPermit), answer
    return answer


def refused(answer: GrantedPermit | LimitReached) -> LimitReached:
    assert isinstance(answer, LimitReached), answer
    return answer


# Requests and tokens.


def test_a_call_above_the_rate_comes_back_when_the_window_has_room(limiter: Limiter) -> None:
    granted(take(limiter, TWO, "x", T))
    granted(take(limiter, TWO, "y", T + 20_000))
    answer = refused(take(limiter, TWO, "z", T + 30_000))
    assert (answer.limit, answer.cause, answer.ahead, answer.used) == (TWO, "requests", 0, 2)
    assert T + MINUTE < answer.retry_at_ms <= T + MINUTE + 1_500
    early = refused(take(limiter, TWO, "z", T + MINUTE - 1))
    assert early.retry_at_ms == answer.retry_at_ms
    granted(take(limiter, TWO, "z", answer.retry_at_ms))


def test_a_holder_counts_as_one_call_and_one_slot_even_if_it_asks_repeatedly(limiter: Limiter) -> None:
    for _ in range(3):
        granted(take(limiter, TWO, "x", tokens=10))
    use = limiter.in_use(TWO, now_ms=T)
    assert (use.requests, use.tokens, len(use.slots)) == (1, 10, 1)


def test_a_holder_that_has_released_its_slot_makes_a_new_call(limiter: Limiter) -> None:
    limiter.release(granted(take(limiter, TWO, "x")), now_ms=T)
    limiter.release(granted(take(limiter, TWO, "x")), now_ms=T)
    assert limiter.in_use(TWO, now_ms=T).requests == 2
    refused(take(limiter, TWO, "x"))


def test_tokens_are_estimated_first_and_counted_when_they_are_known(limiter: Limiter) -> None:
    limit = Limit("a:*", tokens_per_minute=1_000)
    call = granted(take(limiter, limit, "x", tokens=900))
    assert refused(take(limiter, limit, "y", tokens=200)).cause == "tokens"
    limiter.leave([limit], "y")
    for _ in range(2):
        limiter.release(call, 300, now_ms=T)
    killed = granted(take(limiter, limit, "y", tokens=500))
    refused(take(limiter, limit, "z", tokens=201))
    assert limiter.in_use(limit, now_ms=T).tokens == 800
    limiter.leave([limit], "z")
    again = granted(take(limiter, limit, "w", T + LEASE, tokens=200))
    limiter.release(killed, 1, now_ms=T + LEASE)
    assert limiter.in_use(limit, now_ms=T + LEASE).tokens == 1_000, "its slot had lapsed: the estimate stands"
    limiter.release(again, 2_000, now_ms=T + LEASE)
    answer = refused(take(limiter, limit, "v", T + LEASE, tokens=1_000))
    assert answer.used == 2_800
    assert answer.retry_at_ms > T + LEASE + MINUTE
    granted(take(limiter, limit, "v", answer.retry_at_ms, tokens=1_000))


def test_tokens_that_are_known_only_after_the_window_change_nothing(limiter: Limiter) -> None:
    limit = Limit("a:*", tokens_per_minute=1_000)
    call = granted(take(limiter, limit, "x", tokens=900))
    limiter.renew([call], now_ms=T + 2 * MINUTE)
    granted(take(limiter, limit, "y", T + 2 * MINUTE, tokens=900))
    limiter.release(call, 10_000, now_ms=T + 2 * MINUTE)
    assert limiter.in_use(limit, now_ms=T + 2 * MINUTE).tokens == 900


def test_a_call_that_alone_is_above_the_bound_passes_when_nothing_else_counts(limiter: Limiter) -> None:
    limit = Limit("a:*", tokens_per_minute=1_000)
    granted(take(limiter, limit, "small", tokens=1))
    answer = refused(take(limiter, limit, "huge", tokens=5_000))
    granted(take(limiter, limit, "huge", answer.retry_at_ms, tokens=5_000))
    assert refused(take(limiter, limit, "next", answer.retry_at_ms, tokens=1)).used == 5_000


def test_who_asks_for_little_does_not_overtake_who_waits_for_much(limiter: Limiter) -> None:
    limit = Limit("a:*", tokens_per_minute=1_000)
    granted(take(limiter, limit, "first", tokens=500))
    much = refused(take(limiter, limit, "much", tokens=1_000))
    little = refused(take(limiter, limit, "little", tokens=1))
    assert (little.ahead, little.cause) == (1, "tokens")
    assert little.retry_at_ms > much.retry_at_ms
    granted(take(limiter, limit, "much", much.retry_at_ms, tokens=1_000))


# Slots.


def test_slots_are_given_back_once_and_expire_if_they_are_not_renewed(limiter: Limiter) -> None:
    call = granted(take(limiter, SLOT, "x"))
    answer = refused(take(limiter, SLOT, "y"))
    assert (answer.cause, answer.used, answer.holders) == ("parallel", 1, ("x",))
    limiter.release(call, now_ms=T)
    limiter.release(call, now_ms=T)
    second = granted(take(limiter, SLOT, "y"))
    limiter.release(call, now_ms=T)
    assert limiter.in_use(SLOT, now_ms=T).slots == (HeldPermit("y", T + LEASE),), "a late release is about its own slot"
    assert limiter.renew([second], now_ms=T + 10_000) == set()
    refused(take(limiter, SLOT, "z", T + LEASE + 1))
    limiter.leave([SLOT], "z")
    granted(take(limiter, SLOT, "z", T + 10_000 + LEASE))
    assert limiter.renew([second], now_ms=T + 10_000 + LEASE) == {"y"}


def test_a_late_renewal_does_not_bring_a_slot_back(limiter: Limiter) -> None:
    call = granted(take(limiter, SLOT, "x"))
    limiter.release(call, now_ms=T)
    assert limiter.renew([call], now_ms=T) == {"x"}
    assert limiter.in_use(SLOT, now_ms=T).slots == ()


def test_who_waits_for_a_slot_comes_when_calls_usually_end(limiter: Limiter) -> None:
    for number in range(40):
        call = granted(take(limiter, SLOT, f"c{number}", T + number * 4_000))
        limiter.release(call, now_ms=T + number * 4_000 + 4_000)
    granted(take(limiter, SLOT, "x", T + 160_000))
    waits = [refused(take(limiter, SLOT, name, T + 160_000)).retry_at_ms - (T + 160_000) for name in ("y", "z")]
    assert 2_000 <= waits[0] <= 4_000
    assert 2_000 <= waits[1] - waits[0] <= 4_000


# Several limits.


def test_a_call_that_one_limit_refuses_is_counted_in_none(limiter: Limiter) -> None:
    granted(take(limiter, SLOT, "x"))
    answer = refused(limiter.take([SLOT, TWO], "y", now_ms=T))
    assert answer.limit == SLOT
    assert limiter.in_use(TWO, now_ms=T) == LimitUse(TWO, T)
    call = granted(limiter.take([SLOT, TWO], "x", now_ms=T))
    assert limiter.in_use(TWO, now_ms=T).requests == 1, "it holds the one slot already"
    limiter.release(call, now_ms=T)
    assert [limiter.in_use(limit, now_ms=T).slots for limit in (SLOT, TWO)] == [(), ()]


def test_the_limit_that_lets_it_pass_last_is_the_reason(limiter: Limiter) -> None:
    granted(limiter.take([SLOT, ONE], "x", now_ms=T))
    answer = refused(limiter.take([SLOT, ONE], "y", now_ms=T))
    assert (answer.limit, answer.cause) == (ONE, "requests")
    granted(limiter.take([SLOT, ONE], "y", now_ms=answer.retry_at_ms))


def test_without_limits_nothing_is_sent() -> None:
    limiter = Limiter(None, Keys(), lease_ms=LEASE)
    call = granted(limiter.take([], "x", 1_000_000))
    limiter.release(call, 1)
    limiter.leave([], "x")
    assert limiter.renew([call]) == set()
    assert limiter.cool_down([], 1_000) is None


# A provider's 429.


def test_a_pause_that_the_provider_asks_for_holds_the_most_specific_limit(limiter: Limiter) -> None:
    wide = Limit("*", max_parallel=9)
    assert limiter.cool_down([TWO, wide], 20_000, now_ms=T) == T + 20_000
    assert limiter.cool_down([TWO, wide], 5_000, now_ms=T) == T + 20_000, "it only gets longer"
    answer = refused(limiter.take([TWO, wide], "x", now_ms=T))
    assert (answer.limit, answer.cause, answer.retry_at_ms) == (TWO, "cooling", T + 20_000)
    granted(limiter.take([wide], "other", now_ms=T))
    assert limiter.in_use(TWO, now_ms=T).cooling_until_ms == T + 20_000
    granted(limiter.take([TWO, wide], "x", now_ms=T + 20_000))
    assert limiter.in_use(TWO, now_ms=T + 20_000).cooling_until_ms is None


def test_after_a_pause_callers_come_one_after_the_other(limiter: Limiter) -> None:
    limit = Limit("a:*", requests_per_minute=60)
    limiter.cool_down([limit], 10_000, now_ms=T)
    times = [refused(take(limiter, limit, f"c{number}")).retry_at_ms for number in range(5)]
    assert times[0] == T + 10_000
    gaps = {after - before for before, after in itertools.pairwise(times)}
    assert all(500 <= gap <= 1_000 for gap in gaps), "a little faster than the rate"
    for number, at_ms in enumerate(times):
        granted(take(limiter, limit, f"c{number}", at_ms))


def test_a_pause_is_never_longer_than_an_hour(limiter: Limiter) -> None:
    assert limiter.cool_down([ONE], 10**15, now_ms=T) == T + 3_600_000


# The line.


def test_a_later_holder_waits_behind_an_earlier_one_even_if_it_asks_more_often(limiter: Limiter) -> None:
    granted(take(limiter, ONE, "x"))
    times = {name: refused(take(limiter, ONE, name)).retry_at_ms for name in ("y", "z")}
    assert times["z"] - times["y"] >= MINUTE, "it needs the window after"
    again = refused(take(limiter, ONE, "z", times["y"]))
    assert again.ahead == 1
    assert refused(take(limiter, ONE, "new", times["y"])).ahead == 2
    granted(take(limiter, ONE, "y", times["y"] + 1_000))


def test_a_holder_that_does_not_ask_again_delays_others_only_briefly_and_keeps_its_place(limiter: Limiter) -> None:
    granted(take(limiter, ONE, "x"))
    at_ms = refused(take(limiter, ONE, "late")).retry_at_ms
    refused(take(limiter, ONE, "new", at_ms + PATIENCE_MS - 1))
    granted(take(limiter, ONE, "new", at_ms + PATIENCE_MS))
    for name in ("a", "b"):
        refused(take(limiter, ONE, name, at_ms + 10_000))
    assert refused(take(limiter, ONE, "late", at_ms + 10_000)).ahead == 0
    assert limiter.in_use(ONE, now_ms=at_ms + 10_000).waiting == 3


def test_a_caller_that_leaves_makes_room(limiter: Limiter) -> None:
    granted(take(limiter, ONE, "x"))
    refused(take(limiter, ONE, "y"))
    for _ in range(2):
        limiter.leave([ONE], "y")
    assert refused(take(limiter, ONE, "z")).ahead == 0


def test_a_caller_keeps_its_place_under_the_number_of_another_attempt(limiter: Limiter) -> None:
    granted(take(limiter, ONE, "x"))
    first = refused(limiter.take([ONE], "r/2/1/1", caller="r/2/1", now_ms=T))
    refused(take(limiter, ONE, "z"))
    granted(limiter.take([ONE], "r/2/2/1", caller="r/2/1", now_ms=first.retry_at_ms))


# What is stored.


def test_every_key_dies_and_shares_one_hash_tag(store: Store) -> None:
    limiter, client = store.limiter, store._client
    limits = [ONE, SLOT, Limit("{b}:*", max_parallel=1)]
    call = granted(limiter.take(limits, "x", now_ms=T))
    for number in range(2):
        refused(limiter.take(limits, f"y{number}", now_ms=T + number * 10_000))
        limiter.renew([call], now_ms=T + number * 10_000)
    limiter.cool_down(limits, 1_000, now_ms=T)
    keys = client.keys(f"{store.keys.prefix}:{{limits}}*")
    assert {key.rpartition(":")[2] for key in keys} == {"window", "held", "line", "due", "late"}
    assert all(0 < client.pttl(key) <= 7_200_000 for key in keys)
    assert {key.split("{", 1)[1].split("}", 1)[0] for key in keys} == {"limits"}


def test_what_is_stored_does_not_grow_with_the_rate_or_with_time(store: Store) -> None:
    limit = Limit("a:*", requests_per_minute=10**6, tokens_per_minute=10**9)
    for number in range(600):
        call = granted(take(store.limiter, limit, f"c{number}", T + number * 500, tokens=7))
        if number % 3:
            store.limiter.release(call, now_ms=T + number * 500)
    use = store.limiter.in_use(limit, now_ms=T + 599 * 500)
    assert use.tokens == 7 * use.requests
    assert 120 <= use.requests <= 122
    assert len(use.slots) == LEASE // 1_500
    assert store._client.hlen(store.keys.of_limit("a:*").window) <= 2 * 122 + len(use.slots) + 6


def test_a_clock_that_is_set_back_stops_nothing_for_longer_than_a_window(limiter: Limiter) -> None:
    granted(take(limiter, ONE, "x"))
    back = refused(take(limiter, ONE, "y", T - 30_000))
    assert back.retry_at_ms > T + MINUTE
    earlier_ms = T - 3_600_000
    granted(take(limiter, ONE, "z", earlier_ms))
    assert refused(take(limiter, ONE, "w", earlier_ms)).retry_at_ms <= earlier_ms + MINUTE + 1_500
    slots = limiter.in_use(ONE, now_ms=earlier_ms).slots
    assert slots == (HeldPermit("x", earlier_ms + LEASE), HeldPermit("z", earlier_ms + LEASE))


def test_redis_has_the_time(limiter: Limiter, store: Store) -> None:
    before = store.now_ms()
    call = granted(limiter.take([ONE, SLOT], "x", 5))
    [slot] = limiter.in_use(SLOT).slots
    assert before <= slot.until_ms - LEASE <= store.now_ms()
    assert refused(limiter.take([ONE], "y")).retry_at_ms > before + MINUTE
    limiter.renew([call])
    limiter.release(call, 7)
    assert limiter.cool_down([SLOT], 1_000) or before + 1_000 <= 0
    assert replace(limiter.in_use(ONE), at_ms=0) == LimitUse(ONE, 0, requests=1, tokens=7, waiting=1)


# The command.


@pytest.mark.one_redis
def test_the_command_looks_again_and_again(store: Store, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text("models:\n  'a:*': {requests_per_minute: 2}\n")
    granted(store.limiter.take([TWO], "x", 5))
    environment = {
        "LOKI_CONFIG_DIR": str(tmp_path),
        "SLEIPNIR_REDIS_URL": store.url,
        "SLEIPNIR_KEY_PREFIX": store.keys.prefix,
        "SLEIPNIR_PARTITIONS": str(store.keys.partitions),
    }
    command = [sys.executable, "-m", "sleipnir", "limits", "--watch"]
    with subprocess.Popen(
        [*command, "--json"], env=os.environ | environment, stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        for _ in range(2):
            [use] = json.loads(watch.stdout.readline())
            assert (use["pattern"], use["requests"], use["requests_per_minute"], use["tokens"]) == ("a:*", 1, 2, 5)
            assert [slot["holder"] for slot in use["slots"]] == ["x"]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 130


# Under load.


def load(
    limiter: Limiter, limit: Limit, *, callers: int, until_ms: int, late: Callable[[], int], call: Callable[[], int]
) -> list[int]:
    """When calls were granted to so many callers, each of which makes one call after the other."""
    grants: list[int] = []
    numbers = itertools.count()
    todo: list[tuple[int, int, str, GrantedPermit | None]] = [
        (T + number, next(numbers), f"c{number}", None) for number in range(callers)
    ]
    while (step := heapq.heappop(todo))[0] < until_ms:
        at_ms, number, holder, held = step
        if held is not None:
            limiter.release(held, now_ms=at_ms)
            heapq.heappush(todo, (at_ms, next(numbers), f"c{number}", None))
            continue
        answer = take(limiter, limit, holder, at_ms)
        if isinstance(answer, GrantedPermit):
            grants.append(at_ms)
            heapq.heappush(todo, (at_ms + call(), next(numbers), holder, answer))
        else:
            heapq.heappush(todo, (answer.retry_at_ms + late(), number, holder, None))
    return grants


def most_in_a_window(times_ms: Sequence[int], window_ms: int = MINUTE) -> int:
    """Of all windows, wherever they begin."""
    ends = sorted(times_ms)
    return max(sum(1 for at_ms in ends if end - window_ms < at_ms <= end) for end in ends)


@pytest.mark.parametrize("latest_ms", [300, 5_000])
def test_a_rate_is_used_to_95_percent_and_never_exceeded(limiter: Limiter, latest_ms: int) -> None:
    """Callers come up to so late. The first minute is left out: all of a window may pass at once there."""
    chance = random.Random(7)
    minutes = 6
    times = load(
        limiter,
        Limit("a:*", requests_per_minute=60),
        callers=100,
        until_ms=T + minutes * MINUTE,
        late=lambda: chance.randrange(latest_ms),
        call=lambda: chance.randrange(500, 5_000),
    )
    assert most_in_a_window(times) == 60
    assert sum(at_ms >= T + MINUTE for at_ms in times) >= 0.95 * 60 * (minutes - 1)


def test_callers_that_come_much_too_late_are_still_served(limiter: Limiter) -> None:
    """The workers are busy with other things: what matters then is that nobody waits for ever."""
    chance = random.Random(7)
    times = load(
        limiter,
        Limit("a:*", requests_per_minute=60),
        callers=100,
        until_ms=T + 6 * MINUTE,
        late=lambda: chance.randrange(10_000, 30_000),
        call=lambda: 1_000,
    )
    assert most_in_a_window(times) == 60
    assert sum(at_ms >= T + MINUTE for at_ms in times) >= 0.75 * 60 * 5


def test_slots_are_used_although_the_length_of_calls_is_unknown(limiter: Limiter) -> None:
    chance = random.Random(7)
    times = load(
        limiter,
        Limit("a:*", max_parallel=8),
        callers=40,
        until_ms=T + 2 * MINUTE,
        late=lambda: chance.randrange(300),
        call=lambda: chance.randrange(1_000, 5_000),
    )
    assert len(times) >= 0.8 * 8 * 2 * MINUTE / 3_000


class Calls(RuleBasedStateMachine):
    """Anything in any order: taken twice, released late, never released, renewed too late."""

    url = ""
    WINDOW, LEASE = 1_200, 300
    LIMITS = (Limit("a:1", 4, 100, 2), Limit("a:*", 6, None, 3), Limit("*", None, 150, None))

    names = st.sampled_from([f"h{number}" for number in range(8)])
    models = st.sampled_from([LIMITS, LIMITS[1:], LIMITS[2:], LIMITS[:1]])

    @initialize(at_ms=st.integers(T, T + 10_000))
    def begin(self, at_ms: int) -> None:
        self.client = connect(self.url)
        self.limiter = Limiter(self.client, Keys(next(_prefixes)), lease_ms=self.LEASE, window_ms=self.WINDOW)
        self.now_ms = at_ms
        self.grants: dict[Limit, list[list[Any]]] = {limit: [] for limit in self.LIMITS}  # [at, tokens, holder or None]
        self.until: dict[tuple[Limit, str], int] = {}
        self.known: list[GrantedPermit] = []
        self.retry: dict[str, tuple[tuple[Limit, ...], int]] = {}

    @rule(holder=names, limits=models, tokens=st.integers(0, 60))
    def take(self, holder: str, limits: tuple[Limit, ...], tokens: int) -> None:
        answer = self.limiter.take(limits, holder, tokens, now_ms=self.now_ms)
        if isinstance(answer, LimitReached):
            assert answer.retry_at_ms > self.now_ms
            assert answer.limit in limits
            assert any((limit, holder) not in self.live() for limit in limits)
            self.retry[holder] = limits, answer.retry_at_ms
            return
        self.retry.pop(holder, None)
        self.known.append(answer)
        for limit in limits:
            if (limit, holder) not in self.live():
                self.grants[limit].append([self.now_ms, tokens, holder])
                self.until[limit, holder] = self.now_ms + self.LEASE
                self.is_within(limit)

    def is_within(self, limit: Limit) -> None:
        """Just after a grant: no window that ends now holds too much, nor are too many slots held."""
        last = [grant for grant in self.grants[limit] if grant[0] > self.now_ms - self.WINDOW]
        assert limit.requests_per_minute is None or len(last) <= limit.requests_per_minute
        assert limit.tokens_per_minute is None or sum(grant[1] for grant in last) <= limit.tokens_per_minute
        held = sum(name == limit for name, _ in self.live())
        assert limit.max_parallel is None or held <= limit.max_parallel

    def live(self) -> set[tuple[Limit, str]]:
        return {key for key, until_ms in self.until.items() if until_ms > self.now_ms}

    @rule(ms=st.integers(0, 700))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(holder=names)
    def come_back(self, holder: str) -> None:
        if holder in self.retry:
            limits, at_ms = self.retry[holder]
            self.now_ms = max(self.now_ms, at_ms)
            self.take(holder, limits, 1)

    @rule(chance=st.randoms(use_true_random=False), tokens=st.none() | st.integers(0, 60))
    def release(self, chance: random.Random, tokens: int | None) -> None:
        if self.known:
            call = chance.choice(self.known)
            kept = self.kept(call)
            self.limiter.release(call, tokens, now_ms=self.now_ms)
            for limit in call.limits:
                self.until.pop((limit, call.holder), None)
                if tokens is not None and limit in kept:
                    mine = [grant for grant in self.grants[limit] if grant[2] == call.holder]
                    mine[-1][1] = tokens

    @rule(chance=st.randoms(use_true_random=False))
    def renew(self, chance: random.Random) -> None:
        calls = chance.sample(self.known, min(3, len(self.known)))
        kept = [self.kept(call) for call in calls]
        lost = self.limiter.renew(calls, now_ms=self.now_ms)
        assert lost == {call.holder for call, limits in zip(calls, kept, strict=True) if set(call.limits) - limits}
        for call, limits in zip(calls, kept, strict=True):
            self.until |= {(limit, call.holder): self.now_ms + self.LEASE for limit in limits}

    def kept(self, call: GrantedPermit) -> set[Limit]:
        """Where its slot is still held, or has lapsed and nobody has noticed: then it may be renewed."""
        keys = {limit: self.limiter._keys.of_limit(limit.pattern).held for limit in call.limits}
        kept = {limit for limit, key in keys.items() if self.client.zscore(key, call.holder) is not None}
        assert {limit for limit, name in self.live() if name == call.holder and limit in keys} <= kept
        return kept

    @rule(limits=models, ms=st.integers(0, 2_000))
    def cool_down(self, limits: tuple[Limit, ...], ms: int) -> None:
        assert (self.limiter.cool_down(limits, ms, now_ms=self.now_ms) or 0) >= self.now_ms + ms

    @rule(holder=names)
    def leave(self, holder: str) -> None:
        self.limiter.leave(self.LIMITS, holder)

    @invariant()
    def what_operators_see_is_what_is_held(self) -> None:
        if not hasattr(self, "limiter"):
            return
        for limit in self.LIMITS:
            shown = {(limit, slot.holder) for slot in self.limiter.in_use(limit, now_ms=self.now_ms).slots}
            assert shown == {key for key in self.live() if key[0] == limit}

    def teardown(self) -> None:
        if not hasattr(self, "limiter"):
            return
        self.now_ms += max(self.LEASE, 2 * self.WINDOW) + PATIENCE_MS + 10_000
        for limit in self.LIMITS:
            use = self.limiter.in_use(limit, now_ms=self.now_ms)
            assert (use.requests, use.tokens, use.slots) == (0, 0, ())
        for holder in ("one", "two"):
            granted(self.limiter.take(self.LIMITS, holder, 50, now_ms=self.now_ms))
        self.client.close()


def test_in_any_order_of_requests_no_window_is_exceeded_and_all_slots_are_given_back(
    redis_server: RedisServer,
) -> None:
    machine = type("CallsHere", (Calls,), {"url": redis_server.url})
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=40, deadline=None))


def start(plan: dict[str, Any], name: str, **environment: str) -> subprocess.Popen[str]:
    """A process of tests/limited.py."""
    command = [sys.executable, "-m", "tests.limited", json.dumps(plan | {"name": name})]
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)


def plan(store: Store, limit: Limit, **more: int) -> dict[str, Any]:
    usual = {"callers": 25, "window_ms": 1_200, "call_ms": 200, "lease_ms": LEASE}
    return {"url": store.url, "prefix": store.keys.prefix, "limit": asdict(limit)} | usual | more


def test_processes_that_race_stay_within_the_limit_and_their_slots_come_back_when_they_are_killed(store: Store) -> None:
    """Four processes with a hundred callers; a window is 1.2 s here. They are killed while they hold slots."""
    limit = Limit("a:*", requests_per_minute=100, max_parallel=60)
    processes = [start(plan(store, limit), f"p{number}") for number in range(4)]
    limiter = Limiter(store._client, store.keys, lease_ms=LEASE, window_ms=1_200)
    times: list[int] = []
    try:
        for process in itertools.islice(itertools.cycle(processes), 200):
            assert process.stdout is not None
            times.append(int(process.stdout.readline()))
        wait_until(lambda: limiter.in_use(limit).slots, "slots are held")
    finally:
        for process in processes:
            process.kill()
            times += [int(line) for line in process.communicate()[0].splitlines()]
    now_ms = store.now_ms()
    assert most_in_a_window(times, 1_200) <= 100
    assert limiter.in_use(limit, now_ms=now_ms + LEASE).slots == ()
    for number in range(60):
        granted(limiter.take([limit], f"after{number}", caller="after", now_ms=now_ms + LEASE + 100_000))


def test_a_death_before_or_after_a_script_leaves_no_slot(store: Store) -> None:
    limit = Limit("a:*", max_parallel=20)
    points = [f"limit_{script}.{side}" for script in ("take", "release") for side in ("before", "after")]
    limiter = Limiter(store._client, store.keys, lease_ms=LEASE, window_ms=1_200)
    dying = [start(plan(store, limit, callers=3), point, SLEIPNIR_FAILPOINTS=f"{point}=kill@4") for point in points]
    for process in dying:
        process.communicate(timeout=60)
    assert [process.returncode for process in dying] == [-signal.SIGKILL] * len(points)
    now_ms = store.now_ms() + LEASE
    assert limiter.in_use(limit, now_ms=now_ms).slots == ()
    for number in range(20):
        granted(take(limiter, limit, f"after{number}", now_ms + 10_000))


def changed_to(limiter: Limiter, limit: Limit, reason: str = "", **bounds: int) -> None:
    change = LimitChange("ann", T, reason=reason, **bounds)
    assert limiter.change(limit, change, by="ann", reason=reason, keep_ms=MINUTE * 60)


def test_a_bound_that_a_person_has_set_holds_for_the_next_call_of_all_workers(limiter: Limiter) -> None:
    both = Limit("a:*", requests_per_minute=1, max_parallel=9)
    assert isinstance(limiter.take([both], "one", now_ms=T), GrantedPermit)
    refused = limiter.take([both], "two", now_ms=T)
    assert isinstance(refused, LimitReached) and (refused.cause, refused.bound) == ("requests", 1)
    limiter.leave([both], "two")
    changed_to(limiter, both, requests_per_minute=3)
    other = Limiter(limiter._client, limiter._keys, lease_ms=LEASE)  # another process, that knows the file alone
    assert isinstance(limiter.take([both], "two", now_ms=T), GrantedPermit)
    assert isinstance(other.take([both], "three", now_ms=T), GrantedPermit)
    changed_to(limiter, both, max_parallel=1)  # the rate is that of the file again
    limiter.take([both], "four", now_ms=T + 2 * MINUTE)
    refused = limiter.take([both], "five", now_ms=T + 2 * MINUTE + 1)
    assert isinstance(refused, LimitReached) and (refused.cause, refused.bound) == ("requests", 1)
    refused = other.take([replace(both, requests_per_minute=None)], "six", now_ms=T + 2 * MINUTE + 2)
    assert isinstance(refused, LimitReached) and (refused.cause, refused.bound) == ("parallel", 1)
    use = limiter.in_use(both, now_ms=T)
    assert (use.limit, use.written) == (replace(both, max_parallel=1), both)
    assert use.change is not None and (use.change.by, use.change.bounds) == ("ann", {"max_parallel": 1})
    assert limiter.change(both, None, by="ann", reason="", keep_ms=MINUTE)
    assert not limiter.change(both, None, by="ann", reason="", keep_ms=MINUTE)
    assert (limiter.in_use(both).limit, limiter.in_use(both).change) == (both, None)


def test_a_change_that_cannot_be_read_leaves_the_bounds_of_the_file(limiter: Limiter) -> None:
    limiter._client.hset(limiter._keys.limit_changes.changes, SLOT.pattern, "{")
    assert isinstance(limiter.take([SLOT], "one", now_ms=T), GrantedPermit)
    assert isinstance(limiter.take([SLOT], "two", now_ms=T), LimitReached)
    changed_to(limiter, SLOT, max_parallel=2)
    assert isinstance(limiter.take([SLOT], "two", caller="two", now_ms=T + 10_000), GrantedPermit)


def test_a_change_is_in_the_audit_once_however_often_it_is_sent(limiter: Limiter) -> None:
    keys = limiter._keys.limit_changes
    changed_to(limiter, SLOT, "a new card", max_parallel=2)
    [(_, fields)] = limiter._client.xrange(keys.audit)
    entry = json.loads(fields["e"])
    assert (entry["what"], entry["on"], entry["by"]) == ("limit changed", "limit a:one", "ann")
    assert (entry["before"], entry["after"], entry["reason"]) == (
        {"max_parallel": 1}, {"max_parallel": 2}, "a new card",
    )  # fmt: skip
    changed_to(limiter, SLOT, "a new card", max_parallel=2)
    assert limiter._client.xlen(keys.audit) == 1
