"""In which partitions something is due: few of many are looked at, and nothing that is due is missed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from sleipnir.settings import Settings
from sleipnir.store.partitions.due_times import FirstTimes
from sleipnir.store.store import Store
from sleipnir_scheduler.services.due_times import INDEXES, LOOKS_AT_ONCE, DueTimes, Index
from tests.processes import RedisServer

MANY = 4 * LOOKS_AT_ONCE
SOON_MS = 60_000


class Looks:
    """A scheduler that owns all partitions, with a clock that does not move by itself."""

    def __init__(self, store: Store) -> None:
        self.store, self.client, self.now_s = store, store._client, 1000.0
        self.epochs = dict.fromkeys(range(store.keys.partitions), 1)
        self.times = DueTimes(store.partitions, clock=lambda: self.now_s)

    def write(self, index: Index, partition: int, in_ms: int) -> None:
        part = self.store.keys.of_partition(partition)
        key = part.jobs_due if index == "jobs" else getattr(part, index)
        self.client.zadd(key, {"run/1/1": self.store.now_ms() + in_ms})

    def rounds(self, count: int) -> list[int]:
        return [self.times.run_once(self.epochs) for _ in range(count)]

    def due(self, index: Index) -> list[int]:
        return list(self.times.due(index, self.epochs))


@pytest.fixture
def few(store: Store) -> Looks:
    return Looks(store)


@pytest.fixture
def many(redis_server: RedisServer, tmp_path: Path) -> Iterator[Looks]:
    settings = Settings(**redis_server.addresses, home=tmp_path, key_prefix=f"due-{tmp_path.name}", partitions=MANY)
    with Store.open(settings) as store:
        yield Looks(store)


def test_the_script_says_when_each_index_is_due_and_nothing_of_what_is_never_due(few: Looks) -> None:
    part = few.store.keys.of_partition(0)
    for index, in_ms in (("timers", -500), ("leases", 500), ("outbox", 10_000)):
        few.write(index, 0, in_ms)
    few.client.zadd(part.schedules, {"never": "inf"})
    few.client.set(part.jobs_due, "damaged")
    found = few.store.partitions.first_due([0, 1])
    assert found[1] == FirstTimes(*[math.inf] * 5)
    first = found[0]
    assert (first.schedules, first.jobs) == (math.inf, 0)
    assert first.timers <= -500 and 0 < first.leases <= 500 and 5_000 < first.outbox <= 10_000


def test_all_may_be_due_until_they_are_looked_at_for_the_first_time(few: Looks) -> None:
    assert [few.due(index) for index in INDEXES] == [[0, 1]] * 5
    few.rounds(1)
    assert [few.due(index) for index in INDEXES] == [[]] * 5


@pytest.mark.parametrize("index", get_args(Index))
def test_what_a_look_has_seen_is_due_at_its_time_without_another_look(few: Looks, index: Index) -> None:
    few.write(index, 1, SOON_MS)
    few.rounds(1)
    assert (few.due(index), list(few.times.used(index, few.epochs))) == ([], [1])
    few.now_s += SOON_MS / 1000
    assert few.due(index) == [1]


def test_a_timer_that_was_set_here_is_due_at_its_time_without_a_look(few: Looks) -> None:
    few.rounds(1)
    few.times.timer_set(1, 200)
    few.times.timer_set(1, 900)
    assert few.due("timers") == []
    few.now_s += 0.2
    assert few.due("timers") == [1]
    few.rounds(1)
    assert few.due("timers") == [], "it was set to nothing in Redis"


def test_a_part_of_many_partitions_is_looked_at_in_each_round_and_all_in_turn(many: Looks) -> None:
    assert many.rounds(3) == [MANY, LOOKS_AT_ONCE, LOOKS_AT_ONCE]
    for partition in range(MANY):
        many.write("jobs", partition, -1)
    found = [len(many.due("jobs"))]
    for _ in range(4):
        many.rounds(1)
        found.append(len(many.due("jobs")))
    assert found == [0, *(LOOKS_AT_ONCE * (number + 1) for number in range(4))]


def test_what_is_due_is_looked_at_again_in_each_round_until_it_is_done(many: Looks) -> None:
    many.rounds(1)
    many.times.timer_set(MANY - 1, 0)
    assert many.due("timers") == [MANY - 1]
    assert many.rounds(1) == [LOOKS_AT_ONCE + 1]
    assert many.due("timers") == []


def test_a_partition_with_a_new_epoch_is_looked_at_at_once(many: Looks) -> None:
    many.rounds(1)
    many.write("leases", MANY - 1, -1)
    many.epochs[MANY - 1] = 2
    assert many.rounds(1) == [LOOKS_AT_ONCE + 1]
    assert many.due("leases") == [MANY - 1]


def test_after_a_look_that_failed_all_may_be_due(few: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    few.rounds(1)
    monkeypatch.setattr(few.store.partitions, "first_due", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        few.rounds(1)
    assert few.due("timers") == [0, 1]


def test_partitions_that_went_to_another_scheduler_are_not_due_here(few: Looks) -> None:
    few.write("leases", 1, -1)
    few.rounds(1)
    del few.epochs[1]
    assert few.due("leases") == []
