"""The scheduler's main loop on a real Redis, without its other services and without a broker."""

from __future__ import annotations

from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from sleipnir.runs.run import RunSpec
from sleipnir.runs.views import Reason
from sleipnir.store.store import Store
from sleipnir_scheduler.services import timers
from sleipnir_scheduler.services.advance import Advance
from tests.model_store import graph_of

ASKS = """
name: g
start: ask
nodes:
  ask: {type: input, question: "{{initial_prompt}}?", next: e}
  e: {type: end}
"""


def advance_of(store: Store, graph: str) -> Advance:
    """One that owns all partitions, and knows one graph."""
    numbers = range(store.keys.partitions)
    epochs = {number: owned.epoch for number, owned in store.partitions.own(numbers, "me", 60_000).items()}
    others: dict[str, Any] = {
        "ownership": SimpleNamespace(epochs=epochs, holds={}, working=Lock()),
        "graphs": SimpleNamespace(get=lambda bundle, agent, overrides=None: graph_of(graph)),
        "dispatcher": SimpleNamespace(publish=lambda calls: SimpleNamespace(ahead=0)),
    }
    return Advance(store.partitions, **others, max_redeliveries=3)


def test_entries_of_two_partitions_with_the_same_id_are_not_mistaken_for_each_other(store: Store) -> None:
    """Ids are times: two partitions give the same one whenever they get an entry within the same millisecond."""
    runs = ["run000000001", "run000000002"]
    client = store.partitions._client
    for run in runs:
        store.runs.create(run, RunSpec("agent", "digest"), {"initial_prompt": run})
        inbox = store.keys.of_partition(store.keys.partition_of(run)).inbox
        [(entry, fields)] = client.xrange(inbox)
        client.xdel(inbox, entry)
        client.xadd(inbox, fields, id="9999999999999-0")
    assert len({store.keys.partition_of(run) for run in runs}) == 2
    advance_of(store, ASKS).run_once()
    assert [store.runs.gates(run)[0].question for run in runs] == [f"{run}?" for run in runs]


ASKS_TWICE = """
name: g
start: ask
nodes:
  ask: {type: input, question: "first?", next: again}
  again: {type: input, question: "second?", next: e}
  e: {type: end}
"""
RUN = "run000000001"


def snapshot(store: Store) -> dict[bytes, bytes]:
    """Everything under the store's prefix, as a backup has it."""
    client = store._bytes
    return {key: client.dump(key) for key in client.scan_iter(f"{store.keys.prefix}:*")}


def restore(store: Store, backup: dict[bytes, bytes]) -> None:
    client = store._bytes
    client.delete(*client.scan_iter(f"{store.keys.prefix}:*"))
    for key, value in backup.items():
        client.restore(key, 0, value)


@pytest.mark.parametrize("change", ["another epoch", "none that is noticed"])
def test_an_answer_is_taken_though_redis_went_back_in_time_to_the_same_version(store: Store, change: str) -> None:
    """Finding C6 of the second review: a view of version 2 from before a restore is not version 2 after it. The answer
    looked like one to a closed question, and was dropped for good."""
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    first = advance_of(store, ASKS_TWICE)
    first.run_once()
    backup = snapshot(store)
    store.runs.answer(RUN, 1, "of a past that is gone")
    first.run_once()
    assert [gate.question for gate in store.runs.gates(RUN)] == ["second?"]
    restore(store, backup)
    second = advance_of(store, ASKS_TWICE)
    store.runs.pause(RUN, "me")
    second.run_once()
    assert {view.version for view in store.partitions.load([RUN]).values()} == {2}
    if change == "another epoch":
        numbers = range(store.keys.partitions)
        owned = store.partitions.own(dict.fromkeys(numbers, "another generation"), "me", 60_000).items()
        first._ownership.epochs = {number: each.epoch for number, each in owned}  # type: ignore[misc]
    store.runs.answer(RUN, 1, "yes")
    while first.run_once() < 0:
        pass
    first.run_once()
    store.runs.resume(RUN)
    first.run_once()
    assert [gate.question for gate in store.runs.gates(RUN)] == ["second?"]


EXPIRES = """
name: g
start: ask
nodes:
  ask: {type: input, question: "who?", timeout: 60, on_timeout: late, state_updates: {who: "{{input}}"}, next: e}
  late: {type: end, output: "too late"}
  e: {type: end, output: "{{who}}"}
"""


