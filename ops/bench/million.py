"""Very many runs in one Redis: what each costs there, how soon lists of runs and batches are answered, and whether the
engine is slowed down.

The older half of the runs waits for an answer; the newer half has ended because its question expired. They are accepted
by the store's own script, many in one round trip, and planned and committed by a real scheduler. A second stack is
empty. Both get the same load alternately.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ops.bench.costs import is_quiet
from ops.bench.engine import Stack, finish, no_op_agent, stack, under_load, write_agent
from ops.bench.figures import BenchFailed, Values
from ops.bench.processes import PYTHON, environment, output_of
from sleipnir.cli.runs.ps import UNFINISHED
from sleipnir.client.client import Client
from sleipnir.runs.run import ID_ALPHABET, ID_LENGTH
from sleipnir.store.connect import connect
from sleipnir.store.gauges import Gauges, PartitionLoad
from sleipnir.store.scripts import run_in_order
from tests.waiting import wait_until

CHUNK = 1_000
AHEAD = 10_000
"""The number of events that may wait for the scheduler while runs are added."""
TOLD_EVERY_S = 15.0
PATIENCE_S = 900.0
"""Time for the work after a fill: the scheduler catches up, and Redis rewrites an append-only file of some GB."""

BATCHES, OPEN_BATCHES, ROWS = 60, 10, 20
CALLS, COMMANDS, LOADS = 20, 5, 6
SLOW_US = 5_000
"""Commands that take Redis longer are reported."""

GRAPH = """
name: {name}
start: approve
nodes:
  approve: {{type: approval, question: 'Ship {{{{initial_prompt}}}}?', options: ['yes'], routes: {{'yes': done}},
            on_other: done{expiry}}}
  done: {{type: end, output: 'shipped'}}
