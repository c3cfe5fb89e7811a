"""Every Lua script, called twice with the same arguments, and once with its reply lost, as sleipnir/store/lua/README.md
says. The scripts are called through the methods of the store."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import redis

from sleipnir.access.records import Login, User
from sleipnir.batches.records import BatchPlan
from sleipnir.jobs.records import JobPlan, Refusal
from sleipnir.messages import ResultHeader
from sleipnir.models.limits import GrantedPermit, Limit, LimitChange
from sleipnir.runs.actor import Person
from sleipnir.runs.cached_results import CacheLease, CachePlace
from sleipnir.runs.cards import STANDINGS
from sleipnir.runs.deployment_holds import ScopeHold
from sleipnir.runs.events import SIGNALLED
from sleipnir.runs.node_streams import StreamName, StreamWrite, TextPlace
from sleipnir.runs.run import Checkpoint, Fork, Gate, Hold, QueuedTurn, RunSpec
from sleipnir.runs.run_filters import RunFilter
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.shared_values import SharedName
from sleipnir.runs.signals import Signalled
from sleipnir.runs.threads import ThreadName
from sleipnir.runs.transitions import AwaitSignal, Transition
from sleipnir.runs.values import WantedTurn
from sleipnir.runs.visits import Question, Visit, Work
from sleipnir.schedules.firing import decide_now
from sleipnir.schedules.records import ScheduleInputs, ScheduleOrigin, SchedulePlan
from sleipnir.store import namespaced, scripts
from sleipnir.store.access import USER_FREE
from sleipnir.store.keys import lines_of
from sleipnir.store.live import Piece
from sleipnir.store.partitions.commits import IgnoredEntry
from sleipnir.store.runs.journal_entries import ValuePlace
from sleipnir.store.runs.requests import NO_FENCE, Fence
from sleipnir.store.schedules import ScheduledSpec
from sleipnir.store.scripts import LuaScript, run_in_order
from sleipnir.store.store import Store
from sleipnir.webhooks.records import Webhook, WebhookDelivery
from tests.store.test_batches import ID, SPEC, rows
from tests.store.test_runs_and_visits import RUN, Bench

LUA = Path(scripts.__file__).parent / "lua"
LIMIT = Limit("a:*", requests_per_minute=10, max_parallel=2)
NAME = SessionName("agent", "desk")
T = 1_800_000_000_000

Act = Callable[[], Any]


def rows_of_the_table() -> dict[str, list[str]]:
    """The README's table: cells by the name of the script."""
    found = {}
    for line in (LUA / "README.md").read_text().splitlines():
        if match := re.match(r"\| `(\w+)` \|(.*)\|$", line):
            found[match[1]] = [cell.strip() for cell in match[2].split("|")]
    return found


# What is done with each script. A case prepares, and gives back the one call.


def queued(store: Store) -> tuple[Bench, Any]:
    bench = Bench(store)
    bench.create(x=1)
    return bench, bench.open_visit()


def claimed(store: Store) -> tuple[Bench, Any]:
    bench, call = queued(store)
    bench.claim(call)
    return bench, call


def asking(store: Store) -> Bench:
    bench = Bench(store)
    bench.create()
    entry = bench.entries()[0]
    visit = Visit(1, "ask", "input", 1, entry.at_ms, body=Question())
    gate = Gate(1, "ask", "input", "who?")
    assert bench.commit(entry, Transition(open=(visit,), gates=(gate,), status="waiting", timers={"t": 1})) == 1
    return bench


def failed(store: Store, run: str = RUN, spec: RunSpec | None = None) -> Bench:
    bench = Bench(store)
    assert store.runs.create(run, spec or RunSpec("agent", "digest"), {})
    store._client.hset(store.keys.of_run(run).run, "status", "failed")
    return bench


def batch(store: Store) -> None:
    store.batches.add(ID, SPEC, BatchPlan(), rows(0, 1, 2))


def add_pieces(store: Store) -> Act:
    Bench(store).create()
    piece = Piece(seq=1, node="a", attempt=1, turn=0, draft=0, piece=0, text="hi")
    return lambda: store.live.add({RUN: [piece]})


def answer(store: Store) -> Act:
    asking(store)
    return lambda: store.runs.answer(RUN, 1, "Ann")


