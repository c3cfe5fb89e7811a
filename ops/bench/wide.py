"""Very wide runs, on real processes: 10,000 commands at once beside another run, and a delta of 11 MB; and a map of a
million items, of which no item is executed: what the scheduler and Redis do when it opens and when it is collected."""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

from ops.bench.engine import Stack, cpu_s, finish, hops_of, no_op_agent, stack, write_agent
from ops.bench.figures import Values
from ops.bench.processes import redis_server
from sleipnir.graph.load import load_graph
from sleipnir.runs.run import RunSpec, changed
from sleipnir.runs.visits import Fan
from sleipnir.settings import Settings
from sleipnir.store.connect import connect
from sleipnir.store.store import Store
from sleipnir.store.visit_records import visit_text
from sleipnir_scheduler.planner.nodes.maps import CHUNK
from sleipnir_scheduler.services.advance import Advance

COMMANDS = 10_000
DELTA_BYTES = 11 * 10**6
LOGGED_US = 500  # longer calls are recorded in Redis' slow log
LOG_ENTRIES = 100_000
CODE = f"""def plan(state):
    return {{"_next": [{{"to": "work", "update": {{"n": n}}}} for n in range({COMMANDS})]}}


def work(state):
    return {{"got": [state["n"]]}}


def large(state):
    return {{"large": "x" * {DELTA_BYTES}}}


def after(state):
    return {{"length": len(state["large"])}}
"""


def commands() -> Values:
    """10,000 commands to a no-op, with and without super-steps, and the hops of another run meanwhile."""
    with stack() as engine:
        other, wide, steps = (
            no_op_agent(engine.home),
            commands_agent(engine.home, "dag"),
            commands_agent(engine.home, "bsp"),
        )
        finish([engine.client.submit(other)], engine.client)
        with slow_calls(engine.redis_url) as longest_ms, other_hops(engine, other) as hops_ms:
            before_s = cpu_s(engine)["scheduler"]
            finish([engine.client.submit(wide)], engine.client)
            used_s = cpu_s(engine)["scheduler"] - before_s
        with slow_calls(engine.redis_url) as longest_of_step_ms:
            before_s = cpu_s(engine)["scheduler"]
            finish([engine.client.submit(steps)], engine.client)
            used_by_step_s = cpu_s(engine)["scheduler"] - before_s
    return {
        "wide_visit_us": used_s / COMMANDS * 1e6,
        "wide_redis_ms": longest_ms[0],
        "wide_hop_p99_ms": statistics.quantiles(hops_ms, n=100)[98],
        "wide_hop_p50_ms": statistics.median(hops_ms),
        "wide_step_visit_us": used_by_step_s / COMMANDS * 1e6,
        "wide_step_redis_ms": longest_of_step_ms[0],
    }


def delta() -> Values:
    """A visit that writes 11 MB, and one that reads them."""
    with stack(workers=1) as engine:
        agent = delta_agent(engine.home)
        with slow_calls(engine.redis_url) as longest_ms:
            started = time.perf_counter()
            finish([engine.client.submit(agent)], engine.client)
            took_s = time.perf_counter() - started
    return {"delta_redis_ms": longest_ms[0], "delta_s": took_s}


def million(items: int) -> Values:
    """Open a map of a million items; and, when all items but those of the last chunk have ended, collect it."""
    with tempfile.TemporaryDirectory(prefix="slp-") as folder, redis_server(Path(folder)) as (url, _):
        settings = Settings(redis_url=url, home=Path(folder))
        with Store.open(settings) as store:
            run, keys = "run000000001", store.keys.of_run("run000000001")
            store.runs.create(run, RunSpec("map", "digest"), {"items": list(range(items))})
            with slow_calls(url) as open_redis_ms:
                advance = advance_of(store)
                open_s = sum(rounds_s(advance))
            all_have_ended(store, run, items)
            with slow_calls(url) as collect_redis_ms:
                advance = advance_of(store)
                collect_s = rounds_s(advance)
            assert len(json.loads(str(store._client.hget(keys.state, "results")))) == items
    return {
        "million_map_open_ms": open_s * 1e3,
        "million_map_open_redis_ms": open_redis_ms[0],
        "million_map_collect_s": sum(collect_s),
        "million_map_round_ms": max(collect_s) * 1e3,
        "million_map_collect_redis_ms": collect_redis_ms[0],
    }


