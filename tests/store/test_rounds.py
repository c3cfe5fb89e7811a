"""A round of the scheduler's main loop plans some runs while Redis applies what was decided for others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import redis

from sleipnir.batches.records import row_run_id
from sleipnir.runs.run import RunSpec
from sleipnir.store.partitions import commits
from sleipnir.store.partitions.commits import STALE, Commit
from sleipnir.store.pending_replies import PendingReplies
from sleipnir.store.store import Store
from sleipnir_scheduler.services import advance as service
from tests.store.test_advance import ASKS, advance_of
from tests.store.test_batches import World

RUNS = [f"run{number:09d}" for number in range(50)]
OWN = "ownrun000000"


@pytest.fixture
def waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with runs that were submitted; eight at a time are committed."""
    monkeypatch.setattr(service, "TOGETHER", 8)
    for run in RUNS:
        store.runs.create(run, RunSpec("agent", "digest"), {"initial_prompt": "x"})
    return store


def asking(store: Store) -> int:
    return sum(bool(store.runs.gates(run)) for run in RUNS)


def test_some_runs_of_a_round_are_planned_before_others_are_applied_and_all_go_on(
    waiting: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sending_batch = commits.sending_batch

    def sending(*args: Any) -> Iterator[Any]:
        steps.append("send")
        replies = yield from sending_batch(*args)
        steps.append("applied")
        return replies

    monkeypatch.setattr(commits, "sending_batch", sending)
    assert advance_of(waiting, ASKS).run_once() == len(RUNS)
    assert asking(waiting) == len(RUNS)
    assert steps == ["send", *["send", "applied"] * 6, "applied"]


@pytest.mark.parametrize("nth", [1, 3, 7])
def test_after_a_connection_broke_in_a_round_its_runs_go_on_once_and_no_reply_is_taken_for_another(
    waiting: Store, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    sending_batch, sent = commits.sending_batch, list[int]()

    def sending(*args: Any) -> Iterator[Any]:
        sent.append(len(sent) + 1)
        number = sent[-1]
        replies = yield from sending_batch(*args)
        if number == nth:
            raise redis.exceptions.ConnectionError("the connection broke, after all was applied")
        return replies

    advance = advance_of(waiting, ASKS)
    with monkeypatch.context() as patched:
        patched.setattr(commits, "sending_batch", sending)
        with pytest.raises(redis.exceptions.ConnectionError):
            advance.run_once()
    while advance.run_once() > 0:
        pass
    assert asking(waiting) == len(RUNS)
    assert {waiting.partitions.load([run])[run].version for run in RUNS} == {1}, "each was committed once"
    waiting.runs.answer(RUNS[-1], 1, "yes")
    while advance.run_once() > 0:
        pass
    assert waiting.runs.info(RUNS[-1]).status == "completed"


@pytest.mark.parametrize(
    ("own_s", "count", "rounds"),
    [(60.0, 12, [5, 4, 4, 0]), (0.0, 12, [13, 0]), (60.0, 80, [6, *[4] * 18, 3, 0])],
)
def test_a_few_rows_share_a_round_while_runs_of_their_own_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, own_s: float, count: int, rounds: list[int]
) -> None:
    monkeypatch.setattr(service, "OWN_S", own_s)
    world = World(store, count=count)
    world.admit()
    world.deliver()
    store.runs.create(OWN, RunSpec("agent", "digest"), {"initial_prompt": "x"})
    asked: list[int] = []
    for done in rounds:
        assert world.advance.run_once() == done
        asked.append(len(store.runs.gates(OWN)))
    assert asked == [1] * len(rounds), "it did not wait for the rows"
    assert all(store.runs.gates(row_run_id(world.batch.id, row)) for row in range(count))


def test_rows_that_cannot_be_committed_do_not_hold_up_others_while_runs_of_their_own_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "OWN_S", 60.0)
    world = World(store, count=12)
    world.advance._own_until_s = math.inf
    world.admit()
    world.deliver()
    send = store.partitions.send
    refused: list[str] = []

    def stale(batch: Sequence[Commit], epochs: Mapping[int, int]) -> PendingReplies[list[int]]:
        if not refused:
            refused.extend(commit.run.id for commit in batch)
            return PendingReplies(_answering([STALE] * len(batch)))
        return send(batch, epochs)

    monkeypatch.setattr(store.partitions, "send", stale)
    assert world.advance.run_once() == 4
    assert len(refused) == 4


def _answering(outcomes: list[int]) -> Iterator[Any]:
    yield
    return outcomes
