"""What cannot be read parks one run, and no other, until a scheduler can read it. Findings C1 and C3 of the second
review."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from sleipnir import decoding
from sleipnir.errors import BundleError, GraphError
from sleipnir.runs.run import RunSpec
from sleipnir.store.partitions.entries import NO_RUN
from sleipnir.store.store import Store
from sleipnir_scheduler.graphs import Graphs
from sleipnir_scheduler.services import parking
from sleipnir_scheduler.services.advance import BATCH, Advance
from tests.store.test_advance import ASKS, advance_of
from tests.unreadable import Unreadable, cases

ENDS = """
name: g
start: e
nodes:
  e: {type: end, output: done}
"""
STRANGE = "strange00000"
OTHERS = [f"other{number:07}" for number in range(20)]


class Bench:
    """A scheduler, runs that complete at once, and one that is planted something."""

    def __init__(self, store: Store, graph: str = ENDS) -> None:
        self.store, self.client = store, store._client
        self.now_s = 0.0
        self.graph = graph
        self.advance = self.scheduler()

    def scheduler(self) -> Advance:
        advance = advance_of(self.store, self.graph)
        advance._parking._clock = lambda: self.now_s
        return advance

    def submit(self, *runs: str) -> None:
        for run in runs:
            self.store.runs.create(run, RunSpec("agent", "digest"), {"initial_prompt": "hi"})

    def plant(self, fields: Any, run: str = STRANGE) -> str:
        """Add an inbox entry to the partition of a run."""
        inbox = self.store.keys.of_partition(self.store.keys.partition_of(run)).inbox
        return str(self.client.xadd(inbox, fields))

    def remove(self, entry: str, run: str = STRANGE) -> None:
        self.client.xdel(self.store.keys.of_partition(self.store.keys.partition_of(run)).inbox, entry)

    def plan(self) -> None:
        while self.advance.run_once() >= 0 and self.has_news():
            pass

    def has_news(self) -> bool:
        after = self.advance._parking.cursors(self.advance._ownership.epochs)
        return bool(self.store.partitions.read(range(self.store.keys.partitions), limit=1, block_ms=None, after=after))

    def look_again(self) -> None:
        self.now_s += 100 * parking.AGAIN_S
        self.plan()

    def status(self, run: str = STRANGE) -> str:
        return str(self.client.hget(self.store.keys.of_run(run).run, "status"))

    def marks(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for partition in range(self.store.keys.partitions):
            marks = self.store.partitions.parked(partition)
            found |= {run: json.loads(text) for run, text in marks.items()}
        return found


@pytest.fixture
def bench(store: Store) -> Iterator[Bench]:
    yield Bench(store)
    store._client.flushdb()


def keep(bench: Bench, case: Unreadable) -> Any:
    """Plant a record of the strange run; a function that puts back what was there."""
    keys, client, planted = bench.store.keys.of_run(STRANGE), bench.client, case.of(STRANGE)
    if case.kind == "run_spec":
        before = client.get(keys.spec)
        client.set(keys.spec, planted)
        return lambda: client.set(keys.spec, before)
    if case.kind == "visit":
        client.hset(keys.frontier, "7", planted)
        return lambda: client.delete(keys.frontier)
    before = client.hgetall(keys.run)
    client.hset(keys.run, mapping=planted)

    def put_back() -> None:
        client.delete(keys.run)
        client.hset(keys.run, mapping=before)

    return put_back


RECORDS = [case for kind in ("run_spec", "run_record", "visit") for case in cases(kind)]


@pytest.mark.parametrize("case", RECORDS, ids=str)
def test_a_record_that_cannot_be_read_parks_its_run_until_it_can(bench: Bench, case: Unreadable) -> None:
    """Finding C1: 20 of 20 later runs stayed `submitted`."""
    bench.submit(STRANGE)
    put_back = keep(bench, case)
    bench.submit(*OTHERS)
    bench.plan()
    assert {bench.status(run) for run in OTHERS} == {"completed"}
    [mark] = bench.marks().values()
    assert "cannot be read: " in mark["reason"]
    bench.look_again()
    assert list(bench.marks()) == [STRANGE]
    put_back()
    bench.look_again()
    assert (bench.status(), bench.marks()) == ("completed", {})


@pytest.mark.parametrize("case", cases("inbox_entry"), ids=str)
def test_an_unreadable_entry_parks_its_run_until_it_is_removed(store: Store, case: Unreadable) -> None:
    """Finding C1: what comes after it waits in order; other runs go on."""
    bench = Bench(store, ASKS)
    bench.submit(STRANGE)
    bench.plan()
    planted = bench.plant(case.of(STRANGE))
    store.runs.answer(STRANGE, 1, "yes")
    bench.submit(*OTHERS)
    bench.plan()
    assert {bench.status(run) for run in OTHERS} == {"waiting"}
    is_of_no_run = case.of(STRANGE).get("run") != STRANGE.encode()
    assert list(bench.marks()) == [NO_RUN if is_of_no_run else STRANGE]
    assert bench.status() == ("completed" if is_of_no_run else "waiting")
    bench.remove(planted)
    bench.look_again()
    bench.look_again()
    assert (bench.status(), bench.marks()) == ("completed", {})


def test_more_unreadable_entries_than_one_read_delay_no_other_run_and_are_reported_once(bench: Bench) -> None:
    """Finding C3: 200 of them blocked their partition."""
    bench.submit(STRANGE)
    bench.plan()
    with capture_logs() as logs:
        for _ in range(2 * BATCH + 50):
            bench.plant({"t": "teleported"})
        bench.submit(*OTHERS)
        bench.plan()
        bench.look_again()
        bench.look_again()
    assert {bench.status(run) for run in OTHERS} == {"completed"}
    told = [each for each in logs if each["event"] == "inbox entry without a run is skipped"]
    assert len(told) == len({each["entry"] for each in told}) > 0
    assert list(bench.marks()) == [NO_RUN]


def test_a_thousand_entries_behind_one_that_cannot_be_read_cost_one_look(bench: Bench) -> None:
    """Finding C3: they are passed over, and read again only after a pause."""
    bench.submit(STRANGE)
    bench.client.set(bench.store.keys.of_run(STRANGE).spec, "{")
    for _ in range(1_000):
        bench.plant({"t": "resumed", "run": STRANGE})
    bench.submit(*OTHERS)
    bench.plan()
    assert {bench.status(run) for run in OTHERS} == {"completed"}
    assert bench.advance.run_once() == 0
    inbox = bench.store.keys.of_partition(bench.store.keys.partition_of(STRANGE)).inbox
    last = bench.client.xrevrange(inbox, count=1)[0][0]
    after = bench.advance._parking.cursors(bench.advance._ownership.epochs)
    assert last in after.values()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    junk=st.lists(
        st.dictionaries(
            st.sampled_from(["t", "run", "seq", "attempt", "h", "text", "by", "usage", "data", "what", "name", "v"]),
            st.binary(max_size=12)
            | st.sampled_from(
                [b"result", b"told", b"child_ended", b"answered", b"timer", b"1", STRANGE.encode(), b"{}", b'{"ok":1}']
            ),
            min_size=1,
        ),
        max_size=12,
    )
)
def test_any_junk_in_the_inbox_keeps_no_other_run(store: Store, junk: list[dict[str, bytes]]) -> None:
    """Findings C1 and C3."""
    store._client.flushdb()
    bench = Bench(store)
    for fields in junk:
        bench.plant(fields)
    bench.submit(*OTHERS)
    bench.plan()
    assert {bench.status(run) for run in OTHERS} == {"completed"}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spec=st.binary(max_size=20) | st.just(b'{"agent":"agent","bundle":"digest","v":1}'),
    record=st.dictionaries(
        st.sampled_from(
            ["status", "version", "seq", "step", "paused", "slot", "budget", "n:e", "t:e", "tops", "deferred"]
        ),
        st.binary(max_size=12) | st.integers().map(lambda number: str(number).encode()),
    ),
    frontier=st.dictionaries(st.sampled_from(["1", "x"]), st.binary(max_size=20)),
)
def test_any_junk_in_a_record_keeps_no_other_run(
    store: Store, spec: bytes, record: dict[str, bytes], frontier: dict[str, bytes]
) -> None:
    """Finding C1."""
    store._client.flushdb()
    bench = Bench(store)
    bench.submit(STRANGE)
    keys = store.keys.of_run(STRANGE)
    store._client.set(keys.spec, spec)
    for key, fields in ((keys.run, record), (keys.frontier, frontier)):
        if fields:
            store._client.hset(key, mapping=fields)
    bench.submit(*OTHERS)
    bench.plan()
    assert {bench.status(run) for run in OTHERS} == {"completed"}


def test_keys_of_another_type_park_their_run(bench: Bench) -> None:
    """Finding C1: what Redis refuses to read is damaged, too."""
    bench.submit(STRANGE)
    keys = bench.store.keys.of_run(STRANGE)
    bench.client.delete(keys.spec)
    bench.client.hset(keys.spec, "a", "b")
    bench.submit(*OTHERS)
    bench.plan()
    assert {bench.status(run) for run in OTHERS} == {"completed"}
    assert "WRONGTYPE" in bench.marks()[STRANGE]["reason"]


def test_a_run_that_has_lost_its_spec_is_parked_and_not_dropped(bench: Bench) -> None:
    """Finding C1: `the run has expired` is true only of one without a record, or that is over."""
    bench.submit(STRANGE)
    bench.client.delete(bench.store.keys.of_run(STRANGE).spec)
    bench.plan()
    assert list(bench.marks()) == [STRANGE]
    bench.client.delete(bench.store.keys.of_run(STRANGE).run)
    bench.look_again()
    bench.look_again()
    assert bench.marks() == {}


def test_a_cancel_of_a_run_with_a_strange_entry_does_not_wait(store: Store) -> None:
    """Finding C1: its record can be read, and nothing of it matters after a cancel."""
    bench = Bench(store, ASKS)
    bench.submit(STRANGE)
    bench.plan()
    planted = bench.plant({"t": "teleported", "run": STRANGE})
    bench.plan()
    store.runs.cancel(STRANGE)
    bench.plan()
    assert bench.status() == "cancelled"
    bench.remove(planted)
    bench.look_again()
    bench.look_again()
    assert bench.marks() == {}


def test_a_cancel_that_was_read_together_with_the_strange_entry_does_not_wait(store: Store) -> None:
    """Finding C1."""
    bench = Bench(store, ASKS)
    bench.submit(STRANGE)
    bench.plan()
    bench.plant({"t": "teleported", "run": STRANGE})
    store.runs.cancel(STRANGE)
    bench.plan()
    assert bench.status() == "cancelled"


def test_a_cancel_of_a_run_whose_record_cannot_be_read_waits_and_is_not_lost(store: Store) -> None:
    """Finding C1: `cancel` went the same way."""
    bench = Bench(store, ASKS)
    bench.submit(STRANGE)
    spec = store._client.get(store.keys.of_run(STRANGE).spec)
    store._client.set(store.keys.of_run(STRANGE).spec, '{"agent": "agent", "bundle": "digest", "v": 5}')
    store.runs.cancel(STRANGE)
    bench.plan()
    bench.look_again()
    assert (bench.status(), list(bench.marks())) == ("submitted", [STRANGE])
    store._client.set(store.keys.of_run(STRANGE).spec, spec)
    bench.look_again()
    assert (bench.status(), bench.marks()) == ("cancelled", {})


@pytest.mark.parametrize("problem", [GraphError("unknown node type 'dream'"), BundleError("it is not in Redis")])
def test_a_graph_that_cannot_be_read_parks_its_run_until_it_can(bench: Bench, problem: Exception) -> None:
    """Finding C23: an older scheduler failed the run for good. A bundle that is missing may be uploaded again."""
    readable = bench.advance._graphs

    def refuse(*_: object) -> object:
        raise problem

    bench.advance._graphs = SimpleNamespace(get=refuse)  # type: ignore[assignment]
    bench.submit(STRANGE)
    bench.plan()
    assert bench.status() == "submitted"
    assert bench.marks()[STRANGE]["reason"] == f"its graph cannot be used: {problem}"
    bench.advance._graphs = readable
    bench.look_again()
    assert (bench.status(), bench.marks()) == ("completed", {})


@pytest.mark.parametrize("case", cases("bundle"), ids=str)
def test_a_bundle_of_the_corpus_parks_its_run_and_is_read_once(bench: Bench, case: Unreadable) -> None:
    """Finding C23. Many runs may have the same bundle: it is not fetched for each of them."""
    readable, fetched = bench.advance._graphs, list[str]()

    def fetch(digest: str) -> Any:
        fetched.append(digest)
        return case.of(STRANGE)

    bench.advance._graphs = Graphs(fetch)
    bench.submit(STRANGE, *OTHERS)
    bench.plan()
    assert set(bench.marks()) == {STRANGE, *OTHERS}
    assert fetched == ["digest"]
    bench.advance._graphs = readable
    bench.look_again()
    assert {bench.status(run) for run in (STRANGE, *OTHERS)} == {"completed"}


def test_a_run_whose_graph_cannot_be_read_can_be_cancelled(bench: Bench) -> None:
    """Finding C23: one whose bundle is gone for good would wait for ever."""

    def refuse(*_: object) -> object:
        raise BundleError("it is gone")

    bench.advance._graphs = SimpleNamespace(get=refuse)  # type: ignore[assignment]
    bench.submit(STRANGE)
    bench.plan()
    bench.store.runs.cancel(STRANGE)
    bench.plan()
    bench.look_again()
    bench.look_again()
    assert (bench.status(), bench.marks()) == ("cancelled", {})


def test_a_run_of_a_newer_client_continues_with_a_scheduler_that_reads_its_version(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C1: a field that this release does not know is no reason; a newer version is, until a newer scheduler
    owns the partition."""
    bench.submit(STRANGE, OTHERS[0])
    for run, version in ((STRANGE, 5), (OTHERS[0], 1)):
        spec = {"agent": "agent", "bundle": "digest", "colour": "red", "v": version}
        bench.client.set(bench.store.keys.of_run(run).spec, json.dumps(spec))
    bench.plan()
    assert (bench.status(OTHERS[0]), bench.status()) == ("completed", "submitted")
    assert bench.marks()[STRANGE]["reason"].endswith("version 5, this release reads up to 4")
    monkeypatch.setattr(decoding, "READS", 5)
    bench.advance = bench.scheduler()
    bench.plan()
    assert (bench.status(), bench.marks()) == ("completed", {})


