"""Batches on a real Redis: rows are added once, admitted once, and each ends once, whatever is repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sleipnir.batches.records import BatchFork, BatchPlan, fork_text, place_of, row_run_id, row_text
from sleipnir.client.batch import Batch
from sleipnir.errors import BatchNotFound, BundleError, UsageError
from sleipnir.messages import Usage
from sleipnir.runs.deployment_holds import DEPLOYMENT, DeploymentHolds, ScopeHold
from sleipnir.runs.run import Hold, RunSpec
from sleipnir.runs.transitions import ForkRow, kind_of
from sleipnir.store.batches.admission import AdmissionView
from sleipnir.store.batches.rows import AddedRows
from sleipnir.store.scripts import run_in_order
from sleipnir.store.store import Store
from sleipnir_scheduler.services.admission import Admission
from sleipnir_scheduler.services.deliveries import FORKS_AT_ONCE, Deliveries
from tests.model_store import graph_of
from tests.store.test_advance import advance_of
from tests.waiting import wait_until

ID = "batch0000001"
SPEC = RunSpec("agent", "digest")
HELD = DeploymentHolds({DEPLOYMENT: ScopeHold(DEPLOYMENT, Hold("ann", 1))})
ASKS = """
name: agent
start: ask
nodes:
  ask: {type: input, question: "{{initial_prompt}}?", validation: "len(input) > 1", next: e}
  e: {type: end, output: "{{n}}"}
