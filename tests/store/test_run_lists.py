"""The lists of runs: what scripts write, what queries find, and what upkeep repairs, on a real Redis."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sleipnir.batches.records import place_of as row_place
from sleipnir.client.client import Client
from sleipnir.errors import RecordUnreadable, UsageError
from sleipnir.runs.run import RunSpec, child_id
from sleipnir.runs.run_filters import RunFilter
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Child, ChildWait, Failure, Question, Visit, Work
from sleipnir.settings import Settings
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.scripts import run_in_order
from sleipnir.store.store import Store
from sleipnir_scheduler.services import janitor
from sleipnir_scheduler.services.listing import Listing

PLAIN = RunSpec("agent", "digest000001")


class Runs:
    """Creates runs, and moves them by commits, as a scheduler would. `store` has all partitions."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.partitions = range(store.keys.partitions)
        owned = store.partitions.own(list(self.partitions), "me", 600_000)
        self.epochs = {partition: each.epoch for partition, each in owned.items()}
        self._numbers = itertools.count()

    def create(self, spec: RunSpec = PLAIN, batch: str = "", id: str | None = None) -> str:
        run_id = id or f"run{next(self._numbers):09}"
        [reply] = run_in_order(self.store._client, [self.store.runs.creation(run_id, spec, {}, batch)])
        assert reply == [1, ""]
        return run_id

    def commit(self, run_id: str, transition: Transition) -> None:
        partition = self.store.keys.partition_of(run_id)
        entries = self.store.partitions.read([partition], limit=10_000, block_ms=None)
        entry = next((each for each in entries if each.run == run_id), None)
        if entry is None:
            self.store._client.xadd(
                self.store.keys.of_partition(partition).inbox,
                {"t": "timer", "run": run_id, "seq": "1", "attempt": "1", "what": "deadline", "name": "deadline"},
            )
            return self.commit(run_id, transition)
        view = self.store.partitions.load([run_id])[run_id]
        assert self.store.partitions.commit([Commit(entry, view, transition)], self.epochs) == [1]
        return None

    def begin(self, run_id: str) -> None:
        self.commit(run_id, Transition(open=(visit(Work("scripts")),), status="running"))

    def ask(self, run_id: str) -> None:
        self.commit(run_id, Transition(open=(visit(Question()),), status="waiting"))

    def end(self, run_id: str, status: str = "completed", **more: Any) -> None:
        view = self.store.partitions.load([run_id])[run_id]
        more = {"ended_ms": self.store.now_ms(), **more}
        self.commit(run_id, Transition(close=tuple(view.frontier.values()), status=status, **more))  # type: ignore[arg-type]

    def fail(self, run_id: str, error: str, node: str | None = "a") -> None:
        self.end(run_id, "failed", error=error, failure=Failure("visit", 1, node=node))

    def list_all(self) -> None:
        listing = Listing(self.store.partitions)
        while listing.run_once(self.partitions):
            pass

    @property
    def lists(self) -> dict[str, Any]:
        """All keys of lists, with what is in them."""
        client = self.store._client
        return {
            key: client.hgetall(key) if client.type(key) == "hash" else client.zrange(key, 0, -1, withscores=True)
            for key in sorted(client.scan_iter(f"{self.store.keys.prefix}:*:lists*"))
            if not key.endswith(":complete")
        }


def visit(body: Any) -> Visit:
    return Visit(1, "a", "script", 1, 5, body=body)


@pytest.fixture
def runs(store: Store) -> Runs:
    return Runs(store)


@pytest.fixture(params=["listed", "not yet listed"])
def any_runs(request: pytest.FixtureRequest, store: Store) -> Runs:
    """Partitions whose runs are all listed, and such as an upgrade finds."""
    made = Runs(store)
    if request.param == "listed":
        made.list_all()
    return made


def client_of(store: Store, **settings: Any) -> Client:
    return Client(
        Settings(
            redis_url=store.url,
            broker_url=store._settings.broker_url,
            key_prefix=store.keys.prefix,
            partitions=store.keys.partitions,
            **settings,
        )
    )


def found(store: Store, **query: Any) -> list[str]:
    with client_of(store) as client:
        return [info.id for info in client.runs(100, **query)]


