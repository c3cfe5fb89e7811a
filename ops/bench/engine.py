"""The engine under load and when idle: real scheduler, real workers, real Redis.

Load: graphs of ten no-op function nodes, all submitted at once, from the first submission to the end of the last run;
one scheduler and two solo workers, as many as cores: a third takes cores without work for it. Idle: such runs one at a
time; beside a batch: the same, while a batch has rows that wait. The hop is the time between two nodes, from the
delivery of one result to the claim of the next visit, by Redis' clock (whole milliseconds).
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.cpu_time import tree_s
from ops.bench.figures import BenchFailed, Values
from ops.bench.processes import PYTHON, Groups, processes, redis_server, workspace
from sleipnir.client.client import Client, Run, wait_all
from sleipnir.settings import Settings
from sleipnir.store.connect import connect
from tests.waiting import wait_until

NODES = 10
WORKERS = 2
BATCH_ROWS = 20_000  # of ten visits each: more than any machine goes through while the hops are measured
COUNTED_RUNS = 30  # enough for a batch to form; the rest of the load would only be more of the same
START_S = 180  # several llm workers import litellm at once


@dataclass(frozen=True)
class Stack:
    """A running engine. `pids` by group: redis, scheduler, and those of the workers."""

    home: Path
    redis_url: str
    client: Client
    pids: Mapping[str, list[int]]


@contextmanager
def stack(
    *, queue: str = "functions", pool: str = "solo", workers: int = WORKERS, appendfsync: str = "everysec", **env: str
) -> Iterator[Stack]:
    """One scheduler and `workers` workers of one queue, ready to work. `env` goes to all of them."""
    commands = [worker_command(queue, pool, f"worker-{number}") for number in range(workers)]
    with fleet({"workers": commands}, appendfsync=appendfsync, **env) as engine:
        yield engine


@contextmanager
def fleet(workers: Groups, *, appendfsync: str = "everysec", **env: str) -> Iterator[Stack]:
    """One scheduler and workers of several groups, ready to work. `env` goes to all of them."""
    with workspace() as home, redis_server(home, appendfsync=appendfsync) as (url, redis_pid):
        settings = Settings(redis_url=url, home=home, log_level="warning")
        groups = {"scheduler": [[PYTHON, "-m", "sleipnir_scheduler"]], **workers}
        count = sum(map(len, workers.values()))
        with processes(groups, {**settings.to_env(), **env}, home) as pids, Client(settings) as client:
            wait_until(lambda: len(client.health().workers) == count, "the workers are up", START_S)
            yield Stack(home, url, client, {"redis": [redis_pid], **pids})


def worker_command(queue: str, pool: str, name: str, threads: int = 1) -> list[str]:
    return [
        PYTHON, "-m", "celery", "-A", "sleipnir_workers.app", "worker", "-Q", queue, "-P", pool, "-c", str(threads),
        "-n", f"{name}@%h", "--loglevel", "ERROR", "--without-gossip", "--without-mingle",
    ]  # fmt: skip


def measure(runs: int, hops: int) -> Values:
    """Throughput, hop, Redis commands and CPU per visit."""
    with stack() as engine:
        agent = no_op_agent(engine.home)
        finish([engine.client.submit(agent) for _ in range(20)], engine.client)  # everything is imported and cached
        idle = hops_of_runs(engine, agent, hops)
        counted = commands_per_visit(engine, agent)
        loaded = under_load(engine, agent, runs)
        beside = hops_beside_a_batch(engine, agent, hops)
    return {
        **loaded, **counted, "hop_p50_ms": idle[49], "hop_p99_ms": idle[98],
        "hop_batch_p50_ms": beside[49], "hop_batch_p99_ms": beside[98],
    }  # fmt: skip


def hops_of_runs(engine: Stack, agent: Path, runs: int) -> list[float]:
    """The 99 percentiles of the hops of so many runs, one after the other."""
    hops = [ms for _ in range(runs) for ms in hops_of(engine.client.submit(agent), engine.client)]
    return statistics.quantiles(hops, n=100)


def hops_beside_a_batch(engine: Stack, agent: Path, runs: int) -> list[float]:
    """The same, while a batch of the same agent runs. Raises BenchFailed if it was over before the runs were."""
    batch = engine.client.batch(agent, ({"prompt": str(number)} for number in range(BATCH_ROWS)))
    wait_until(lambda: batch.info().ended, "a row ends", START_S)
    percentiles = hops_of_runs(engine, agent, runs)
    if not batch.info().waiting:
        raise BenchFailed("the batch was over before the hops were measured")
    batch.cancel()
    wait_until(lambda: batch.info().is_over, "the batch is cancelled", START_S)
    return percentiles


def throughput(runs: int, *, appendfsync: str = "everysec", **env: str) -> float:
    """Visits per second alone."""
    with stack(appendfsync=appendfsync, **env) as engine:
        agent = no_op_agent(engine.home)
        finish([engine.client.submit(agent) for _ in range(20)], engine.client)
        return under_load(engine, agent, runs)["visits_per_s"]


def under_load(engine: Stack, agent: Path, runs: int) -> Values:
    before = cpu_s(engine)
    started = time.perf_counter()
    finish([engine.client.submit(agent) for _ in range(runs)], engine.client)
    took_s = time.perf_counter() - started
    visits = runs * NODES
    profile = {f"cpu_{group}_us": (s - before[group]) / visits * 1e6 for group, s in cpu_s(engine).items()}
    return {"visits_per_s": visits / took_s, **profile, "cpu_visit_us": sum(profile.values())}


def cpu_s(engine: Stack) -> dict[str, float]:
    """By group. The client is this process without its children, which are the other groups."""
    groups = {group: tree_s(pids) for group, pids in engine.pids.items()}
    return {**groups, "client": time.process_time()}


def commands_per_visit(engine: Stack, agent: Path) -> Values:
    """The commands that all processes send to Redis during the load, and those that our scripts call inside it."""
    with counted_commands(engine.redis_url) as counted:
        finish([engine.client.submit(agent) for _ in range(COUNTED_RUNS)], engine.client)
    visits = COUNTED_RUNS * NODES
    return {
        "redis_sent_per_visit": counted["sent"] / visits,
        "redis_inside_per_visit": counted["inside"] / visits,
    }


@contextmanager
def counted_commands(url: str) -> Iterator[dict[str, int]]:
    """Count by MONITOR, which tells what a client sent from what a script called. It slows Redis, so nothing is timed
    meanwhile."""
    counted, end = {"sent": 0, "inside": 0}, "end of the count"
    client: Any = connect(url)

    def count(monitor: Any) -> None:
        while end not in (seen := monitor.next_command())["command"]:
            counted["inside" if seen["client_type"] == "lua" else "sent"] += 1

    with client.monitor() as monitor:
        thread = threading.Thread(target=count, args=(monitor,))
        thread.start()
        yield counted
        client.echo(end)
        thread.join(60)
    client.close()


def finish(runs: list[Run], client: Client) -> None:
    """Wait for the end of these runs. Raises BenchFailed unless all of them complete."""
    try:
        ended = list(wait_all(client.store, [run.id for run in runs], 300))
    except TimeoutError:
        raise BenchFailed("the engine's runs were not over after 300 s") from None
    for info in ended:
        if info.status != "completed":
            raise BenchFailed(f"run {info.id} ended as {info.status}: {info.error}")


def hops_of(run: Run, client: Client) -> Iterator[float]:
    """Milliseconds from the end of a visit's work to the claim of the next, for each pair of nodes of a run."""
    finish([run], client)
    started = {event.data["seq"]: event.at_ms for event in run.events(follow=False) if event.type == "visit_started"}
    for step in run.history()[1:]:
        if step.seq is not None and step.seq + 1 in started:
            yield started[step.seq + 1] - step.at_ms


def no_op_agent(home: Path) -> Path:
    nodes = "\n".join(f"  n{i}: {{type: function, call: 'noop.py:noop', next: n{i + 1}}}" for i in range(NODES))
    graph = f"name: noop\nstart: n0\nnodes:\n{nodes}\n  n{NODES}: {{type: end}}\n"
    return write_agent(home / "noop", graph, "noop.py", "def noop(state):\n    return {}\n")


def write_agent(folder: Path, graph: str, module: str = "", code: str = "") -> Path:
    folder.mkdir()
    (folder / "graph.yaml").write_text(graph)
    if module:
        (folder / module).write_text(code)
    return folder
