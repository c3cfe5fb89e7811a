"""Slots of agents on a real Redis: so many runs at once and no more, in order, whatever comes twice or late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sleipnir.runs.run import RunSpec
from sleipnir.store.keys import SlotKeys
from sleipnir.store.runs.requests import NO_FENCE, Fence
from sleipnir.store.scripts import RedisCommand, run_in_order
from sleipnir.store.slots import KNOWN_MS, LOOK_MS
from sleipnir.store.store import Store
from sleipnir_scheduler.services import janitor
from sleipnir_scheduler.services.deliveries import Deliveries
from tests.model_store import graph_of
from tests.store.test_advance import advance_of

GRAPH = """
name: limited
start: q
concurrency: {key: "{{tenant}}", limit: 2}
nodes:
  q: {type: input, question: "?", validation: "len(input) > 1", next: e}
  e: {type: end}
"""


def run_id(number: int) -> str:
    return f"run{number:09}"


class Slots:
    """The slots of the key "acme" of the agent "limited", asked for by runs that are only numbers."""

    def __init__(self, store: Store) -> None:
        self.store, self.redis = store, store._client
        self.keys: SlotKeys = store.keys.of_slots("limited", "acme")
        self.part = store.keys.of_partition(self.keys.partition)

    def _do(self, command: RedisCommand) -> int:
        [reply] = run_in_order(self.redis, [command])
        if isinstance(reply, Exception):
            raise reply
        return int(reply)

    def ask(self, number: int, limit: int = 2, ticket: int = 1, fence: Fence = NO_FENCE) -> int:
        return self._do(self.store.slots.ask(fence, run_id(number), "limited", "acme", ticket, limit))

    def free(self, number: int, ticket: int = 1, fence: Fence = NO_FENCE) -> int:
        return self._do(self.store.slots.free(fence, run_id(number), "limited", "acme", ticket))

    def have(self) -> list[int]:
        return sorted(int(name[3:12]) for name in self.redis.zrange(self.keys.holders, 0, -1))

    def wait(self) -> list[int]:
        return [int(name[3:12]) for name in self.redis.zrange(self.keys.waiters, 0, -1)]

    def told(self) -> list[tuple[int, int]]:
        """Run and ticket of each that is owed the news, in order."""
        owed = self.store.effects.read({self.keys.partition: "0-0"}, limit=100, block_ms=None)
        effects: list[Any] = [each.effect for each in owed]
        assert {effect.what for effect in effects} <= {"slot_granted"}
        return [(int(effect.run[3:]), effect.data["ticket"]) for effect in effects]

    def keys_left(self) -> list[str]:
        return [
            key
            for key in self.redis.scan_iter(f"{self.store.keys.prefix}:*")
            if "slots" in key and key != self.keys.known
        ]


def test_so_many_have_a_slot_and_the_others_wait_in_their_order(store: Store) -> None:
    slots = Slots(store)
    assert [slots.ask(number) for number in (5, 3, 4, 1, 2)] == [1, 1, 0, 0, 0]
    assert (slots.have(), slots.wait(), slots.told()) == ([3, 5], [4, 1, 2], [(5, 1), (3, 1)])
    assert slots.free(3) == 1
    assert slots.free(1) == 0
    assert (slots.have(), slots.wait(), slots.told()[2:]) == ([4, 5], [2], [(4, 1)])


def test_a_run_that_requests_or_frees_twice_keeps_its_place_and_is_notified_once(store: Store) -> None:
    slots = Slots(store)
    for number in (1, 2, 3, 4):
        slots.ask(number)
    assert [slots.ask(number, limit=9) for number in (3, 1, 4)] == [0, 0, 0]
    assert (slots.have(), slots.wait(), len(slots.told())) == ([1, 2], [3, 4], 2)
    assert [slots.free(1), slots.free(1), slots.free(9)] == [1, 0, 0]
    assert (slots.have(), slots.wait(), len(slots.told())) == ([2, 3], [4], 3)


def test_unused_slots_leave_no_keys(store: Store) -> None:
    slots = Slots(store)
    for number in (1, 2, 3):
        slots.ask(number)
    assert len(slots.keys_left()) == 4
    for number in (1, 2, 3):
        slots.free(number)
    assert slots.keys_left() == []


def test_the_limit_is_that_of_the_run_that_asked_last(store: Store) -> None:
    slots = Slots(store)
    for number in (1, 2, 3, 4, 5):
        slots.ask(number)
    assert slots.ask(6, limit=4) == 2
    assert (slots.have(), slots.wait()) == ([1, 2, 3, 4], [5, 6])
    slots.ask(7, limit=1)
    assert [slots.free(number) for number in (1, 2, 3)] == [0, 0, 0]
    assert (slots.free(4), slots.have()) == (1, [5])


def test_a_late_message_of_an_earlier_ticket_frees_no_slot_of_a_later_one(store: Store) -> None:
    slots = Slots(store)
    slots.ask(1, ticket=1)
    slots.free(1, ticket=1)
    slots.ask(1, ticket=8)
    slots.free(1, ticket=1)
    assert (slots.have(), slots.told()) == ([1], [(1, 1), (1, 8)])


def test_an_ask_that_comes_after_the_free_of_its_slot_gets_none(store: Store) -> None:
    """A gap that finding C of the second review left: a frozen scheduler delivers what another has delivered since."""
    slots = Slots(store)
    asked, freed, later = (Fence("3", id_) for id_ in ("9-1", "9-2", "10-0"))
    assert [slots.ask(1, fence=asked), slots.free(1, fence=freed)] == [1, 0]
    assert [slots.ask(1, fence=asked), slots.free(1, fence=asked), slots.have()] == [0, 0, []]
    assert [slots.ask(2, fence=Fence("4", "1-1")), slots.ask(1, ticket=2, fence=later)] == [1, 1]
    assert (slots.have(), slots.free(1, ticket=2, fence=freed), slots.have()) == ([1, 2], 0, [1, 2])
    assert 0 < store._client.pttl(slots.keys.known) <= KNOWN_MS


class World:
    """A scheduler of runs that ask a person, and so never end by themselves."""

    def __init__(self, store: Store) -> None:
        self.store, self.advance, self.slots = store, advance_of(store, GRAPH), Slots(store)
        graphs: Any = SimpleNamespace(get=lambda *_: graph_of(GRAPH))
        self.deliveries = Deliveries(store.effects, graphs, max_state_bytes=1_000_000)

    def submit(self, *numbers: int) -> None:
        for number in numbers:
            self.store.runs.create(run_id(number), RunSpec("limited", "digest"), {"tenant": "acme"})
            self.go_on()

    def plan(self) -> None:
        while self.advance.run_once() > 0:
            pass

    def go_on(self) -> None:
        self.plan()
        while self.deliveries.run_once(range(self.store.keys.partitions)) > 0:
            self.plan()

    def answer(self, number: int, text: str) -> None:
        [gate] = self.store.runs.gates(run_id(number))
        self.store.runs.answer(gate.run, gate.seq, text)
        self.go_on()

    def seen(self, *numbers: int) -> list[str]:
        """The status of each run; `slot` of one that waits for that."""
        infos = self.store.runs.infos([run_id(number) for number in numbers])
        return ["slot" if info.slot and not info.slot.granted else info.status for info in infos]

    def look(self, later_ms: int = LOOK_MS) -> None:
        """What the janitor does some time later."""
        janitor.run_once(self.store, range(self.store.keys.partitions), self.store.now_ms() + later_ms, 10**9)
        self.go_on()


def test_runs_wait_for_a_slot_and_begin_after_any_end_of_another(store: Store) -> None:
    world = World(store)
    world.submit(1, 2, 3, 4, 5, 6)
    assert world.seen(1, 2, 3, 4, 5, 6) == ["waiting", "waiting", "slot", "slot", "slot", "slot"]
    [info] = store.runs.infos([run_id(3)])
    assert (info.status, info.started_ms, info.visits) == ("running", None, ())
    store.runs.cancel(run_id(4))
    world.answer(1, "x")
    store.runs.cancel(run_id(2))
    world.go_on()
    assert world.seen(1, 2, 3, 4, 5, 6) == ["failed", "cancelled", "waiting", "cancelled", "waiting", "slot"]
    world.answer(3, "well")
    assert world.seen(3, 5, 6) == ["completed", "waiting", "waiting"]
    assert world.slots.have() == [5, 6]


def test_a_failed_run_that_is_retried_waits_for_a_slot_again(store: Store) -> None:
    world = World(store)
    world.submit(1, 2, 3)
    world.answer(1, "x")
    store.runs.retry(run_id(1))
    world.go_on()
    assert world.seen(1, 2, 3) == ["slot", "waiting", "waiting"]
    [info] = store.runs.infos([run_id(1)])
    assert [(visit.node, visit.again) for visit in info.kept] == [("q", True)]
    world.answer(2, "well")
    assert world.seen(1, 2, 3) == ["waiting", "completed", "waiting"]
    world.answer(1, "well")
    world.answer(3, "well")
    assert (world.seen(1, 3), world.slots.keys_left()) == (["completed", "completed"], [])


def test_a_slot_that_was_requested_after_it_was_freed_is_free_again_after_a_check(store: Store) -> None:
    """A scheduler that was frozen repeats what another has delivered since."""
    world = World(store)
    world.submit(1, 2)
    for number in (1, 2):
        world.answer(number, "well")
        world.slots.ask(number)
    world.submit(3)
    assert world.seen(3) == ["slot"]
    world.look(later_ms=LOOK_MS // 2)
    assert world.seen(3) == ["slot"]
    world.look()
    assert (world.seen(3), world.slots.have()) == (["waiting"], [3])


def test_a_needed_slot_is_kept_by_every_check(store: Store) -> None:
    world = World(store)
    world.submit(1, 2, 3)
    for times in (1, 2, 3):
        world.look(later_ms=times * LOOK_MS)
    assert (world.seen(1, 2, 3), world.slots.have()) == (["waiting", "waiting", "slot"], [1, 2])


def test_slots_of_removed_runs_are_free_again_and_removed_waiting_runs_do_not_keep_one(store: Store) -> None:
    world = World(store)
    for number in (1, 2, 3):
        world.slots.ask(number)
    world.submit(4)
    assert world.seen(4) == ["slot"]
    world.look()
    world.look(later_ms=2 * LOOK_MS)
    assert (world.seen(4), world.slots.have()) == (["waiting"], [4])


def test_a_run_that_missed_the_notice_of_its_slot_is_notified_again(store: Store) -> None:
    world = World(store)
    store.runs.create(run_id(1), RunSpec("limited", "digest"), {"tenant": "acme"})
    world.plan()
    world.deliveries.run_once(range(store.keys.partitions))
    store._client.delete(world.slots.part.effects)
    world.go_on()
    assert world.seen(1) == ["slot"]
    world.look()
    assert world.seen(1) == ["waiting"]
