"""Maps and joins under load, on real processes: what an item costs among many, and a join of a thousand branches.

The body is a no-op function. The chain beside it is the engine's own load (graphs of ten no-op nodes, many at once), in
the same stack and the same minute, so that the ratio says what a map costs and not how fast the machine is today.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from ops.bench.engine import NODES, Stack, cpu_s, finish, no_op_agent, stack, under_load, write_agent
from ops.bench.figures import BenchFailed, Values
from sleipnir.store.connect import connect

FEW, MANY = 100, 10_000
AT_ONCE = 64
BRANCHES = 1000
CODE = "def none(state):\n    return {'output': 1}\n"
LOOK_S = 0.05


def measure(items: int = MANY) -> Values:
    """A map of `items` items against the chain, and against maps of a hundred items each, as many items in all."""
    with stack() as engine:
        chain, fewer, many = no_op_agent(engine.home), map_agent(engine.home, FEW), map_agent(engine.home, items)
        finish([engine.client.submit(agent) for agent in (chain, fewer)], engine.client)  # all is imported and cached
        chained = under_load(engine, chain, items // NODES)
        few = cost_us(engine, fewer, items // FEW, FEW)
        with watched(engine) as peak:
            wide = cost_us(engine, many, 1, items)
    return {
        "map_ratio": wide["per_s"] / chained["visits_per_s"],
        "map_items_per_s": wide["per_s"],
        "map_chain_per_s": chained["visits_per_s"],
        "map_item_ratio": wide["us"] / few["us"],
        "map_item_us": wide["us"],
        "map_item_few_us": few["us"],
        "map_queue_most": peak["queue"],
        "map_scheduler_mb": peak["scheduler_mb"],
    }


def cost_us(engine: Stack, agent: Path, runs: int, items: int) -> Values:
    """Items per second, and CPU of all processes per item; `runs` one after the other."""
    before, started = cpu_s(engine), perf_counter()
    for _ in range(runs):
        finish([engine.client.submit(agent)], engine.client)
    took_s = perf_counter() - started
    used_s = sum(seconds - before[group] for group, seconds in cpu_s(engine).items())
    return {"per_s": runs * items / took_s, "us": used_s / (runs * items) * 1e6}


def join() -> Values:
    """A join of a thousand branches: seconds from submission to end. It must have fired once."""
    with stack() as engine:
        agent = join_agent(engine.home)
        finish([engine.client.submit(agent)], engine.client)
        started = perf_counter()
        run = engine.client.submit(agent)
        finish([run], engine.client)
        took_s = perf_counter() - started
        fired = sum(step.node == "join" for step in run.history())
        if fired != 1:
            raise BenchFailed(f"the join of {BRANCHES} branches fired {fired} times")
    return {"join_s": took_s}


@contextmanager
def watched(engine: Stack) -> Iterator[dict[str, float]]:
    """The longest queue and the scheduler's growth in memory while the block runs."""
    client: Any = connect(engine.redis_url)
    [pid] = engine.pids["scheduler"]
    before, over = resident_mb(pid), threading.Event()
    peak = {"queue": 0.0, "scheduler_mb": 0.0}

    def look() -> None:
        queue = f"{engine.client.store.keys.broker_prefix}functions"
        while not over.wait(LOOK_S):
            peak["queue"] = max(peak["queue"], client.llen(queue))
            peak["scheduler_mb"] = max(peak["scheduler_mb"], resident_mb(pid) - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        client.close()


def resident_mb(pid: int) -> float:
    status: Mapping[str, str] = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return int(status["VmRSS"].split()[0]) / 1024


def map_agent(home: Path, items: int) -> Path:
    graph = f"""name: map
start: fan
settings: {{max_concurrency: {AT_ONCE}}}
initial_state: {{items: {list(range(items))}}}
nodes:
  fan: {{type: map, over: "{{{{items}}}}", as: item, branch: body, collect_into: results, next: e}}
  body: {{type: function, call: "noop.py:none"}}
  e: {{type: end}}
"""
    return write_agent(home / f"map-{items}", graph, "noop.py", CODE)


def join_agent(home: Path) -> Path:
    names = [f"n{number}" for number in range(BRANCHES)]
    nodes = "\n".join(f"  {name}: {{type: function, call: 'noop.py:none'}}" for name in names)
    graph = f"""name: join
version: sleipnir/1
start: split
engine: dag
settings: {{max_concurrency: {AT_ONCE}}}
nodes:
  split: {{type: router, next: [{", ".join(names)}]}}
{nodes}
  join: {{type: function, call: "noop.py:none", wait_for: [{", ".join(names)}], next: e}}
  e: {{type: end}}
"""
    return write_agent(home / "join", graph, "noop.py", CODE)
