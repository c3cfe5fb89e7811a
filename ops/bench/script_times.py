"""How long each Lua script keeps Redis busy: `python -m ops.bench.script_times`.

Every script is called in the situations of tests/store/test_scripts_twice.py, and those whose work grows also in a
situation as large as their bound. Prints the longest time of each, in ms as Redis' slow log has it, for
sleipnir/store/lua/README.md.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sleipnir.batches.records import BatchPlan, place_of
from sleipnir.messages import ResultHeader, Usage
from sleipnir.runs.cached_results import CacheLease, CachePlace
from sleipnir.runs.cards import card_text, failure_fields
from sleipnir.runs.run import Checkpoint, Fork, Hold, PastState, RunSpec
from sleipnir.runs.shared_values import SharedName
from sleipnir.runs.transitions import AwaitSignal, Step, Transition, Write
from sleipnir.runs.visits import Visit, Work
from sleipnir.schedules.firing import MOST_AT_ONCE, decide
from sleipnir.schedules.records import ScheduleInputs, ScheduleOrigin, SchedulePlan
from sleipnir.settings import Settings
from sleipnir.store.cache import CacheStore
from sleipnir.store.namespaced import list_names
from sleipnir.store.partitions.held_runs import WaitingRun
from sleipnir.store.runs.requests import NO_FENCE
from sleipnir.store.runs.run_lists import MOST_OF_SET, MOST_OF_SETS
from sleipnir.store.schedules import ScheduledSpec
from sleipnir.store.scripts import Arg, LuaScript, run_in_order
from sleipnir.store.store import Store
from sleipnir_scheduler.services.janitor import RUNS_AT_ONCE
from tests.processes import RedisServer
from tests.store.test_batches import ID, SPEC, rows
from tests.store.test_runs_and_visits import RUN, Bench
from tests.store.test_scripts_twice import CASES, LUA, T, claimed

ROUNDS = 8
MB = "x" * 1_000_000


def forget(store: Store) -> None:
    bench = Bench(store)
    index = store.keys.of_partition(bench.partition)
    gone = {f"gone{number:08}": 5 for number in range(1000)}
    store._client.zadd(index.expiring, gone)
    store._client.zadd(index.runs, gone)
    store.partitions.forget_expired(bench.partition, T, 1000)


def forget_listed(store: Store) -> None:
    """Each run is in eight lists, in each with thousands of others."""
    spec = RunSpec(
        "agent", "0" * 64, tags={"customer": "acme", "tier": "gold"}, thread="t", parent="p", namespace="team-a"
    )
    card = card_text(spec, "failed", e=5, **failure_fields("agent", "at node 'a': it broke", "a"))
    keys = store.keys.of_partition(0)
    names = [number for number in range(100_000) if store.keys.partition_of(f"gone{number:08}") == 0][:5_000]
    gone = {f"gone{number:08}": 5 for number in names}
    list_run = LuaScript("list_run")
    for run_id in gone:
        run = store.keys.of_run(run_id).run
        store._client.hset(run, mapping={"version": 3, "created_ms": 5})
        list_run(store._client, {"run": run, "cards": keys.cards}, {"run_id": run_id, "version": 3, "card": card})
        store._client.delete(run)
    store._client.zadd(keys.expiring, gone)
    store._client.zadd(keys.runs, gone)
    store._client.slowlog_reset()
    store.partitions.forget_expired(0, T, RUNS_AT_ONCE)


def names_of_namespace(store: Store) -> None:
    index = store.keys.of_partition(0).gates
    gates = {f"run{number:09}/1": number for number in range(500)}
    store._client.zadd(index, gates)
    list_names(store._client, index, "team-a", list(gates))


def fire_timers(store: Store) -> None:
    bench = Bench(store)
    timers = {f"run{number:09}/deadline": 1 for number in range(1000)}
    store._client.zadd(store.keys.of_partition(bench.partition).timers, timers)
    store.partitions.fire_timers(bench.partition, 200)


def first_due(store: Store) -> None:
    store.partitions.first_due([0])


def newest_listed(store: Store) -> None:
    """A list for each kind and standing, and each has more runs than are read of it at most."""
    first, *others = [store.keys.of_partition(0).listed(f"default:is:run:{number}") for number in range(42)]
    for number, key in enumerate([first, *others]):
        store._client.zadd(key, {f"run{number:03}{at:06}": T + at for at in range(MOST_OF_SET)})
    LuaScript("list_sizes")(store._client, {"first": first}, {}, others)
    args: dict[str, Arg] = {"most_ms": 2**53, "least_ms": "-inf", "limit": MOST_OF_SETS // 42}
    LuaScript("newest_listed")(store._client, {"first": first}, args, others)


def resume_all(store: Store) -> None:
    outbox = store.keys.of_partition(0).outbox
    for at in range(0, 10_000, 1000):
        store._client.zadd(outbox, {f"run{number:09}/1/1": T for number in range(at, at + 1000)})
    store.runs.pause_all(Hold("me", 1))
    store.runs.resume_all()


def resume_part(store: Store) -> None:
    """A run with a thousand queued visits goes on at a rate, beside a hundred agents."""
    Bench(store).create()
    partition = store.keys.partition_of(RUN)
    members = tuple(f"{RUN}/{seq}/1" for seq in range(1000))
    store._client.zadd(store.keys.of_partition(partition).outbox, dict.fromkeys(members, T))
    store.runs.pause_all(Hold("me", 1), "default")
    store.runs.resume_part("default", [f"agent{number}" for number in range(100)], 5)
    [held] = store.runs.all_holds()
    store.partitions.resume_runs(partition, held, [WaitingRun(RUN, 1, members)])
    store.runs.resume_namespace("default")
    store.partitions.end_hold(partition, held)


def create_run(store: Store) -> None:
    store.runs.create(RUN, RunSpec("agent", "digest"), {f"k{number}": MB for number in range(2)})


def begin_fork(store: Store) -> None:
    """Of an early step of a run that has written 40 MB since."""
    bench = Bench(store)
    bench.create()
    for step in range(1, 41):
        values = {f"k{step}.{number}": MB[:10_000] for number in range(100)}
        lines = [part for key, value in values.items() for part in (f'"{key}"', f'"{value}"')]
        header = f'{{"step": {step}, "kind": "visit", "at_ms": 0, "seq": 1, "node": "a", "ok": true}}'
        store._client.rpush(store.keys.of_run(RUN).journal, "\n".join([header, *lines]))
    fork = next(
        id_
        for id_ in (f"fork{number:08}" for number in range(1_000))
        if store.keys.partition_of(id_) == bench.partition
    )
    spec = RunSpec("agent", "digest", fork=Fork(RUN, Checkpoint(20, ("a",))))
    store.runs.fork(fork, spec, last_step=None, state={}, changes={}, due_ms=T)
    assert store.partitions.take_past(fork, PastState(RUN, 20)) is None


def deliver_and_commit(store: Store) -> None:
    bench, call = claimed(store)
    store.visits.deliver(call, ResultHeader(ok=True, keys=("x",), worker="w"), {"x": f'"{MB}"'}, worker="w", token="t1")
    [entry] = bench.entries()
    write = Write(Step(step=1, kind="script", at_ms=5, seq=1, node="a"), delta=True)
    opened = tuple(Visit(number, "b", "script", 1, 5, body=Work("scripts")) for number in range(2, 502))
    live = tuple(store.partitions.load([RUN])[RUN].frontier.values())
    assert bench.commit(entry, Transition(close=live, open=opened, writes=(write,), delivered=1)) == 1


def batches(store: Store) -> None:
    numbers = range(500)
    store.batches.add(ID, SPEC, BatchPlan(), rows(*numbers))
    [open_] = store.batches.look({}).batches.values()
    assert open_ is not None
    store.batches.admit([(open_, 500)], T)
    run_in_order(store._client, [store.batches.ended(place_of(ID, number), "failed", 3, Usage()) for number in numbers])
    store.batches.retry(ID)


def share_values(store: Store) -> None:
    """As many values as can be, then as large as can be."""
    many = {f"k{number}": f'"{MB[:900]}"' for number in range(1_000)}
    name, other = SharedName("agent", "ann"), SharedName("agent")
    for values in (many, many):
        store.shared_values.write(name, values)
    store.shared_values.write(other, {"large": f'"{MB}"'})
    store.shared_values.remove(name, None)


def schedules(store: Store) -> None:
    """A schedule whose runs begin with 2 MB; then as many fires as one decision makes, each of which cancels a run."""
    plan = SchedulePlan(every_ms=1_000, anchor_ms=T, overlap="cancel", catch_up_ms=3_600_000)
    spec = ScheduledSpec("t", RunSpec("agent", "digest"), {"a": MB, "b": MB}, ScheduleInputs())
    store.schedules.add("s", plan, ScheduleOrigin("t", "me", T), spec, T)
    stored = store.schedules.get("s")
    due = decide("s", "t", plan, stored.progress, T + 3_600_000, active=False)
    assert due is not None and len(due.starts) == MOST_AT_ONCE
    store.schedules.apply(stored, due)


def signals(store: Store) -> None:
    """A page of visits is told of data as large as can be; then one of thousands of visits that decline."""
    waits = [AwaitSignal("paid", seq, 1, 0) for seq in range(1_000)]
    waits += [AwaitSignal("other", seq, 1, T, one=True) for seq in range(10_000)]
    run_in_order(store._client, [store.signals.deliver(NO_FENCE, RUN, wait) for wait in waits])
    store.signals.send("paid", "e1", f'"{MB[:60_000]}"')
    store.signals.send("paid", "e2", "1")
    store.signals.send("other", "e1", "1")
    wait = AwaitSignal("other", 20_000, 1, 0, one=True)
    run_in_order(store._client, [store.signals.deliver(NO_FENCE, RUN, wait)])


def left_signals(store: Store) -> None:
    """A visit that may decline begins to wait for as many signals as are kept."""
    sent = [store.signals._command("left", "send", f"e{number}", data="1") for number in range(10_000)]
    run_in_order(store._client, sent)
    run_in_order(store._client, [store.signals.deliver(NO_FENCE, RUN, AwaitSignal("left", 1, 1, 0, one=True))])


def cached_results(store: Store) -> None:
    """A page of results is cleared; then a large one takes the place of a hundred."""
    cache = CacheStore(store._client, store.keys, lease_ms=60_000, longest_ms=60_000, node_bytes=1_000_000)

    def keep(digest: str, text: str) -> None:
        lease = cache.take(CachePlace("agent", "node", digest), "token")
        assert isinstance(lease, CacheLease)
        assert cache.put(lease, text, 60_000)

    for number in range(1_000):
        keep(f"s{number}", "1")
    cache.clear()
    for number in range(100):
        keep(f"d{number}", MB[:10_000])
    keep("large", MB)


LARGE: tuple[Callable[[Store], object], ...] = (
    forget, forget_listed, names_of_namespace, fire_timers, first_due, newest_listed, resume_all, resume_part,
    create_run, deliver_and_commit, batches, share_values, schedules, signals,
    left_signals, cached_results, begin_fork,
)  # fmt: skip


@contextlib.contextmanager
def server() -> Iterator[RedisServer]:
    started = RedisServer()
    try:
        yield started
    finally:
        started.stop()


def durations(store: Store, situation: Callable[[Store], object]) -> dict[str, float]:
    """The longest call of each script in one situation, in ms."""
    scripts = [LuaScript(file.stem) for file in LUA.glob("*.lua")]
    by_sha = {script.sha: script.name for script in scripts}
    client, times_us = store._client, dict[str, float]()
    for script in scripts:
        script.load(client)
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 5000)
    client.slowlog_reset()
    act = situation(store)
    if callable(act):
        act()
    for entry in client.slowlog_get(5000):
        words = entry["command"].decode(errors="replace").split()
        if words[0] == "EVALSHA" and (name := by_sha.get(words[1])):
            times_us[name] = max(times_us.get(name, 0.0), entry["duration"] / 1000)
    client.flushall()
    return times_us


def main() -> int:
    """Of several rounds of a situation the fastest counts, because the slow log has wall time, and other processes
    run."""
    longest: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, server() as redis:
        for situation in [*(case for case, _ in CASES.values()), *LARGE]:
            rounds = []
            for number in range(ROUNDS):
                settings = Settings(redis_url=redis.url, home=Path(folder), key_prefix=f"t{number}", partitions=16)
                with Store.open(settings) as store:
                    rounds.append(durations(store, situation))
            for name in set[str]().union(*rounds):
                quietest = min(times.get(name, 0.0) for times in rounds)
                longest[name] = max(longest.get(name, 0.0), quietest)
    for name, took_ms in sorted(longest.items()):
        print(f"{name:16} {took_ms:8.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