@pytest.mark.parametrize("order", ["answered in time", "answered behind the expiry", "answered while it is planned"])
def test_an_answer_that_was_accepted_counts_though_its_question_expires(
    store: Store, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """Finding C11: the expiry was ahead of it in the inbox, and the answer was dropped without a word."""
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    advance = advance_of(store, EXPIRES)
    advance.run_once()
    partition = store.keys.of_partition(store.keys.partition_of(RUN))
    [(timer, _)] = store._client.zrange(partition.timers, 0, -1, withscores=True)
    store._client.zadd(partition.timers, {timer: 1})

    def answer() -> None:
        store.runs.answer(RUN, 1, "Ann")

    if order == "answered in time":
        answer()
    assert store.partitions.fire_timers(store.keys.partition_of(RUN), 10) == 1
    if order == "answered behind the expiry":
        answer()
    if order == "answered while it is planned":
        send = store.partitions.send
        with monkeypatch.context() as patched:
            patched.setattr(store.partitions, "send", lambda *args: (answer(), send(*args))[1])
            advance.run_once()
    while advance.run_once() > 0:
        pass
    assert (store.runs.info(RUN).status, store.runs.output(RUN)) == ("completed", "Ann")


def test_an_expiry_without_an_answer_takes_its_way(store: Store) -> None:
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    advance = advance_of(store, EXPIRES)
    advance.run_once()
    partition = store.keys.of_partition(store.keys.partition_of(RUN))
    [(timer, _)] = store._client.zrange(partition.timers, 0, -1, withscores=True)
    store._client.zadd(partition.timers, {timer: 1})
    store.partitions.fire_timers(store.keys.partition_of(RUN), 10)
    advance.run_once()
    assert store.runs.output(RUN) == "too late"


def test_no_view_outlives_the_epoch_of_its_partition(store: Store) -> None:
    """Finding C6 of the second review."""
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    advance = advance_of(store, ASKS_TWICE)
    advance.run_once()
    assert list(advance._views) == [RUN]
    before = dict(advance._ownership.epochs)
    other = 1 - store.keys.partition_of(RUN)
    advance._ownership.epochs = before | {other: before[other] + 1}  # type: ignore[misc]
    advance.run_once()
    assert list(advance._views) == [RUN]
    advance._ownership.epochs = {other: before[other] + 1}  # type: ignore[misc]
    advance.run_once()
    assert list(advance._views) == []


WORKS = """
name: g
start: work
nodes:
  work: {type: script, script: a.sh, next: e}
  e: {type: end}
"""


def test_planning_continues_while_nothing_can_be_published(store: Store) -> None:
    """Finding C23 of the second review: an error of the broker dropped all views and held planning up."""
    tries: list[int] = []

    def refuse(calls: list[Any]) -> None:
        tries.append(len(calls))
        raise OSError("the broker is away")

    advance = advance_of(store, WORKS)
    advance._dispatcher = SimpleNamespace(publish=refuse)  # type: ignore[assignment]
    runs = [f"run00000000{number}" for number in range(5)]
    for run in runs:
        store.runs.create(run, RunSpec("agent", "digest"), {})
        assert advance.run_once() == 1
    assert tries == [1], "after a failure it is not asked for each visit"
    assert set(advance._views) == set(runs)
    queued = [store._client.zcard(store.keys.of_partition(number).outbox) for number in (0, 1)]
    assert sum(queued) == len(runs), "the outbox publishes them"


WAITS = """
name: g
version: sleipnir/1
start: pause
nodes:
  pause: {type: wait, for: 30s, next: e}
  e: {type: end, output: "waited"}
"""


def test_a_wait_node_ends_when_its_timer_fires_and_no_earlier(store: Store) -> None:
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    advance = advance_of(store, WAITS)
    advance.run_once()
    partition = store.keys.of_partition(store.keys.partition_of(RUN))
    [(timer, due_ms)] = store._client.zrange(partition.timers, 0, -1, withscores=True)
    [visit] = store.runs.info(RUN).visits
    assert (visit.state, visit.reason) == ("waiting", Reason("timer", until_ms=int(due_ms)))
    assert due_ms == visit.since_ms + 30_000
    assert timers.run_once(store.partitions, range(store.keys.partitions)) == 0
    store._client.zadd(partition.timers, {timer: 1})
    assert timers.run_once(store.partitions, range(store.keys.partitions)) == 1
    advance.run_once()
    assert (store.runs.info(RUN).status, store.runs.output(RUN)) == ("completed", "waited")