# What is found


def test_a_run_is_found_by_what_it_is_and_where_it_is(any_runs: Runs) -> None:
    store = any_runs.store
    acme = any_runs.create(RunSpec("sort", "digest000001", tags={"customer": "acme", "tier": "gold"}))
    other = any_runs.create(RunSpec("sort", "digest000002", tags={"customer": "acme"}))
    third = any_runs.create(RunSpec("count", "digest000003"))
    any_runs.begin(third)
    any_runs.ask(other)
    assert set(found(store)) == {acme, other, third}
    assert set(found(store, agents=["sort"])) == {acme, other}
    assert found(store, agents=["sort"], status={"waiting"}) == [other]
    assert found(store, agents=["sort", "count"], status={"running"}) == [third]
    assert found(store, status={"waiting"}, reason="person") in ([other], [])
    assert set(found(store, tags={"customer": "acme"})) == {acme, other}
    assert found(store, tags={"customer": "acme", "tier": "gold"}) == [acme]
    assert found(store, tags={"customer": "acme", "tier": "lead"}) == []
    assert found(store, version="digest000003") == [third]
    assert set(found(store, version="digest")) == {acme, other, third}
    assert found(store, agents=["nobody"]) == []


def test_a_reason_for_waiting_is_found_and_leaves_with_it(runs: Runs) -> None:
    runs.list_all()
    asks, waits = runs.create(), runs.create()
    runs.ask(asks)
    runs.commit(waits, Transition(open=(visit(ChildWait(Child("child", "agent"))),), status="waiting"))
    with client_of(runs.store) as client:
        assert [info.id for info in client.runs(reason="person")] == [asks]
        assert [info.id for info in client.runs(reason=["child", "event"])] == [waits]
        assert client.run_counts().counts == {"waiting:person": 1, "waiting:child": 1}
        runs.end(asks)
        assert client.runs(reason="person") == []
        counts = client.run_counts()
        assert counts.counts == {"waiting:child": 1, "completed": 1}
        assert counts.by_status == {"waiting": 1, "completed": 1}
        assert counts.oldest_ms["completed"] == client.run(asks).info().created_ms
        assert counts.is_exact


def test_children_and_rows_are_in_lists_of_their_own(any_runs: Runs) -> None:
    store, top = any_runs.store, any_runs.create()
    row = any_runs.create(batch=row_place("monday", 3))
    child = any_runs.create(RunSpec("agent", "digest000001", parent=top, root=top), id=child_id(top, 1))
    assert found(store, rows=False) == [top]
    assert set(found(store)) == {top, row}
    assert set(found(store, children=True)) == {top, row, child}
    assert found(store, batch="monday") == [row]
    assert found(store, batch="tuesday") == []
    assert found(store, parent=top) == [child]
    assert found(store, parent="nobody") == []


def test_a_namespace_shows_its_own_runs_alone(any_runs: Runs) -> None:
    store = any_runs.store
    ours = any_runs.create(RunSpec("agent", "digest000001", namespace="team-a", tags={"k": "v"}))
    theirs = any_runs.create(RunSpec("agent", "digest000001", tags={"k": "v"}))
    assert found(store) == found(store, tags={"k": "v"}) == [theirs]
    assert found(store, namespace="team-a") == found(store, namespace="team-a", agents=["agent"]) == [ours]
    assert set(found(store, namespace="*")) == {ours, theirs}
    with client_of(store, namespace="team-a") as client:
        assert [info.id for info in client.runs()] == [ours]
        assert client.run_count() == 1
        assert client.runs()[0].namespace == "team-a"
        with pytest.raises(UsageError, match="cannot name a namespace"):
            client.runs(namespace="a:b")


def test_the_rows_of_a_batch_and_children_of_a_run_are_found_whatever_the_namespace(runs: Runs) -> None:
    top = runs.create(RunSpec("agent", "digest000001", namespace="team-a"))
    child = runs.create(RunSpec("agent", "digest000001", namespace="team-a", parent=top), id=child_id(top, 1))
    assert found(runs.store, parent=top) == [child]


