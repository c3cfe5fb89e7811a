"""Open questions and batches by namespace: what each lists, what an earlier release has left, and what is gone."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.batches.records import BatchPlan
from sleipnir.errors import BatchNotFound
from sleipnir.runs.run import Gate, RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Question, Visit
from sleipnir.store.namespaced import COMPLETE, namespaces_of, of_namespace
from sleipnir.store.store import Store
from sleipnir_scheduler.services.listing import Listing
from tests.store.test_batches import SPEC, rows
from tests.store.test_run_lists import Runs, client_of


@pytest.fixture
def runs(store: Store) -> Runs:
    return Runs(store)


@pytest.fixture(params=["listed", "not yet listed"])
def any_runs(request: pytest.FixtureRequest, store: Store) -> Runs:
    """Indexes that are listed by namespace in whole, and such as an upgrade finds."""
    made = Runs(store)
    if request.param == "listed":
        made.list_all()
    return made


def asking(runs: Runs, namespace: str, opened_ms: int = 7) -> str:
    """A run of the namespace with a question."""
    run = runs.create(RunSpec("agent", "digest000001", namespace=namespace))
    question = Visit(1, "a", "approval", 1, 5, body=Question())
    gates = (Gate(1, "a", "approval", "ok?", opened_ms=opened_ms),)
    runs.commit(run, Transition(open=(question,), gates=gates, status="waiting"))
    return run


def listed(store: Store, **query: Any) -> list[str]:
    with client_of(store) as client:
        return [gate.run for gate in client.gates(**query)]


def stored(store: Store, partition: int, namespace: str) -> list[str]:
    index = store.keys.of_partition(partition).gates
    return list(store._client.zrange(of_namespace(index, namespace), 0, -1))


def forget_namespaces(store: Store) -> None:
    """As an earlier release leaves it: only the indexes of all."""
    for key in list(store._client.scan_iter(f"{store.keys.prefix}:*:of*")):
        store._client.delete(key)


def test_a_namespace_lists_its_own_questions_alone(any_runs: Runs) -> None:
    store = any_runs.store
    ours, theirs = asking(any_runs, "team-a"), asking(any_runs, "default")
    assert listed(store) == [theirs]
    assert listed(store, namespace="team-a") == [ours]
    assert listed(store, namespace="nobody") == []
    assert sorted(listed(store, namespace="*")) == sorted([ours, theirs])
    with client_of(store, namespace="team-a") as client:
        assert [gate.run for gate in client.gates()] == [ours]
        assert client.gate_count() == client.gate_count(namespace="default") == 1
        assert client.gate_count(namespace="*") == 2
        assert client.gate_count(namespace="nobody") == 0


def test_the_oldest_questions_are_read_and_no_others(any_runs: Runs) -> None:
    store = any_runs.store
    made = [asking(any_runs, "default", opened_ms=100 - number) for number in range(12)]
    asking(any_runs, "team-a", opened_ms=1)
    oldest = made[::-1]
    assert listed(store, limit=5) == oldest[:5]
    assert listed(store, limit=50) == oldest


def test_a_question_that_is_closed_leaves_the_list_of_its_namespace(runs: Runs) -> None:
    runs.list_all()
    run = asking(runs, "team-a")
    partition = runs.store.keys.partition_of(run)
    assert stored(runs.store, partition, "team-a") == [f"{run}/1"]
    runs.end(run)
    assert stored(runs.store, partition, "team-a") == []
    assert listed(runs.store, namespace="*") == []


def test_the_questions_of_an_earlier_release_are_listed_by_the_scheduler(runs: Runs) -> None:
    store = runs.store
    ours, theirs = asking(runs, "team-a"), asking(runs, "default")
    forget_namespaces(store)
    assert listed(store, namespace="team-a", limit=1) == [ours], "through the index of all"
    runs.list_all()
    assert stored(store, store.keys.partition_of(ours), "team-a") == [f"{ours}/1"]
    assert stored(store, store.keys.partition_of(theirs), "default") == [f"{theirs}/1"]
    assert listed(store, namespace="team-a") == [ours]
    assert listed(store) == [theirs]


def test_a_question_that_an_earlier_release_has_closed_leaves_its_namespace(runs: Runs) -> None:
    store = runs.store
    run = asking(runs, "team-a")
    runs.list_all()
    partition = store.keys.partition_of(run)
    store._client.zrem(store.keys.of_partition(partition).gates, f"{run}/1")
    listing = Listing(store.partitions)
    for _ in range(8):  # one round looks at one namespace
        listing.run_once(runs.partitions)
    assert stored(store, partition, "team-a") == []


def batch(store: Store, batch_id: str, namespace: str, *names: int) -> None:
    spec = RunSpec(SPEC.agent, SPEC.bundle, namespace=namespace)
    store.batches.add(batch_id, spec, BatchPlan(name="nightly"), rows(0, 1))


def test_a_namespace_lists_its_own_batches_alone(any_runs: Runs) -> None:
    store = any_runs.store
    batch(store, "monday", "team-a")
    batch(store, "tuesday", "default")
    with client_of(store) as client:
        assert [info.id for info in client.batches()] == ["tuesday"]
        assert [info.id for info in client.batches(namespace="team-a")] == ["monday"]
        assert {info.id for info in client.batches(namespace="*")} == {"monday", "tuesday"}
        assert client.open_batch("nightly", namespace="team-a").id == "monday"
        assert client.open_batch("monday").id == "monday"
        for asked in ("monday", "nightly", "mond"):
            with pytest.raises(BatchNotFound, match="no batch"):
                client.open_batch(asked, namespace="nobody")


def test_no_row_is_added_to_a_batch_of_another_namespace(store: Store) -> None:
    batch(store, "monday", "team-a")
    with pytest.raises(BatchNotFound, match="another namespace"):
        batch(store, "monday", "default")
    assert store.batches.info("monday").total == 2


def test_the_batches_of_an_earlier_release_are_listed_by_the_scheduler(runs: Runs) -> None:
    store = runs.store
    batch(store, "monday", "team-a")
    batch(store, "tuesday", "default")
    forget_namespaces(store)
    index = store.keys.of_partition(0).batches
    with client_of(store) as client:
        assert [info.id for info in client.batches(namespace="team-a")] == ["monday"], "through the index of all"
        runs.list_all()
        assert store._client.smembers(namespaces_of(index)) == {"team-a", "default", COMPLETE}
        assert [info.id for info in client.batches(namespace="team-a")] == ["monday"]
        assert [info.id for info in client.batches()] == ["tuesday"]
