"""Effects that were delivered to a partition which has lost them since are delivered again, once it has a new
generation. A deletion stands for the loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sleipnir.runs.run import child_id
from sleipnir.store.effects import KEPT_MS
from sleipnir.store.generations import LastPulse
from sleipnir.store.store import Store
from sleipnir_scheduler.services.deliveries import Deliveries
from sleipnir_scheduler.services.redeliveries import Redeliveries
from tests.store.test_effects import World

RUN = "run000000002"
CHILD = child_id(RUN, 1)


class Pulses:
    """The generations of all partitions. `silent` ones do not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.ids = {partition: "first" for partition in range(store.keys.partitions)}
        self.silent: set[int] = set()

    def fresh(self, partitions: Collection[int], every_ms: float) -> Mapping[int, str]:
        return {partition: self.ids[partition] for partition in partitions if partition not in self.silent}

    def last(self) -> Mapping[int, LastPulse]:
        now_ms = self._store.now_ms()
        return {
            partition: LastPulse(id_, now_ms) for partition, id_ in self.ids.items() if partition not in self.silent
        }

    def begin(self, run: str) -> None:
        """A new generation of the partition that has this run."""
        self.ids[self._store.keys.partition_of(run)] = "second"


class Nodes(World):
    """Partitions that may lose what they have received, one by one."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, run=RUN)
        assert store.keys.partition_of(RUN) != store.keys.partition_of(CHILD)
        self.pulses, self.now_s = Pulses(store), 0.0
        self.deliveries = self.restarted()

    def restarted(self) -> Deliveries:
        """Those of another scheduler, which knows nothing yet."""
        partitions = self.store.keys.partitions
        again = Redeliveries(self.store.effects, self.pulses, partitions=partitions, clock=lambda: self.now_s)
        return Deliveries(self.store.effects, self._graphs, max_state_bytes=1_000_000, redeliveries=again)

    def look(self) -> None:
        self.now_s += 60
        self.deliver()
        self.go_on()

    def lose(self, run: str) -> None:
        """Everything about a run is lost; so is what its scheduler knows, as in each new generation."""
        self.advance._views.drop(run)
        keys = self.store.keys.of_run(run)
        self.store._client.delete(keys.run, *self.store._client.scan_iter(f"{keys.run}:*"))

    def lose_entries(self, run: str) -> None:
        """What the run was told, and has not planned yet."""
        self.store._client.xtrim(self.store.keys.of_partition(self.store.keys.partition_of(run)).inbox, maxlen=0)

    def kept(self, run: str) -> int:
        partition = self.store.keys.of_partition(self.store.keys.partition_of(run))
        return int(self.store._client.xlen(partition.delivered))


def is_there(store: Store, run: str) -> bool:
    return bool(store.runs.find([run])[0])


def test_a_child_that_its_node_lost_is_started_again(store: Store) -> None:
    world = Nodes(store)
    world.go_on()
    world.lose(CHILD)
    world.look()
    assert not is_there(store, CHILD), "without a new generation nothing is delivered again"
    world.pulses.begin(CHILD)
    world.look()
    store.runs.answer(CHILD, 1, "well")
    world.go_on()
    assert store.runs.output(RUN) == "so well"


def test_another_scheduler_finds_what_is_to_be_delivered_again(store: Store) -> None:
    world = Nodes(store)
    world.go_on()
    world.lose(CHILD)
    world.pulses.begin(CHILD)
    world.deliveries = world.restarted()
    world.go_on()
    assert is_there(store, CHILD)


def test_the_end_of_a_child_is_told_again_to_a_parent_that_lost_it(store: Store) -> None:
    world = Nodes(store)
    world.go_on()
    store.runs.answer(CHILD, 1, "well")
    world.plan()
    world.deliver()
    world.lose_entries(RUN)
    world.look()
    assert store.runs.info(RUN).status == "waiting"
    world.pulses.begin(RUN)
    world.look()
    assert store.runs.output(RUN) == "so well"


def test_a_parent_that_has_lost_that_it_started_a_child_gets_its_end_when_it_starts_it_again(store: Store) -> None:
    """The child was over before the parent came to the visit again."""
    world = Nodes(store)
    world.plan()
    [(_, start)] = store._client.xrange(world.owed(RUN))
    world.go_on()
    store.runs.answer(CHILD, 1, "well")
    world.plan()
    world.deliver()
    world.lose_entries(RUN)
    store._client.xadd(world.owed(RUN), start)
    world.go_on()
    assert store.runs.output(RUN) == "so well"


def test_what_a_run_still_has_changes_nothing_when_it_is_delivered_again(store: Store) -> None:
    world = Nodes(store)
    world.go_on()
    store.runs.pause(RUN, "me")
    world.go_on()
    store.runs.resume(RUN)
    world.go_on()
    before = store.runs.history(CHILD), store.runs.history(RUN)
    world.pulses.begin(CHILD)
    world.pulses.begin(RUN)
    world.look()
    assert (store.runs.history(CHILD), store.runs.history(RUN)) == before
    assert store.runs.info(CHILD).status == "waiting"


def test_a_child_whose_parent_is_over_is_not_started_again(store: Store) -> None:
    world = Nodes(store)
    world.go_on()
    store.runs.cancel(RUN)
    world.go_on()
    world.lose(CHILD)
    world.pulses.begin(CHILD)
    world.look()
    assert not is_there(store, CHILD)


def test_a_partition_has_lost_effects_before_it_gets_a_later_one(store: Store) -> None:
    """A run that gets the later one first takes the earlier one for a repetition."""
    world = Nodes(store)
    world.go_on()
    world.lose(CHILD)
    world.pulses.begin(CHILD)
    store.runs.pause(RUN, "me")
    world.plan()
    world.deliver()
    world.plan()
    assert store.runs.info(CHILD).status == "paused"


def test_effects_are_forgotten_once_no_partition_can_have_lost_them(store: Store) -> None:
    world = Nodes(store)
    world.go_on()
    world.look()
    assert world.kept(RUN) == 1
    later = {partition: LastPulse("first", store.now_ms() + KEPT_MS + 1) for partition in world.pulses.ids}
    silent = {partition: pulse for partition, pulse in later.items() if partition}
    for pulses, kept in ((silent, 1), (later, 0)):
        world.pulses.last = lambda pulses=pulses: pulses  # type: ignore[method-assign,misc]
        world.look()
        assert world.kept(RUN) == kept


def test_without_nodes_nothing_is_kept(store: Store) -> None:
    world = Nodes(store)
    world.deliveries = Deliveries(store.effects, world._graphs, max_state_bytes=1_000_000)
    world.go_on()
    assert is_there(store, CHILD)
    assert world.kept(RUN) == 0
