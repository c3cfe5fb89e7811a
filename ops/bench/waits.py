"""Very many visits that wait for one event: `python ops/bench/waits.py --waits 1000000 [--consume one]`.

The visits are put into Redis by the store's own effects, each of a run of its own that has just a status; no worker and
no planner takes part. Then one event is sent, or with `--consume one` one for each of 1,000 visits, and the scheduler's
service for effects delivers until every run's inbox has its entry. Then all visits leave. Prints how long each part
took, what Redis keeps of it, and the longest commands in Redis' slow log; exits with 1 if a visit was not told exactly
once, or a command took longer than 20 ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.bench.processes import redis_server  # noqa: E402
from sleipnir.runs.transitions import AwaitSignal, LeaveSignal  # noqa: E402
from sleipnir.settings import Settings  # noqa: E402
from sleipnir.store.runs.requests import NO_FENCE  # noqa: E402
from sleipnir.store.scripts import run_in_order  # noqa: E402
from sleipnir.store.signals import LOOK_MS  # noqa: E402
from sleipnir.store.store import Store  # noqa: E402
from sleipnir_scheduler.services.deliveries import Deliveries  # noqa: E402

NAME = "gates.open"
CHUNK = 1_000
SIGNALS = 1_000  # with `--consume one`
LONGEST_MS = 20.0
SLOW_US = 5_000
AHEAD = 20_000
"""Entries of the inboxes that are left there before they are counted and taken away, as a scheduler does."""


def measure(store: Store, waits: int, *, one: bool) -> dict[str, Any]:
    redis: Any = store._client
    redis.config_set("slowlog-log-slower-than", SLOW_US)
    redis.config_set("slowlog-max-len", 1_000)
    facts: dict[str, Any] = {"waits": waits, "consume": "one" if one else "all"}
    empty = used(redis)
    runs = [f"run{number:09d}" for number in range(waits)]
    for chunk in chunks(runs):
        pipe = redis.pipeline(transaction=False)
        for run in chunk:
            pipe.hset(store.keys.of_run(run).run, "status", "waiting")
        pipe.execute()
    before = used(redis)
    facts["a_run_bytes"] = (before - empty) // waits
    redis.slowlog_reset()

    def await_all() -> None:
        for chunk in chunks(runs):
            check(
                run_in_order(redis, [
                    store.signals.deliver(NO_FENCE, run, AwaitSignal(NAME, 1, 1, 0, one=one, sure=one)) for run in chunk
                ])
            )  # fmt: skip

    facts["await"] = timed(redis, await_all)
    facts["a_wait_bytes"] = (used(redis) - before) // waits
    facts["look"] = timed(redis, lambda: look(store))
    told: Counter[str] = Counter()
    expected = min(waits, SIGNALS) if one else waits
    facts["send"] = timed(redis, lambda: [store.signals.send(NAME, f"e{n}", "1") for n in range(SIGNALS if one else 1)])
    facts["deliver"] = timed(redis, lambda: deliver(store, told, expected))
    facts["told"], facts["told_twice"] = len(told), sum(count - 1 for count in told.values())

    def leave_all() -> None:
        for chunk in chunks(runs):
            check(run_in_order(redis, [store.signals.deliver(NO_FENCE, run, LeaveSignal(NAME, 1, 1)) for run in chunk]))

    facts["leave"] = timed(redis, leave_all)
    facts["as_expected"] = facts["told"] == expected and not facts["told_twice"]
    return facts


def deliver(store: Store, told: Counter[str], expected: int) -> None:
    """As a scheduler does; the entries of the inboxes are counted, and taken away as commits do."""
    effects = Deliveries(store.effects, graphs=None, max_state_bytes=1_000_000)  # type: ignore[arg-type]
    partitions, done = range(store.keys.partitions), 0
    while (moved := effects.run_once(partitions, block_ms=10)) or sum(told.values()) < expected:
        done += moved
        if done > AHEAD or not moved:
            done = 0
            if not take(store, told) and not moved:
                return
    take(store, told)


def take(store: Store, told: Counter[str]) -> int:
    redis: Any = store._client
    taken = 0
    for partition in range(store.keys.partitions):
        inbox = store.keys.of_partition(partition).inbox
        while entries := redis.xrange(inbox, count=CHUNK):
            told.update(fields["run"] for _, fields in entries)
            redis.xdel(inbox, *(id_ for id_, _ in entries))
            taken += len(entries)
    return taken


def look(store: Store) -> None:
    """The scheduler's check whether the runs are still there; here no run has a frontier."""
    signals = store.signals
    members = signals._sample(store.keys.of_signals(NAME).every) or signals._sample(store.keys.of_signals(NAME).one)
    assert members, f"nothing waits that is looked at every {LOOK_MS} ms"


def timed(redis: Any, act: Callable[[], object]) -> dict[str, Any]:
    redis.slowlog_reset()
    began_s = time.perf_counter()
    act()
    took_s = time.perf_counter() - began_s
    slow = sorted(((call["duration"] / 1000, str(call["command"])[:60]) for call in redis.slowlog_get(1000)), reverse=True)
    return {"took_s": round(took_s, 2), "longest_ms": slow[0][0] if slow else f"below {SLOW_US / 1000:g}", "slow": slow[:3]}


def chunks(values: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(values)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def check(replies: Iterable[object]) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def used(redis: Any) -> int:
    return int(redis.info("memory")["used_memory"])


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--waits", type=int, default=100_000, help="visits that wait (default 100000)")
    ask.add_argument("--consume", choices=["all", "one"], default="all")
    options = ask.parse_args()
    with tempfile.TemporaryDirectory(prefix="slp-") as folder, redis_server(Path(folder)) as (url, _):
        with Store.open(Settings(redis_url=url, home=Path(folder))) as store:
            facts = measure(store, options.waits, one=options.consume == "one")
    print(json.dumps(facts, indent=1))
    longest = [part["longest_ms"] for part in facts.values() if isinstance(part, dict)]
    sys.exit(not facts["as_expected"] or any(isinstance(ms, float) and ms > LONGEST_MS for ms in longest))


if __name__ == "__main__":
    main()