"""


def rows(*numbers: int) -> list[tuple[str, str]]:
    return [(f"k{number}", row_text(f"p{number}", {"n": number})) for number in numbers]


class World:
    """A scheduler without workers; people are played."""

    def __init__(self, store: Store, plan: BatchPlan | None = None, count: int = 3, window: int = 100) -> None:
        self.store, self.batches = store, store.batches
        self.advance = advance_of(store, ASKS)
        self.graphs: Any = SimpleNamespace(get=lambda *_: graph_of(ASKS))
        self.deliveries = Deliveries(store.effects, self.graphs, max_state_bytes=1_000_000)
        self.admission = Admission(store, window=window)
        self.batch = Batch(store, ID)
        if count:
            self.batches.add(ID, SPEC, plan or BatchPlan(), rows(*range(count)))
            self.batches.seal(ID)

    def admit(self) -> int:
        return self.admission.run_once(self.advance._ownership.epochs)

    def deliver(self) -> None:
        while self.deliveries.run_once(range(self.store.keys.partitions)) > 0:
            pass

    def go_on(self) -> None:
        for _ in range(3):
            self.admit()
            self.deliver()
            while self.advance.run_once() > 0:
                self.deliver()

    def answer(self, row: int, text: str) -> None:
        [gate] = self.store.runs.gates(row_run_id(ID, row))
        self.store.runs.answer(gate.run, gate.seq, text)
        self.go_on()

    @property
    def states(self) -> str:
        return self.batches.states(ID)


def test_rows_are_added_once_and_one_with_other_contents_is_named(store: Store) -> None:
    assert store.batches.add(ID, SPEC, BatchPlan("b"), rows(0, 1)) == AddedRows(2, 0, ())
    assert store.batches.add(ID, SPEC, BatchPlan("other"), rows(1, 2)) == AddedRows(1, 1, ())
    assert store.batches.add(ID, SPEC, BatchPlan(), [("k1", row_text("new", {})), *rows(3)]) == AddedRows(1, 0, (0,))
    info = store.batches.info(ID)
    assert (info.name, info.total, info.waiting, info.state) == ("b", 4, 4, "accepting")
    store.batches.seal(ID)
    assert store.batches.info(ID).state == "running"
    assert [found.id for found in store.batches.recent(10)] == [ID]


def test_rows_become_runs_that_end_and_their_results_are_there_in_both_orders(store: Store) -> None:
    world = World(store)
    world.go_on()
    assert world.states == "aaa"
    assert store.runs.gates(row_run_id(ID, 1))[0].question == "p1?"
    assert store.runs.info(row_run_id(ID, 1)).batch == place_of(ID, 1)
    world.answer(2, "yes")
    assert [(r.row, r.key, r.output) for r in world.batch.results()] == [(2, "k2", "2")]
    world.answer(0, "yes")
    world.answer(1, "x")
    info = store.batches.info(ID)
    assert (info.state, info.completed, info.failed, world.states) == ("done", 2, 1, "cfc")
    assert [(r.row, r.status, r.node) for r in world.batch.results()] == [
        (0, "completed", None), (1, "failed", "ask"), (2, "completed", None)
    ]  # fmt: skip
    assert [r.row for r in world.batch.results("done")] == [2, 0, 1]
    assert [r.row for r in world.batch.results("done", start=1)] == [0, 1]
    [group] = world.batch.errors()
    assert (group.node, group.count, group.keys) == ("ask", 1, ("k1",))
    assert all(store._client.ttl(key) > 0 for key in present(store))


def present(store: Store) -> list[str]:
    return [key for key in store.keys.of_batch(ID).all().values() if store._client.exists(key)]


def test_what_failed_is_retried_and_nothing_that_comes_late_counts(store: Store) -> None:
    world = World(store, count=1)
    world.go_on()
    world.answer(0, "x")
    assert world.states == "f"
    version = json.loads(store._client.hget(store.keys.of_batch(ID).failures, "0") or "")["version"]
    late = store.batches.ended(place_of(ID, 0), "failed", version, Usage(calls=1))
    assert world.batch.retry_failed() == 1
    assert (world.states, store.batches.info(ID).state) == ("w", "running")
    assert all(store._client.ttl(key) == -1 for key in present(store))
    world.go_on()
    assert run_in_order(store._client, [late]) == [0]
    assert world.states == "a"
    world.answer(0, "yes")
    assert (world.states, store.batches.info(ID).state) == ("c", "done")
    assert [r.status for r in world.batch.results("done")] == ["completed", "completed"]  # it has ended twice
    assert world.batch.retry_failed() == 0


def test_a_retry_that_is_delivered_again_after_a_second_failure_revives_no_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C8: a scheduler that freezes before it delivers the retry, while the row fails again."""
    world = World(store, count=1)
    world.go_on()
    world.answer(0, "x")
    assert world.batch.retry_failed() == 1
    world.admit()
    stale = store.effects.read(dict.fromkeys(range(store.keys.partitions), "0-0"), limit=10, block_ms=None)
    assert [kind_of(owed.effect) for owed in stale if owed.effect] == ["retry_row"]
    world.go_on()
    world.answer(0, "x")
    run = row_run_id(ID, 0)
    assert (world.states, store.batches.info(ID).state, store.runs.info(run).retries) == ("f", "done", 1)
    monkeypatch.setattr(store.effects, "_still_owed", list)
    world.deliveries._deliver(stale)
    monkeypatch.undo()
    world.go_on()
    assert (world.states, store.runs.info(run).status, store.runs.info(run).retries) == ("f", "failed", 1)


def test_a_row_whose_run_had_costs_after_its_end_can_be_retried(store: Store) -> None:
    """Finding C8: the version of a run grows after its end too, when a child tells late what it has cost."""
    world = World(store, count=1)
    world.go_on()
    world.answer(0, "x")
    run = row_run_id(ID, 0)
    inbox = store.keys.of_partition(store.keys.partition_of(run)).inbox
    late = {"t": "child_ended", "run": run, "seq": 1, "attempt": 1, "child": "c", "status": "cancelled", "error": ""}
    store._client.xadd(inbox, {**late, "usage": '{"calls":1}'})
    world.go_on()
    assert world.batch.retry_failed() == 1
    world.go_on()
    assert (world.states, store.runs.info(run).retries) == ("a", 1)