def test_times_cost_and_ends_are_compared(any_runs: Runs) -> None:
    store, first, second = any_runs.store, any_runs.create(), any_runs.create()
    client = store._client
    client.hset(store.keys.of_run(first).run, "cost_usd", "0.25")
    any_runs.end(first)
    now_ms = store.now_ms()
    assert found(store, cost_min=0.2) == [first]
    assert found(store, cost_max=0.2) == [second]
    assert found(store, cost_min=0.2, cost_max=0.24) == []
    assert found(store, ended_since_ms=now_ms - 60_000) == [first]
    assert found(store, ended_before_ms=now_ms - 60_000) == []
    assert set(found(store, since_ms=now_ms - 60_000)) == {first, second}
    assert found(store, before_ms=now_ms - 60_000) == found(store, since_ms=now_ms + 60_000) == []


def test_a_retried_run_is_listed_as_running_again_and_its_failure_is_gone(runs: Runs) -> None:
    runs.list_all()
    run = runs.create()
    runs.fail(run, "at node 'a': it broke")
    with client_of(runs.store) as client:
        assert [group.count for group in client.failures()] == [1]
        assert [info.id for info in client.runs(node="a")] == [run]
        runs.commit(run, Transition(open=(visit(Work("scripts")),), status="running", revives=True))
        assert client.failures() == []
        assert client.runs(node="a") == []
        assert client.run_counts().counts == {"running": 1}
        runs.fail(run, "at node 'a': it broke")
        assert [group.count for group in client.failures()] == [1]


# Pages


def test_pages_have_each_run_once_newest_first_also_when_new_runs_come(any_runs: Runs) -> None:
    store = any_runs.store
    made = [any_runs.create(RunSpec("even" if n % 2 else "odd", "digest000001")) for n in range(90)]
    with client_of(store) as client:
        pages, after = [], None
        while True:
            page = client.runs(7, agents=["even"], after=after)
            pages.append([info.id for info in page])
            times = [info.created_ms for info in page]
            assert times == sorted(times, reverse=True)
            any_runs.create(RunSpec("even", "digest000001"))
            if (after := page.after) is None:
                break
        assert sorted(itertools.chain(*pages)) == sorted(made[1::2])
        assert [len(page) for page in pages[:6]] == [7] * 6


def test_a_page_says_how_far_it_looked_and_goes_on(runs: Runs) -> None:
    runs.list_all()
    run = runs.create()
    runs.store._client.hset(runs.store.keys.of_run(run).run, "cost_usd", "9")
    runs.end(run)
    for _ in range(60):
        runs.create()
    with client_of(runs.store) as client:
        page = client.runs(5, cost_min=1.0, among=20)
        assert (page, page.looked) == ([], 20)
        seen = 20
        while page.after is not None and not page:
            page = client.runs(5, cost_min=1.0, among=20, after=page.after)
            seen += page.looked
        assert [info.id for info in page] == [run]
        assert seen <= 61
        count = client.run_count(cost_min=1.0, among=20)
        assert (count, count.is_exact) == (0, False)
        count = client.run_count(cost_min=1.0)
        assert (count, count.is_exact) == (1, True)


@pytest.mark.parametrize("cursor", ["", "x", "1", "1.", ".a", "-1.a", "1.a b", "1" * 40 + ".a"])
def test_what_is_no_cursor_is_refused(store: Store, cursor: str) -> None:
    with client_of(store) as client, pytest.raises(UsageError, match="is no cursor"):
        client.runs(after=cursor)


def test_many_runs_of_one_millisecond_are_paged(runs: Runs) -> None:
    runs.list_all()
    made = [runs.create() for _ in range(300)]
    cards = {run: runs.store.keys.of_partition(runs.store.keys.partition_of(run)) for run in made}
    for run, part in cards.items():
        for name in ("default:is:run:submitted", "default:agent:submitted:agent"):
            runs.store._client.zadd(part.listed(name), {run: 5_000})
    position, got = None, []
    while True:
        page = runs.store.runs.found(RunFilter(), 7, position)
        got += page.ids
        if (position := page.after) is None:
            break
    assert sorted(got) == sorted(made)
    assert len(set(got)) == len(got)