def handle_gate(store: Store) -> Act:
    asking(store)
    [gate] = store.runs.gates(RUN)
    return lambda: store.acting_as("ann@desk (cli)", Person("ann")).runs.claim_gate(gate, 60_000, role=None)


def archived(store: Store) -> Act:
    bench = Bench(store)
    store._client.zadd(store.keys.of_partition(bench.partition).expiring, {RUN: 5})
    return lambda: store.partitions.archived(bench.partition, [(RUN, 5)])


def batch_add(store: Store) -> Act:
    return lambda: store.batches.add(ID, SPEC, BatchPlan(), rows(0, 1))


def batch_admit(store: Store) -> Act:
    batch(store)
    [open_] = store.batches.look({}).batches.values()
    assert open_ is not None
    return lambda: store.batches.admit([(open_, 2)], T)


def batch_cells(store: Store) -> Act:
    batch(store)
    return lambda: store.batch_rollups.grid(ID)


def batch_change(store: Store) -> Act:
    batch(store)
    return lambda: store.batches.seal(ID)


def batch_ended(store: Store) -> Act:
    from sleipnir.batches.records import place_of
    from sleipnir.messages import Usage

    batch(store)
    return lambda: run_in_order(store._client, [store.batches.ended(place_of(ID, 0), "failed", 3, Usage(calls=1))])


def batch_forget(store: Store) -> Act:
    store._client.zadd(store.keys.of_partition(store.keys.partition_of_batch("gone")).batches, {"gone": 1})
    return lambda: store.batches.forget_expired(range(store.keys.partitions), T, 10)


def batch_work(store: Store) -> Act:
    from sleipnir.batches.records import place_of
    from sleipnir.messages import Usage

    batch(store)
    run_in_order(store._client, [store.batches.ended(place_of(ID, 0), "failed", 3, Usage())])
    return lambda: store.batches.retry(ID)


def build_lease(store: Store) -> Act:
    return lambda: store.knowledge.take("base", "token", "me")


PLACE = CachePlace("agent", "node", "digest")


def cache_take(store: Store) -> Act:
    return lambda: store.cache.take(PLACE, "token")


def cache_leased(store: Store) -> CacheLease:
    taken_lease = store.cache.take(PLACE, "token")
    assert isinstance(taken_lease, CacheLease)
    return taken_lease


def cache_put(store: Store) -> Act:
    lease = cache_leased(store)
    return lambda: store.cache.put(lease, "{}", 60_000)


def cache_lease(store: Store) -> Act:
    lease = cache_leased(store)
    return lambda: store.cache.release(lease)


def cache_clear(store: Store) -> Act:
    assert store.cache.put(cache_leased(store), "{}", 60_000)
    return lambda: store.cache.clear("agent", "node")


def change_session(store: Store) -> Act:
    keys = store.keys.of_session(NAME)
    store._client.hset(keys.session, mapping={"created_ms": 1, "used_ms": 1, "run": RUN})
    return lambda: store.sessions.add(NAME, [{"role": "user", "content": "hi"}])


def in_thread(store: Store) -> tuple[str, str, RunSpec]:
    """The ids of two runs of a thread, and the spec of the first one."""
    ids = (f"turn{number:08}" for number in itertools.count())
    partition = store.keys.partition_of("agent/talk")
    first, second = itertools.islice((id_ for id_ in ids if store.keys.partition_of(id_) == partition), 2)
    return first, second, RunSpec("agent", "digest").in_thread("talk", 1, None)


def start_turn(store: Store) -> Act:
    first, second, spec = in_thread(store)
    store.threads.start(first, spec, {"a": 1}, None)
    store._client.hset(store.keys.of_run(first).run, mapping={"status": "completed", "version": 3})
    store._client.hdel(store.keys.of_thread(ThreadName("agent", "talk")), "busy")
    last = store.threads.last(ThreadName("agent", "talk"))
    return lambda: store.threads.start(second, spec.in_thread("talk", 2, first), {"b": 2}, last)


def busy_thread(store: Store) -> tuple[str, str, RunSpec]:
    """The ids of its last run and of the next one, and the spec of that."""
    first, second, spec = in_thread(store)
    store.threads.start(first, spec, {"a": 1}, None)
    return first, second, spec.in_thread("talk", 2, first)


def queue_turn(store: Store) -> Act:
    _, second, spec = busy_thread(store)
    return lambda: store.threads.queue(second, spec, {"b": 2}, QueuedTurn())