def test_an_end_that_is_reported_twice_counts_once_and_costs_are_those_of_all_tries(store: Store) -> None:
    World(store, count=2).go_on()
    first = store.batches.ended(place_of(ID, 0), "failed", 10, Usage(5, 5, 2, cost_usd=0.25))
    again = store.batches.ended(place_of(ID, 0), "completed", 20, Usage(8, 9, 3, cost_usd=0.5))
    assert run_in_order(store._client, [first, first, again, again, first]) == [1, 0, 1, 0, 0]
    info = store.batches.info(ID)
    assert (info.completed, info.failed, info.active) == (1, 0, 1)
    assert info.usage == Usage(8, 9, 3, cost_usd=0.5)
    assert run_in_order(store._client, [store.batches.ended(place_of(ID, 7), "failed", 1, Usage())]) == [0]
    assert run_in_order(store._client, [store.batches.ended(place_of("gone", 0), "failed", 1, Usage())]) == [0]


def test_a_scheduler_that_does_not_own_the_first_partition_admits_nothing(store: Store) -> None:
    world = World(store)
    assert world.admission.run_once({1: 1}) == 0
    assert world.admission.run_once(world.advance._ownership.epochs, HELD) == 0
    assert world.states == "www"


def test_rows_wait_while_the_fleet_has_enough_work_but_every_batch_progresses(store: Store) -> None:
    world = World(store, window=2)
    assert world.admit() == 2
    assert world.admit() == 0  # two starts are owed
    store.batches.add("other", SPEC, BatchPlan(), rows(0, 1))
    assert world.admit() == 1
    assert (world.states, store.batches.states("other")) == ("aaw", "aw")


def test_the_number_of_running_rows_is_that_of_the_batch(store: Store) -> None:
    world = World(store, BatchPlan(parallel=1))
    world.go_on()
    assert world.states == "aww"
    world.batch.set_parallel(2)
    world.go_on()
    assert world.states == "aaw"
    world.batch.pause()
    world.answer(0, "yes")
    assert (world.states, store.batches.info(ID).state) == ("caw", "paused")
    world.batch.resume()
    world.go_on()
    assert world.states == "caa"


def test_canary_rows_run_first_and_a_person_decides(store: Store) -> None:
    world = World(store, BatchPlan(canary=1))
    world.go_on()
    assert (world.states, store.batches.info(ID).state) == ("aww", "running")
    world.answer(0, "x")
    info = store.batches.info(ID)
    assert (info.state, info.question) == ("canary", "1 rows are over, 1 of them failed. Continue with 2 more?")
    world.batch.resume()
    world.go_on()
    assert world.states == "faa"


def test_over_its_budget_a_batch_waits_until_it_may_cost_more(store: Store) -> None:
    world = World(store, BatchPlan(parallel=1, max_tokens=10))
    world.go_on()
    run_in_order(store._client, [store.batches.ended(place_of(ID, 0), "completed", 9, Usage(6, 4, 1))])
    world.go_on()
    info = store.batches.info(ID)
    assert (world.states, info.state) == ("cww", "over_budget")
    assert info.question == "It has used 10 tokens, as much as it may. Continue?"
    with pytest.raises(UsageError, match="has used its budget; give a larger one"):
        world.batch.resume()
    world.batch.resume(max_tokens=20)
    world.go_on()
    assert world.states == "caw"


def test_a_cancelled_batch_ends_what_is_under_way_and_takes_nothing_more(store: Store) -> None:
    world = World(store, BatchPlan(parallel=2))
    world.admit()  # their starts are owed, and come after the cancel
    world.batch.cancel()
    assert (world.states, store.batches.info(ID).state) == ("aax", "cancelling")
    world.admission._cancelled_ms.clear()
    world.deliver()
    world.go_on()
    world.admission._cancelled_ms.clear()
    world.go_on()
    assert (world.states, store.batches.info(ID).state) == ("xxx", "cancelled")
    assert store.runs.info(row_run_id(ID, 0)).status == "cancelled"
    world.batch.cancel()
    for refused in (world.batch.pause, world.batch.resume, world.batch.retry_failed):
        with pytest.raises(UsageError, match="was cancelled"):
            refused()
    with pytest.raises(UsageError, match="takes no more rows"):
        store.batches.add(ID, SPEC, BatchPlan(), rows(9))


