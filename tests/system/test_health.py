"""`sleipnir worker --health`: a worker that does not consume is found, whatever keeps it from that."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.local import launch
from sleipnir.messages import TASK_NAME
from sleipnir.store.connect import connect
from tests import starter
from tests.processes import RedisServer, Stack, wait_until, write_agent

POOLS = ["prefork", "threads", "solo"]
WITHIN_S = 7.0  # announcements come every 5 s

GRAPH = """
name: watched
start: a
nodes:
  a: {type: function, call: "f.py:f", queue: work, next: done, timeout: 600}
  done: {type: end, output: done}
"""
# Runs until `go` appears; interruptible.
LONG_F = """
import pathlib, threading
here = pathlib.Path({folder!r})
def f(state):
    (here / "mark").touch()
    while not (here / "go").exists():
        threading.Event().wait(0.02)
"""
# A lock that nobody releases: CPython cannot interrupt a thread in it.
STUCK_F = """
import pathlib, threading
def f(state):
    (pathlib.Path({folder!r}) / "mark").touch()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture
def stack(own_redis: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(own_redis, tmp_path / "home", lease_s=10.0) as running:
        running.start_scheduler()
        yield running


def health(stack: Stack, *arguments: str, **settings: str) -> tuple[int, str]:
    """What the probe says: exit code and its line."""
    ended = stack.sleipnir("worker", "--health", "--within", str(WITHIN_S), *arguments, **settings)
    return ended.returncode, (ended.stdout + ended.stderr).strip()


def wait_for(stack: Stack, code: int, words: str, *arguments: str, **settings: str) -> None:
    """Wait until the probe says so."""
    seen: list[tuple[int, str]] = []

    def said() -> bool:
        seen.append(health(stack, *arguments, **settings))
        return seen[-1][0] == code and words in seen[-1][1]

    try:
        wait_until(said, f"the probe says {code} and {words!r}", timeout_s=120, every_s=0.5)
    except AssertionError as error:
        raise AssertionError(f"{error}; it said {seen[-1]}") from None


def one_of_each_pool(stack: Stack, folder: Path, code: str) -> dict[str, Path]:
    """Start a worker of each kind of pool, named like it, with a queue of that name; an agent for each, in a folder of
    its own. At once, since these tests mostly wait until evidence is too old."""
    for pool in POOLS:
        (folder / pool).mkdir()
        stack.start_worker(pool, pool, pool=pool, concurrency=1, ready=False)
    graphs = {pool: GRAPH.replace("queue: work", f"queue: {pool}") for pool in POOLS}
    return {
        pool: write_agent(folder / pool / "watched", graph, f_py=code.format(folder=str(folder / pool)))
        for pool, graph in graphs.items()
    }


def test_a_worker_that_is_busy_for_long_is_healthy(stack: Stack, tmp_path: Path) -> None:
    """In a solo pool the loop does not turn meanwhile; the lease shows that the worker is not stuck."""
    agents = one_of_each_pool(stack, tmp_path, LONG_F)
    for pool in POOLS:
        wait_for(stack, 0, f"consumes {pool}: 0 of 1 slots busy", "-n", pool)
    with stack.client() as client:
        runs = [client.submit(agents[pool]) for pool in POOLS]
        for pool in POOLS:
            wait_until((tmp_path / pool / "mark").exists, "the function runs")
            wait_for(stack, 0, f"consumes {pool}: 1 of 1 slots busy", "-n", pool)
        begun_ms = client.store.now_ms()
        wait_until(lambda: client.store.now_ms() > begun_ms + WITHIN_S * 1000 + 5000, "evidence would be too old")
        for pool in POOLS:
            assert health(stack, "-n", pool)[0] == 0
            (tmp_path / pool / "go").touch()
        assert [run.wait(60).status for run in runs] == ["completed"] * 3
        for pool in POOLS:
            wait_for(stack, 0, f"consumes {pool}: 0 of 1 slots busy", "-n", pool)


def test_a_frozen_worker_is_found_by_its_silence_and_is_healthy_again_when_it_continues(stack: Stack) -> None:
    stack.start_worker("w", "work")
    wait_for(stack, 0, "consumes", "-n", "w")
    stack.signal("w", signal.SIGSTOP)
    wait_for(stack, 1, "has not announced itself for", "-n", "w")
    wait_for(stack, 1, "no worker of")
    stack.signal("w", signal.SIGCONT)
    wait_for(stack, 0, "consumes", "-n", "w")


def test_slots_that_hold_no_visit_any_more_make_a_worker_unhealthy(stack: Stack, tmp_path: Path) -> None:
    """The run is cancelled, but nothing can stop the function: this worker never takes a message again."""
    agents = one_of_each_pool(stack, tmp_path, STUCK_F)
    with stack.client() as client:
        runs = [client.submit(agents[pool]) for pool in POOLS]
        for pool in POOLS:
            wait_until((tmp_path / pool / "mark").exists, "the function runs")
        for run in runs:
            run.cancel()
        for pool in POOLS:
            wait_for(stack, 1, "cannot take messages: 1 of 1 slots", "-n", pool)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_whose_broker_connection_is_cut_connects_again_and_consumes(
    stack: Stack, tmp_path: Path, pool: str
) -> None:
    stack.start_worker("w", "work", pool=pool)
    client = connect(stack.redis.url)
    for _ in range(3):
        client.client_kill_filter(_type="normal", skipme=True)
    agent = write_agent(tmp_path / "watched", GRAPH, f_py="def f(state): pass\n")
    with stack.client() as sleipnir:
        assert sleipnir.submit(agent).wait(60).status == "completed"
    wait_for(stack, 0, "consumes")
    client.close()


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    assert server.process is not None
    server.process.send_signal(signal.SIGCONT)
    server.stop()


@pytest.mark.parametrize("stopped_by", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_without_its_broker_is_unhealthy_only_if_others_reach_it(
    own_redis: RedisServer, broker: RedisServer, tmp_path: Path, stopped_by: signal.Signals
) -> None:
    """A probe must not restart every worker because the broker is away. Another Redis plays the broker that is not."""
    with Stack(own_redis, tmp_path / "home", broker_url=broker.url) as stack:
        stack.start_worker("w", "work")
        wait_for(stack, 0, "consumes")
        assert broker.process is not None
        broker.process.send_signal(stopped_by)
        reason = "no connection to the broker" if stopped_by == signal.SIGKILL else "loop has not turned"
        wait_for(stack, 0, "but the broker does not answer here either")
        wait_for(stack, 1, reason, SLEIPNIR_BROKER_URL=own_redis.url)
        if stopped_by == signal.SIGKILL:
            broker.process.wait()
            broker.start()
        else:
            broker.process.send_signal(signal.SIGCONT)
        wait_for(stack, 0, "consumes")


@pytest.mark.parametrize("stopped_by", [signal.SIGKILL, signal.SIGSTOP])
def test_without_redis_the_health_is_unknown_and_no_worker_is_reported_unhealthy(
    stack: Stack, own_redis: RedisServer, stopped_by: signal.Signals
) -> None:
    stack.start_worker("w", "work")
    assert own_redis.process is not None
    own_redis.process.send_signal(stopped_by)
    code, said = health(stack)
    own_redis.process.send_signal(signal.SIGCONT)
    assert (code, said.startswith("cannot tell: Redis at unix://")) == (0, True), said


def test_a_worker_that_was_asked_to_stop_consuming_is_unhealthy(stack: Stack) -> None:
    stack.start_worker("w", "work")
    wait_for(stack, 0, "consumes")
    command = [sys.executable, "-m", "celery", "-A", "sleipnir_workers.app", "control", "cancel_consumer", "work"]
    assert starter.run(command, stack.environment()).returncode == 0
    wait_for(stack, 1, "has had no answer from the broker")


def test_a_loop_that_hangs_is_found(stack: Stack, tmp_path: Path) -> None:
    """Nothing reads the pipe that the worker logs to: the loop waits for ever for room to log one more line."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    command = [
        sys.executable, "-m", "celery", "-A", "sleipnir_workers.app", "worker", "-Q", "work", "-P", "threads",
        "-c", "1", "-n", "w@%h", "--loglevel", "INFO", "--without-gossip", "--without-mingle",
    ]  # fmt: skip
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    process = subprocess.Popen(
        launch.command(command), env=clean | stack.settings.to_env(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=write,
    )  # fmt: skip
    os.close(write)
    stack.processes["w"] = process
    wait_for(stack, 0, "consumes")
    client = connect(stack.redis.url)
    with stack.client() as sleipnir:
        queue = sleipnir.store.keys.broker_prefix + "work"
    client.lpush(queue, *[json.dumps(damaged_message(number)) for number in range(90)])
    wait_for(stack, 1, "is stuck: its loop has not turned for")
    assert client.llen(queue) > 0
    os.close(read)  # now the write fails, and the loop goes on
    wait_until(lambda: not client.llen(queue), "the loop turns again")
    wait_for(stack, 0, "consumes")
    client.close()


def damaged_message(number: int) -> dict[str, Any]:
    """A message that no worker can read; each is logged, as no two are damaged alike."""
    call = {"run": "r", "node": "n", "seq": f"damaged {number}", "attempt": 1, "agent": "a", "bundle": "0" * 64}
    return {
        "body": json.dumps([[call], {}, {}]),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": TASK_NAME, "id": f"damaged-{number}"},
        "properties": {
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "work"},
            "body_encoding": "utf-8",
            "delivery_tag": f"tag-{number}",
        },
    }


def test_a_host_without_a_worker_is_unhealthy(stack: Stack) -> None:
    assert health(stack)[0] == 1
    assert health(stack, "-n", "nobody")[0] == 1
