"""Shared values on a real Redis: what runs write goes back once and in order, whoever dies (F51)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.errors import UsageError
from sleipnir.messages import ResultHeader, VisitCall
from sleipnir.runs.claims import Claim
from sleipnir.runs.run import WITH_SHARED, RunSpec
from sleipnir.runs.shared_values import MOST_BYTES, MOST_KEYS, SharedName, texts_of
from sleipnir.store.runs.requests import Fence
from sleipnir.store.scripts import run_in_order
from sleipnir.store.shared_values import KNOWN_MS
from sleipnir.store.store import Store
from sleipnir_scheduler.services.deliveries import Deliveries
from tests.store.test_advance import advance_of

GRAPH = """
name: agent
version: sleipnir/1
start: one
nodes:
  one: {type: script, script: w.sh, next: two}
  two: {type: script, script: w.sh, next: [three, four]}
  three: {type: script, script: w.sh, next: e}
  four: {type: script, script: w.sh, next: e}
  e: {type: end, wait_for: [three, four], output: "done"}
"""
ANN, AGENT = SharedName("agent", "ann"), SharedName("agent")
SPEC = RunSpec("agent", "digest", user="ann", scopes=("user:", "app:"), v=WITH_SHARED)
RUN = "run000000001"


class Writer:
    """A run that writes, and a scheduler that delivers."""

    def __init__(self, store: Store, spec: RunSpec = SPEC, run: str = RUN) -> None:
        self.store, self.run, self.advance = store, run, advance_of(store, GRAPH)
        self.deliveries = Deliveries(store.effects, None, max_state_bytes=2**20)  # type: ignore[arg-type]
        store.runs.create(run, spec, {"user:first": "copied"})
        self.advance.run_once()
        self.partition = store.keys.partition_of(run)

    def write(self, node: str, **delta: Any) -> None:
        [visit] = [each for each in self.live().values() if each.node == node]
        call = VisitCall(self.run, visit.node, visit.seq, visit.attempt, "agent", "digest", visit.role)
        claim = self.store.visits.claim(call, worker="w", token="t", lease_ms=60_000, wanted=())
        assert isinstance(claim, Claim)
        texts = {key: json.dumps(value) for key, value in delta.items()}
        header = ResultHeader(ok=True, keys=tuple(delta), worker="w")
        assert self.store.visits.deliver(call, header, texts, worker="w", token="t")
        self.advance.run_once()

    def live(self) -> Any:
        return self.store.partitions.load([self.run])[self.run].frontier

    def deliver(self) -> None:
        while self.deliveries.run_once([self.partition]):
            pass

    def owed(self) -> list[dict[str, Any]]:
        entries = self.store.runs._client.xrange(self.store.keys.of_partition(self.partition).effects)
        return [json.loads(fields["e"]) for _, fields in entries]


def both(store: Store) -> list[dict[str, Any]]:
    return store.shared_values.read([ANN, AGENT])


def test_what_a_step_writes_goes_back_and_what_a_run_began_with_does_not(store: Store) -> None:
    writer = Writer(store)
    writer.write("one", **{"user:tier": "gold", "app:banner": [1], "username": 1, "temp:a": 1})
    assert sorted((each["scope"], each["keys"]) for each in writer.owed()) == [
        ("app:", ["app:banner"]), ("user:", ["user:tier"]),
    ]  # fmt: skip
    assert both(store) == [{}, {}], "nothing in the commit itself"
    assert store.shared_values.is_owed_by(RUN) and not store.shared_values.is_owed_by("run000000002")
    writer.deliver()
    assert not store.shared_values.is_owed_by(RUN)
    assert both(store) == [{"tier": "gold"}, {"banner": [1]}]
    assert store.shared_values.for_state([ANN, AGENT]) == {"user:tier": "gold", "app:banner": [1]}
    writer.write("two", said=1)
    assert writer.owed() == []


def test_writes_of_a_super_step_go_back_when_it_closes(store: Store) -> None:
    writer = Writer(store)
    writer.write("one")
    writer.write("two")
    writer.write("three", **{"user:tier": "three"})
    assert writer.owed() == [], "its step has not closed"
    writer.write("four", **{"user:tier": "four", "user:more": 1})
    writer.deliver()
    assert both(store)[0] == {"tier": "three", "more": 1}, "the last in visit order, not in time"


def test_a_run_without_shared_values_owes_nothing(store: Store) -> None:
    writer = Writer(store, RunSpec("agent", "digest"))
    writer.write("one", **{"user:tier": "gold", "app:banner": 1})
    assert writer.owed() == [] and both(store) == [{}, {}]


def test_an_effect_that_comes_twice_or_late_changes_nothing(store: Store) -> None:
    def share(number: str, **values: Any) -> Any:
        return run_in_order(store._client, [store.shared_values.share(Fence("3", number), ANN, texts_of(values))])[0]

    assert share("5-1", tier="old")[0] == 1
    store.shared_values.write(ANN, texts_of({"tier": "by a person"}))
    assert share("5-1", tier="old")[0] == 0
    assert share("4-9", tier="older")[0] == 0
    assert both(store)[0] == {"tier": "by a person"}
    assert share("5-10", tier="new")[0] == 1
    assert both(store)[0] == {"tier": "new"}


def test_two_deliveries_of_one_effect_leave_the_later_value(store: Store) -> None:
    """A scheduler is frozen between its reading and its writing; another one goes on."""
    writer = Writer(store)
    writer.write("one", **{"user:tier": 1})
    [frozen] = store.effects.read({writer.partition: "0-0"}, limit=10, block_ms=None)
    late = store.effects.share(frozen, SPEC, "user:", store.effects.written([frozen])[frozen.partition, frozen.id])
    writer.write("two", **{"user:tier": 2})
    writer.deliver()
    assert late is not None
    run_in_order(store._client, [late])
    assert both(store)[0] == {"tier": 2}


def test_an_effect_of_a_run_that_has_expired_is_dropped(store: Store) -> None:
    writer = Writer(store)
    writer.write("one", **{"user:tier": 1})
    for key in store._client.scan_iter(f"{store.keys.prefix}:*:run:{RUN}*"):
        store._client.delete(key)
    writer.deliver()
    assert writer.owed() == [] and both(store) == [{}, {}]


def test_values_that_do_not_fit_become_a_dead_letter_and_are_redelivered(store: Store) -> None:
    store.shared_values.write(ANN, texts_of({"big": "x" * (MOST_BYTES - 100)}))
    writer = Writer(store)
    writer.write("one", **{"user:tier": "y" * 200, "app:banner": 1})
    writer.deliver()
    assert writer.owed() == [] and both(store)[1] == {"banner": 1}, "the others are delivered"
    [letter] = store.dead_letters.all()
    assert "the values of agent/ann would be 2 with" in letter.reason and letter.run == RUN
    assert store.shared_values.remove(ANN, ["big"]) == 1
    store.dead_letters.redeliver(letter.id)
    writer.deliver()
    assert both(store)[0] == {"tier": "y" * 200}


def test_a_client_reads_writes_and_removes(store: Store) -> None:
    values = store.shared_values
    values.write(ANN, texts_of({"a": 1, "b": {"c": None}}))
    values.write(AGENT, texts_of({"a": 2}))
    values.write(ANN, texts_of({"a": "ü"}))
    assert both(store) == [{"a": "ü", "b": {"c": None}}, {"a": 2}]
    assert [(each.agent, each.user, each.values, each.bytes_) for each in values.listed()] == [
        ("agent", None, 1, 2), ("agent", "ann", 2, 16),
    ]  # fmt: skip
    assert values.listed("other") == []
    assert values.remove(ANN, ["a", "gone"]) == 1 and values.remove(ANN, ["a"]) == 0
    assert both(store)[0] == {"b": {"c": None}}
    assert values.remove(ANN, None) == 1 and values.remove(ANN, None) == 0
    assert [each.user for each in values.listed()] == [None]
    keys = store.keys.of_shared(ANN)
    assert not store._client.exists(keys.values) and 0 < store._client.pttl(keys.written) <= KNOWN_MS
    values.write(ANN, texts_of({"a": 1}))
    assert store._client.pttl(keys.written) == -1 and store._client.pttl(keys.values) == -1, "they do not expire"


def test_limits_of_a_client(store: Store) -> None:
    values = store.shared_values
    values.write(ANN, texts_of({f"k{number}": 0 for number in range(MOST_KEYS)}))
    with pytest.raises(UsageError, match=r"'agent/ann' would be 1,001 with"):
        values.write(ANN, texts_of({"one more": 0}))
    values.write(ANN, texts_of({"k1": 1}))
    with pytest.raises(UsageError, match="at most 1,000 with 1,048,576 bytes"):
        values.write(AGENT, texts_of({"a": "x" * MOST_BYTES}))
    assert both(store)[1] == {}
    for wrong in ({"": 1}, {"a\n": 1}, {"a" * 201: 1}, {"a": float("nan")}):
        with pytest.raises(UsageError):
            texts_of(wrong)