def begin_turn(store: Store) -> Act:
    first, second, spec = busy_thread(store)
    store.threads.queue(second, spec, {"b": 2}, QueuedTurn())
    store._client.hset(store.keys.of_run(first).run, mapping={"status": "completed", "version": 3, "ended_ms": T})
    store._client.hdel(store.keys.of_thread(ThreadName("agent", "talk")), "busy")
    return lambda: store.partitions.take_turn(second, WantedTurn(spec))


def drop_thread(store: Store) -> Act:
    first, _, spec = in_thread(store)
    store.threads.start(first, spec, {"a": 1}, None)
    name = ThreadName("agent", "talk")
    store._client.hdel(store.keys.of_thread(name), "busy")
    return lambda: store.threads.remove(name)


def child_ended(store: Store) -> Act:
    Bench(store).create()
    return lambda: run_in_order(store._client, [store.effects.refuse(RUN, 1, 1, "child", "no")])


def claim(store: Store) -> Act:
    bench, call = queued(store)
    return lambda: bench.claim(call)


def commit(store: Store) -> Act:
    bench = Bench(store)
    bench.create()
    entry = bench.entries()[0]
    opened = Visit(1, "a", "script", 1, entry.at_ms, body=Work("scripts"))
    return lambda: bench.commit(entry, Transition(open=(opened,), counts={"a": 1}))


def create_run(store: Store) -> Act:
    return lambda: store.runs.create(RUN, RunSpec("agent", "digest"), {"a": 1})


def dead_letter(store: Store) -> Act:
    id_ = store._client.xadd(store.keys.of_partition(0).effects, {"run": RUN, "e": "{}"})
    return lambda: store.dead_letters.bury(0, id_, "no")


def deliver(store: Store) -> Act:
    _, call = claimed(store)
    header = ResultHeader(ok=True, keys=("x",), worker="w1")
    return lambda: store.visits.deliver(call, header, {"x": "1"}, worker="w1", token="t1")


def discard(store: Store) -> Act:
    bench = Bench(store)
    bench.create()
    view = store.partitions.load([RUN])[RUN]
    return lambda: store.partitions.discard([IgnoredEntry(bench.entries()[0], view)], bench.epochs)


def list_sizes(store: Store) -> Act:
    return lambda: store.runs.count_standings("default", ["run"])


def newest_listed(store: Store) -> Act:
    store.partitions.note_all_listed(0)
    return lambda: store.runs.found(RunFilter(), 10)


def count_entries(store: Store) -> Act:
    queued(store)
    script, outbox = LuaScript("count_entries"), store.keys.of_partition(0).outbox  # used only on one Redis
    return lambda: script(store._client, [outbox], {"streams": 0})


def first_due(store: Store) -> Act:
    return lambda: store.partitions.first_due([0])


def fire_timers(store: Store) -> Act:
    bench = asking(store)
    return lambda: store.partitions.fire_timers(bench.partition, 10)


def forget(store: Store) -> Act:
    bench = Bench(store)
    store._client.zadd(store.keys.of_partition(bench.partition).expiring, {"gone": 5})
    return lambda: store.partitions.forget_expired(bench.partition, T, 10)


def fork_run(store: Store, due_ms: int | None = None) -> Act:
    bench = Bench(store)
    bench.create(x=1)
    in_partition = (f"fork{number:08}" for number in range(100_000))
    fork = next(id_ for id_ in in_partition if store.keys.partition_of(id_) == bench.partition)
    spec = RunSpec("agent", "digest", fork=Fork(RUN, Checkpoint(0, ("a",), {"a": 2}, 3)))
    return lambda: store.runs.fork(fork, spec, last_step=0, state={}, changes={"y": 2}, due_ms=due_ms)


def list_fork(store: Store) -> Act:
    Bench(store).create()
    return lambda: store.runs._list_fork("fork00000000", RUN, "rewound")


def hand_back(store: Store) -> Act:
    _, call = claimed(store)
    return lambda: store.visits.hand_back(call, token="t1", reason="drain")


def heartbeat(store: Store) -> Act:
    _, call = claimed(store)
    return lambda: store.visits.heartbeat([call], 60_000)


