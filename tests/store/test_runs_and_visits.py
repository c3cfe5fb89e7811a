"""Store operations on a real Redis: one test per return code and promise."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import redis

from sleipnir.errors import GateError, RunNotFound, StoreUnavailable, UsageError
from sleipnir.messages import ResultHeader, VisitCall
from sleipnir.runs.budgets import Budget, BudgetUse
from sleipnir.runs.claims import Claim, ClaimRefused, VisitDelivery, WantedVisit
from sleipnir.runs.events import Answered, Cancelled, LeaseLost, Resulted, Submitted
from sleipnir.runs.run import Gate, RunSpec
from sleipnir.runs.transitions import Notice, Step, Transition, Write
from sleipnir.runs.values import KnownValues, WantedValues
from sleipnir.runs.views import Reason
from sleipnir.runs.visits import Body, Ended, Failed, Ready, Visit, Work
from sleipnir.store.connect import connect
from sleipnir.store.fast_client import execute_all
from sleipnir.store.partitions.commits import APPLIED, NOT_OWNER, REFUSED, STALE, Commit, IgnoredEntry
from sleipnir.store.partitions.ended_runs import _FORGET
from sleipnir.store.partitions.entries import Entry
from sleipnir.store.runs.requests import _TELL, Fence
from sleipnir.store.runs.run_infos import RunInfos
from sleipnir.store.scripts import RedisCommand, run_in_order
from sleipnir.store.store import Store
from tests.processes import RedisServer

LEASE_MS = 60_000
RUN = "run000000001"


class Bench:
    """A store with one run, moved by hand as the scheduler and a worker would move it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.partition = store.keys.partition_of(RUN)
        self.epochs = {self.partition: store.partitions.own([self.partition], "me", 60_000)[self.partition].epoch}

    def create(self, **state: Any) -> None:
        assert self.store.runs.create(RUN, RunSpec("agent", "digest"), {"initial_prompt": "hi", **state})

    def entries(self) -> list[Entry]:
        return self.store.partitions.read([self.partition], limit=10, block_ms=None)

    def commit(self, entry: Entry, transition: Transition, epochs: dict[int, int] | None = None) -> int:
        view = self.store.partitions.load([RUN])[RUN]
        return self.store.partitions.commit([Commit(entry, view, transition)], epochs or self.epochs)[0]

    def open_visit(self, **visit: Any) -> VisitCall:
        """Apply the submission by opening visit 1 on a queue."""
        entry = self.entries()[0]
        opened = Visit(1, "a", "script", 1, entry.at_ms, body=Work(visit.pop("queue", "scripts")))
        assert self.commit(entry, Transition(open=(opened,), counts={"a": 1}, started_ms=entry.at_ms, **visit)) == 1
        return VisitCall(RUN, "a", 1, 1, "agent", "digest")

    def claim(self, call: VisitCall, token: str = "t1", wanted: tuple[str, ...] | None = ()) -> Claim | ClaimRefused:
        return self.store.visits.claim(call, worker="w1", token=token, lease_ms=LEASE_MS, wanted=wanted)

    def deliver(self, call: VisitCall, token: str = "t1", **values: Any) -> bool:
        header = ResultHeader(ok=True, keys=tuple(values), worker="w1")
        texts = {key: json.dumps(value) for key, value in values.items()}
        return self.store.visits.deliver(call, header, texts, worker="w1", token=token)

    def end(self, entry: Entry, *writes: Write, **more: Any) -> Transition:
        live = tuple(self.store.partitions.load([RUN])[RUN].frontier.values())
        delivered = entry.event.seq if isinstance(entry.event, Resulted) else None
        more = {"delivered": delivered, "ended_ms": entry.at_ms, "output": "done", **more}
        return Transition(close=live, writes=writes, status="completed", **more)


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store)


def step(number: int, node: str = "a") -> Step:
    return Step(step=number, kind="script", at_ms=5, seq=number, node=node)


def test_a_run_is_created_once_and_is_in_the_inbox(bench: Bench) -> None:
    bench.create(x=[1])
    assert not bench.store.runs.create(RUN, RunSpec("other", "digest"), {"x": 2})
    assert bench.store.runs.state(RUN) == {"initial_prompt": "hi", "x": [1]}
    assert [(entry.run, entry.event) for entry in bench.entries()] == [(RUN, Submitted())]
    assert bench.store.runs.info(RUN).status == "submitted"


@pytest.mark.one_redis
def test_a_run_is_the_same_by_the_older_protocol_of_redis(bench: Bench, redis_server: RedisServer) -> None:
    bench.create()
    bench.claim(bench.open_visit())
    url = redis_server.url
    older = connect(f"{url}{'&' if '?' in url else '?'}protocol=2")
    assert isinstance(execute_all(older, [("HGETALL", bench.store.keys.of_run(RUN).claims)])[0], list)
    assert RunInfos(older, bench.store.keys).info(RUN) == bench.store.runs.info(RUN)