def test_a_list_needs_few_round_trips_whatever_there_is(runs: Runs) -> None:
    runs.list_all()
    for n in range(200):
        runs.create(RunSpec(f"agent{n % 10}", "digest000001"))
    page = runs.store.runs.found(RunFilter(agents=frozenset({"agent3"})), 10)
    assert len(page.ids) == 10
    assert page.looked <= 20, "the list of the agent is walked, not that of all"


# Counts


def test_counts_are_exact_by_sets_and_agree_with_looking(any_runs: Runs) -> None:
    random.seed(7)
    for n in range(60):
        parent = {"parent": "p", "root": "p"} if n % 5 == 0 else {}
        spec = RunSpec(f"agent{n % 3}", f"digest{n % 4:06}", tags={"n": str(n % 7)}, **parent)
        run = any_runs.create(spec, row_place("b", n) if n % 6 == 1 else "")
        if n % 2:
            any_runs.begin(run)
        if n % 4 == 3:
            any_runs.fail(run, f"at node 'a': no file {n}")
    queries: list[Mapping[str, Any]] = [
        {}, {"children": False}, {"children": False, "rows": False}, {"status": {"failed"}},
        {"status": {"running", "submitted"}, "children": False}, {"agents": ["agent1"]},
        {"agents": ["agent1", "agent2"], "status": {"failed"}}, {"version": "digest000001"}, {"tags": {"n": "3"}},
        {"tags": {"n": "3"}, "status": {"failed"}}, {"batch": "b"}, {"parent": "p"}, {"node": "a"},
        {"text": "no file 7"}, {"agents": ["agent0"], "rows": False}, {"since_ms": 1}, {"before_ms": 1},
    ]  # fmt: skip
    with client_of(any_runs.store) as client:
        for query in queries:
            count = client.run_count(**query)
            listed = client.runs(1_000, **{"children": True, **query})
            assert (count, count.is_exact) == (len(listed), True), query


# Failures


def test_failures_are_grouped_by_message_without_what_differs(runs: Runs) -> None:
    runs.list_all()
    for n in range(3):
        run = runs.create(RunSpec("sort", "digest000001"))
        runs.fail(run, f"at node 'a': order {n}00 of 'acme{n}' took {n}.5 s (id 7f3a9c{n}1d2e)")
    other_version, other_node = (
        runs.create(RunSpec("sort", "digest000002")),
        runs.create(RunSpec("sort", "digest000001")),
    )
    runs.fail(other_version, "at node 'a': order 7 of 'x' took 1.5 s (id 99aa9c81d2e)")
    runs.fail(other_node, "at node 'b': order 7 of 'x' took 1.5 s (id 99aa9c81d2e)", "b")
    with client_of(runs.store) as client:
        groups = {(group.node, group.version): group for group in client.failures()}
        assert {name: group.count for name, group in groups.items()} == {
            ("a", "digest000001"): 3, ("a", "digest000002"): 1, ("b", "digest000001"): 1,
        }  # fmt: skip
        first = groups["a", "digest000001"]
        assert first.message == "order # of '…' took # s (id #)"
        assert first.fingerprint == groups["a", "digest000002"].fingerprint != groups["b", "digest000001"].fingerprint
        assert len(first.runs) == 3
        assert first.first_ms <= first.last_ms
        assert groups["a", "digest000002"].runs == (other_version,)
        assert len(client.runs(fingerprint=first.fingerprint)) == 4
        assert [info.id for info in client.runs(fingerprint=first.fingerprint, version="digest000002")] == [
            other_version
        ]
        assert len(client.runs(text="ORDER 12 of")) == 5
        assert client.runs(text="no such thing") == []
        assert {group.node for group in client.failures(node="b")} == {"b"}
        assert client.failures(agent="other") == client.failures(since_ms=first.last_ms + 10**6) == []
        with pytest.raises(UsageError, match="name one"):
            client.failures(namespace="*")
        with pytest.raises(UsageError, match="name one"):
            client.run_counts(namespace="*")