def list_run(store: Store) -> Act:
    bench = Bench(store)
    bench.create()
    store._client.hdel(store.keys.of_partition(bench.partition).cards, RUN)
    return lambda: store.partitions.list_again(bench.partition, [RUN])


def list_names(store: Store) -> Act:
    index = store.keys.of_partition(0).gates
    store._client.zadd(index, {"run/1": 5})
    return lambda: namespaced.list_names(store._client, index, "team-a", ["run/1", "gone/1"])


def limit_take(store: Store) -> Act:
    return lambda: store.limiter.take([LIMIT], "run/1/1/0", 5, now_ms=T)


def taken(store: Store) -> GrantedPermit:
    found = store.limiter.take([LIMIT], "run/1/1/0", 5, now_ms=T)
    assert isinstance(found, GrantedPermit)
    return found


def limit_release(store: Store) -> Act:
    granted = taken(store)
    return lambda: store.limiter.release(granted, 7, now_ms=T + 1)


def limit_renew(store: Store) -> Act:
    granted = taken(store)
    return lambda: store.limiter.renew([granted], now_ms=T + 1)


def limit_cool(store: Store) -> Act:
    return lambda: store.limiter.cool_down([LIMIT], 1_000, now_ms=T)


def limit_change(store: Store) -> Act:
    change = LimitChange("ann", T, max_parallel=2)
    return lambda: store.limiter.change(LIMIT, change, by="ann", reason="", keep_ms=60_000)


def own(store: Store) -> Act:
    return lambda: store.partitions.own([0], "me", 60_000)


def park(store: Store) -> Act:
    bench = Bench(store)
    return lambda: store.partitions.park(bench.partition, {RUN: "{}"}, bench.epochs[bench.partition])


def withdraw(store: Store) -> Act:
    bench = Bench(store)
    inbox = store.keys.of_partition(bench.partition).inbox
    store._client.delete(inbox)
    signal = Signalled(1, 1, "paid", "5", "e1", one=True)
    store._client.xadd(inbox, {"t": "told", "run": RUN, "what": SIGNALLED, "data": json.dumps(vars(signal))}, "1-1")
    [entry] = store.partitions.read([bench.partition], limit=10, block_ms=None)
    return lambda: store.partitions.withdraw([entry], bench.epochs)


def places(store: Store) -> Act:
    for line, number in product(lines_of("scripts"), range(1000)):
        message = json.dumps({"body": "x" * 600, "headers": {"id": f"{RUN}/{number}/1"}})
        store._client.lpush(store.keys.broker_prefix + line, message)
    return lambda: store.fleet._places({"scripts": [f"{RUN}/999/1", f"{RUN}/1000/1"]})


def pulse(store: Store) -> Act:
    return lambda: store.generations.pulse(None, lease_ms=60_000, gap_ms=10_000)


def put_back(store: Store) -> Act:
    bench, _ = queued(store)
    store._client.delete(store.keys.of_partition(bench.partition).outbox)
    return lambda: store.partitions.put_back(bench.partition, [RUN], 60_000)


def resume_all(store: Store) -> Act:
    queued(store)
    store.runs.pause_all(Hold("me", 1))
    return lambda: store.runs.resume_all()


def retry_child(store: Store) -> Act:
    failed(store)
    return lambda: run_in_order(store._client, [store.effects.retry("parent", RUN, 2, 1, None)])


def share_values(store: Store) -> Act:
    name, texts = SharedName("agent", "ann"), {"tier": '"gold"'}
    return lambda: run_in_order(store._client, [store.shared_values.share(Fence("0", "5-1"), name, texts)])


def signals(store: Store) -> Act:
    waits = [AwaitSignal("paid", seq, 1, 0, one=seq == 1) for seq in range(3)]
    run_in_order(store._client, [store.signals.deliver(NO_FENCE, RUN, wait) for wait in waits])
    return lambda: store.signals.send("paid", "e1", "{}").reached


def slots(store: Store) -> Act:
    return lambda: run_in_order(store._client, [store.slots.ask(Fence("0", "5-1"), RUN, "agent", "", 1, 1)])


def stream_write(store: Store) -> Act:
    Bench(store).create()
    part = StreamWrite(TextPlace(1, 0, 1, 1), 0, 0, "text", "end")
    return lambda: store.streams.write(StreamName(RUN, "draft"), part).stored