def test_an_unknown_run_is_named(bench: Bench) -> None:
    with pytest.raises(RunNotFound, match="no run 'nope'"):
        bench.store.runs.info("nope")


def test_a_commit_opens_visits_and_takes_its_entry_out_of_the_inbox(bench: Bench) -> None:
    bench.create()
    bench.open_visit()
    assert bench.entries() == []
    view = bench.store.partitions.load([RUN])[RUN]
    assert (view.version, view.seq, view.counts, list(view.frontier)) == (1, 1, {"a": 1}, [1])


def test_a_commit_on_an_old_version_changes_nothing(bench: Bench) -> None:
    bench.create()
    entry = bench.entries()[0]
    old = bench.store.partitions.load([RUN])[RUN]
    bench.open_visit()
    fresh = Entry("1-1", bench.partition, RUN, Submitted())
    commit = Commit(fresh, old, Transition(counts={"a": 99}))
    assert bench.store.partitions.commit([commit], bench.epochs) == [0]
    assert bench.store.partitions.load([RUN])[RUN].counts == {"a": 1}
    again = Commit(entry, old, Transition(counts={"a": 99}))
    assert bench.store.partitions.commit([again], bench.epochs) == [1], "the same entry twice is applied once"
    assert bench.store.partitions.load([RUN])[RUN].counts == {"a": 1}


def test_a_scheduler_that_lost_its_partition_commits_nothing(bench: Bench) -> None:
    bench.create()
    entry = bench.entries()[0]
    bench.store.partitions.own([bench.partition], "me", 0)
    owned = bench.store.partitions.own([bench.partition], "other", 60_000)[bench.partition]
    assert owned.epoch > bench.epochs[bench.partition]
    assert not owned.holds.scopes
    assert bench.commit(entry, Transition()) == -1
    assert bench.store.partitions.own([bench.partition], "me", 60_000) == {}
    assert bench.store.partitions.load([RUN])[RUN].version == 0


def test_a_claim_gives_a_lease_and_just_the_state_that_was_asked_for(bench: Bench) -> None:
    bench.create(x=[1], y=2)
    call = bench.open_visit()
    claim = bench.claim(call, wanted=("x", "missing"))
    assert isinstance(claim, Claim)
    assert (claim.state, claim.spec) == ({"x": "[1]"}, RunSpec("agent", "digest"))
    info = bench.store.runs.info(RUN).visits[0]
    assert (info.state, info.worker) == ("started", "w1")


def test_a_claim_can_ask_for_more_keys_than_a_script_can_pass_on_at_once(bench: Bench) -> None:
    """Finding S12."""
    keys = {f"k{number:05}": number for number in (0, 999, 1000, 1001, 5000, 8999)}
    bench.create(**keys)
    call = bench.open_visit()
    claim = bench.claim(call, wanted=tuple(f"k{number:05}" for number in range(9_000)))
    assert isinstance(claim, Claim)
    assert claim.state == {key: str(number) for key, number in keys.items()}


def test_a_claim_can_read_the_whole_state(bench: Bench) -> None:
    bench.create(x=[1])
    claim = bench.claim(bench.open_visit(), wanted=None)
    assert isinstance(claim, Claim)
    assert claim.state == {"x": "[1]", "initial_prompt": '"hi"'}


