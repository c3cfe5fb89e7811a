"""What people change of runs, batches and the deployment is in the audit, written by the script that changes it."""

from __future__ import annotations

import pytest

from sleipnir.access.audit import AuditEntry
from sleipnir.batches.records import BatchPlan
from sleipnir.client.access import Access
from sleipnir.errors import UsageError
from sleipnir.runs.run import Checkpoint, Fork, Hold, RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir.store.batches import Batches
from sleipnir.store.runs import Runs
from sleipnir.store.store import Store
from sleipnir_scheduler.services.advance import Advance
from tests.store.test_advance import advance_of
from tests.store.test_batches import ID, SPEC, rows
from tests.store.test_runs_and_visits import Bench
from tests.store.test_who_did_it import ANN, ASKS, BOB, RUN, go_on


def audit(store: Store) -> list[AuditEntry]:
    return list(Access(store, "").audit())


@pytest.fixture
def advance(store: Store) -> Advance:
    """Of a run that asks."""
    found = advance_of(store, ASKS)
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    go_on(found)
    return found


def test_each_request_on_a_run_is_in_the_audit_with_its_commit(store: Store, advance: Advance) -> None:
    ann, bob = Runs(store._client, store.keys, ANN), Runs(store._client, store.keys, BOB)
    assert audit(store) == [], "what nobody has asked for is no change of a person"
    ann.pause(RUN, reason="costs")
    assert audit(store) == [], "a request is none before it is committed"
    go_on(advance)
    bob.resume(RUN)
    go_on(advance)
    ann.answer(RUN, 1, "x")
    go_on(advance)
    bob.retry(RUN)
    go_on(advance)
    [gate] = store.runs.gates(RUN)
    ann.answer(RUN, gate.seq, "Ann")
    go_on(advance)
    bob.cancel(RUN)
    go_on(advance)
    entries = audit(store)
    assert [(entry.what, entry.by, entry.reason) for entry in entries] == [
        ("run paused", ANN, "costs"),
        ("run resumed", BOB, None),
        ("run answered", ANN, None),
        ("run retried", BOB, None),
        ("run answered", ANN, None),
        ("run cancelled", BOB, None),
    ]
    assert {entry.on for entry in entries} == {f"run {RUN}"}
    assert all(0 <= store.now_ms() - entry.at_ms < 60_000 for entry in entries)
    failed, cancelled = entries[2], entries[-1]
    assert (failed.before, failed.after) == (
        {"status": "waiting"},
        {"status": "failed", "node": "ask", "visit": 1, "answer": "x"},
    )
    assert (cancelled.before, cancelled.after) == ({"status": "waiting"}, {"status": "cancelled"})
    with pytest.raises(UsageError, match="already cancelled"):
        bob.cancel(RUN)
    go_on(advance)
    assert len(audit(store)) == len(entries), "a request that changes nothing is no change"


def test_a_secret_answer_is_not_in_the_audit(store: Store) -> None:
    advance = advance_of(store, ASKS.replace('{who: "{{input}}"}', '{db_password: "{{input}}"}'))
    store.runs.create(RUN, RunSpec("agent", "digest"), {})
    go_on(advance)
    Runs(store._client, store.keys, ANN).answer(RUN, 1, "hush-hush")
    go_on(advance)
    [entry] = audit(store)
    assert entry.after["answer"] == "[redacted]"


def test_what_a_run_passes_on_to_its_children_is_not_said_again(store: Store, advance: Advance) -> None:
    Runs(store._client, store.keys, f"run parent000000 ({ANN})").pause(RUN)
    go_on(advance)
    assert [step.by for step in store.runs.history(RUN) if step.by] == [f"run parent000000 ({ANN})"]
    assert audit(store) == []