def test_a_group_is_discarded_with_a_note_until_another_run_fails_so(runs: Runs) -> None:
    runs.list_all()
    runs.fail(runs.create(), "at node 'a': it broke")
    with client_of(runs.store) as client:
        [group] = client.failures()
        assert group.discarded is None
        client.discard_failures(group.fingerprint, " the provider was down ")
        [noted] = client.failures()
        assert noted.discarded is not None and noted.discarded.note == "the provider was down"
        assert (noted.discarded.by, noted.discarded.at_ms >= group.last_ms) == (client.by, True)
        with pytest.raises(UsageError, match="no failed run has the fingerprint 'none'"):
            client.discard_failures("none", "x")
        with pytest.raises(UsageError, match="no failed run"):
            client.discard_failures(group.fingerprint, "x", namespace="other")
        for note in ("", " ", "x" * 1_001):
            with pytest.raises(UsageError, match="1 to 1,000 characters"):
                client.discard_failures(group.fingerprint, note)
        client.reopen_failures(group.fingerprint)
        client.reopen_failures(group.fingerprint)
        assert client.failures()[0].discarded is None
        entries = [entry for entry in client.access.audit() if entry.on == f"failures {group.fingerprint}"]
        assert [(entry.what, entry.reason) for entry in entries] == [
            ("failures discarded", "the provider was down"), ("failures reopened", None),
        ]  # fmt: skip
        client.discard_failures(group.fingerprint, "again")
        keys = runs.store.keys.access
        assert 0 < runs.store._client.pttl(keys.discarded) <= max(3_600_000, runs.store._retention_ms)
        stored = runs.store.access.discard_notes("default", [group.fingerprint])[group.fingerprint]
        older = replace(stored.value, at_ms=group.last_ms - 1)
        change = runs.store.access.change_discard_note
        assert change("default", group.fingerprint, stored, older, ttl_ms=60_000, entry="")
        assert client.failures()[0].discarded is None, "a run has failed since"


def test_groups_of_failures_are_bounded(runs: Runs) -> None:
    runs.list_all()
    some = [run for n in range(4_000) if runs.store.keys.partition_of(run := f"many{n:08}") == 1][:12]
    groups = runs.store.keys.of_partition(1).failures("default")
    runs.store._client.hset(
        groups,
        mapping={
            f"f{n}:v": '{"agent":"x","version":"v","message":"m","count":1,"first_ms":1,"last_ms":1}'
            for n in range(195)
        },
    )
    for n, run in enumerate(some):
        runs.create(id=run)
        runs.fail(run, f"broken {'abcdefghijkl'[n]}")
    assert runs.store._client.hlen(groups) <= 201
    with client_of(runs.store) as client:
        [others] = [group for group in client.failures() if group.fingerprint == "other"]
        assert others.count == 7
        assert others.message == "other messages"
        assert len(client.runs(fingerprint="other")) == 7
        assert len(client.runs(text="broken")) == 12, "each is found by its own message"


def test_groups_of_all_partitions_are_one_and_the_latest_are_first(runs: Runs) -> None:
    """Texts are compared before they are decoded: names and messages that look like other fields are not taken for
    them."""
    trap = '"last_ms":9999,"agent":"b","node":"n"'
    made = {
        0: {
            "f1:v": group_text("a", "n", 3, 10, 50),
            "f2:v": group_text("b", 'a "node":"n"', 1, 20, 20),
            "f3:v": group_text("a", None, 4, 40, 40, message=trap),
        },
        1: {
            "f1:v": group_text("a", "n", 2, 5, 30),
            "f3:v": group_text("a", None, 1, 60, 60, message=trap),
            "f4:v": group_text("a", "n", 1, 1, 1),
        },
    }
    for partition, groups in made.items():
        runs.store._client.hset(runs.store.keys.of_partition(partition).failures("default"), mapping=groups)

    def found(**asked: Any) -> list[tuple[str, int, int, int]]:
        groups = client.failures(**asked)
        return [(each.fingerprint, each.count, each.first_ms, each.last_ms) for each in groups]

    with client_of(runs.store) as client:
        everything = [("f3", 5, 40, 60), ("f1", 5, 5, 50), ("f2", 1, 20, 20), ("f4", 1, 1, 1)]
        assert found() == everything
        assert found(limit=2) == everything[:2]
        assert found(since_ms=20) == everything[:3]
        assert found(agent="b") == found(node='a "node":"n"') == [("f2", 1, 20, 20)]
        assert found(node="n") == [("f1", 5, 5, 50), ("f4", 1, 1, 1)]
        assert found(node="n", agent="b") == found(agent="a.") == found(node="[a]") == []
        assert client.failures()[0].message == trap


