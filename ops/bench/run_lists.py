"""The lists of runs: what they cost, and how soon queries among very many runs are answered.

    python -m ops.bench.run_lists [--runs 1000000] [--costs-only]

Runs are written directly, with their cards, as commits would have listed them; no scheduler works. The costs are those
of the scripts on a Redis of their own: the same submission and the same commits with and without their cards, in turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from sleipnir.client.client import Client
from sleipnir.runs.cards import card_text, failure_fields
from sleipnir.runs.run import ID_ALPHABET, ID_LENGTH, RunSpec
from sleipnir.settings import Settings
from sleipnir.store.record_text import record
from sleipnir.store.scripts import Arg, LuaScript, run_batch
from sleipnir.store.store import Store
from tests.processes import RedisServer

CHUNK = 1_000
FILLERS = 2
"""Processes that write runs: making a run takes twice the time that Redis takes to store it."""
AGENTS, CUSTOMERS, BATCHES, THREADS, VERSIONS = 200, 20_000, 500, 50_000, 5
NODES = ("fetch", "parse", "ask", "write", "send")
CAUSES = tuple(f"{what} of {where} failed" for what in ("reading", "writing", "checking") for where in "abcdefgh")
STANDINGS = {
    "completed": 70, "failed": 8, "cancelled": 2, "running": 4, "waiting:person": 8, "waiting:child": 3,
    "waiting:timer": 3, "submitted": 1, "paused:person": 1,
}  # fmt: skip
DAYS_MS = 7 * 24 * 3600 * 1000
CALLS = 15
MOST_MS = 50.0
"""The answer to every query must come within this time."""
_LIST_RUN = LuaScript("list_run")


@contextmanager
def redis_server() -> Iterator[Store]:
    server = RedisServer()
    try:
        with (
            tempfile.TemporaryDirectory() as home,
            Store.open(Settings(redis_url=server.url, home=Path(home))) as store,
        ):
            yield store
    finally:
        server.stop()


# Queries


def fill(settings: Settings, count: int) -> None:
    """Write `count` runs of one week, as they would be listed. The newest ones were submitted just now."""
    with Store.open(settings) as store, ProcessPoolExecutor(FILLERS) as pool:
        now_ms, began_s = store.now_ms(), time.monotonic()
        chunks = range(0, count, CHUNK)
        written = pool.map(partial(_write_chunk, settings, count, now_ms), chunks, chunksize=10)
        for first, _ in zip(chunks, written, strict=True):
            if first % 100_000 == 0:
                tell(f"{first:,} of {count:,} runs, {time.monotonic() - began_s:.0f} s")
        for partition in range(store.keys.partitions):
            store.partitions.note_all_listed(partition)


def _write_chunk(settings: Settings, count: int, now_ms: int, first: int) -> None:
    """Runs from number `first` on, the same ones at every call."""
    chance = random.Random(first)
    numbers = range(first, min(first + CHUNK, count))
    drawn = chance.choices([*STANDINGS], STANDINGS.values(), k=len(numbers))
    store = _store_of(settings)
    pipe = store._client.pipeline(transaction=False)
    vectors = []
    for number, standing in zip(numbers, drawn, strict=True):
        created_ms = now_ms - DAYS_MS + DAYS_MS * number // count
        vectors.append(_write(store, pipe, chance, number, created_ms, standing))
    pipe.execute()
    run_batch(store._client, _LIST_RUN, vectors)


@cache
def _store_of(settings: Settings) -> Store:
    """One connection for each process that fills."""
    return Store.open(settings)


def _write(store: Store, pipe: Any, chance: random.Random, number: int, at_ms: int, standing: str) -> list[Arg]:
    run_id = "".join(chance.choices(ID_ALPHABET, k=ID_LENGTH))
    agent = f"agent{int(AGENTS * chance.random() ** 3)}"
    spec = RunSpec(
        agent=agent,
        bundle=f"{agent}v{chance.randrange(VERSIONS)}".ljust(12, "0") + "0" * 52,
        tags={"customer": f"c{chance.randrange(CUSTOMERS)}", "tier": chance.choice(("gold", "lead"))},
        thread=f"t{chance.randrange(THREADS)}" if number % 10 == 0 else None,
        parent=f"parent{number // 500}" if number % 10 == 1 else None,
        namespace="other" if number % 50 == 2 else "default",
    )
    batch = f"batch{number * BATCHES // 1_000_000}/{number}" if number % 5 == 3 else ""
    status = standing.partition(":")[0]
    keys, part = store.keys.of_run(run_id), store.keys.of_partition(store.keys.partition_of(run_id))
    fields: dict[str, Any] = {"status": status, "version": 3, "seq": 3, "step": 3, "created_ms": at_ms}
    more: dict[str, Any] = {}
    if status in ("completed", "failed", "cancelled"):
        fields |= {"started_ms": at_ms + 5, "ended_ms": at_ms + 60_000, "cost_usd": chance.random() ** 8}
        more["e"] = at_ms + 60_000
    if status == "failed":
        node = chance.choice(NODES) if number % 20_000 else "seldom"
        fields["error"] = f"at node '{node}': {chance.choice(CAUSES)}: order {number}"
        more |= failure_fields(agent, fields["error"], node)
    if batch:
        fields["batch"] = batch
    pipe.hset(keys.run, mapping=fields)
    pipe.set(keys.spec, record(spec))
    pipe.zadd(part.runs, {run_id: at_ms})
    card = card_text(spec, standing, batch or None, **more)
    return _LIST_RUN.vector({"run": keys.run, "cards": part.cards}, {"run_id": run_id, "version": 3, "card": card})


def queries(now_ms: int) -> dict[str, dict[str, Any]]:
    day_ms = DAYS_MS // 7
    return {
        "all, newest": {"children": True},
        "unfinished": {"status": {"submitted", "running", "waiting", "paused"}},
        "status": {"status": {"failed"}},
        "reason": {"reason": "person"},
        "agent, common": {"agents": ["agent0"]},
        "agent, seldom": {"agents": ["agent199"]},
        "agent and status": {"agents": ["agent150"], "status": {"failed"}},
        "version": {"version": "agent100v3".ljust(12, "0")},
        "tag": {"tags": {"customer": "c77"}},
        "two tags": {"tags": {"customer": "c77", "tier": "gold"}},
        "common tag and status": {"tags": {"tier": "gold"}, "status": {"cancelled"}},
        "batch": {"batch": "batch3"},
        "batch, failed": {"batch": "batch3", "status": {"failed"}},
        "thread": {"thread": "agent1/t42"},
        "parent": {"parent": "parent99"},
        "submitted between": {"since_ms": now_ms - 3 * day_ms, "before_ms": now_ms - 2 * day_ms},
        "ended between": {"ended_since_ms": now_ms - 2 * day_ms, "ended_before_ms": now_ms - day_ms},
        "cost, common": {"cost_min": 0.01},
        "cost, seldom": {"cost_min": 0.9999},
        "failed node": {"node": "seldom"},
        "failed node and agent": {"node": "ask", "agents": ["agent180"]},
        "text, common": {"text": "writing of c failed"},
        "text, nowhere": {"text": "no such failure"},
        "namespace": {"namespace": "other"},
    }


def answered(store: Store, settings: Settings) -> list[tuple[str, float, float, int, int, bool]]:
    """By query the median and the longest time in ms, the number of runs found and looked at, whether it goes on."""
    rows = []
    with Client(settings) as client:
        for name, query in queries(store.now_ms()).items():
            page = client.runs(50, **query)
            times = times_ms(lambda query=query: client.runs(50, **query))  # type: ignore[misc]
            rows.append((name, statistics.median(times), max(times), len(page), page.looked, page.after is not None))
        page = client.runs(50, children=True)
        for _ in range(20):
            page = client.runs(50, children=True, after=page.after)
        times = times_ms(lambda: client.runs(50, children=True, after=page.after))
        rows.append(("page 22", statistics.median(times), max(times), 50, 0, True))
        more: dict[str, Callable[[], Any]] = {
            "count: by status and reason": client.run_counts,
            "count: agent, failed": lambda: client.run_count({"failed"}, agents=["agent0"]),
            "count: tag": lambda: client.run_count(tags={"customer": "c77"}),
            "failures, newest 50": client.failures,
        }
        for name, call in more.items():
            call()
            times = times_ms(call)
            rows.append((name, statistics.median(times), max(times), 0, 0, False))
    return rows


# Costs


def costs() -> dict[str, float]:
    """Microseconds of Redis and bytes of the lists of one run: of its submission and of its end. The scripts without
    cards are the same calls with an empty name of the sets: what is compared is the time of `list_run` alone."""
    with redis_server() as store:
        plain = _time_of_lists(store, RunSpec("agent", "0" * 64))
        tagged = _time_of_lists(store, RunSpec("agent", "0" * 64, tags={"customer": "acme", "tier": "gold"}))
    return {**{f"plain: {name}": value for name, value in plain.items()},
            **{f"two tags: {name}": value for name, value in tagged.items()}}  # fmt: skip


def _time_of_lists(store: Store, spec: RunSpec) -> dict[str, float]:
    redis, count = store._client, 20_000
    runs = [(f"{spec.tags is not None:d}cost{number:08}") for number in range(count)]
    for first in range(0, count, CHUNK):
        pipe = redis.pipeline(transaction=False)
        for run_id in runs[first : first + CHUNK]:
            pipe.hset(store.keys.of_run(run_id).run, mapping={"version": 3, "created_ms": 1_800_000_000_000 + first})
        pipe.execute()
    found: dict[str, float] = {}
    before = redis.info("memory")["used_memory"]
    for name, card in {
        "submitted, us": card_text(spec, "submitted"),
        "begun, us": card_text(spec, "running"),
        "ended, us": card_text(spec, "completed", e=1_800_000_000_000),
    }.items():
        redis.config_resetstat()
        for first in range(0, count, CHUNK):
            vectors = [
                _LIST_RUN.vector(
                    {
                        "run": store.keys.of_run(run_id).run,
                        "cards": store.keys.of_partition(store.keys.partition_of(run_id)).cards,
                    },
                    {"run_id": run_id, "version": 3, "card": card},
                )
                for run_id in runs[first : first + CHUNK]
            ]
            run_batch(redis, _LIST_RUN, vectors)
        found[name] = float(redis.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])
    found["bytes"] = (redis.info("memory")["used_memory"] - before) / count
    return found


def times_ms(call: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(CALLS):
        began_s = time.perf_counter()
        call()
        times.append((time.perf_counter() - began_s) * 1000)
    return times


def tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--costs-only", action="store_true")
    given = parser.parse_args(arguments)
    for name, value in costs().items():
        print(f"{name:34}{value:8.1f}")
    if given.costs_only:
        return 0
    with redis_server() as store:
        settings = Settings(redis_url=store.url)
        fill(settings, given.runs)
        used = store._client.info("memory")["used_memory"]
        print(f"\n{given.runs:,} runs, {used / given.runs:,.0f} bytes each with a short record")
        print(f"{'query':34}{'median ms':>10}{'longest':>9}{'found':>7}{'looked':>8}")
        rows = answered(store, settings)
    for name, median, longest, count, looked, goes_on in rows:
        print(f"{name:34}{median:10.1f}{longest:9.1f}{count:7}{looked:8}{'  goes on' if goes_on else ''}")
    slow = [name for name, median, *_ in rows if median > MOST_MS]
    print(f"slower than {MOST_MS:.0f} ms: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