def test_a_row_that_cannot_become_a_run_fails_with_the_reason_and_can_be_retried(store: Store) -> None:
    world = World(store, count=1)

    def gone(*_: Any) -> Any:
        raise BundleError("it is gone")

    well, world.graphs.get = world.graphs.get, gone
    world.go_on()
    assert world.states == "f"
    [result] = world.batch.results()
    assert (result.error, result.node) == ("it is gone", None)
    assert world.batch.retry_failed() == 1
    world.go_on()
    assert world.states == "f"
    world.graphs.get = well
    assert world.batch.retry_failed() == 1
    world.go_on()
    assert store.runs.gates(row_run_id(ID, 0))[0].question == "p0?"


def test_a_retry_of_an_expired_run_is_refused_with_the_reason(store: Store) -> None:
    world = World(store, count=1)
    world.go_on()
    world.answer(0, "x")
    run = store.keys.of_run(row_run_id(ID, 0))
    store._client.delete(run.run, run.spec)
    assert world.batch.retry_failed() == 1
    world.go_on()
    assert world.states == "f"
    assert [r.error for r in world.batch.results()] == ["it cannot be retried: its run has expired"]


def test_starts_that_are_delivered_twice_make_one_run(store: Store) -> None:
    world = World(store, count=1)
    world.admit()
    effects = store.keys.of_partition(store.keys.partition_of_batch(ID)).effects
    [(_, fields)] = store._client.xrange(effects)
    assert json.loads(fields["e"])["do"] == "start_row"
    world.go_on()
    store._client.xadd(effects, fields)
    world.go_on()
    assert len(store.runs.gates(row_run_id(ID, 0))) == 1


def test_rows_that_come_later_continue_with_a_batch_that_was_over(store: Store) -> None:
    world = World(store, count=1)
    world.go_on()
    world.answer(0, "yes")
    assert store.batches.info(ID).state == "done"
    store.batches.add(ID, SPEC, BatchPlan(), rows(0))
    assert store.batches.info(ID).state == "done"
    store.batches.add(ID, SPEC, BatchPlan(), rows(0, 1))
    world.go_on()
    assert (world.states, store.batches.info(ID).state) == ("ca", "accepting")


def test_a_read_with_the_last_result_finds_batches_that_opened_and_closed_since(store: Store) -> None:
    first, second, third = (Batch(store, name) for name in ("first", "second", "third"))
    for each in (first, second):
        store.batches.add(each.id, SPEC, BatchPlan(), rows(0))
    look = store.batches.look({})
    assert waiting_in(look) == {"first": 1, "second": 1}
    store.batches.add(third.id, SPEC, BatchPlan(), rows(0, 1))
    assert second.cancel()
    assert waiting_in(store.batches.look(look.seen)) == {"third": 2, "second": None}
    assert waiting_in(store.batches.look(look.seen, ["first", "third"])) == {"third": 2, "second": None, "first": 1}
    assert waiting_in(store.batches.look({})) == {"first": 1, "third": 2}
    assert abs(look.now_ms - store.now_ms()) < 60_000 and store.outstanding.count(range(store.keys.partitions)) == 0


def waiting_in(look: AdmissionView) -> dict[str, int | None]:
    return {id_: None if batch is None else batch.kept.waiting for id_, batch in look.batches.items()}


def test_what_has_expired_is_no_batch_and_the_janitor_drops_its_name(store: Store) -> None:
    World(store)
    everywhere = range(store.keys.partitions)
    assert store.batches.forget_expired(everywhere, store.now_ms(), 10) == 0
    assert store.batches.pinned().bundles == {"digest"}
    store._client.delete(*store.keys.of_batch(ID).all().values())
    assert store.batches.recent(10) == []
    with pytest.raises(BatchNotFound):
        store.batches.info(ID)
    with pytest.raises(BatchNotFound):
        store.batches.hold(ID)
    assert store.batches.forget_expired(everywhere, store.now_ms(), 10) == 1
    look = store.batches.look({})
    assert look.batches == {}
    assert store.batches.look(look.seen, [ID]).batches == {ID: None}, "it was there at the last look"