def test_a_fork_is_in_the_audit_of_its_source(store: Store) -> None:
    bench = Bench(store)
    bench.create(x=1)
    ids = (f"fork{number:08}" for number in range(1000))
    fork = next(id_ for id_ in ids if store.keys.partition_of(id_) == store.keys.partition_of(RUN))
    spec = RunSpec("agent", "digest", fork=Fork(RUN, Checkpoint(0, ("a",))))
    for _ in range(2):
        assert Runs(store._client, store.keys, ANN).fork(fork, spec, last_step=0, state={}, changes={})
    [entry] = audit(store)
    assert (entry.what, entry.on, entry.by) == ("run forked", f"run {RUN}", ANN)
    assert entry.after == {"fork": fork, "step": 0}


def test_a_pause_of_the_deployment_and_its_end_are_in_the_audit_once(store: Store) -> None:
    bob = Runs(store._client, store.keys, BOB)
    for _ in range(2):
        bob.pause_all(Hold(ANN, 1, "maintenance"))
    assert (bob.resume_all(), bob.resume_all()) == (True, False)
    assert [(entry.what, entry.on, entry.by, entry.reason) for entry in audit(store)] == [
        ("deployment paused", "deployment", ANN, "maintenance"),
        ("deployment resumed", "deployment", BOB, None),
    ]


def test_changes_of_a_batch_are_in_the_audit(store: Store) -> None:
    ann = Batches(store._client, store.keys, retention_ms=60_000, by=ANN)
    ann.add(ID, SPEC, BatchPlan(), rows(0, 1))
    ann.seal(ID)
    ann.hold(ID)
    ann.go_on(ID, BatchPlan())
    ann.replan(ID, BatchPlan(priority=7))
    assert ann.cancel(ID)
    entries = audit(store)
    assert [entry.what for entry in entries] == ["batch paused", "batch resumed", "batch replanned", "batch cancelled"]
    assert {(entry.on, entry.by) for entry in entries} == {(f"batch {ID}", ANN)}
    assert '"priority":7' in str(entries[2].after)


def test_entries_of_all_partitions_come_in_the_order_of_their_times(store: Store) -> None:
    runs = [f"run{number:09}" for number in range(6)]
    for partition in {store.keys.partition_of(run) for run in runs}:
        store._client.xadd(store.keys.of_partition(partition).audit, {"e": '{"what": "a", "on": "b", "by": "c"}'})
    Access(store, ANN).add_user("ann", None, {"*": "viewer"})
    times = [entry.at_ms for entry in audit(store)]
    assert times == sorted(times) and len(times) > 2
    assert [entry.at_ms for entry in Access(store, "").audit(newest_first=True)] == times[::-1]


def test_pages_of_the_audit_have_each_entry_once(store: Store) -> None:
    access = Access(store, ANN)
    now_ms = store.now_ms()
    partitions = {store.keys.partition_of(f"run{number:09}") for number in range(40)}
    for partition in partitions:  # many of one time, which a cursor must tell apart
        for number in range(3):
            entry = {"e": f'{{"what": "a {number}", "on": "run {partition}", "by": "c"}}'}
            store._client.xadd(store.keys.of_partition(partition).audit, entry, id=f"{now_ms}-{number + 1}")
    access.add_user("bob", None, {"*": "viewer"})
    every = list(access.audit(newest_first=True))
    for limit in (1, 2, 7, 500):
        found, after = [], None
        while True:
            page = access.audit_page(limit, after=after)
            found += page
            if page.after is None:
                break
            after = page.after
        assert [(entry.on, entry.what) for entry in found] == [(entry.on, entry.what) for entry in every]
    assert [entry.what for entry in access.audit_page(10, what="added")] == ["user added"]
    assert access.audit_page(10, on="nothing").looked == len(every)
    for cursor in ("", "x", "1", "1.", ".1", "1.x", "-1.2", "1" * 50 + ".1"):
        with pytest.raises(UsageError, match="no cursor"):
            access.audit_page(10, after=cursor)


def test_a_commit_without_a_request_writes_nothing_to_the_audit(store: Store) -> None:
    bench = Bench(store)
    bench.create(x=1)
    entry = bench.entries()[0]
    assert bench.commit(entry, Transition(status="running")) == 1
    assert list(store._client.scan_iter(f"{store.keys.prefix}:*:audit")) == []