@pytest.mark.parametrize("text", ["{", "[]", '{"agent":"a","last_ms":"5"}', '{"agent":"a","last_ms":5'])
def test_a_damaged_group_is_an_error(runs: Runs, text: str) -> None:
    runs.store._client.hset(runs.store.keys.of_partition(1).failures("default"), mapping={"f:v": text})
    with client_of(runs.store) as client, pytest.raises(RecordUnreadable, match="damaged"):
        client.failures()


def group_text(agent: str, node: str | None, count: int, first_ms: int, last_ms: int, *, message: str = "m") -> str:
    group = {"agent": agent, "version": "v", "node": node, "message": message, "count": count}
    return json.dumps({**group, "first_ms": first_ms, "last_ms": last_ms}, separators=(",", ":"))


# What disappears, and what is repaired


def test_an_expired_run_leaves_no_list(runs: Runs) -> None:
    store = runs.store
    run = runs.create(RunSpec("agent", "digest000001", tags={"a": "b"}))
    runs.fail(run, "at node 'a': it broke")
    assert runs.lists
    store._client.delete(*store._client.scan_iter(f"{store.keys.of_run(run).run}*"))
    janitor.run_once(store, runs.partitions, 10**15, 1)
    assert runs.lists == {}
    assert found(store) == []


def test_runs_of_an_earlier_release_are_found_before_and_after_they_are_listed(runs: Runs) -> None:
    store = runs.store
    asks, failed, live = (runs.create(RunSpec("agent", "digest000001", tags={"n": str(n)})) for n in range(3))
    runs.ask(asks)
    runs.fail(failed, "at node 'a': it broke")
    before = runs.lists
    store._client.delete(*before)  # as it was before there were lists
    assert set(found(store)) == {asks, failed, live}
    assert found(store, tags={"n": "1"}) == found(store, status={"failed"}) == found(store, text="it broke") == [failed]
    runs.list_all()
    assert all(store.partitions.all_listed(partition) for partition in runs.partitions)
    assert runs.lists == before
    assert found(store, reason="person") == [asks]
    with client_of(store) as client:
        assert client.run_counts().is_exact


def test_a_commit_of_an_earlier_release_is_repaired_and_what_is_gone_too(runs: Runs) -> None:
    store = runs.store
    moved, gone = runs.create(), runs.create()
    runs.list_all()
    store._client.hset(store.keys.of_run(moved).run, mapping={"status": "completed", "ended_ms": 5, "version": 1})
    store._client.delete(*store._client.scan_iter(f"{store.keys.of_run(gone).run}*"))
    runs.list_all()
    assert found(store, status={"completed"}) == found(store) == [moved]
    with client_of(store) as client:
        assert client.run_count() == client.run_counts().counts["completed"] == 1


def test_a_run_that_goes_on_while_it_is_compared_is_left_to_its_commit(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, run = runs.store, runs.create()
    partition = store.keys.partition_of(run)
    load = store.partitions.load

    def go_on(*given: Any) -> Any:
        views = load(*given)
        monkeypatch.undo()
        runs.ask(run)
        return views

    monkeypatch.setattr(store.partitions, "load", go_on)
    assert store.partitions.list_again(partition, [run]) == 0
    runs.list_all()
    assert found(store, reason="person") == [run]


def test_a_damaged_card_hides_no_other_run(runs: Runs) -> None:
    store, bad, good = runs.store, runs.create(), runs.create()
    runs.list_all()
    for damage in ("[]", "{", '{"s":5}', '{"s":"running","a":"x","d":"y"}'):
        store._client.hset(store.keys.of_partition(store.keys.partition_of(bad)).cards, bad, damage)
        assert set(found(store)) == {bad, good}


def test_a_visit_that_moves_nothing_writes_no_list(runs: Runs) -> None:
    run = runs.create()
    runs.begin(run)
    before = runs.lists
    runs.commit(run, Transition(open=(Visit(2, "b", "script", 1, 5, body=Work("scripts")),), status="running"))
    assert runs.lists == before