def test_rows_of_a_batch_of_forks_are_started_only_by_schedulers_that_can_fork(store: Store) -> None:
    plan = BatchPlan(parallel=2, fork=BatchFork("source000001", before="ask"))
    store.batches.add(ID, SPEC, plan, [("k1", fork_text("run000000001"))], fork_state={"n": 1, "v": 7})
    store.batches.replan(ID, replace(plan, parallel=1))
    keys = store.keys.of_batch(ID)
    assert not store._client.hexists(keys.batch, "plan"), "an earlier scheduler finds no plan, and admits no row"
    assert store.batches.info(ID).plan == replace(plan, parallel=1)
    assert store.batches.fork_of(ID) == (plan.fork, {"n": 1, "v": 7})
    assert store.batches.fork_of("gone00000001") is None
    world = World(store, count=0)
    assert world.admit() == 1
    [owed] = store.effects.read({store.keys.partition_of_batch(ID): "0-0"}, limit=10, block_ms=None)
    assert owed.effect == ForkRow(ID, 0, fork_text("run000000001"))


def test_a_row_that_cannot_be_forked_fails_with_the_reason_and_waits_again_when_it_is_retried(store: Store) -> None:
    plan = BatchPlan(fork=BatchFork("source000001", before="ask"))
    store.batches.add(ID, SPEC, plan, [("k1", fork_text("run000000001"))])
    store.batches.seal(ID)
    world = World(store, count=0)
    for _ in range(2):
        assert world.admit() == 1
        world.deliver()
        [result] = world.batch.results()
        assert (result.status, result.error) == (
            "failed", "the run to go on from has expired: no run 'run000000001'",
        )  # fmt: skip
        assert world.batch.retry_failed() == 1


def test_many_forks_leave_room_for_other_effects_and_lose_none(store: Store) -> None:
    plan = BatchPlan(fork=BatchFork("source000001", before="ask"))
    given = [(f"k{n}", fork_text(f"run{n:09}")) for n in range(90)]
    store.batches.add(ID, SPEC, plan, given)
    store.batches.seal(ID)
    world = World(store, count=0)
    assert world.admit() == 90
    assert world.deliveries.run_once(range(store.keys.partitions)) == FORKS_AT_ONCE
    world.deliver()
    assert world.batch.info().failed == 90


def test_a_batch_whose_node_has_lost_that_it_admitted_a_row_gets_the_end_of_its_run(store: Store) -> None:
    """The fail-over of a node of a cluster: the run of the row is on another node, and over."""
    world = World(store, count=1)
    patterns = f"{store.keys.of_batch(ID).batch}*", "*:batches*"
    keys = [key for pattern in patterns for key in store._client.scan_iter(pattern)]
    for key in keys:
        store._client.copy(key, f"{key}:before")
    world.go_on()
    world.answer(0, "yes")
    assert (world.states, store.batches.info(ID).state) == ("c", "done")
    for key in keys:
        store._client.copy(f"{key}:before", key, replace=True)
        store._client.delete(f"{key}:before")
    assert world.states == "w"
    world.admission = Admission(store, window=100)
    world.go_on()
    assert (world.states, store.batches.info(ID).state) == ("c", "done")
    assert [(r.row, r.output) for r in world.batch.results()] == [(0, "0")]


def test_of_short_visits_as_many_are_admitted_as_the_fleet_ends_in_a_moment(store: Store) -> None:
    ended = 0
    admission = Admission(store, window=0, row_events=lambda: ended)
    assert admission._ended_soon(10_000, [0, 1]) == 0
    ended = 500
    assert admission._ended_soon(10_500, [0, 1]) == 0, "too early to say"
    assert admission._ended_soon(11_000, [0, 1]) == 15
    ended = 1_000
    assert admission._ended_soon(12_000, [0]) == 30, "it has half of the partitions"
    assert admission._ended_soon(5_000, [0]) == 0, "the clock was set back"
    assert admission._ended_soon(6_000, [0]) == 0, "nothing has ended since"
    ended = 1_100
    assert admission._ended_soon(7_000, [0, 1]) == 3


def test_a_batch_of_short_visits_has_more_of_them_under_way_than_one_of_long_ones(store: Store) -> None:
    world = World(store, count=100, window=0)
    assert world.admit() == 16
    ended = 4_000_000_000
    world.admission._row_events = lambda: ended
    wait_until(lambda: world.admit() == 84, "the rate is measured")
