"""What fork_run.lua leaves in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sleipnir.errors import RecordUnreadable, RunNotFound
from sleipnir.runs.run import Checkpoint, Fork, PastState, RunSpec, limited_from
from sleipnir.settings import Settings
from sleipnir.store.partitions.entries import Entry
from sleipnir.store.runs.journal_entries import LONG
from sleipnir.store.store import Store
from tests.examples import examples
from tests.store.test_runs_and_visits import RUN, Bench

POINT = Checkpoint(0, ("b",), {"a": 2}, 3, {"[join]": {"a": 1}}, {"d": 2})
SPEC = RunSpec("agent", "digest", fork=Fork(RUN, POINT))
RETENTION_MS = int(Settings().retention_s * 1000)


@pytest.fixture
def bench(store: Store) -> Bench:
    made = Bench(store)
    made.create(x={"n": [1]}, y=2)
    return made


def fork_ids(bench: Bench) -> Iterator[str]:
    """Ids in the partition of the run."""
    ids = (f"fork{number:08}" for number in count())
    return (id_ for id_ in ids if bench.store.keys.partition_of(id_) == bench.partition)


def fork_id(bench: Bench) -> str:
    return next(fork_ids(bench))


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


def test_a_fork_has_the_whole_limit_of_super_steps_of_its_configuration(bench: Bench) -> None:
    fork, limited = fork_id(bench), replace(SPEC, config={"recursion_limit": 3})
    assert bench.store.runs.fork(fork, limited, last_step=0, state={}, changes={})
    assert bench.store.partitions.load([fork])[fork].limited_from == limited_from(POINT.steps + 1)


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


def waiting_fork(bench: Bench, last_step: int | None = 0, **changes: Any) -> str:
    """A fork that only refers to the state that it begins with."""
    fork = fork_id(bench)
    assert bench.store.runs.fork(fork, SPEC, last_step=last_step, state={}, changes=changes, due_ms=5_000)
    return fork


def past_of(store: Store, fork: str) -> PastState | None:
    return store.partitions.load([fork])[fork].past


@pytest.mark.parametrize("last_step", [0, None])
def test_a_fork_by_reference_has_no_state_until_it_takes_that_of_its_source(
    bench: Bench, last_step: int | None
) -> None:
    store, fork = bench.store, waiting_fork(bench, last_step, y=3)
    keys, timers = store.keys.of_run(fork), store.keys.of_partition(bench.partition).timers
    assert not store._client.exists(keys.state)
    assert store._client.zscore(timers, f"{fork}/past") == 5_000
    begin = {**store.runs.state(RUN), "y": 3}
    assert store.runs.state(fork) == begin == store.runs.fold(fork), "it is shown nevertheless"
    [side] = store.runs.compared([fork])
    assert side is not None and side.values() == begin
    view = store.partitions.load([fork])[fork]
    assert (view.counts, view.steps, view.arrived) == (POINT.counts, POINT.steps, POINT.arrived)
    past = view.past
    assert past == PastState(RUN, 0, -1 if last_step is None else 0, 0 if last_step is None else 3)
    store._client.pexpire(store.keys.of_run(RUN).state, 1_000_000)
    for _ in range(2):
        assert past is not None and store.partitions.take_past(fork, past) is None
        assert past_of(store, fork) is None
        assert store.runs.state(fork) == begin
        assert store._client.pttl(keys.state) == -1
        assert store.partitions.load([fork])[fork].counts == POINT.counts
        assert store._client.zscore(timers, f"{fork}/past") is None
        store._client.hset(store.keys.of_run(RUN).state, "y", "9")


def test_a_source_that_has_gone_on_gives_a_fork_the_state_of_its_past(bench: Bench) -> None:
    store, fork = bench.store, waiting_fork(bench)
    run = store.keys.of_run(RUN)
    store._client.hset(run.run, "step", 1)
    store._client.rpush(run.journal, '{"step": 1, "kind": "x", "at_ms": 1}\n"y"\n7')
    store._client.hset(run.state, "y", "7")
    past = past_of(store, fork)
    assert past is not None and store.partitions.take_past(fork, past) is None
    assert store.runs.state(fork) == {"initial_prompt": "hi", "x": {"n": [1]}, "y": 2}


def test_a_state_that_expired_between_two_keys_of_the_source_is_not_taken_for_an_empty_one(bench: Bench) -> None:
    store, fork = bench.store, waiting_fork(bench)
    store._client.delete(store.keys.of_run(RUN).state)
    past = past_of(store, fork)
    assert past is not None and store.partitions.take_past(fork, past) is None
    assert store.runs.state(fork) == {"initial_prompt": "hi", "x": {"n": [1]}, "y": 2}, "the journal still has it"


@pytest.mark.parametrize("last_step", [0, None])
def test_the_state_of_a_source_that_is_gone_is_lost_and_nothing_else_is_taken(
    bench: Bench, last_step: int | None
) -> None:
    store, fork = bench.store, waiting_fork(bench, last_step, y=3)
    run = store.keys.of_run(RUN)
    store._client.delete(run.run, run.state, run.journal, run.spec)
    past = past_of(store, fork)
    lost = store.partitions.take_past(fork, past) if past else None
    assert isinstance(lost, str) and f"of run '{RUN}' after step 0, is lost: run '{RUN}' has expired" in lost
    assert past_of(store, fork) == past and not store._client.exists(store.keys.of_run(fork).state)


def test_a_fork_without_a_state_of_its_own_is_no_source_of_a_copy(bench: Bench) -> None:
    store, fork = bench.store, waiting_fork(bench)
    late = next(id_ for id_ in fork_ids(bench) if id_ != fork)
    spec = RunSpec("agent", "digest", fork=Fork(fork, Checkpoint(0, ("b",))))
    assert not store.runs.fork(late, spec, last_step=0, state={}, changes={})
    life = store.runs.past_info(fork, store.runs.spec(fork))
    assert (life.is_past, life.left_ms) == (True, RETENTION_MS)


def test_the_past_of_a_run_lives_as_long_as_its_first_journal_and_after_its_end_for_the_retention(bench: Bench) -> None:
    store, fork = bench.store, waiting_fork(bench)
    run, source = store.keys.of_run(fork), store.keys.of_run(RUN)
    spec = store.runs.spec(fork)
    assert store.runs.past_info(fork, spec).left_ms == RETENTION_MS, "neither is over"
    store._client.pexpire(run.journal, 1_000_000)
    assert 900_000 < store.runs.past_info(fork, spec).left_ms <= 1_000_000, "the source is not over"
    store._client.pexpire(source.journal, 500_000)
    assert 400_000 < store.runs.past_info(fork, spec).left_ms <= 500_000
    info = store.runs.past_info(fork, spec)
    assert info.steps == 2 and 100 < info.bytes_ < 10_000, "both journals count"
    store._client.rpush(run.journal, "x" * 1_000_000, *["{}"] * 999)
    assert 1_000_000 < store.runs.past_info(fork, spec).bytes_ < 1_500_000, "whichever of its entries are large"
    store._client.delete(source.journal)
    assert store.runs.past_info(fork, spec).left_ms == -2


def test_a_source_lists_its_forks_in_pages_that_expire_with_it(bench: Bench) -> None:
    store, keys = bench.store, bench.store.keys
    ids = (f"fork{number:08}" for number in range(1_000_000))
    forks = [id_ for id_ in (next(ids) for _ in range(4_000)) if keys.partition_of(id_) == bench.partition][:150]
    store._client.pexpire(keys.of_run(RUN).run, 1_000_000)
    for fork in forks:
        assert store.runs.fork(fork, SPEC, last_step=0, state={}, changes={})
    assert 0 < store._client.pttl(keys.of_run(RUN).children) <= 1_000_000
    found = store.runs.forks(RUN, 95, 10)
    assert (found.count, [fork.id for fork in found.forks]) == (150, forks[95:105])
    assert [fork.id for fork in store.runs.forks(RUN, 145, 100).forks] == forks[145:]
    assert store.runs.forks(RUN, 200, 100).forks == ()
    assert store.runs.children([RUN]) == {RUN: []}, "they are no child runs"
    tree = store.runs.lineage(forks[140], 3)
    assert (tree.count, [fork.id for fork in tree.forks]) == (150, [*forks[:3], forks[140]])


LONG_TEXT = "ä\n" * LONG
VALUES = st.one_of(st.integers(0, 9), st.sampled_from(["", "short", LONG_TEXT, {"a/b": [LONG_TEXT]}]))
OVERWRITES = st.sampled_from([{"__overwrite__": ["new"]}, {"__overwrite__": [LONG_TEXT]}])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Headers and writes of the journal steps that follow the submission: of parallel visits, which count when their
    super-step closes, or of visits that end out of order, each with writes and updates of the key `log`."""
    steps: list[tuple[dict[str, Any], dict[str, Any]]] = []
    is_dag, held = draw(st.booleans()), list[int]()
    for step in range(1, draw(st.integers(1, 8)) + 1):
        header: dict[str, Any] = {}
        written = draw(st.dictionaries(st.sampled_from(["x", "y", "k/1", 'q"ü']), VALUES, max_size=3))
        if draw(st.booleans()):
            may_replace = is_dag or not held  # one of a super-step may
            written["log"] = draw(OVERWRITES if may_replace and draw(st.booleans()) else st.lists(VALUES, max_size=2))
            header["folds"] = {"log": "append"}
        elif draw(st.booleans()):
            written["log"] = draw(st.sampled_from([[], ["short"], [LONG_TEXT]]))
        if is_dag:
            header["rank"] = [draw(st.integers(1, 5)), "node", "", step]
        else:
            held.append(step)
            if draw(st.booleans()):
                header |= {"held": len(held) > 1, "applies": draw(st.permutations(held)) if len(held) > 1 else []}
                held = []
            else:
                header["held"] = True
        steps.append((header, written))
    return steps