def rounds_s(advance: Advance) -> list[float]:
    """The time of each round until all work is done."""
    took_s: list[float] = []
    while True:
        began_s = time.perf_counter()
        if advance.run_once() <= 0:
            return took_s
        took_s.append(time.perf_counter() - began_s)


def all_have_ended(store: Store, run: str, items: int) -> None:
    """Leave a map that has begun as it is when all of its items have ended."""
    client: Any = store._client
    keys, visits = store.keys.of_run(run), store.partitions.load([run])[run].frontier
    fan = next(visit for visit in visits.values() if isinstance(visit.body, Fan))
    ended = changed(fan, body=changed(fan.body, next=items, done=items, put=items))
    client.delete(keys.items, keys.frontier)
    client.hset(keys.frontier, str(fan.seq), visit_text(ended))
    for first in range(0, items, CHUNK):
        client.hset(keys.items, mapping={f"{fan.seq}.{n}": str(n) for n in range(first, min(items, first + CHUNK))})
    client.xadd(store.keys.of_partition(store.keys.partition_of(run)).inbox, {"t": "continued", "run": run})


def advance_of(store: Store) -> Advance:
    """A scheduler's main loop that owns all partitions and publishes nothing."""
    numbers = range(store.keys.partitions)
    graph = load_graph(MAP, "graph.yaml", "map")
    others: dict[str, Any] = {
        "ownership": SimpleNamespace(
            epochs={number: owned.epoch for number, owned in store.partitions.own(numbers, "me", 600_000).items()},
            holds={},
            working=Lock(),
        ),
        "graphs": SimpleNamespace(get=lambda *_: graph),
        "dispatcher": SimpleNamespace(publish=lambda _: SimpleNamespace(ahead=0)),
    }
    return Advance(store.partitions, **others, max_redeliveries=3)


MAP = """name: map
start: fan
settings: {max_concurrency: 64}
nodes:
  fan: {type: map, over: "{{items}}", as: item, branch: body, collect_into: results, next: e}
  body: {type: function, call: "wide.py:work"}
  e: {type: end}
"""


@contextmanager
def slow_calls(url: str) -> Iterator[list[float]]:
    """After the block: the longest call of Redis meanwhile, in milliseconds."""
    longest_ms, client = [LOGGED_US / 1000], connect(url)
    client.config_set("slowlog-log-slower-than", LOGGED_US)
    client.config_set("slowlog-max-len", LOG_ENTRIES)
    client.slowlog_reset()
    yield longest_ms
    calls = client.slowlog_get(LOG_ENTRIES)
    longest_ms[0] = max([LOGGED_US, *(call["duration"] for call in calls)]) / 1000
    client.close()


@contextmanager
def other_hops(engine: Stack, agent: Path) -> Iterator[list[float]]:
    """The hops of runs that go through one after the other while the block runs."""
    hops_ms: list[float] = []
    over = threading.Event()

    def go_through() -> None:
        while not over.is_set():
            hops_ms.extend(hops_of(engine.client.submit(agent), engine.client))

    thread = threading.Thread(target=go_through)
    thread.start()
    try:
        yield hops_ms
    finally:
        over.set()
        thread.join()


def commands_agent(home: Path, kind: str) -> Path:
    graph = f"""name: wide
version: sleipnir/1
start: plan
engine: {kind}
nodes:
  plan: {{type: function, call: "wide.py:plan"}}
  work: {{type: function, call: "wide.py:work"}}
"""
    return write_agent(home / f"wide-{kind}", graph, "wide.py", CODE)


def delta_agent(home: Path) -> Path:
    graph = """name: large
start: large
nodes:
  large: {type: function, call: "wide.py:large", next: after}
  after: {type: function, call: "wide.py:after", next: e}
  e: {type: end}
"""
    return write_agent(home / "large", graph, "wide.py", CODE)
