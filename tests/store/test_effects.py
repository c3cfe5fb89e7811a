"""Effects on a real Redis: owed by the commit, delivered in order and more than once, without any harm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sleipnir.errors import BundleError
from sleipnir.runs import RunSpec, child_id
from sleipnir.store.store import Store
from sleipnir_scheduler.services.effects import Deliveries
from tests.store.test_advance import advance_of
from tests.unit.planner.driver import graph_of

RUN = "run000000001"
CHILD = child_id(RUN, 1)
PARENT = """
name: parent
start: call
nodes:
  call: {type: agent, agent: child, prompt: "hi", state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""
ASKS = """
name: child
start: q
nodes:
  q: {type: input, question: "Well, {{initial_prompt}}?", state_updates: {a: "{{input}}"}, next: e}
  e: {type: end, output: "so {{a}}"}
"""


class World:
    """Schedulers of a parent and of its child."""

    def __init__(self, store: Store, agents: dict[str, str] | None = None) -> None:
        self.store = store
        self.advance = advance_of(store, "")
        graphs: Any = SimpleNamespace(get=self._graph)
        self.advance._graphs = graphs
        self.deliveries = Deliveries(store.effects, graphs, max_state_bytes=1_000_000)
        known = {"child": "c1"} if agents is None else agents
        store.runs.create(RUN, RunSpec("parent", "p1", agents=known), {"initial_prompt": ""})

    def _graph(self, digest: str, agent: str, overrides: Any = None) -> Any:
        if digest == "gone":
            raise BundleError("it is gone")
        return graph_of({"p1": PARENT, "c1": ASKS}[digest])

    def plan(self) -> None:
        while self.advance.run_once() > 0:
            pass

    def deliver(self) -> int:
        return self.deliveries.run_once(range(self.store.keys.partitions), 1)

    def go_on(self) -> None:
        self.plan()
        while self.deliver() > 0:
            self.plan()

    def owed(self, run: str) -> str:
        """The stream of effects of a run's partition."""
        return self.store.keys.of_partition(self.store.keys.partition_of(run)).effects


def test_a_child_is_started_once_however_often_its_start_is_delivered(store: Store) -> None:
    world = World(store)
    world.plan()
    [(_, fields)] = store._client.xrange(world.owed(RUN))
    world.deliver()
    assert store._client.xlen(world.owed(RUN)) == 0
    world.plan()
    store._client.xadd(world.owed(RUN), fields)
    world.go_on()
    [gate] = store.runs.gates(CHILD)
    assert (gate.question, gate.path) == ("Well, hi?", ("call",))
    assert [child.id for child in store.runs.children([RUN])[RUN]] == [CHILD]
    assert store.runs.gates_below(RUN) == [gate]


def test_a_parent_is_told_once_and_what_comes_again_leaves_nothing_behind(store: Store) -> None:
    world = World(store)
    world.go_on()
    store.runs.answer(CHILD, 1, "well")
    world.plan()
    *_, (_, fields) = store._client.xrange(world.owed(CHILD))
    world.go_on()
    assert store.runs.output(RUN) == "so well"
    store._client.xadd(world.owed(CHILD), fields)
    world.go_on()
    assert store.runs.output(RUN) == "so well"
    assert store._client.exists(store.keys.of_run(RUN).delta(1, 1)) == 0
    assert store._client.xlen(store.keys.of_partition(store.keys.partition_of(RUN)).inbox) == 0


def test_a_child_that_cannot_be_started_fails_its_parent_with_the_reason(store: Store) -> None:
    for agents, why in (
        ({}, "there was no agent 'child' when the run was submitted"),
        ({"child": "gone"}, "it is gone"),
    ):
        store._client.flushall()
        World(store, agents).go_on()
        assert str(store.runs.info(RUN).error).endswith(f"Agent 'child' failed: {why}")


def test_what_another_has_delivered_meanwhile_is_not_delivered_again(store: Store) -> None:
    """A scheduler that was frozen after it had read: its `paused` must not come after the other one's `resumed`."""
    world = World(store)
    world.go_on()
    store.runs.pause(RUN, "me")
    world.plan()
    stale = store.effects.read(range(store.keys.partitions), limit=10, block_ms=1)
    world.deliver()
    store.runs.resume(RUN)
    world.go_on()
    world.deliveries._store = SimpleNamespace(  # type: ignore[assignment]
        read=lambda *_, **__: stale, is_owed=store.effects.is_owed, tell=store.effects.tell
    )
    world.deliver()
    world.plan()
    assert [store.runs.info(run).status for run in (RUN, CHILD)] == ["waiting", "waiting"]


def test_a_bug_in_starting_a_child_fails_its_parent_and_holds_up_nobody(store: Store) -> None:
    world = World(store)
    world.plan()
    world.deliveries._graphs = SimpleNamespace(get=lambda *_: None)  # type: ignore[assignment]
    world.go_on()
    assert "Agent 'child' failed: internal error: AttributeError" in str(store.runs.info(RUN).error)


def test_a_cancelled_parent_takes_its_child_along(store: Store) -> None:
    world = World(store)
    world.go_on()
    store.runs.cancel(RUN)
    world.go_on()
    assert [store.runs.info(run).status for run in (RUN, CHILD)] == ["cancelled", "cancelled"]
    assert store.runs.open_gates() == []


def test_what_watchers_are_told_of_a_run_that_has_expired_makes_no_key(store: Store) -> None:
    store.effects.tell_watchers("gone00000000", "gate_opened", {})
    assert store._client.exists(store.keys.of_run("gone00000000").events) == 0


def test_an_effect_of_a_newer_release_is_left_alone(store: Store) -> None:
    world = World(store)
    store._client.xadd(world.owed(RUN), {"run": RUN, "e": '{"do": "dance"}'})
    assert world.deliver() == -1
    assert store._client.xlen(world.owed(RUN)) == 1
