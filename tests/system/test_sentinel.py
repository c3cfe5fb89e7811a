"""A master, a replica and three Sentinels: schedulers and workers follow a failover, and no run is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.local import launch
from sleipnir.local.supervisor import find_server
from sleipnir.store.connect import connect
from sleipnir.store.fast_client import FastClient
from tests.asking import ASK, COUNT
from tests.processes import RedisServer, Stack, wait_for_redis, wait_until, write_agent
from tests.secured import free_port

PASSWORD = "planted77e0b1"
WATCHES = """
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor mine 127.0.0.1 {master} 2
sentinel auth-pass mine {password}
sentinel down-after-milliseconds mine 1000
sentinel failover-timeout mine 5000
"""


class Watched:
    """Two servers with a password, the first one the master, and Sentinels. `url` is what deployments are told."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.ports = [free_port(), free_port()]
        options = ["--bind", "127.0.0.1", "--requirepass", PASSWORD, "--masterauth", PASSWORD]
        options += ["--repl-diskless-sync-delay", "0"]
        self.servers = [Server(port, *options) for port in self.ports]
        self.direct = [f"redis://:{PASSWORD}@127.0.0.1:{port}/0" for port in self.ports]
        for url in self.direct:
            wait_for_redis(url)
        connect(self.direct[1]).execute_command("REPLICAOF", "127.0.0.1", str(self.ports[0]))
        wait_until(lambda: self.info(1)["master_link_status"] == "up", "the replica follows")
        sentinel_ports = [free_port() for _ in range(3)]
        self.sentinels = [self._start_sentinel(folder / f"s{port}", port) for port in sentinel_ports]
        self.hosts = [f"127.0.0.1:{port}" for port in sentinel_ports]
        self.url = f"redis+sentinel://:{PASSWORD}@{','.join(self.hosts)}/mine"
        for host in self.hosts:
            wait_for_redis(f"redis://{host}")
            wait_until(lambda host=host: self._knows_all(host), "a Sentinel knows the replica and the others")

    def _start_sentinel(self, folder: Path, port: int) -> subprocess.Popen[bytes]:
        folder.mkdir()
        file = folder / "sentinel.conf"
        file.write_text(WATCHES.format(port=port, folder=folder, master=self.ports[0], password=PASSWORD))
        with (folder / "log").open("wb") as log:
            command = launch.command([str(find_server()), str(file), "--sentinel"])
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _knows_all(self, host: str) -> bool:
        client: Any = connect(f"redis://{host}", retries=0)
        state: dict[str, Any] = client.sentinel_masters()["mine"]
        return int(state["num-slaves"]) == 1 and int(state["num-other-sentinels"]) == 2

    def info(self, number: int) -> dict[str, Any]:
        client: Any = connect(self.direct[number])  # a new master closes connections: it repeats
        return dict(client.info("replication"))

    def stop(self) -> None:
        for process in self.sentinels:
            process.kill()
            process.wait()
        for server in self.servers:
            server.stop()


class Server(RedisServer):
    """On a port of this machine too, with a password: what waits for it must know that."""

    def __init__(self, port: int, *options: str) -> None:
        super().__init__("--port", str(port), *options)

    def start(self) -> None:
        self.launch()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    running = Watched(tmp_path_factory.mktemp("sentinel") / "of")
    yield running
    running.stop()


def test_runs_continue_at_the_new_master(watched: Watched, tmp_path: Path) -> None:
    ask = write_agent(tmp_path / "ask", ASK, f_py=COUNT)
    kept = FastClient(connect(watched.url, single_connection_client=True))  # as each thread of a worker has one
    assert kept.execute_command("ROLE")[0] == "master"
    with Stack(watched.servers[0], tmp_path / "home", redis_url=watched.url) as stack:
        stack.start_scheduler()
        stack.start_worker()
        with stack.client() as client:
            run = client.submit(ask)
            wait_until(run.gates, "it asks", 60)
            wait_until(
                lambda: watched.info(0)["master_repl_offset"] == watched.info(1)["slave_repl_offset"], "all is copied"
            )
            watched.servers[0].kill()
            watched.sentinels[0].kill()  # the first that everybody asks
            watched.sentinels[0].wait()
            wait_until(lambda: watched.info(1)["role"] == "master", "the replica is the master", 60)
            wait_for_redis(watched.url)  # the Sentinels agree a moment later
            assert kept.execute_command("ROLE")[0] == "master", (
                "it connects to the new master, not to the old one again"
            )
            run.answer("yes")
            info = run.wait(60)
            assert (info.status, run.output) == ("completed", "yes 2"), info.error
            assert client.submit(ask).info().status in ("submitted", "running", "waiting")
        done = stack.sleipnir("doctor")
        assert "redis+sentinel://:***@" in done.stdout
        assert done.returncode == 0, done.stdout
        assert "broker: redis+sentinel://" in done.stdout
        assert stack.sleipnir("worker", "--health").returncode == 0
        assert PASSWORD not in stack.log("scheduler") + stack.log("worker") + done.stdout