def test_the_mark_of_a_run_that_its_owner_could_not_remove_is_removed_by_the_next_one(bench: Bench) -> None:
    """The owner died between the commit and the removal."""
    bench.submit(STRANGE)
    bench.plan()
    number = bench.store.keys.partition_of(STRANGE)
    epoch = bench.advance._ownership.epochs[number]
    assert bench.store.partitions.park(number, {STRANGE: '{"reason": "x", "at_ms": 1}'}, epoch)
    assert not bench.store.partitions.park(number, {STRANGE: ""}, epoch + 1)
    assert list(bench.marks()) == [STRANGE]
    bench.advance = bench.scheduler()
    bench.plan()
    bench.look_again()
    bench.look_again()
    assert bench.marks() == {}


def test_index_members_without_a_visit_delay_no_other_visit(bench: Bench) -> None:
    """Finding C1: what stands at the head of an index and cannot be read was read again for ever."""
    store, client = bench.store, bench.client
    part = store.keys.of_partition(0)
    for index in (part.leases, part.outbox, part.timers):
        client.zadd(index, {"junk": 1, "a/b/c": 2, "a/1/x": 3, b"\xff/1/1": 4})
    now_ms = store.now_ms()
    assert store.partitions.take_back(0, now_ms, now_ms + 10_000, 100) == 0
    assert store.partitions.due(0, now_ms, 100) == []
    store.partitions.fire_timers(0, 100)
    assert [client.zcard(index) for index in (part.leases, part.outbox, part.timers)] == [0, 0, 0]
    bench.submit(*OTHERS)
    bench.plan()
    assert {bench.status(run) for run in OTHERS} == {"completed"}