"""
EXPIRY = ", timeout: 1, on_timeout: done"


def measure(runs: int, load: int) -> Values:
    """With `runs` runs in Redis; the loads are of `load` runs of ten nodes."""
    with stack() as full, stack() as empty:
        for engine in (full, empty):
            agent = no_op_agent(engine.home)
            finish([engine.client.submit(agent) for _ in range(20)], engine.client)
        return {**filled(full, runs), **answered(full), **slowed_down(full, empty, load)}


def filled(engine: Stack, runs: int) -> Values:
    """Bytes of a run that waits, and of one that is over."""
    waiting, over = (
        write_agent(engine.home / name, GRAPH.format(name=name, expiry=expiry))
        for name, expiry in (("waiting", ""), ("over", EXPIRY))
    )
    several_batches(engine, waiting, over)
    with gauges(engine.client) as work:
        before = used_memory(engine)
        gates = work().gates
        add(engine, waiting, runs // 2, work, lambda: work().gates - gates)
        between, finished = used_memory(engine), work().finished
        add(engine, over, runs // 2, work, lambda: work().finished - finished)
    after = used_memory(engine)
    return {
        "million_runs": runs,
        "million_waiting_bytes": (between - before) / (runs // 2),
        "million_over_bytes": (after - between) / (runs // 2),
    }


def several_batches(engine: Stack, waiting: Path, over: Path) -> None:
    """Most of them are over; the rows of the others wait for people."""
    for number in range(BATCHES):
        agent = waiting if number < OPEN_BATCHES else over
        rows = ({"prompt": f"order {row}"} for row in range(ROWS))
        engine.client.batch(agent, rows, name=f"batch {number}")
    wait_until(
        lambda: sum(info.is_over for info in engine.client.batches(BATCHES)) == BATCHES - OPEN_BATCHES,
        "batches are over",
        PATIENCE_S,
    )


def add(engine: Stack, agent: Path, count: int, work: Callable[[], PartitionLoad], done: Callable[[], int]) -> None:
    """Accept so many runs, no faster than they are planned, and wait until all are `done` with."""
    store, redis = engine.client.store, connect(engine.redis_url)
    template = engine.client.submit(agent, "order 0")
    spec, state = store.runs.spec(template.id), template.state()
    began_s = told_s = time.monotonic()
    for first in range(1, count, CHUNK):
        numbers = range(first, min(first + CHUNK, count))
        states = ({**state, "initial_prompt": f"order {number}"} for number in numbers)
        commands = [store.runs.creation(new_id(), spec, each) for each in states]
        for reply in run_in_order(redis, commands):
            if isinstance(reply, Exception):
                raise BenchFailed(f"a run was not accepted: {reply}")
        wait_until(lambda: work().inbox < AHEAD, "the scheduler keeps up", PATIENCE_S)
        if time.monotonic() - told_s > TOLD_EVERY_S:
            told_s = time.monotonic()
            tell(f"{numbers[-1]:,} of {count:,} runs that are {agent.name}, {told_s - began_s:.0f} s")
    redis.close()
    wait_until(lambda: done() >= count, f"{count:,} runs are {agent.name}", PATIENCE_S)
    tell(f"{count:,} runs are {agent.name}, {time.monotonic() - began_s:.0f} s")


def answered(engine: Stack) -> Values:
    """How long `ps` and `batch ls` take: the calls of the client, and the commands."""
    redis: Any = connect(engine.redis_url, socket_timeout=PATIENCE_S)
    for rewrite in (False, True):
        if rewrite:
            redis.bgrewriteaof()  # otherwise Redis starts one itself during the measurement
        wait_until(lambda: is_quiet(engine.redis_url), "Redis has written everything", PATIENCE_S)
    redis.config_set("slowlog-log-slower-than", SLOW_US)
    redis.slowlog_reset()
    with Client(engine.client.settings) as client:
        times = {
            "million_ps": times_ms(lambda: client.runs(50, {*UNFINISHED})),
            "million_ps_all": times_ms(lambda: client.runs(50)),
            "million_batch_ls": times_ms(lambda: client.batches(50)),
        }
    env = environment(engine.client.settings.to_env())

    def of_command(*words: str) -> float:
        command = [PYTHON, "-m", "sleipnir", *words]
        return statistics.median(times_ms(lambda: output_of(command, env, 60), COMMANDS))

    tell(", ".join(f"{name} {statistics.median(each):.0f} ms" for name, each in times.items()))
    values = {f"{name}_ms": statistics.median(each) for name, each in times.items()}
    values |= {f"{name}_slowest_ms": max(each) for name, each in times.items()}
    values["million_ps_command_ms"] = of_command("ps")
    values["million_batch_ls_command_ms"] = of_command("batch", "ls")
    values["million_start_ms"] = of_command("--version")
    redis.close()
    return values


def slowed_down(full: Stack, empty: Stack, load: int) -> Values:
    """The throughput of the full stack in relation to the empty one, and the commands that took Redis long."""
    rates: dict[str, list[float]] = {"full": [], "empty": []}
    for number in range(LOADS):
        pair = [("full", full), ("empty", empty)]
        for name, engine in pair if number % 2 else reversed(pair):
            rates[name].append(under_load(engine, engine.home / "noop", load)["visits_per_s"])
        tell(f"load {number + 1} of {LOADS}: {rates['full'][-1]:,.0f} visits/s, empty {rates['empty'][-1]:,.0f}")
    redis: Any = connect(full.redis_url)
    slow = sorted(redis.slowlog_get(1000), key=lambda call: -call["duration"])
    redis.close()
    for call in slow[:5]:
        tell(f"slow in Redis: {call['duration'] / 1000:.1f} ms: {str(call['command'])[:100]}")
    median = {name: statistics.median(call) for name, call in rates.items()}
    return {
        "million_advance_share": median["full"] / median["empty"],
        "million_visits_per_s": median["full"],
        "million_empty_visits_per_s": median["empty"],
        "million_slow_commands": len(slow),
    }


@contextmanager
def gauges(client: Client) -> Iterator[Callable[[], PartitionLoad]]:
    look = Gauges(client.settings, client.store.keys, timeout_s=10)
    try:
        yield lambda: look.work(range(client.store.keys.partitions))
    finally:
        look.close()


def used_memory(engine: Stack) -> int:
    redis: Any = connect(engine.redis_url)
    used = int(redis.info("memory")["used_memory"])
    redis.close()
    return used


def times_ms(call: Callable[[], object], count: int = CALLS) -> list[float]:
    scripts = []
    call()  # the first one connects and imports
    for _ in range(count):
        began_s = time.perf_counter()
        call()
        scripts.append((time.perf_counter() - began_s) * 1000)
    return scripts


def new_id() -> str:
    return "".join(random.choices(ID_ALPHABET, k=ID_LENGTH))


def tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