def take_back(store: Store) -> Act:
    bench, call = queued(store)
    store.visits.claim(call, worker="w1", token="t1", lease_ms=1, wanted=())
    store._client.zadd(store.keys.of_partition(bench.partition).leases, {f"{RUN}/1/1": 1})
    return lambda: store.partitions.take_back(bench.partition, T, 2 * T, 10)


def tell(store: Store) -> Act:
    failed(store)
    return lambda: store.runs.retry(RUN)


def take_past(store: Store) -> Act:
    fork_run(store, due_ms=T)()
    [fork] = store.runs.forks(RUN, 0, 1).forks
    past = store.partitions.load([fork.id])[fork.id].past
    assert past is not None
    return lambda: store.partitions.take_past(fork.id, past)


def copy_values(store: Store) -> Act:
    """The values are in the journal of a run that was submitted with them."""
    fork_run(store, due_ms=T)()
    [fork] = store.runs.forks(RUN, 0, 1).forks
    return lambda: store.partitions._copy(fork.id, {"x": ValuePlace(RUN, 0, 3)})


def outline(store: Store) -> Act:
    Bench(store).create(x=1)
    return lambda: [step.step for step, _ in store.runs.entries(RUN)]


def tell_root(store: Store) -> Act:
    asking(store)
    store._client.xadd(store.keys.of_run(RUN).events, {"e": "[]"})
    fence = Fence("tell_root:0", "5-1")
    return lambda: run_in_order(store._client, [store.effects.notify_watchers(fence, RUN, "gate_opened", {})])


def pause_all(store: Store) -> Act:
    return lambda: store.runs.pause_all(Hold("ann@desk (cli)", 1))


def held_namespace(store: Store) -> ScopeHold:
    queued(store)
    store.runs.pause_all(Hold("ann@desk (cli)", 1), "default")
    store.runs.resume_part("default", rate=5)
    [held] = store.runs.all_holds()
    return held


def resume_part(store: Store) -> Act:
    held_namespace(store)
    return lambda: store.runs.resume_part("default", agents=["agent"]).resumption is not None


def resume_run(store: Store) -> Act:
    held = held_namespace(store)
    [run] = store.partitions.waiting(store.keys.partition_of(RUN), "default", 0).runs
    return lambda: store.partitions.resume_runs(store.keys.partition_of(RUN), held, [run])


def end_hold(store: Store) -> Act:
    held = held_namespace(store)
    store.runs.resume_namespace("default")
    return lambda: store.partitions.end_hold(0, held)


def change_access(store: Store) -> Act:
    user = User("ann", {"*": "viewer"})
    assert store.access.change_user(None, user, "{}")
    was = store.access.user("ann")
    assert was is not None
    assert store.access.add_login(was, "digest", Login(1, 1, 2), "")
    return lambda: store.access.change_user(was, replace(user, disabled=True), "{}", revoke=True)


def login_attempt(store: Store) -> Act:
    for number in range(USER_FREE):
        assert store.access.attempt("ann", "10.0.0.1", f"a{number}") == 0
    return lambda: store.access.attempt("ann", "10.0.0.1", "the last")


def schedule_write(store: Store) -> Act:
    plan = SchedulePlan(every_ms=60_000, anchor_ms=T)
    definition = ScheduledSpec("t", RunSpec("agent", "digest"), {}, ScheduleInputs())
    store.schedules.add("s", plan, ScheduleOrigin("t", "me", T), definition, T)
    stored = store.schedules.get("s")
    decision = decide_now("s", "t", plan, stored.progress, T, request="r", by="me")
    return lambda: store.schedules.apply(stored, decision)


def job_write(store: Store) -> Act:
    store.jobs.add("j", JobPlan("cancel", "default", "me", T, T))
    stored = store.jobs.get("j")
    after = replace(stored.progress, done=1, refused=1)
    return lambda: store.jobs.change(stored, after, T + 1, [Refusal("r", "gone")])


WEBHOOK = Webhook("w", "https://x.example", ("run_ended",), "token", "key", T, "me")


def webhook_add(store: Store) -> Act:
    store.webhooks.open("token", T)
    store.webhooks.begin(WEBHOOK)
    delivery = WebhookDelivery("msg_1", "run_ended", RUN, "{}", T)
    return lambda: store.webhooks._add([("token", delivery)], T)


