"""A retry that goes down: child runs that failed, or were cancelled for that, go on once, whatever comes twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ops.chaos.verdict import leaks
from sleipnir.runs.run import RunSpec, child_id
from sleipnir.store.record_text import record
from sleipnir.store.store import Store
from tests.model_store import graph_of
from tests.store.test_effects import RUN, World

TOP = """
name: top
start: call
nodes:
  call: {type: agent, agent: middle, prompt: "hi", state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""
MIDDLE = """
name: middle
version: sleipnir/1
start: both
nodes:
  both: {type: router, next: [call, other]}
  call: {type: agent, agent: bottom, prompt: "hi", state_updates: {said: "{{output}}"}, next: e}
  other: {type: input, question: "Other?", validation: "len(input) > 1", state_updates: {x: "{{input}}"}, next: e}
  e: {type: end, output: "{{x}}: {{said}}"}
"""
BOTTOM = """
name: bottom
start: first
nodes:
  first: {type: input, question: "First?", state_updates: {a: "{{input}}"}, next: second}
  second: {type: input, question: "Second?", validation: "len(input) > 1", state_updates: {b: "{{input}}"}, next: e}
  e: {type: end, output: "{{a}} and {{b}}"}
"""
CALL = child_id(RUN, 1)


class Family(World):
    """A run, its child, and the child's child."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, {"middle": "c1", "bottom": "b1"})
        self.bottom = ""
        graphs = {"p1": graph_of(TOP), "c1": graph_of(MIDDLE), "b1": graph_of(BOTTOM)}
        named: Any = SimpleNamespace(get=lambda digest, agent, overrides=None: graphs[digest])
        self.advance._graphs = self.deliveries._graphs = named
        self.go_on()
        [self.bottom] = [child.id for child in store.runs.children([CALL])[CALL]]

    def says(self, question: str, text: str, *, goes_on: bool = True) -> None:
        [gate] = [gate for gate in self.store.runs.open_gates() if gate.question.startswith(question)]
        self.store.runs.answer(gate.run, gate.seq, text)
        if goes_on:
            self.go_on()
        else:
            self.plan()

    def questions(self) -> list[str]:
        return sorted(gate.question for gate in self.store.runs.open_gates())

    def statuses(self) -> list[str]:
        return [self.store.runs.info(run).status for run in (RUN, CALL, self.bottom)]

    def retry(self) -> None:
        self.store.runs.retry(RUN)
        self.go_on()

    def owes(self, run: str) -> list[dict[str, str]]:
        return [fields for _, fields in self.store._client.xrange(self.owed(run))]

    def children(self) -> list[str]:
        return [child.id for run in (RUN, CALL) for child in self.store.runs.children([run])[run]]


def failed_at_the_bottom(store: Store) -> Family:
    family = Family(store)
    for question, text in (("Other", "more"), ("First", "one"), ("Second", "")):
        family.says(question, text or "x")
    assert family.statuses() == ["failed", "failed", "failed"]
    return family


def test_a_retry_goes_down_to_where_it_failed(store: Store) -> None:
    family = failed_at_the_bottom(store)
    [kept] = [visit for visit in store.runs.info(RUN).kept if visit.again]
    assert kept.child == CALL
    family.retry()
    assert family.questions() == ["Second?"]
    assert family.statuses() == ["waiting", "waiting", "waiting"]
    family.says("Second", "two")
    assert (family.statuses(), store.runs.output(RUN)) == (["completed"] * 3, "more: one and two")
    assert family.children() == [CALL, family.bottom]
    assert [store.runs.info(run).retries for run in (RUN, CALL, family.bottom)] == [1, 1, 1]
    assert store._client.pttl(store.keys.of_run(family.bottom).run) > 0


def test_a_child_continues_once_even_if_the_request_is_delivered_repeatedly(store: Store) -> None:
    family = failed_at_the_bottom(store)
    store.runs.retry(RUN)
    family.plan()
    [again] = family.owes(RUN)
    family.go_on()
    store._client.xadd(family.owed(RUN), again)
    family.go_on()
    assert family.questions() == ["Second?"]
    family.says("Second", "x")
    assert family.statuses() == ["failed", "failed", "failed"]
    store._client.xadd(family.owed(RUN), again)
    family.go_on()
    assert family.statuses() == ["failed", "failed", "failed"]
    assert store.runs.info(CALL).retries == 1


def test_an_end_that_is_reported_late_is_not_taken_for_the_next_one(store: Store) -> None:
    family = Family(store)
    family.says("Other", "more")
    family.says("First", "one")
    family.says("Second", "x", goes_on=False)
    [told] = [fields for fields in family.owes(family.bottom) if "tell_parent" in fields["e"]]
    family.go_on()
    for _ in range(2):
        family.retry()
        store._client.xadd(family.owed(family.bottom), told)
        family.go_on()
        assert (family.statuses(), family.questions()) == (["waiting"] * 3, ["Second?"])
        family.says("Second", "x")
    assert family.statuses() == ["failed", "failed", "failed"]


def test_a_child_that_is_cancelled_because_its_parent_fails_continues(store: Store) -> None:
    family = Family(store)
    family.says("First", "one")
    family.says("Other", "x")
    assert family.statuses() == ["failed", "failed", "cancelled"]
    family.retry()
    assert family.questions() == ["Other?", "Second?"]
    family.says("Other", "more")
    family.says("Second", "two")
    assert store.runs.output(RUN) == "more: one and two"


def test_a_child_continues_if_its_cancel_has_not_arrived_yet(store: Store) -> None:
    family = Family(store)
    family.says("First", "one")
    family.says("Other", "x", goes_on=False)
    assert store.runs.info(CALL).status == "failed"
    store.runs.retry(CALL)
    family.go_on()
    assert store.runs.info(family.bottom).status == "waiting"
    family.says("Other", "more")
    family.says("Second", "two")
    assert store.runs.output(CALL) == "more: one and two"


def test_a_child_that_completes_before_its_cancel_arrives_delivers_its_result(store: Store) -> None:
    family = Family(store)
    family.says("First", "one")
    family.says("Other", "x", goes_on=False)
    [gate] = [gate for gate in store.runs.open_gates() if gate.question == "Second?"]
    store.runs.answer(gate.run, gate.seq, "two")
    store.runs.retry(CALL)
    family.go_on()
    assert store.runs.info(family.bottom).status == "completed"
    family.says("Other", "more")
    assert store.runs.output(CALL) == "more: one and two"


def test_a_result_that_a_child_has_delivered_by_the_time_of_the_retry_is_used(store: Store) -> None:
    family = failed_at_the_bottom(store)
    store.runs.retry(family.bottom)
    family.go_on()
    family.says("Second", "two")
    assert family.statuses() == ["failed", "failed", "completed"]
    family.retry()
    assert (family.statuses(), store.runs.output(RUN)) == (["completed"] * 3, "more: one and two")


def test_a_child_that_a_person_has_continued_is_waited_for(store: Store) -> None:
    family = failed_at_the_bottom(store)
    store.runs.retry(family.bottom)
    family.go_on()
    family.retry()
    assert (family.statuses(), family.questions()) == (["waiting"] * 3, ["Second?"])
    family.says("Second", "x")
    assert family.statuses() == ["failed", "failed", "failed"]


def test_where_a_child_has_expired_another_one_is_started(store: Store) -> None:
    family = failed_at_the_bottom(store)
    keys = store.keys.of_run(family.bottom)
    for name in (keys.run, keys.spec, keys.state, keys.journal, keys.frontier):
        store._client.delete(name)
    family.retry()
    assert family.questions() == ["First?"]
    assert len(family.children()) == 3
    family.says("First", "uno")
    family.says("Second", "due")
    assert store.runs.output(RUN) == "more: uno and due"


def test_a_child_that_a_person_has_cancelled_is_replaced_by_another(store: Store) -> None:
    family = Family(store)
    family.says("Other", "more")
    store.runs.cancel(family.bottom)
    family.go_on()
    assert family.statuses() == ["failed", "failed", "cancelled"]
    family.retry()
    assert family.questions() == ["First?"]


def test_a_run_that_is_cancelled_immediately_cancels_the_child_that_was_to_continue(store: Store) -> None:
    family = failed_at_the_bottom(store)
    store.runs.retry(RUN)
    family.plan()
    store.runs.cancel(RUN)
    family.plan()
    family.go_on()
    assert family.statuses()[:2] == ["cancelled", "cancelled"]
    assert family.questions() == []


def test_fresh_children_begin_at_their_start(store: Store) -> None:
    family = failed_at_the_bottom(store)
    store.runs.retry(RUN, fresh_children=True)
    family.go_on()
    assert family.questions() == ["First?", "Other?"]


def test_a_child_with_an_agent_that_is_now_unreadable_fails_its_parent_again(store: Store) -> None:
    family = failed_at_the_bottom(store)
    spec = RunSpec("bottom", "gone", parent=CALL, parent_seq=1)
    family.advance._views.clear()
    store._client.set(store.keys.of_run(family.bottom).spec, record(spec))
    family.retry()
    assert family.statuses() == ["failed", "failed", "failed"]
    assert "internal error: KeyError: 'gone'" in str(store.runs.info(RUN).error)


class Expensive(Family):
    """Every effect is delivered twice: at once, and again, late and in another order, when `repeat` is called."""

    def __init__(self, store: Store) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = []
        super().__init__(store)

    def deliver(self) -> int:
        names = [self.store.keys.of_partition(number).effects for number in range(self.store.keys.partitions)]
        found = [(name, fields) for name in names for _, fields in self.store._client.xrange(name)]
        self.seen += found
        for name, fields in found:
            self.store._client.xadd(name, fields)
        return super().deliver()

    def repeat(self) -> None:
        for name, fields in reversed(self.seen):
            self.store._client.xadd(name, fields)
        while super().deliver() > 0:
            self.plan()

    def spends(self, run: str, calls: int) -> None:
        """As if visits of the run had; a call costs 0.1."""
        self.store._client.hincrby(self.store.keys.of_run(run).run, "model_calls", calls)
        self.store._client.hincrbyfloat(self.store.keys.of_run(run).run, "cost_usd", calls / 10)

    def costs(self) -> list[int]:
        infos = [self.store.runs.info(run) for run in (RUN, CALL, self.bottom)]
        assert [info.usage.cost_usd for info in infos] == [pytest.approx(info.usage.calls / 10) for info in infos]
        return [info.usage.calls for info in infos]


def test_a_child_that_was_cancelled_with_its_parent_and_continues_costs_what_it_spends_once(store: Store) -> None:
    family = Expensive(store)
    family.spends(family.bottom, 3)
    family.says("First", "one")
    family.says("Other", "x")
    assert family.statuses() == ["failed", "failed", "cancelled"]
    family.repeat()
    assert family.costs() == [3, 3, 3]
    family.spends(CALL, 10)
    family.retry()
    family.spends(family.bottom, 4)
    family.says("Other", "x")
    assert (family.statuses(), family.costs()) == (["failed", "failed", "cancelled"], [17, 17, 7])
    family.repeat()
    family.retry()
    family.spends(RUN, 100)
    family.says("Other", "more")
    family.says("Second", "two")
    assert (family.statuses(), family.costs()) == (["completed"] * 3, [117, 17, 7])
    family.repeat()
    assert family.costs() == [117, 17, 7]
    assert all(store._client.pttl(store.keys.of_run(run).children) > 0 for run in (RUN, CALL))
    assert family.children() == [CALL, family.bottom]


def test_what_a_child_spends_counts_also_when_its_parents_are_over(store: Store) -> None:
    """A person sets the child going by himself; and a worker's word comes after its run was cancelled."""
    family = Expensive(store)
    family.spends(family.bottom, 1)
    for question, text in (("Other", "more"), ("First", "one"), ("Second", "x")):
        family.says(question, text)
    assert (family.statuses(), family.costs()) == (["failed"] * 3, [1, 1, 1])
    store.runs.retry(family.bottom)
    family.go_on()
    family.spends(family.bottom, 2)
    family.says("Second", "x")
    assert (family.statuses(), family.costs()) == (["failed"] * 3, [3, 3, 3])
    family.repeat()
    family.retry()
    store.runs.cancel(RUN)
    family.plan()
    family.spends(family.bottom, 4)
    family.go_on()
    assert (family.statuses(), family.costs()) == (["cancelled"] * 3, [7, 7, 7])
    family.repeat()
    assert family.costs() == [7, 7, 7]


def test_a_price_that_is_not_known_any_more_is_not_known_above_either(store: Store) -> None:
    family = failed_at_the_bottom(store)
    store._client.hset(store.keys.of_run(family.bottom).run, mapping={"model_calls": 2, "cost_usd": 0.2})
    family.retry()
    family.says("Second", "x")
    assert store.runs.info(RUN).usage.cost_usd == pytest.approx(0.2)
    store._client.hset(store.keys.of_run(family.bottom).run, mapping={"model_calls": 3, "unpriced_calls": 1})
    family.retry()
    family.says("Second", "two")
    usage = store.runs.info(RUN).usage
    assert (usage.calls, usage.cost_usd) == (3, None)


def test_what_is_kept_for_a_retry_is_no_leak_and_nothing_else_is_kept(store: Store) -> None:
    family = Family(store)
    family.says("First", "one")
    family.says("Other", "x")
    frontiers = [store.keys.of_run(run).frontier for run in (RUN, CALL, family.bottom)]
    assert store._client.exists(*frontiers) == 3
    client: Any = SimpleNamespace(store=store)
    assert list(leaks(client, store._client)) == []
    family.retry()
    store.runs.cancel(RUN)
    family.go_on()
    assert store._client.exists(*frontiers) == 0
    assert list(leaks(client, store._client)) == []
    items = store.keys.of_run(family.bottom).items
    store._client.hset(items, "history", "[]")
    assert [wrong.text for wrong in leaks(client, store._client)] == [f"{items}: left over"]
