"""The engine's load (engine.py) with its state on a Redis Cluster, against the same with its state on one Redis. Both
have 256 partitions and a Redis of its own as broker, so that what a message costs can be told from what state costs.

One machine has not enough cores for several nodes, so what is measured is what a visit costs whom, not how many visits
a cluster commits: ops/scale_out.py makes that of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import redis

from ops.bench import batches, engine
from ops.bench.cpu_time import tree_s
from ops.bench.figures import Values
from ops.bench.processes import PYTHON, processes, redis_server, workspace
from sleipnir.client.client import Client
from sleipnir.settings import Settings
from sleipnir.store.keys import Keys
from tests.redis_cluster import ServerCluster
from tests.waiting import wait_until

NODES: Final = 3
IDLE_S: Final = 10
ROWS: Final = 2_000
VISITS_OF_ROW: Final = 2
WINDOW: Final = 1_000
"""As in a large deployment: with the window of two workers each round has a few rows, and its costs are theirs."""
PARTITIONS: Final = 256
AS_ONE_REDIS: Final = ("--appendfsync", "everysec", "--stream-node-max-bytes", "1024", "--loglevel", "warning")


def measure(runs: int) -> Values:
    """The cluster between two measurements of one Redis, whose mean counts: the machine may have other guests."""
    before, several, after = _load(0, runs), _load(NODES, runs), _load(0, runs)
    one = {name: (before[name] + after[name]) / 2 for name in before}
    commands = [one_node for name, one_node in several.items() if name.startswith("commands_")]
    mean = sum(commands) / len(commands)
    return {
        "cluster_scheduler_ratio": several["cpu_scheduler_us"] / one["cpu_scheduler_us"],
        "cluster_commands_off": max(abs(count - mean) for count in commands) / mean,
        "cluster_commands": mean,
        "cluster_redis_us": several["cpu_redis_us"],
        "cluster_one_redis_us": one["cpu_redis_us"],
        "cluster_broker_us": several["cpu_broker_us"],
        "cluster_scheduler_us": several["cpu_scheduler_us"],
        "cluster_workers_us": several["cpu_workers_us"],
        "cluster_visits_per_s": several["visits_per_s"],
        "cluster_one_visits_per_s": one["visits_per_s"],
        "cluster_idle_redis_us": several["idle_redis_us"],
        "cluster_idle_scheduler_us": several["idle_scheduler_us"],
        "cluster_row_us": several["row_us"],
        "cluster_row_scheduler_us": several["row_scheduler_us"],
    }


def _load(nodes: int, runs: int) -> Values:
    with _stack(nodes) as (stack, clients):
        agent = engine.no_op_agent(stack.home)
        engine.finish([stack.client.submit(agent) for _ in range(20)], stack.client)
        before = _commands(clients)
        loaded = engine.under_load(stack, agent, runs)
        visits = runs * engine.NODES
        counts = {name: (count - before[name]) / visits for name, count in _commands(clients).items()}
        return loaded | counts | (_idle(stack) | _row(stack, loaded["cpu_scheduler_us"]) if nodes else {})


def _idle(stack: engine.Stack) -> Values:
    """The CPU of nodes and scheduler per second without visits."""
    before = engine.cpu_s(stack)
    time.sleep(IDLE_S)
    return {f"idle_{group}_us": (s - before[group]) / IDLE_S * 1e6 for group, s in engine.cpu_s(stack).items()}


def _row(stack: engine.Stack, visit_us: float) -> Values:
    """What a row of a batch costs the node of the batch beyond what it costs the others, and the scheduler beyond its
    visits, `visit_us` each."""
    agent = batches.row_agent(stack.home)
    scheduler_s = engine.cpu_s(stack)["scheduler"]
    first, *others = [tree_s([pid]) for pid in stack.pids["redis"]]
    keys = stack.client.store.keys
    id_ = next(name for number in count() if keys.partition_of_batch(name := f"batch{number}") == 0)
    batch = stack.client.batch(agent, ({"prompt": str(number)} for number in range(ROWS)), id=id_)
    batches.while_it_moves(lambda: batch.info().is_over, batch, "all rows are over")
    first, *others = [tree_s([pid]) - s for pid, s in zip(stack.pids["redis"], [first, *others], strict=True)]
    scheduler_us = (engine.cpu_s(stack)["scheduler"] - scheduler_s) / ROWS * 1e6
    return {
        "row_us": (first - sum(others) / len(others)) / ROWS * 1e6,
        "row_scheduler_us": scheduler_us - VISITS_OF_ROW * visit_us,
    }


@contextmanager
def _stack(nodes: int) -> Iterator[tuple[engine.Stack, Mapping[str, Any]]]:
    """A fleet on so many nodes (0: on one Redis), and the clients of these nodes."""
    with workspace() as home:
        place = home / "state"
        place.mkdir()
        with redis_server(home) as (broker_url, broker_pid), _state(nodes, place) as (url, pids, clients):
            settings = Settings(
                redis_url=url,
                broker_url=broker_url,
                home=home,
                log_level="warning",
                partitions=PARTITIONS,
                batch_window=WINDOW,
            )
            workers = [
                engine.worker_command("functions", "solo", f"worker-{number}") for number in range(engine.WORKERS)
            ]
            groups = {"scheduler": [[PYTHON, "-m", "sleipnir_scheduler"]], "workers": workers}
            with processes(groups, settings.to_env(), home) as started, Client(settings) as client:
                wait_until(lambda: len(client.health().workers) == len(workers), "the workers are up", engine.START_S)
                by_group = {"redis": pids, "broker": [broker_pid], **started}
                yield engine.Stack(home, url, client, by_group), clients


@contextmanager
def _state(count: int, place: Any) -> Iterator[tuple[str, list[int], Mapping[str, Any]]]:
    """Address, processes (first that of the first partition) and clients of the servers that have the state."""
    if not count:
        with redis_server(place) as (url, pid):
            yield url, [pid], {}
        return
    cluster = ServerCluster(count, 0, *AS_ONE_REDIS)
    try:
        first = cluster.primary_of(Keys(of_cluster=True).of_partition(0).inbox)
        nodes = [first, *(node for node in cluster.nodes if node is not first)]
        pids = [node.process.pid for node in nodes if node.process is not None]
        yield cluster.url, pids, {f"commands_{node.port}": node.client for node in cluster.nodes}
    finally:
        cluster.stop()


def _commands(clients: Mapping[str, redis.Redis]) -> dict[str, int]:
    """The commands that each node has executed, those inside scripts too."""
    counts = {}
    for name, client in clients.items():
        stats: Any = client.info("commandstats")
        counts[name] = sum(int(command["calls"]) for command in stats.values())
    return counts