def webhook_take(store: Store) -> Act:
    webhook_add(store)()
    return lambda: store.webhooks.take({"token": 1}, T, lease_ms=1_000)[0]


def webhook_tried(store: Store) -> Act:
    [taken] = webhook_take(store)()
    over = replace(taken.delivery, status="delivered", attempts=1)
    return lambda: store.webhooks.tried(taken, over, T)


CASES: dict[str, tuple[Callable[[Store], Act], Any]] = {
    "add_pieces": (add_pieces, 1),
    "answer": (answer, [1]),
    "handle_gate": (handle_gate, None),
    "archived": (archived, 0),
    "batch_add": (batch_add, None),
    "batch_admit": (batch_admit, -2),
    "batch_cells": (batch_cells, None),
    "batch_change": (batch_change, 0),
    "batch_ended": (batch_ended, 0),
    "batch_forget": (batch_forget, 0),
    "batch_work": (batch_work, None),
    "begin_turn": (begin_turn, [1, ""]),
    "build_lease": (build_lease, None),
    "cache_clear": (cache_clear, 0),
    "cache_lease": (cache_lease, 0),
    "cache_put": (cache_put, 0),
    "cache_take": (cache_take, [1, "0", ANY]),
    "change_session": (change_session, [1, ""]),
    "change_access": (change_access, 1),
    "child_ended": (child_ended, 1),
    "claim": (claim, None),
    "commit": (commit, 1),
    "copy_values": (copy_values, 1),
    "create_run": (create_run, [0, ""]),
    "dead_letter": (dead_letter, 0),
    "deliver": (deliver, 1),
    "discard": (discard, 1),
    "drop_thread": (drop_thread, [1, ""]),
    "end_hold": (end_hold, False),
    "fire_timers": (fire_timers, 0),
    "newest_listed": (newest_listed, []),
    "list_sizes": (list_sizes, [0, ""] * len(STANDINGS)),
    "count_entries": (count_entries, None),
    "first_due": (first_due, [""] * 5),
    "forget": (forget, 0),
    "fork_run": (fork_run, [0, ""]),
    "hand_back": (hand_back, 0),
    "list_fork": (list_fork, 0),
    "heartbeat": (heartbeat, []),
    "job_write": (job_write, 1),
    "limit_change": (limit_change, True),
    "limit_cool": (limit_cool, None),
    "limit_release": (limit_release, None),
    "limit_renew": (limit_renew, []),
    "limit_take": (limit_take, [1]),
    "list_names": (list_names, 0),
    "list_run": (list_run, 0),
    "login_attempt": (login_attempt, 0),
    "own": (own, None),
    "outline": (outline, None),
    "park": (park, 1),
    "pause_all": (pause_all, 0),
    "places": (places, [1000, 0]),
    "pulse": (pulse, None),
    "put_back": (put_back, 0),
    "queue_turn": (queue_turn, 0),
    "resume_all": (resume_all, 0),
    "resume_part": (resume_part, True),
    "resume_run": (resume_run, 0),
    "retry_child": (retry_child, 1),
    "share_values": (share_values, [0, 0, 0]),
    "schedule_write": (schedule_write, 1),
    "signals": (signals, None),
    "slots": (slots, 0),
    "start_turn": (start_turn, [0, ""]),
    "stream_write": (stream_write, None),
    "take_back": (take_back, 0),
    "take_past": (take_past, None),
    "tell": (tell, "known"),
    "tell_root": (tell_root, 0),
    "webhook_add": (webhook_add, 0),
    "webhook_take": (webhook_take, []),
    "webhook_tried": (webhook_tried, 0),
    "withdraw": (withdraw, 0),
}
"""What prepares a call of the script, and what the same call returns again. None: the same as the first."""

GROWS = {"pulse"}
"""Fields that count calls: the pulse of a generation."""

TIMED = re.compile(r"\d{16}")
"""A time in microseconds in the name of a field: the number of a signal."""

TWICE_ADDS = {"add_pieces", "child_ended"}
"""What these leave twice is dropped by who reads it, as their headers say."""


def test_every_script_has_a_row_and_a_case() -> None:
    """Item b of the issue: a script without a row, or a row without a script, fails."""
    names = {file.stem for file in LUA.glob("*.lua")}
    table = rows_of_the_table()
    assert set(table) == names
    assert set(CASES) == names
    for name, cells in table.items():
        assert len(cells) == 5 and all(cells), f"{name}: may be repeated, again, fence, bound, longest"
        assert cells[0] in ("yes", "reads only") or (cells[0] == "adds twice" and name in TWICE_ADDS), name