def journal_entry(step: int, header: dict[str, Any], written: dict[str, Any]) -> str:
    lines = [{"step": step, "kind": "visit", "at_ms": 0, "seq": step, "node": "n", "ok": True, **header}]
    return "\n".join(
        json.dumps(each, ensure_ascii=False) for each in [*lines, *(part for pair in written.items() for part in pair)]
    )


@given(first=histories(), second=histories(), data=st.data())
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_state_that_a_fork_takes_is_the_fold_of_its_past_whatever_its_source_has_written_since(
    bench: Bench, first: list[Any], second: list[Any], data: st.DataObject
) -> None:
    store, keys = bench.store, bench.store.keys
    store._client.ltrim(keys.of_run(RUN).journal, 0, 0)
    source, ids = RUN, fork_ids(bench)
    for steps in (first, second):
        journal = keys.of_run(source).journal
        store._client.rpush(journal, *(journal_entry(step, *each) for step, each in enumerate(steps, 1)))
        at = data.draw(st.integers(0, len(steps)))
        fork = next(id_ for id_ in ids if not store._client.exists(keys.of_run(id_).run))
        spec = RunSpec("agent", "digest", fork=Fork(source, Checkpoint(at, ("b",))))
        changes = {"fee": at}
        assert store.runs.fork(fork, spec, last_step=None, state={}, changes=changes, due_ms=5_000)
        past = past_of(store, fork)
        assert past is not None and store.partitions.take_past(fork, past) is None
        assert store.runs.state(fork) == {**store.runs.fold(source, at), **changes} == store.runs.fold(fork)
        source = fork


