"""Schedules on a real Redis: each fire starts one run, whatever is repeated, disputed, restored or edited meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sleipnir.batches.records import BatchPlan, row_text
from sleipnir.errors import ScheduleNotFound, UsageError
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import StartScheduled, effect_fields
from sleipnir.schedules.firing import begun
from sleipnir.schedules.records import ScheduledBatch, ScheduleInputs, ScheduleOrigin, SchedulePlan, fire_run_id
from sleipnir.store.schedules import ScheduledSpec
from sleipnir.store.store import Store
from sleipnir_scheduler.counters.tally import Tally
from sleipnir_scheduler.services.deliveries import Deliveries
from sleipnir_scheduler.services.schedules import ScheduleFires
from tests.model_store import graph_of
from tests.store.test_advance import advance_of

ASKS = """
name: agent
start: ask
nodes:
  ask: {type: input, question: "{{initial_prompt}}?", next: e}
  e: {type: end, output: "{{v}}"}
"""
HOUR = 3_600_000
DIGEST = "d" * 64
SPEC = RunSpec("agent", DIGEST, knowledge={"agent/n": "e" * 64})


class World:
    """A scheduler without workers, and a schedule `s` that fired last an hour ago, hourly."""

    def __init__(self, store: Store, **plan: Any) -> None:
        self.store, self.schedules = store, store.schedules
        self.advance = advance_of(store, ASKS)
        graphs: Any = SimpleNamespace(get=lambda *_: graph_of(ASKS))
        self.deliveries = Deliveries(store.effects, graphs, max_state_bytes=1_000_000)
        self.tally = Tally()
        self.fires = ScheduleFires(store.schedules, tally=self.tally)
        self.now_ms = store.now_ms()
        self.plan = SchedulePlan(**{"every_ms": HOUR, "anchor_ms": self.now_ms - 10 * HOUR - 1_000, **plan})
        self.add("s")

    def add(self, name: str, token: str = "t1") -> None:
        origin = ScheduleOrigin(token, "me", self.now_ms)
        begin = {"initial_prompt": "well", "v": 7}
        definition = ScheduledSpec(token, SPEC, begin, ScheduleInputs("well", {"v": 7}))
        self.schedules.add(name, self.plan, origin, definition, self.now_ms - HOUR + 1)

    def fire(self, fires: ScheduleFires | None = None) -> int:
        return (fires or self.fires).run_once(self.advance._ownership.epochs, ())

    def deliver(self) -> None:
        while self.deliveries.run_once(range(self.store.keys.partitions)) > 0:
            pass

    def go_on(self) -> None:
        self.fire()
        self.deliver()
        while self.advance.run_once() > 0:
            self.deliver()

    @property
    def runs(self) -> list[str]:
        return [info.id for info in self.store.runs.recent(100)]

    @property
    def outcomes(self) -> list[str]:
        return [fire.outcome for fire in self.schedules.log("s", 10)]

    @property
    def due_ms(self) -> int:
        return self.now_ms - 1_000

    def rewind(self, by_ms: int) -> None:
        """As if so much time had passed since the last decision."""
        stored = self.schedules.get("s")
        progress = begun(stored.plan, stored.progress, stored.progress.cursor_ms - by_ms)
        assert self.schedules.change(stored, stored.plan, progress, stored.origin)


def test_a_due_schedule_starts_one_run_that_carries_its_name(store: Store) -> None:
    world = World(store)
    assert world.fire() == 1
    assert world.runs == []
    world.deliver()
    [run] = world.runs
    assert run == fire_run_id("s", "t1", world.due_ms)
    spec = store.runs.spec(run)
    assert (spec.schedule, spec.fired_ms, spec.agent) == ("s", world.due_ms, "agent")
    assert store.runs.info(run).schedule == "s"
    assert store.runs.fold(run, 0) == {"initial_prompt": "well", "v": 7}
    [info] = store.schedules.infos(["s"])
    assert info is not None and (info.state, info.agent, info.progress.fires) == ("active", "agent", 1)
    assert info.next[:2] == (world.due_ms + HOUR, world.due_ms + 2 * HOUR)
    assert world.fire() == 0 and world.outcomes == ["started"]
    [fires] = [family for family in world.tally.families() if family.name == "sleipnir_schedule_fires"]
    counted = {sample.labels["outcome"]: sample.value for sample in fires.samples}
    assert counted == {"started": 1, "skipped": 0, "missed": 0}


def test_two_schedulers_that_decide_at_once_fire_once(store: Store) -> None:
    world = World(store)
    other = ScheduleFires(store.schedules, tally=Tally())
    found, now_ms = store.schedules.read(["s"])
    assert world.fire() == 1
    assert other._fire_one("s", found["s"], now_ms) is False
    world.deliver()
    assert (len(world.runs), world.outcomes) == (1, ["started"])


def test_a_fire_that_is_delivered_twice_is_one_run(store: Store) -> None:
    world = World(store)
    world.fire()
    part = store.keys.of_partition(store.keys.partition_of("s"))
    [(_, entry)] = store._client.xrange(part.effects)
    world.deliver()
    store._client.xadd(part.effects, entry)
    world.deliver()
    assert len(world.runs) == 1
    assert store._client.xlen(part.effects) == 0


def test_a_removed_schedule_starts_nothing_more_and_its_name_is_free(store: Store) -> None:
    world = World(store)
    world.fire()
    assert store.schedules.remove("s") and not store.schedules.remove("s")
    world.add("s", "t2")
    world.deliver()
    assert world.runs == []
    world.go_on()
    assert world.runs == [fire_run_id("s", "t2", world.due_ms)]
    store.schedules.remove("s")
    assert store.schedules.names() == [] and store.schedules.infos(["s"]) == [None]
    world.deliver()
    with pytest.raises(ScheduleNotFound):
        store.schedules.get("s")
    assert not list(store._client.scan_iter(f"{store.keys.prefix}:*schedule*"))


def test_a_name_is_taken_once(store: Store) -> None:
    world = World(store)
    with pytest.raises(UsageError, match="there is a schedule"):
        world.add("s", "t2")
    assert store.schedules.get("s").origin.token == "t1"


def test_an_edit_and_a_fire_at_once_do_not_overwrite_each_other(store: Store) -> None:
    world = World(store)
    before = store.schedules.get("s")
    world.fire()
    assert not store.schedules.change(before, replace(world.plan, overlap="allow"), before.progress, before.origin)
    now = store.schedules.get("s")
    assert (now.plan.overlap, now.progress.fires) == ("skip", 1)


def test_overlap_is_decided_by_the_run_that_started_last(store: Store) -> None:
    world = World(store)
    world.fire()
    world.rewind(HOUR - 1_000)  # the run is owed, and has not begun
    world.fire()
    assert world.outcomes == ["skipped", "started"]
    world.go_on()
    world.rewind(HOUR)
    world.fire()
    assert world.outcomes[0] == "skipped"
    store.runs.cancel(world.runs[0])
    world.go_on()
    stored = store.schedules.get("s")
    plan = replace(stored.plan, every_ms=HOUR, anchor_ms=stored.plan.anchor_ms - 500)
    progress = begun(plan, stored.progress, store.now_ms() - HOUR)
    assert store.schedules.change(stored, plan, progress, stored.origin)
    world.go_on()
    assert world.outcomes[0] == "started" and len(world.runs) == 2


def test_cancel_ends_the_old_run_and_starts_the_new_one(store: Store) -> None:
    world = World(store, overlap="cancel")
    world.go_on()
    [old] = world.runs
    stored = store.schedules.get("s")
    plan = replace(stored.plan, anchor_ms=stored.plan.anchor_ms - 500)
    progress = begun(plan, stored.progress, store.now_ms() - HOUR)
    assert store.schedules.change(stored, plan, progress, stored.origin)
    world.go_on()
    [new] = [run for run in world.runs if run != old]
    assert store.runs.info(old).status == "cancelled"
    assert [change.by for change in store.runs.info(old).changes] == ["schedule s"]
    assert store.runs.info(new).status == "waiting"


def test_a_queued_fire_waits_for_the_end_of_the_run(store: Store) -> None:
    world = World(store, overlap="queue")
    world.go_on()
    [old] = world.runs
    stored = store.schedules.get("s")
    plan = replace(stored.plan, anchor_ms=stored.plan.anchor_ms - 500)
    progress = begun(plan, stored.progress, store.now_ms() - HOUR)
    assert store.schedules.change(stored, plan, progress, stored.origin)
    world.go_on()
    assert world.outcomes == ["queued", "started"]
    [gate] = store.runs.gates(old)
    store.runs.answer(old, gate.seq, "yes")
    world.go_on()
    assert store.runs.info(old).status == "completed"
    store._client.zadd(store.keys.of_partition(store.keys.partition_of("s")).schedules, {"s": 1})
    world.go_on()
    assert world.outcomes == ["started", "queued", "started"] and len(world.runs) == 2


def test_after_a_restore_a_decision_on_lost_changes_is_refused(store: Store) -> None:
    world = World(store)
    keys = store.keys.of_schedule("s")
    backup = store._client.hgetall(keys.schedule)
    world.fire()
    late = store.schedules.get("s")
    store._client.delete(keys.schedule)
    store._client.hset(keys.schedule, mapping=backup)
    assert not store.schedules.change(late, late.plan, late.progress, late.origin)
    store._client.zadd(store.keys.of_partition(keys.partition).schedules, {"s": world.due_ms})
    assert world.fire() == 1
    world.deliver()
    assert world.runs == [fire_run_id("s", "t1", world.due_ms)]


def test_a_schedule_that_is_ahead_of_the_clock_counts_from_now_on(store: Store) -> None:
    world = World(store)
    stored = store.schedules.get("s")
    ahead = begun(stored.plan, stored.progress, store.now_ms() + 48 * HOUR)
    assert store.schedules.change(stored, stored.plan, ahead, stored.origin)
    with capture_logs() as logs:
        world.fire()
    assert [entry["log_level"] for entry in logs if entry["event"].startswith("the clock was set back")] == ["warning"]
    assert store.schedules.get("s").progress.next_ms == world.due_ms + HOUR
    world.fire()
    assert world.runs == []


def test_nothing_fires_while_the_deployment_is_paused(store: Store) -> None:
    world = World(store)
    epochs = world.advance._ownership.epochs
    assert world.fires.run_once(epochs, list(epochs)) == 0
    assert world.fire() == 1


def test_one_that_cannot_be_read_or_decided_does_not_delay_the_others(store: Store) -> None:
    world = World(store)
    for name, field, text in [
        ("newer", "plan", json.dumps({"v": 99})),
        ("damaged", "progress", "{"),
        ("nowhere", "plan", json.dumps({"cron": "* * * * *", "tz": "Mars/Base"})),
    ]:
        world.add(name)
        store._client.hset(store.keys.of_schedule(name).schedule, field, text)
    with capture_logs() as logs:
        world.go_on()
    bad = {entry["schedule"] for entry in logs if entry["event"] == "a schedule cannot be fired"}
    assert bad == {"newer", "damaged", "nowhere"}
    assert len(world.runs) == 1
    assert store.schedules.due(range(store.keys.partitions)) == []
    states = {info.name: info.state for info in store.schedules.infos(store.schedules.names()) if info is not None}
    assert states == {"s": "active", "newer": "unreadable", "damaged": "unreadable", "nowhere": "unreadable"}
    assert all(store.schedules.remove(name) for name in bad)


def test_an_unreadable_definition_sets_its_fire_aside_and_no_other(store: Store) -> None:
    world = World(store)
    world.add("broken")
    store._client.hset(store.keys.of_schedule("broken").schedule, "spec", "{")
    world.go_on()
    assert len(world.runs) == 1
    [letter] = store.dead_letters.all()
    assert "broken" in letter.effect and "cannot be read" in letter.reason


def test_what_schedules_will_need_is_pinned(store: Store) -> None:
    world = World(store)
    assert store.pinned().bundles == {DIGEST} and store.pinned().bases == {"e" * 64}
    store._client.hset(store.keys.of_schedule("s").schedule, "spec", '{"v": 99, "bundle": "%s"}' % ("f" * 64))
    assert store.pinned().bundles == {"f" * 64}
    store.schedules.remove("s")
    assert store.pinned().bundles == frozenset()
    assert world.runs == []


def test_the_log_is_bounded(store: Store) -> None:
    world = World(store, overlap="allow", every_ms=1_000, catch_up_ms=HOUR)
    while world.fire():
        pass
    assert len(store.schedules.log("s", 10_000)) == 100
    assert store.schedules.get("s").progress.fires >= 3_500


def test_the_effect_has_the_fields_that_are_stored() -> None:
    assert effect_fields(StartScheduled("s", "t", "r", 5)) == {
        "do": "start_scheduled", "v": 1, "schedule": "s", "token": "t", "run": "r", "at_ms": 5,
    }  # fmt: skip


class BatchWorld(World):
    """Its schedule `s` starts batches of 600 rows, more than are copied at once."""

    def add(self, name: str, token: str = "t1") -> None:
        rows = [(str(number), row_text(f"row {number}", {})) for number in range(600)]
        self.plan = replace(self.plan, batch=ScheduledBatch(len(rows), "nightly", 3, parallel=1))
        self.store.scheduled_batches.stage(name, token, rows)
        super().add(name, token)

    @property
    def batch(self) -> str:
        return fire_run_id("s", "t1", self.due_ms)

    @property
    def batches(self) -> list[str]:
        return [info.id for info in self.store.batches.recent(100)]


def test_a_fire_of_rows_is_one_batch_however_often_it_is_delivered(store: Store) -> None:
    world = BatchWorld(store)
    assert world.fire() == 1 and world.batches == []
    part = store.keys.of_partition(store.keys.partition_of("s"))
    [(_, entry)] = store._client.xrange(part.effects)
    world.deliver()
    store._client.xadd(part.effects, entry)
    world.deliver()
    assert (world.batches, world.runs) == ([world.batch], [])
    info = store.batches.info(world.batch)
    assert (info.total, info.state, info.name, info.plan.parallel) == (600, "running", "nightly", 1)
    assert store.batches.names(world.batch, 500)[:2] == ["500", "501"]
    assert store._client.xlen(part.effects) == 0
    found, _ = store.schedules.read(["s"])
    assert getattr(found["s"], "active", None) is True
    store.batches.cancel(world.batch)
    found, _ = store.schedules.read(["s"])
    assert getattr(found["s"], "active", None) is False


def test_a_half_made_batch_of_a_schedule_that_is_removed_is_cancelled_and_a_whole_one_stays(store: Store) -> None:
    world = BatchWorld(store)
    world.fire()
    spec = replace(SPEC, schedule="s", fired_ms=world.due_ms)
    plan = BatchPlan("nightly", 3, 1)
    store.batches.add(world.batch, spec, plan, [("0", row_text("row 0", {}))])  # a scheduler died then
    store.schedules.remove("s")
    world.deliver()
    assert store.batches.info(world.batch).state == "cancelled"
    assert list(store._client.scan_iter(match=f"{store.keys.prefix}:*:schedule:*")) == []

    store.batches.add("whole", spec, plan, [("0", row_text("row 0", {}))])
    store.batches.seal("whole")
    store.scheduled_batches.start("s", "t1", "whole", world.due_ms)
    assert store.batches.info("whole").state == "running"


def test_rows_that_are_missing_are_a_dead_letter_and_no_short_batch_that_looks_whole(store: Store) -> None:
    world = BatchWorld(store)
    store._client.ltrim(store.keys.of_schedule("s").rows, 0, 9)
    world.fire()
    world.deliver()
    assert store.batches.info(world.batch).state == "accepting"
    [letter] = store.effects.dead_letters.all()
    assert "some are missing" in str(letter)


def test_an_earlier_release_finds_no_plan_of_a_schedule_of_batches(store: Store) -> None:
    BatchWorld(store)
    fields = store._client.hgetall(store.keys.of_schedule("s").schedule)
    assert "plan" not in fields and "batch_plan" in fields