def test_a_lease_whose_claim_is_damaged_is_taken_back(bench: Bench) -> None:
    """Finding C1: the script raised, and no lease of the partitions after it was taken back."""
    store = bench.store
    part = store.keys.of_partition(store.keys.partition_of(STRANGE))
    bench.client.hset(store.keys.of_run(STRANGE).claims, mapping={"1": "{", "2": "[]", "3": '"x"'})
    bench.client.zadd(part.leases, {f"{STRANGE}/{seq}/1": 1 for seq in (1, 2, 3)})
    now_ms = store.now_ms()
    number = store.keys.partition_of(STRANGE)
    assert store.partitions.take_back(number, now_ms, now_ms + 10_000, 100) == 3
    assert [fields["worker"] for _, fields in bench.client.xrange(part.inbox)] == ["?"] * 3


def test_bundles_of_runs_whose_spec_cannot_be_read_are_kept(bench: Bench) -> None:
    """Finding C1: a parked run that goes on needs its bundle."""
    digests = ["a" * 64, "b" * 64]
    bench.submit(STRANGE, OTHERS[0])
    spec = json.dumps({"agent": "x", "bundle": digests[0], "agents": {"y": digests[1]}, "v": 5})
    bench.client.set(bench.store.keys.of_run(STRANGE).spec, spec)
    assert {*digests, "digest"} <= bench.store.pinned().bundles