def test_a_second_claim_of_an_attempt_is_refused_but_the_same_one_may_repeat(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    assert isinstance(bench.claim(call), Claim)
    assert isinstance(bench.claim(call), Claim)
    assert bench.claim(call, token="t2") == ClaimRefused("taken")


@pytest.mark.parametrize("body", [Ended(1), Ready(), Failed(was=Work("scripts"))])
def test_a_visit_that_is_kept_but_not_for_workers_cannot_be_claimed(bench: Bench, body: Body) -> None:
    """It waits for others of its step, or for a slot, or for the retry of its run; a message for it came twice."""
    bench.create()
    call = bench.open_visit()
    bench.store.runs.cancel(RUN)
    view = bench.store.partitions.load([RUN])[RUN]
    bench.commit(bench.entries()[0], Transition(open=(replace(view.frontier[1], body=body),)))
    assert bench.claim(call) == ClaimRefused("gone")


def test_a_claim_of_a_closed_visit_or_an_old_attempt_is_refused(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    assert bench.claim(VisitCall(RUN, "a", 7, 1, "agent", "digest")) == ClaimRefused("gone")
    bench.store.runs.cancel(RUN)
    reopened = Visit(1, "a", "script", 2, 5, body=Work("scripts"))
    view = bench.store.partitions.load([RUN])[RUN]
    bench.commit(bench.entries()[0], Transition(close=(view.frontier[1],), open=(reopened,)))
    assert bench.claim(call) == ClaimRefused("stale")


def test_results_are_delivered_and_visits_claimed_in_one_call_that_may_be_repeated(bench: Bench) -> None:
    bench.create(x=[1])
    call = bench.open_visit()
    stale = replace(call, attempt=2)
    wanted = [WantedVisit(call, "t1", ("x",)), WantedVisit(stale, "t2", ())]
    for _ in range(2):
        delivered, [claim, refused] = bench.store.visits.exchange((), wanted, worker="w1", lease_ms=LEASE_MS)
        assert (delivered, refused) == ([], ClaimRefused("stale"))
        assert isinstance(claim, Claim)
        assert claim.state == {"x": "[1]"}
    results = [VisitDelivery(call, ResultHeader(ok=True), {}, token) for token in ("t1", "other")]
    for _ in range(2):
        assert bench.store.visits.exchange(results, wanted[:1], worker="w1", lease_ms=LEASE_MS) == (
            [True, False],
            [ClaimRefused("taken")],
        )
    assert [type(entry.event) for entry in bench.entries()] == [Resulted]


def test_a_claim_that_redis_refuses_fails_no_other(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    other = replace(call, run="run000000009")
    bench.store._client.set(bench.store.keys.of_run(other.run).frontier, "no hash")
    wanted = [WantedVisit(other, "t1", ()), WantedVisit(call, "t2", ())]
    _, [failed, claim] = bench.store.visits.exchange((), wanted, worker="w1", lease_ms=LEASE_MS)
    assert isinstance(failed, redis.exceptions.ResponseError)
    assert isinstance(claim, Claim)


def test_a_result_is_delivered_once_and_its_values_go_to_state_and_journal_by_the_commit(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    assert bench.deliver(call, x={"a": [1.5, None]}, big="z" * 100_000)
    assert bench.deliver(call, x="again"), "a lost reply may be asked for again"
    entry = bench.entries()[0]
    assert isinstance(entry.event, Resulted)
    assert entry.event.header.keys == ("x", "big")
    assert bench.store.runs.state(RUN) == {"initial_prompt": "hi"}
    assert bench.commit(entry, bench.end(entry, Write(step(1), delta=True), Write(step(2), values={"y": 1}))) == 1
    expected = {"initial_prompt": "hi", "x": {"a": [1.5, None]}, "big": "z" * 100_000, "y": 1}
    assert bench.store.runs.state(RUN) == expected
    assert bench.store.runs.fold(RUN) == expected
    assert bench.store.runs.fold(RUN, 1) == {k: v for k, v in expected.items() if k != "y"}
    written = [(s.step, sorted(s.keys)) for s in bench.store.runs.history(RUN)]
    assert written == [(0, ["initial_prompt"]), (1, ["big", "x"]), (2, ["y"])]
    assert bench.store.runs.output(RUN) == "done"


def test_a_long_journal_is_read_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding C25 of the second review: the journal was read whole."""
    bench.create()
    client, total = bench.store.partitions._client, 3_000
    element = client.lindex(bench.store.keys.of_run(RUN).journal, 0)
    numbered = [str(element).replace('"step":0', f'"step":{number}') for number in range(1, total)]
    client.rpush(bench.store.keys.of_run(RUN).journal, *numbered)
    history = bench.store.runs.history
    pages: list[int] = []
    lrange = type(client).lrange

    def counting(self: Any, name: str, first: int, last: int) -> Any:
        pages.append(last - first + 1)
        return lrange(self, name, first, last)

    monkeypatch.setattr(type(client), "lrange", counting)
    assert [found.step for found in history(RUN)] == list(range(total))
    assert bench.store.runs.fold(RUN) == {"initial_prompt": "hi"}
    assert max(pages) <= 500
    assert [found.step for found in history(RUN, limit=3)] == [0, 1, 2]
    assert [found.step for found in history(RUN, after=2, limit=2)] == [3, 4]
    assert [found.step for found in history(RUN, after=total - 2)] == [total - 1]
    assert history(RUN, after=total) == []


def test_history_shows_the_ways_that_a_super_step_gave_to_visits_that_had_ended_before(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    assert bench.deliver(call)
    closing = replace(step(3), next="d", routes={"1": ("b",), "2": ("b", "c")})
    entry = bench.entries()[0]
    assert bench.commit(entry, bench.end(entry, Write(step(1)), Write(step(2)), Write(closing))) == 1
    assert [found.next for found in bench.store.runs.history(RUN)] == [None, "b", ("b", "c"), "d"]


def test_planning_may_ask_for_the_state_and_for_what_was_delivered(bench: Bench) -> None:
    bench.create(x="old", y="kept")
    call = bench.open_visit()
    bench.claim(call)
    bench.deliver(call, x="new")
    entry = bench.entries()[0]
    wanted = WantedValues(state=frozenset(["x", "y", "z"]), delta=frozenset(["x"]), steps=frozenset([0]))
    [known] = bench.store.partitions.read_values([(entry, wanted)])
    assert known == KnownValues(
        wanted, {"x": "old", "y": "kept"}, {"x": "new"}, {0: {"initial_prompt": "hi", "x": "old", "y": "kept"}}
    )
    [known] = bench.store.partitions.read_values([(entry, WantedValues(whole=True))])
    assert known.state == {"initial_prompt": "hi", "x": "old", "y": "kept"}


def test_without_a_claim_or_with_another_token_a_result_is_refused_and_shown(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    assert not bench.deliver(call)
    bench.claim(call)
    assert not bench.deliver(call, token="other")
    assert bench.entries() == []
    events = [event.type for event in bench.store.runs.events(RUN, "0")]
    assert events.count("late_result") == 2


def test_a_lapsed_lease_is_taken_back_once_and_its_worker_s_result_is_refused_from_then_on(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.store.visits.claim(call, worker="w1", token="t1", lease_ms=0, wanted=())
    now_ms = bench.store.now_ms() + 1
    assert bench.store.partitions.take_back(bench.partition, now_ms, now_ms + 60_000, 10) == 1
    assert bench.store.partitions.take_back(bench.partition, now_ms, now_ms + 60_000, 10) == 0
    assert [entry.event for entry in bench.entries()] == [LeaseLost(1, 1, "w1")]
    assert not bench.deliver(call, x=1)
    assert bench.claim(call, token="t2") == ClaimRefused("taken")


def test_a_live_lease_is_not_taken_back_and_a_heartbeat_keeps_it(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    assert (
        bench.store.partitions.take_back(
            bench.partition, bench.store.now_ms() + 10**9, bench.store.now_ms() + 10**9, 10
        )
        == 0
    )
    assert bench.store.visits.heartbeat([call], LEASE_MS) == set()


def test_a_heartbeat_names_the_visits_that_were_cancelled(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    bench.store.runs.cancel(RUN)
    entry = bench.entries()[0]
    assert entry.event == Cancelled()
    live = tuple(bench.store.partitions.load([RUN])[RUN].frontier.values())
    bench.commit(entry, Transition(close=live, status="cancelled"))
    assert bench.store.visits.heartbeat([call], LEASE_MS) == {call.task_id}
    with pytest.raises(UsageError, match="already cancelled"):
        bench.store.runs.cancel(RUN)


def test_a_queued_visit_is_in_the_outbox_until_it_is_claimed(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    far = bench.store.now_ms() + 10**9
    dues = bench.store.partitions.due(bench.partition, far, 10)
    assert [(due.call, due.queue) for due in dues] == [(call, "scripts")]
    bench.store.partitions.published(bench.partition, dues, far, 300_000)
    assert bench.store.partitions.due(bench.partition, far, 10) == []
    bench.claim(call)
    bench.store.partitions.published(bench.partition, dues, far, 300_000)
    assert bench.store.partitions.due(bench.partition, far * 2, 10) == []


def test_a_question_is_answered_once(bench: Bench) -> None:
    bench.create()
    gate = Gate(1, "a", "approval", "ok?", ("yes", "no"), None, 7)
    bench.open_visit(queue=None, gates=(gate,), status="waiting")
    assert [g.question for g in bench.store.runs.open_gates()] == ["ok?"]
    bench.store.runs.answer(RUN, 1, "yes")
    bench.store.runs.answer(RUN, 1, "yes")
    assert [entry.event for entry in bench.entries()] == [Answered(1, "yes")]
    assert bench.store.runs.gates(RUN) == []
    with pytest.raises(GateError, match="already answered with 'yes'"):
        bench.store.runs.answer(RUN, 1, "no")
    with pytest.raises(GateError, match="no open question 9"):
        bench.store.runs.answer(RUN, 9, "no")
    with pytest.raises(GateError, match="no open question"):
        bench.store.runs.answer(RUN, 1, "yes", attempt=2)


def test_a_timer_fires_once_when_it_is_due(bench: Bench) -> None:
    bench.create()
    bench.open_visit(timers={"deadline": 1, "later": bench.store.now_ms() + 10**9})
    assert bench.store.partitions.fire_timers(bench.partition, 10) == 1
    assert bench.store.partitions.fire_timers(bench.partition, 10) == 0
    assert [entry.run for entry in bench.entries()] == [RUN]


def test_an_entry_that_changes_nothing_is_dropped_with_its_delta(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    bench.deliver(call, x=1)
    entry = bench.entries()[0]
    view = bench.store.partitions.load([RUN])[RUN]
    drop = IgnoredEntry(entry, view, Notice("late_result", {"seq": 1}))
    assert bench.store.partitions.discard([drop], bench.epochs) == [APPLIED]
    assert bench.entries() == []
    assert bench.store.partitions.discard([drop], bench.epochs) == [APPLIED]
    types = [event.type for event in bench.store.runs.events(RUN, "0")]
    assert types == ["visit_started", "late_result"]


def test_a_run_that_ends_for_a_reason_of_ours_leaves_no_delta_of_the_result_it_ended_at(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    bench.deliver(call, x=1)
    entry, view = bench.entries()[0], bench.store.partitions.load([RUN])[RUN]
    ended = Transition(close=tuple(view.frontier.values()), status="failed", error="internal error", ended_ms=1)
    assert bench.store.partitions.commit([Commit(entry, view, ended)], bench.epochs) == [APPLIED]
    delta = bench.store.keys.of_run(RUN).delta(call.seq, call.attempt)
    assert not bench.store.partitions._client.exists(delta)


def test_a_result_is_not_dropped_because_of_an_old_view_or_a_former_owner(bench: Bench) -> None:
    """A scheduler that was frozen, or that missed the reply of a commit, must not take news for a duplicate."""
    bench.create()
    old = bench.store.partitions.load([RUN])[RUN]
    call = bench.open_visit()
    bench.claim(call)
    bench.deliver(call, x=1)
    entry = bench.entries()[0]
    assert bench.store.partitions.discard([IgnoredEntry(entry, old)], bench.epochs) == [STALE]
    assert bench.store.partitions.discard([IgnoredEntry(entry, None)], bench.epochs) == [STALE]
    view = bench.store.partitions.load([RUN])[RUN]
    assert bench.store.partitions.discard([IgnoredEntry(entry, view)], {bench.partition: 99}) == [NOT_OWNER]
    assert bench.entries() == [entry]


def test_a_commit_that_redis_cannot_run_changes_nothing_and_stops_no_other(bench: Bench) -> None:
    bench.create()
    entry = bench.entries()[0]
    view = bench.store.partitions.load([RUN])[RUN]
    wide = Transition(writes=(Write(step(1), values={f"k{i}": i for i in range(9_000)}),))
    outcomes = bench.store.partitions.commit(
        [Commit(entry, view, wide), Commit(entry, view, Transition())], bench.epochs
    )
    assert outcomes == [REFUSED, APPLIED]
    assert bench.store.runs.state(RUN) == {"initial_prompt": "hi"}


@pytest.mark.one_redis
def test_a_full_redis_takes_no_run_and_no_result_and_loses_neither(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    client = bench.store._client
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="refuses to write"), bench.store.errors():
            bench.deliver(call, x=1)
        with pytest.raises(StoreUnavailable, match="refuses to write"), bench.store.errors():
            bench.store.runs.create("run000000002", RunSpec("agent", "digest"), {})
    finally:
        client.config_set("maxmemory", "0")
    assert bench.entries() == []
    assert bench.deliver(call, x=1)
    entry = bench.entries()[0]
    assert bench.commit(entry, bench.end(entry, Write(step(1), delta=True))) == APPLIED
    assert bench.store.runs.state(RUN)["x"] == 1


def test_a_reader_that_stops_in_the_middle_of_a_commit_s_events_misses_none(bench: Bench) -> None:
    bench.create()
    bench.open_visit(notices=(Notice("one", {}), Notice("two", {}), Notice("three", {})))
    first, *_ = bench.store.runs.events(RUN, "0")
    again = bench.store.runs.events(RUN, first.id)
    assert [event.type for event in again] == ["one", "two", "three"]
    assert bench.store.runs.events(RUN, again[-1].id) == []


def test_who_waits_for_many_runs_learns_which_ended(bench: Bench) -> None:
    bench.create()
    position = bench.store.runs.ended_position([RUN])
    assert bench.store.runs.ended_since(position, 1) == set()
    entry = bench.entries()[0]
    assert bench.commit(entry, bench.end(entry)) == 1
    assert bench.store.runs.ended_since(position, 1) == {RUN}
    assert bench.store.runs.ended_since(position, 1) == set()


def test_usage_adds_up_and_an_unknown_price_makes_the_total_unknown(bench: Bench) -> None:
    bench.create()
    bench.open_visit(usage={"input_tokens": 5, "output_tokens": 2, "calls": 1, "cost_usd": 0.25})
    bench.store.runs.cancel(RUN)
    entry = bench.entries()[0]
    usage = bench.store.runs.info(RUN).usage
    assert (usage.input_tokens, usage.output_tokens, usage.calls, usage.cost_usd) == (5, 2, 1, 0.25)
    bench.commit(entry, Transition(usage={"input_tokens": 1, "output_tokens": 1, "calls": 1}))
    usage = bench.store.runs.info(RUN).usage
    assert (usage.input_tokens, usage.calls, usage.cost_usd) == (6, 2, None)


def test_the_newest_runs_are_listed_in_order_for_any_spread_over_partitions(bench: Bench) -> None:
    store, spec = bench.store, RunSpec("agent", "digest")
    ids = [f"run{number:09}" for number in range(1000)]
    here = [run_id for run_id in ids if store.keys.partition_of(run_id) == bench.partition][:50]
    listed = [run_id for run_id in ids if run_id not in here][:50] + here
    for at_ms, run_id in enumerate(listed):
        store.runs.create(run_id, spec, {})
        run = store.keys.of_run(run_id)
        store._client.zadd(store.keys.of_partition(store.keys.partition_of(run_id)).runs, {run_id: at_ms})
        store._client.hset(run.run, "status", "completed" if at_ms % 2 else "waiting")
    newest = listed[::-1]
    assert store.runs.count() == len(newest)
    for limit in (1, 20, 45, 70, 100, 1000):
        assert [info.id for info in store.runs.recent(limit)] == newest[:limit]
    assert [info.id for info in store.runs.recent(45, {"waiting"})] == newest[:45][1::2], "filtered among the newest 45"
    store._client.hset(store.keys.of_run(newest[0]).run, mapping={"status": "failed", "retrying": "1"})
    assert [info.status for info in store.runs.recent(2, {"running"})] == ["running"], "as somebody wants it to go on"
    for run_id in newest[1:4]:
        store._client.zadd(store.keys.of_partition(store.keys.partition_of(run_id)).expiring, {run_id: 10**15})
    assert [info.id for info in store.runs.recent(8, {"waiting"})] == [newest[5], newest[7]], "the index says it"
    assert [info.id for info in store.runs.recent(8, {"waiting", "failed"})] == newest[:8][1::2]


def test_a_budget_and_what_was_used_of_it_are_kept(bench: Bench) -> None:
    spec = RunSpec("agent", "digest", max_cost_usd=0.5)
    assert bench.store.runs.create(RUN, spec, {"initial_prompt": "hi"})
    assert (bench.store.runs.info(RUN).max_cost_usd, bench.store.runs.info(RUN).max_tokens) == (0.5, None)
    usage = {"input_tokens": 5, "output_tokens": 2, "calls": 1, "cost_usd": 0.6}
    asks = Budget(0.5, asked=2, asked_ms=7)
    call = bench.open_visit(usage=usage, budget=asks, status="paused")
    view = bench.store.partitions.load([RUN])[RUN]
    assert (view.budget, view.spent, view.is_held) == (asks, BudgetUse(7, 0.6), True)
    assert bench.store.runs.info(RUN).visits[0].reason == Reason("paused", queue="scripts", by="its budget")
    assert bench.claim(call) == ClaimRefused("paused")
    bench.store.runs.cancel(RUN)
    bench.commit(bench.entries()[0], Transition(budget=Budget(1.1)))
    view = bench.store.partitions.load([RUN])[RUN]
    assert (view.budget, view.is_held, bench.store.runs.info(RUN).max_cost_usd) == (Budget(1.1), False, 1.1)


def test_planning_may_ask_for_what_children_have_cost(bench: Bench) -> None:
    bench.create()
    usage = {"input_tokens": 5, "output_tokens": 2, "calls": 1, "cost_usd": 0.25}
    bench.open_visit(usage=usage, usage_of="child1")
    bench.store.runs.cancel(RUN)
    wanted = WantedValues(costs=frozenset(["child1", "child2"]))
    [known] = bench.store.partitions.read_values([(bench.entries()[0], wanted)])
    assert known.costs == {"child1": {"tokens_in": 5, "tokens_out": 2, "model_calls": 1, "cost_usd": 0.25}}


def test_a_finished_run_leaves_only_keys_that_expire(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit(timers={"deadline": bench.store.now_ms() + 10**9})
    bench.claim(call)
    bench.deliver(call, x=1)
    entry = bench.entries()[0]
    ended = bench.end(entry, Write(step(1), delta=True), untimers=("deadline",), notices=(Notice("run_ended", {}),))
    assert bench.commit(entry, ended) == 1
    client = bench.store._client
    lasting = [key for key in client.scan_iter(f"{bench.store.keys.prefix}:*") if client.ttl(key) < 0]
    part = bench.store.keys.of_partition(bench.partition)
    assert sorted(lasting) == sorted(
        [
            bench.store.keys.meta, part.owner, part.runs, part.expiring, part.inbox, part.ended, part.cards,
            *map(part.listed, ("default:is:run:completed", "default:agent:completed:agent", "default:version:digest")),
        ]
    )  # fmt: skip
    assert client.xlen(part.inbox) == 0
    assert bench.store.partitions.forget_expired(bench.partition, 10**15, 10) == 0, "its keys are still there"
    client.delete(bench.store.keys.of_run(RUN).run)
    assert bench.store.partitions.forget_expired(bench.partition, 10**15, 10) == 1
    assert list(bench.store.runs.recent(10)) == []
    assert client.keys(f"{part.cards}*") == [], "nothing lists it"


@pytest.mark.conformance("SV-13")
def test_no_key_of_a_run_that_waits_for_a_person_expires(bench: Bench) -> None:
    bench.create()
    bench.open_visit(queue=None, gates=(Gate(1, "a", "approval", "ok?", ("yes", "no"), None, 7),), status="waiting")
    keys = list(bench.store._client.scan_iter(f"{bench.store.keys.prefix}:*run:{RUN}*"))
    assert bench.store.keys.of_run(RUN).gates in keys
    assert {key for key in keys if bench.store._client.ttl(key) != -1} == set()


def test_a_visit_that_is_handed_back_can_be_started_at_once_and_its_late_result_is_refused(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    assert bench.store.visits.hand_back(call, token="t1", reason="drain")
    assert not bench.store.visits.hand_back(call, token="t1", reason="drain"), "an earlier call did it"
    lost = bench.entries()
    assert [entry.event for entry in lost] == [LeaseLost(1, 1, "w1", handed_back=True)]
    assert bench.store.visits.heartbeat([call], LEASE_MS) == {call.task_id}
    assert not bench.deliver(call, x=1)
    assert bench.claim(call) == ClaimRefused("taken"), "the same attempt is not claimed twice"


def test_a_visit_that_its_machine_could_not_begin_is_handed_back_as_such(bench: Bench) -> None:
    """Finding C18."""
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    assert bench.store.visits.hand_back(call, token="t1", reason="machine")
    [entry] = bench.entries()
    assert entry.event == LeaseLost(1, 1, "w1", handed_back=True, begun=False)


def test_a_visit_whose_directory_a_worker_lacks_is_handed_back_as_such(bench: Bench) -> None:
    """Finding U6 of the second review."""
    bench.create()
    call = bench.open_visit()
    bench.claim(call)
    assert bench.store.visits.hand_back(call, token="t1", reason="directory")
    [entry] = bench.entries()
    assert entry.event == LeaseLost(1, 1, "w1", handed_back=True, begun=False, lacks_directory=True)


def test_only_a_visit_that_is_ours_is_handed_back(bench: Bench) -> None:
    bench.create()
    call = bench.open_visit()
    assert not bench.store.visits.hand_back(call, token="t1", reason="drain"), "not claimed yet"
    bench.claim(call)
    assert not bench.store.visits.hand_back(call, token="another", reason="drain")
    assert bench.deliver(call, x=1)
    assert not bench.store.visits.hand_back(call, token="t1", reason="drain"), "delivered"
    assert [type(entry.event) for entry in bench.entries()] == [Resulted]


def test_a_failed_run_counts_as_running_once_its_retry_is_requested(bench: Bench) -> None:
    bench.create()
    [submitted] = bench.entries()
    view = bench.store.partitions.load([RUN])[RUN]
    failed = Transition(status="failed", ended_ms=1, error="boom")
    assert bench.store.partitions.commit([Commit(submitted, view, failed)], bench.epochs) == [APPLIED]
    assert bench.store.runs.info(RUN).status == "failed"
    bench.store.runs.retry(RUN)
    assert bench.store.runs.info(RUN).status == "running"
    assert bench.store.runs.ended_among([RUN]) == []
    [retried] = bench.entries()
    view = bench.store.partitions.load([RUN])[RUN]
    assert view.status == "failed", "the planner decides by what was committed"
    bench.store.partitions.commit([Commit(retried, view, Transition(status="failed", revives=True))], bench.epochs)
    assert bench.store.runs.info(RUN).status == "failed", "what was asked for is done"


def test_one_of_many_concurrent_retries_of_a_run_succeeds(bench: Bench) -> None:
    """Finding C26: two or three of six were told so."""
    bench.create()
    [submitted] = bench.entries()
    view = bench.store.partitions.load([RUN])[RUN]
    failed = Transition(status="failed", ended_ms=1, error="boom")
    bench.store.partitions.commit([Commit(submitted, view, failed)], bench.epochs)

    def retry() -> str | None:
        try:
            bench.store.runs.retry(RUN)
        except UsageError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(lambda _: retry(), range(6)))
    assert sorted(map(str, told)) == sorted(["None", *[f"run {RUN!r} is already being retried"] * 5])
    assert len(bench.entries()) == 1


def test_a_request_that_is_repeated_after_a_lost_reply_is_passed_on_once(bench: Bench) -> None:
    """Finding C26: redis-py repeats the script, perhaps after the wish of another person."""
    bench.create()
    [submitted] = bench.entries()
    view = bench.store.partitions.load([RUN])[RUN]
    bench.store.partitions.commit([Commit(submitted, view, Transition(status="running"))], bench.epochs)
    runs = bench.store.runs
    pause = RedisCommand(
        _TELL, _TELL.vector(*runs._telling(RUN, "paused", None, Fence("", "token0000001")), ("by", "a", "reason", ""))
    )
    resume = RedisCommand(_TELL, _TELL.vector(*runs._telling(RUN, "resumed", None, Fence("", "token0000002")), ()))
    assert run_in_order(bench.store._client, [pause, resume, pause]) == ["running", "running", "known"]
    assert len(bench.entries()) == 2
    many = [
        RedisCommand(_TELL, _TELL.vector(*runs._telling(RUN, "resumed", None, Fence("", f"token{n:07}")), ()))
        for n in range(100)
    ]
    run_in_order(bench.store._client, many)
    assert len(bench.store._client.hget(bench.store.keys.of_run(RUN).run, "wishes")) == 96


def test_a_view_from_before_redis_went_back_in_time_commits_and_drops_nothing(bench: Bench) -> None:
    """Finding C6 of the second review: the same version, reached by another entry, is another past."""
    bench.create()
    [entry] = bench.entries()
    view = bench.store.partitions.load([RUN])[RUN]
    bench.store._client.hset(bench.store.keys.of_run(RUN).run, "last_event", "1-1")
    opened = Transition(open=(Visit(1, "a", "script", 1, entry.at_ms, body=Work("scripts")),))
    assert bench.store.partitions.commit([Commit(entry, view, opened)], bench.epochs) == [STALE]
    assert bench.store.partitions.discard([IgnoredEntry(entry, view)], bench.epochs) == [STALE]
    assert bench.entries() == [entry]


def test_a_commit_whose_reply_was_lost_counts_once_and_its_view_continues(bench: Bench) -> None:
    bench.create()
    [entry] = bench.entries()
    view = bench.store.partitions.load([RUN])[RUN]
    commit = Commit(entry, view, Transition(open=(Visit(1, "a", "script", 1, entry.at_ms, body=Work("scripts")),)))
    assert bench.store.partitions.commit([commit], bench.epochs) == [APPLIED]
    assert bench.store.partitions.commit([commit], bench.epochs) == [APPLIED]
    assert bench.store.partitions.load([RUN])[RUN].last_event == commit.after.last_event == entry.id


def test_another_generation_gives_a_partition_another_epoch_and_one_that_was_lost_is_not_given_again(
    bench: Bench,
) -> None:
    """Finding C6 of the second review."""
    store, part = bench.store, bench.partition
    before = bench.epochs[part]
    assert store.partitions.own([part], "me", 60_000)[part].epoch == before
    after = store.partitions.own({part: "restored"}, "me", 60_000)[part].epoch
    assert after > before
    assert store.partitions.own({part: "restored"}, "me", 60_000)[part].epoch == after
    store._client.hset(store.keys.of_partition(part).owner, mapping={"epoch": before, "until_ms": 0})
    assert store.partitions.own({part: "restored"}, "other", 60_000)[part].epoch > after


def test_an_owner_from_before_the_clock_was_set_back_does_not_keep_its_partition(bench: Bench) -> None:
    store, part = bench.store, bench.partition
    store._client.hset(store.keys.of_partition(part).owner, "until_ms", store.now_ms() + 3_600_000)
    assert part in store.partitions.own([part], "other", 3_000)


def test_a_visit_is_published_again_by_the_age_of_its_commit_not_of_its_entry(bench: Bench) -> None:
    """Finding C21 of the second review: a scheduler that was behind published everything twice."""
    bench.create()
    [entry] = bench.entries()
    old = replace(entry, id=f"{entry.at_ms - 600_000}-0")
    committed_ms = bench.store.now_ms()
    assert bench.commit(old, Transition(open=(Visit(1, "a", "script", 1, old.at_ms, body=Work("scripts")),))) == APPLIED
    [(_, due_ms)] = bench.store._client.zrange(
        bench.store.keys.of_partition(bench.partition).outbox, 0, -1, withscores=True
    )
    assert due_ms >= committed_ms + 10_000


def test_a_run_that_is_continued_during_its_removal_stays_in_the_index(bench: Bench) -> None:
    """Finding C23: between the look and the deletion, or as a reply was lost and the deletion repeated."""
    client, part = bench.store._client, bench.store.keys.of_partition(bench.partition)
    bench.create()
    client.zadd(part.expiring, {RUN: 5, "gone": 5, "moved": 5})
    client.zadd(part.runs, {"gone": 1, "moved": 1})
    keys = [part.runs, part.expiring, part.cards, *(bench.store.keys.of_run(run).run for run in (RUN, "gone", "moved"))]
    read = [RUN, 5, "gone", 5, "moved", 5]
    client.zadd(part.expiring, {"moved": 50})
    assert [_FORGET(client, keys, {"revived": "later"}, read) for _ in range(2)] == [1, 0]
    assert sorted(client.zrange(part.runs, 0, -1)) == sorted(["moved", RUN])
    assert client.zrange(part.expiring, 0, -1, withscores=True) == [(RUN, 5), ("moved", 50)]
    client.zadd(part.archived, {RUN: 5, "gone": 5})
    assert bench.store.partitions.forget_archived(bench.partition, 10, 10) == 2
    assert client.zscore(part.runs, RUN) is not None