def stored(store: Store) -> dict[str, Any]:
    """How much is under the store's prefix, and the small numbers in it; no times, tokens and ids."""
    client, found = store._client, {}
    for key in sorted(client.scan_iter(f"{store.keys.prefix}:*")):
        match client.type(key):
            case "hash":
                fields = {TIMED.sub("_", name): value for name, value in client.hgetall(key).items()}
                found[key] = {name: _shape(value) for name, value in fields.items() if name not in GROWS}
            case "stream":
                found[key] = client.xlen(key)
            case "zset":
                found[key] = client.zcard(key)
            case "list":
                found[key] = client.llen(key)
            case "set":
                found[key] = client.scard(key)
            case _:
                found[key] = _shape(client.get(key))
    return found


def _shape(value: str) -> str:
    return value if value.isdigit() and len(value) < 10 else re.sub(r"\w{8,}|\d+", "_", value)


def _commands(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """The commands of a request in Redis' protocol."""
    at = 0

    def number() -> int:
        nonlocal at
        end = data.index(b"\r\n", at)
        found, at = int(data[at + 1 : end]), end + 2
        return found

    while at < len(data):
        words = []
        for _ in range(number()):
            length = number()
            words.append(data[at : at + length])
            at += length + 2
        yield tuple(words)


class Wire:
    """Sees the calls of one script, and loses the reply of the first one if it shall."""

    def __init__(self, script: LuaScript) -> None:
        self._sha = script.sha.encode()
        self.loses = False
        self.lost = 0
        self.calls: list[tuple[Any, ...]] = []

    @contextmanager
    def tapped(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        connection = redis.connection.AbstractConnection
        send, read = connection.send_packed_command, connection.read_response

        def see(one: Any, command: Any, *args: Any, **more: Any) -> Any:
            data = b"".join(command) if isinstance(command, list | tuple) else command
            called = [words for words in _commands(data) if words[:2] == (b"EVALSHA", self._sha)]
            self.calls += called
            one._loses, self.loses = self.loses and bool(called), self.loses and not called
            return send(one, command, *args, **more)

        def reply(one: Any, *args: Any, **more: Any) -> Any:
            found = read(one, *args, **more)
            if getattr(one, "_loses", False):
                one._loses = False
                self.lost += 1
                one.disconnect()
                raise redis.exceptions.ConnectionError("the reply is lost")
            return found

        with monkeypatch.context() as patched:
            patched.setattr(connection, "send_packed_command", see)
            patched.setattr(connection, "read_response", reply)
            yield


@pytest.mark.parametrize("name", CASES)
def test_a_script_may_be_called_twice_and_its_reply_be_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Item b of the issue, "every effect and control script is fenced or idempotent"."""
    prepare, again = CASES[name]
    script, client = LuaScript(name), store._client
    script.load(client)

    wire, act = Wire(script), prepare(store)
    with wire.tapped(monkeypatch):
        first = act()
    assert wire.calls, f"{name} is not called"
    after = stored(store)
    for call in wire.calls[:1]:
        second = client.execute_command(call[0].decode(), *call[1:])
        assert again is None or second == again
    if name not in TWICE_ADDS:
        assert stored(store) == after, "the second call changes something"

    for key in client.scan_iter(f"{store.keys.prefix}:*"):
        if key != store.keys.meta:
            client.delete(key)
    wire, act = Wire(script), prepare(store)
    wire.loses = True
    with wire.tapped(monkeypatch):
        try:
            repeated = act()
        except Exception as error:
            repeated = error
    assert wire.lost == 1
    if name not in TWICE_ADDS:
        assert stored(store) == after, "a lost reply changes something"
    # The live stream is a view: its writer, and not redis-py, repeats what may be lost.
    assert not isinstance(repeated, Exception) or name == "add_pieces", repeated
    if name in SAYS_THE_SAME:
        assert json.dumps(repeated, default=str) == json.dumps(first, default=str)


SAYS_THE_SAME = {"answer", "batch_change", "change_session", "deliver", "tell", "limit_take", "limit_renew"}
"""Where a person or a worker acts on what is returned: a reply that was lost is no refusal."""
