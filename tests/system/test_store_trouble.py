"""Redis restarts, fails over, loads, freezes, hangs, loses replies and connections: everybody is back in 10 s.

A scheduler and a worker reach Redis through a proxy. "Back" means that a run submitted past the proxy completes: the
worker consumes and the scheduler commits.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from sleipnir.client.client import Client
from sleipnir.errors import StoreUnavailable
from sleipnir.settings import Settings
from sleipnir.store.connect import connect
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.proxy import Proxy

BACK_S = 30.0  # on a busy machine; some seconds on a quiet one

QUICK = """
name: quick
start: a
nodes:
  a: {type: function, call: "f.py:f", next: b}
  b: {type: function, call: "f.py:f", next: done}
  done: {type: end, output: "{{n}}"}
"""
COUNT = "def f(state):\n    return {'n': state.get('n', 0) + 1}\n"


class Trouble:
    """A server, the proxy before it, and a stack behind the proxy."""

    def __init__(self, folder: Path) -> None:
        self.server, self.replica = RedisServer("--port", str(free_port())), RedisServer("--port", str(free_port()))
        self.proxy = Proxy(self.server.socket)
        self.agent = write_agent(folder / "quick", QUICK, f_py=COUNT)
        # Default settings where they matter for coming back; the lease and the second look are short as everywhere.
        self.stack = Stack(self.server, folder / "home", redis_url=self.proxy.url)
        self.stack.start_scheduler()
        self.stack.start_worker()
        self.completes()

    @property
    def direct(self) -> Settings:
        """Past the proxy."""
        return self.stack.settings.replaced(redis_url=self.server.url)

    def completes(self) -> float:
        """Submit a run past the proxy; how many seconds it took to complete."""
        started = time.monotonic()
        with Client(self.direct) as client:
            run = client.submit(self.agent)
            info = run.wait(60)
            assert (info.status, run.output) == ("completed", "2")
            assert [step.node for step in run.history()] == [None, "a", "b", "done"]
        return time.monotonic() - started

    def is_back(self) -> None:
        took_s = self.completes()
        print(f"back after {took_s:.1f} s")
        assert took_s < BACK_S, self.logs()
        for name, process in self.stack.processes.items():
            assert process.poll() is None, f"{name} ended\n{self.stack.log(name)}"

    def logs(self) -> str:
        return "\n".join(self.stack.log(name)[-3000:] for name in self.stack.processes)

    def stop(self) -> None:
        self.stack.stop()
        self.proxy.stop()
        self.server.stop()
        self.replica.stop()

    def fail_over(self) -> None:
        """The replica becomes the server, and the server its replica, which refuses to write."""
        new, old = self.replica, self.server
        admin(new, "REPLICAOF", "NO", "ONE")
        admin(old, "REPLICAOF", "127.0.0.1", str(admin(new, "CONFIG", "GET", "port")["port"]))
        self.server, self.replica = new, old


def admin(server: RedisServer, *words: str) -> Any:
    client = connect(server.url, retries=0)
    try:
        return client.execute_command(*words)
    finally:
        client.close()


def connections(server: RedisServer) -> int:
    """How many there are, without the one that asks."""
    return len(admin(server, "CLIENT", "LIST", "TYPE", "normal").splitlines()) - 1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trouble]:
    made = Trouble(tmp_path_factory.mktemp("trouble"))
    yield made
    made.stop()


def test_redis_is_killed_and_comes_back_later(trouble: Trouble) -> None:
    trouble.server.kill()
    threading.Event().wait(3)  # long enough for every connection to have failed and backed off
    trouble.server.start()
    trouble.is_back()


def test_redis_is_loading_its_data_set_when_it_comes_back(trouble: Trouble) -> None:
    client = connect(trouble.server.url)
    for number in range(200):
        client.set(f"ballast{number}", os.urandom(40_000).hex(), ex=120)
    client.bgrewriteaof()
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "what is loaded slowly is written")
    client.close()
    trouble.server.kill()
    trouble.server.launch("--key-load-delay", "15000")  # 15 ms for each key
    wait_until(lambda: is_loading(trouble.server), "Redis says LOADING")
    wait_until(lambda: not is_loading(trouble.server), "Redis is there")
    trouble.is_back()


def is_loading(server: RedisServer) -> bool:
    try:
        return not admin(server, "PING")
    except redis.exceptions.BusyLoadingError:
        return True
    except redis.exceptions.ConnectionError:
        return False


def test_a_replica_is_promoted_and_the_old_server_refuses_to_write(trouble: Trouble) -> None:
    """Clients hang on the old server for a while, which answers READONLY; then its address leads to the new one."""
    port = admin(trouble.server, "CONFIG", "GET", "port")["port"]
    admin(trouble.replica, "REPLICAOF", "127.0.0.1", port)
    wait_until(lambda: "master_link_status:up" in raw_replication(trouble.replica), "the replica follows")
    with trouble.stack.client() as client:
        run = client.submit(trouble.agent)
        admin(trouble.server, "WAIT", "1", "5000")
        trouble.fail_over()
        with pytest.raises(StoreUnavailable, match="refuses to write for now"):
            for _ in range(100):  # a moment passes before the old server knows what it is
                client.submit(trouble.agent)
                threading.Event().wait(0.02)
        threading.Event().wait(2)  # the scheduler and the worker meet it too
        trouble.proxy.turn_to(trouble.server.socket)
        trouble.is_back()
        assert run.wait(60).status == "completed"
        assert [step.node for step in run.history()] == [None, "a", "b", "done"]


def raw_replication(server: RedisServer) -> str:
    client = connect(server.url, decode=False)
    facts = client.info("replication")
    client.close()
    return "\n".join(f"{name}:{value}" for name, value in facts.items())


def test_all_connections_are_cut_again_and_again(trouble: Trouble) -> None:
    for _ in range(5):
        wait_until(lambda: connections(trouble.server) > 2, "the processes have connected again")
        assert admin(trouble.server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") > 2
        admin(trouble.server, "CLIENT", "KILL", "TYPE", "pubsub")
    trouble.is_back()


def test_connections_that_hang_are_noticed(trouble: Trouble) -> None:
    """As after a router lost its tables: nothing is closed, nothing arrives; new connections work."""
    assert trouble.proxy.silence() > 3
    trouble.is_back()


def test_a_server_that_freezes_and_thaws(trouble: Trouble) -> None:
    process = trouble.server.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    threading.Event().wait(12)  # longer than any of our timeouts
    process.send_signal(signal.SIGCONT)
    trouble.is_back()


def test_replies_that_are_lost_after_the_command_was_applied(trouble: Trouble) -> None:
    with Client(trouble.direct) as client:
        runs = [client.submit(trouble.agent) for _ in range(20)]
        for _ in range(10):
            trouble.proxy.lose_replies()
            threading.Event().wait(0.2)
        for run in runs:
            assert run.wait(60).status == "completed"
            assert run.output == "2"
            assert [step.node for step in run.history()] == [None, "a", "b", "done"]
    trouble.is_back()
