"""No run holds up the others, whatever its entries and its commits are like."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import pytest
import redis

from sleipnir.graph.model import Graph
from sleipnir.runs.events import Event, TimerFired
from sleipnir.runs.run import RunSpec, RunView
from sleipnir.runs.transitions import Transition
from sleipnir.store.partitions import commits
from sleipnir.store.store import Store
from sleipnir_scheduler.planner.plan import IgnoredEvent, NeedValues, plan
from sleipnir_scheduler.services import advance as service
from sleipnir_scheduler.services.watchdog import PlanningWatchdog
from tests.store.test_advance import ASKS, advance_of

SPEC = RunSpec("agent", "digest")


def two_runs(store: Store) -> tuple[str, str]:
    """Ids of two runs in one partition."""
    ids = (f"run{number:09d}" for number in itertools.count(1))
    first = next(ids)
    return first, next(each for each in ids if store.keys.partition_of(each) == store.keys.partition_of(first))


def status_of(store: Store, run: str) -> str:
    return store.partitions.load([run])[run].status


def test_an_entry_behind_hundreds_of_another_run_does_not_wait_for_them(store: Store) -> None:
    """Finding C22 of the second review: 200 results of a wide run took seconds, while all others waited."""
    wide, other = two_runs(store)
    inbox = store.keys.of_partition(store.keys.partition_of(wide)).inbox
    store.runs.create(wide, SPEC, {"initial_prompt": "1"})
    pipe = store.partitions._client.pipeline(transaction=False)
    for number in range(1_500):
        pipe.xadd(inbox, {"t": "timer", "run": wide, "name": f"visit/{number + 100}/1"})
    pipe.execute()
    store.runs.create(other, SPEC, {"initial_prompt": "2"})
    advance = advance_of(store, ASKS)
    advance.run_once()
    assert status_of(store, other) == "waiting"
    assert store.partitions._client.xlen(inbox) > 1_000, "those of the wide run are still there"
    while advance.run_once() > 0:
        pass
    assert (status_of(store, wide), store.partitions._client.xlen(inbox)) == ("waiting", 0)


def test_an_entry_that_is_planned_for_too_long_parks_its_run_and_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding S1 of the second review: the watchdog."""
    slow, other = two_runs(store)
    planned: list[str] = []

    def slowly(
        graph: Graph, run: RunView, event: Event, *args: Any, **more: Any
    ) -> Transition | NeedValues | IgnoredEvent:
        planned.append(run.id)
        if run.id == slow and isinstance(event, TimerFired):
            for _ in itertools.count():
                pass
        return plan(graph, run, event, *args, **more)

    monkeypatch.setattr(service, "plan", slowly)
    for run in (slow, other):
        store.runs.create(run, SPEC, {"initial_prompt": run})
    advance = advance_of(store, ASKS)
    advance._watchdog = PlanningWatchdog(most_s=0.1)
    advance.run_once()
    inbox = store.keys.of_partition(store.keys.partition_of(slow)).inbox
    for run in (slow, other):
        store.partitions._client.xadd(inbox, {"t": "timer", "run": run, "name": "visit/9/1"})
    before = signal.getsignal(signal.SIGALRM)
    while advance.run_once() > 0:
        pass
    assert "took more than 0.1 s" in store.partitions.parked(store.keys.partition_of(slow))[slow]
    assert store.partitions._client.xlen(inbox) == 1, "the entry waits in the inbox"
    advance._parking.forget()  # as after AGAIN_S
    count = len(planned)
    advance.run_once()
    assert len(planned) == count, "it is not planned again at once"
    assert signal.getsignal(signal.SIGALRM) == before
    store.runs.cancel(slow)
    while advance.run_once() > 0:
        pass
    assert status_of(store, slow) == "cancelled"


@pytest.mark.one_redis
def test_a_commit_that_breaks_the_connection_twice_fails_its_run_and_no_other(store: Store) -> None:
    """Finding C2 of the second review: such a commit was repeated for ever, and with it those of all other runs."""
    large, other = two_runs(store)
    client = store.partitions._client
    for run in (large, other):
        store.runs.create(run, SPEC, {"initial_prompt": "x" * (3 * 2**20) if run == large else "x"})
    advance, broke = advance_of(store, ASKS), 0
    client.config_set("client-query-buffer-limit", 2**20)
    try:
        for _ in range(8):
            try:
                if advance.run_once() == 0:
                    break
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                broke += 1
    finally:
        client.config_set("client-query-buffer-limit", 2**30)
    assert broke == 3, "once with others, twice alone"
    assert (status_of(store, large), status_of(store, other)) == ("failed", "waiting")


def test_a_commit_with_more_arguments_than_redis_takes_is_not_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C2 of the second review."""
    monkeypatch.setattr(commits, "MOST_ARGUMENTS", 2)
    run, _ = two_runs(store)
    store.runs.create(run, SPEC, {"initial_prompt": "x"})
    advance_of(store, ASKS).run_once()
    monkeypatch.undo()
    assert status_of(store, run) == "failed"


def test_commits_are_sent_in_batches_of_bounded_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding C22 of the second review."""
    monkeypatch.setattr(commits, "BATCH_BYTES", 4_000)
    sizes: list[int] = []
    sending_batch = commits.sending_batch

    def counting(client: Any, script: Any, vectors: Any) -> Any:
        if script.name == "commit":
            sizes.append(len(vectors))
        return sending_batch(client, script, vectors)

    monkeypatch.setattr(commits, "sending_batch", counting)
    runs = [f"run{number:09d}" for number in range(20)]
    for run in runs:
        store.runs.create(run, SPEC, {"initial_prompt": "x"})
    advance_of(store, ASKS).run_once()
    assert sum(sizes) == len(runs)
    assert max(sizes) < 6
    assert {status_of(store, run) for run in runs} == {"waiting"}


ENDLESS = """
name: g
start: ask
nodes:
  ask: {type: input, question: "again?", next: ask}
"""


def test_a_loop_without_an_end_fails_when_its_journal_is_as_long_as_it_may_be(store: Store) -> None:
    """Finding C25 of the second review: such a journal grew until Redis was full."""
    run, _ = two_runs(store)
    store.runs.create(run, SPEC, {"initial_prompt": "x"})
    advance = advance_of(store, ENDLESS)
    advance._max_steps = 3
    advance.run_once()
    answers = 0
    while status_of(store, run) == "waiting":
        [gate] = store.runs.gates(run)
        store.runs.answer(run, gate.seq, "yes", gate.attempt)
        advance.run_once()
        answers += 1
    [error] = [store.runs.info(run).error]
    assert (status_of(store, run), answers) == ("failed", 4)
    assert error is not None and "SLEIPNIR_MAX_JOURNAL_STEPS" in error
    assert store.partitions._client.llen(store.keys.of_run(run).journal) <= 5