def test_long_values_reach_a_fork_without_passing_through_the_scheduler_in_portions_of_a_few_megabytes(
    bench: Bench,
) -> None:
    store, fork = bench.store, waiting_fork(bench, None, y=3)
    journal = store.keys.of_run(RUN).journal
    spec = replace(SPEC, fork=Fork(RUN, Checkpoint(2, ("b",))))
    many = {f"k{number}": "v" * 1_000 for number in range(500)}
    store._client.rpush(journal, journal_entry(1, {}, {"big": "b" * 6_000_000}), journal_entry(2, {}, many))
    late = next(id_ for id_ in fork_ids(bench) if id_ != fork)
    assert store.runs.fork(late, spec, last_step=None, state={}, changes={}, due_ms=5_000)
    past = past_of(store, late)
    assert past is not None
    texts, places = store.runs.past_texts(RUN, 2)
    assert set(places) == {"big", *many} and sum(map(len, texts.values())) < 100
    begin = store.runs.fold(RUN, 2)
    some = {**dict.fromkeys(places), **{key: begin[key] for key in ("k1", "k2", "x", "y", "initial_prompt")}}
    assert store.runs.past_values(RUN, 2, {"k1", "k2", "none"}) == some, "others are only named"
    assert store.partitions.take_past(late, past) is None
    assert store.runs.state(late) == begin


def test_a_value_that_is_gone_between_two_readings_is_lost_and_the_fork_says_so(bench: Bench) -> None:
    store, fork = bench.store, waiting_fork(bench, None)
    journal = store.keys.of_run(RUN).journal
    store._client.lset(journal, 0, journal_entry(0, {}, {"big": LONG_TEXT}))
    past, read = past_of(store, fork), store.runs.past_texts
    assert past is not None
    places = read(RUN, 0).places
    store._client.delete(journal)
    with pytest.raises(RunNotFound, match="has expired while it was read"):
        store.partitions._copy(fork, places)
    assert past_of(store, fork) == past and store.runs.find([fork])[0] is not None


def test_an_outline_has_the_steps_of_a_journal_in_pages_and_leaves_damaged_entries_to_the_reader(bench: Bench) -> None:
    store, journal = bench.store, bench.store.keys.of_run(RUN).journal
    store._client.rpush(
        journal, *(journal_entry(step, {}, {"k": step} if step % 2 else {}) for step in range(1, 1_200))
    )
    found = list(store.runs.entries(RUN))
    assert [step.step for step, _ in found] == list(range(1_200))
    assert [wrote for _, wrote in found[1:]] == [step % 2 == 1 for step in range(1, 1_200)]
    assert list(store.runs.entries("none")) == []
    store._client.rpush(journal, "{\n" + "x" * LONG * 2)
    with pytest.raises(RecordUnreadable):
        list(store.runs.entries(RUN))
    with pytest.raises(RecordUnreadable):
        store.runs.past_texts(RUN, 1_200)
