"""Redis is away, frozen or full for longer than a lease: what runs on a living worker is not executed again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops.chaos import servers
from sleipnir.client.client import Client
from sleipnir.store.connect import connect
from tests.branching import Scratch, agent, completed
from tests.processes import RedisServer, Stack, wait_until

LEASE_S, AWAY_S = 3.0, 5.0

GRAPH = """
name: one
start: a
nodes:
  a: {type: function, call: "f.py:a", next: done}
  done: {type: end, output: "{{initial_prompt}}"}
"""
A = 'a = nothing("a")\n'


def killed(server: RedisServer) -> Callable[[], None]:
    server.kill()
    return server.start


def frozen(server: RedisServer) -> Callable[[], None]:
    process = server.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    return lambda: process.send_signal(signal.SIGCONT)


def full(server: RedisServer) -> Callable[[], None]:
    client = connect(server.url)
    client.config_set("maxmemory", "1")

    def mend() -> None:
        client.config_set("maxmemory", "0")
        client.close()

    return mend


@pytest.fixture
def server() -> Iterator[RedisServer]:
    made = RedisServer()
    yield made
    made.stop()


@pytest.fixture
def stack(server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(server, tmp_path / "home", lease_s=LEASE_S, heartbeat_s=1.0) as made:
        made.start_scheduler()
        made.start_worker()
        yield made


def trusted(client: Client) -> bool:
    """Whether leases can be trusted, and the reaper has had its rounds since."""
    with client.store.errors():
        now = client.store.generations.current()
        return now is not None and now.now_ms > now.steady_ms + 1_000


@pytest.mark.parametrize("trouble", [killed, frozen, full])
def test_what_runs_while_redis_is_away_is_not_executed_again(
    stack: Stack, server: RedisServer, tmp_path: Path, trouble: Callable[[RedisServer], Callable[[], None]]
) -> None:
    """Findings C4 and C4b of the second review. The visit ends after the outage; another one ends during it."""
    during, after = Scratch(tmp_path / "during"), Scratch(tmp_path / "after")
    graph = agent(tmp_path / "one", GRAPH, A)
    with stack.client() as client:
        for scratch in (during, after):
            scratch.hold("a")
        runs = [scratch.start(client, graph) for scratch in (during, after)]
        for scratch in (during, after):
            scratch.wait_for("a")
        wait_until(lambda: trusted(client), "leases can be trusted")
        mend = trouble(server)
        during.go("a")
        threading.Event().wait(AWAY_S)  # longer than a lease
        mend()
        wait_until(lambda: _answers(client) and trusted(client), "leases can be trusted again", 60)
        after.go("a")
        for run in runs:
            completed(client, run)
    assert [during.counts(), after.counts()] == [{"a": 1}, {"a": 1}], stack.log("scheduler")
    assert "worker_lost" not in stack.log("scheduler")


def _answers(client: Client) -> bool:
    try:
        return bool(client.store._client.ping())
    except Exception:
        return False


def test_a_worker_that_dies_while_redis_is_away_is_replaced_a_lease_after(
    stack: Stack, server: RedisServer, tmp_path: Path
) -> None:
    """Finding C4: the price of waiting is one lease."""
    scratch = Scratch(tmp_path / "scratch")
    scratch.hang("a")
    with stack.client() as client:
        run = scratch.start(client, agent(tmp_path / "one", GRAPH, A))
        wait_until(lambda: scratch.hangs("a"), "the visit runs")
        mend = killed(server)
        stack.kill("worker")
        threading.Event().wait(AWAY_S)
        mend()
        stack.start_worker("another")
        completed(client, run)
    assert scratch.counts() == {"a": 2}


@pytest.mark.skipif(bool(servers.why_no_clock()), reason=servers.why_no_clock())
@pytest.mark.parametrize("step_s", [3600, -3600])
def test_what_runs_while_the_clock_of_redis_is_set_is_not_executed_again(tmp_path: Path, step_s: int) -> None:
    """Finding C4 of the second review: all leases seem to have lapsed, or none ever does."""
    library = servers.faketime()
    assert library is not None
    living, dying = Scratch(tmp_path / "living"), Scratch(tmp_path / "dying")
    server = servers.Stepped(library)
    try:
        with Stack(server, tmp_path / "home", lease_s=LEASE_S, heartbeat_s=1.0) as stack, stack.client() as client:
            stack.start_scheduler()
            stack.start_worker("first")
            living.hold("a")
            graph = agent(tmp_path / "one", GRAPH, A)
            run = living.start(client, graph)
            living.wait_for("a")
            wait_until(lambda: trusted(client), "leases can be trusted")
            server.step(step_s)
            wait_until(lambda: "the clock of Redis was set" in stack.log("scheduler"), "the step is noticed")
            wait_until(lambda: trusted(client), "leases can be trusted again")
            living.go("a")
            completed(client, run)
            dying.hang("a")
            other = dying.start(client, graph)
            wait_until(lambda: dying.hangs("a"), "the visit runs")
            stack.kill("first")
            stack.start_worker("second")
            completed(client, other)
        assert (living.counts(), dying.counts()) == ({"a": 1}, {"a": 2})
    finally:
        server.stop()
