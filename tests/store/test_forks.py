"""What fork_run.lua leaves in Redis."""

from __future__ import annotations

import json

import pytest

from sleipnir.runs.run import Checkpoint, Fork, RunSpec
from sleipnir.store.partitions.entries import Entry
from sleipnir.store.store import Store
from tests.store.test_runs_and_visits import RUN, Bench

POINT = Checkpoint(0, ("b",), {"a": 2}, 3, {"[join]": {"a": 1}}, {"d": 2})
SPEC = RunSpec("agent", "digest", fork=Fork(RUN, POINT))


@pytest.fixture
def bench(store: Store) -> Bench:
    made = Bench(store)
    made.create(x={"n": [1]}, y=2)
    return made


def fork_id(bench: Bench) -> str:
    """An id in the partition of the run."""
    keys = bench.store.keys
    ids = (f"fork{number:08}" for number in range(100_000))
    return next(id_ for id_ in ids if keys.partition_of(id_) == bench.partition)


def test_a_fork_has_a_copy_of_the_state_that_does_not_expire_with_its_source(bench: Bench) -> None:
    store, fork = bench.store, fork_id(bench)
    store._client.pexpire(store.keys.of_run(RUN).state, 1_000_000)
    assert store.runs.fork(fork, SPEC, last_step=0, state={}, changes={"y": 3, "z": None})
    assert store.runs.state(fork) == {**store.runs.state(RUN), "y": 3, "z": None}
    assert store.runs.fold(fork) == store.runs.state(fork)
    assert store._client.pttl(store.keys.of_run(fork).state) == -1
    assert len(store._client.lindex(store.keys.of_run(fork).journal, 0)) < 300, "the past is not in its journal"
    [begin] = store.runs.history(fork)
    assert (begin.kind, begin.keys, begin.at_ms > 0) == ("forked", ("y", "z"), True)
    view = store.partitions.load([fork])[fork]
    assert (view.counts, view.steps, view.arrived, view.deferred) == (
        POINT.counts, POINT.steps, POINT.arrived, POINT.deferred,
    )  # fmt: skip
    assert view.spec.fork == SPEC.fork
    info = store.runs.info(fork)
    assert (info.forked_from, info.forked_at, info.status) == (RUN, 0, "submitted")
    entries = [entry for entry in bench.entries() if isinstance(entry, Entry) and entry.run == fork]
    assert len(entries) == 1


def test_a_source_that_has_gone_on_or_is_gone_is_not_copied(bench: Bench) -> None:
    store, fork = bench.store, fork_id(bench)
    assert not store.runs.fork(fork, SPEC, last_step=1, state={}, changes={})
    assert store.runs.find([fork]) == [None]
    assert store.runs.fork(fork, SPEC, last_step=None, state={"x": 1}, changes={"y": 2})
    assert store.runs.state(fork) == {"x": 1, "y": 2}
    assert json.loads(store._client.lindex(store.keys.of_run(fork).journal, 0).split("\n")[2]) == 2


def test_a_fork_of_a_source_without_a_trace_is_refused(store: Store) -> None:
    bench = Bench(store)
    assert not store.runs.fork(fork_id(bench), SPEC, last_step=0, state={}, changes={})
