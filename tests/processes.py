"""Real processes for tests: a redis-server, a scheduler, workers. Started on private sockets, tied to the test process,
stopped by pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from sleipnir.client.client import Client
from sleipnir.local import launch
from sleipnir.local.supervisor import find_server
from sleipnir.settings import Settings
from sleipnir.store.address import is_cluster
from sleipnir.store.connect import connect
from sleipnir.store.keys import Keys
from tests import starter
from tests.redis_cluster import ServerCluster
from tests.waiting import wait_until

FAULTY = Path(__file__).parent / "faulty_redis"

FAST: Mapping[str, Any] = {"lease_s": 2.0, "heartbeat_s": 0.5, "redispatch_after_s": 2.0, "owner_ttl_s": 2.0}
"""Settings under which faults show within seconds."""
CALM: Mapping[str, Any] = {"lease_s": 60.0, "redispatch_after_s": 60.0, "owner_ttl_s": 20.0}
"""Instead of some of FAST, for tests without faults: on a busy machine nothing is taken for lost, or sent twice."""


PARTITIONS = 16
"""Of a stack that asks for no other number: a quarter of the tests have one of their own, and two cores."""


def new_deployment(url: str, keys: Keys) -> None:
    """Store its number of partitions, which may be smaller than what a user may choose; more would only cost idle work.
    A Redis that does not answer gets the default when it does."""
    client = connect(url, retries=0)
    with contextlib.suppress(redis.exceptions.ConnectionError):
        client.hsetnx(keys.meta, "partitions", str(keys.partitions))
    client.close()


class RedisServer:
    """A redis-server with an append-only file, on a unix socket of its own. It can be killed and restarted. `through`
    is a command that starts it: `env NAME=value`.

    The kernel flushes the file (`appendfsync no`): so each command is in it before its reply is sent, and a kill loses
    nothing. With `everysec` Redis holds writes back for up to two seconds while the disk is slow to flush.
    """

    through: tuple[str, ...] = ()

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slp-"))  # short: a socket's path has 108 bytes
        self.socket = f"{self.folder}/redis.sock"
        self.url = f"unix://{self.socket}?db=0"
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def addresses(self) -> Mapping[str, str]:
        """The settings that name it."""
        return {"redis_url": self.url}

    @property
    def urls(self) -> Sequence[str]:
        """Of each server, for a client of a single one."""
        return [self.url]

    def start(self) -> None:
        self.launch()
        wait_for_redis(self.url)

    def launch(self, *more_options: str) -> None:
        """Start it, and do not wait until it answers."""
        command = [
            str(find_server()), "--port", "0", "--unixsocket", self.socket, "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", "no", "--save", "", *self._options, *more_options,
        ]  # fmt: skip
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                launch.command([*self.through, *command]), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """For good: its data go too. Not gently, as a server waits ten seconds for a replica that is behind."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_for_redis(url: str) -> None:
    client = connect(url, retries=0)
    wait_until(lambda: _answers(client), "redis-server answers")
    client.close()


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except Exception:
        return False


class Stack:
    """A scheduler and workers on a Redis, as processes. A context manager."""

    def __init__(self, redis: RedisServer | ServerCluster, home: Path, **settings: Any) -> None:
        self.redis, self.home = redis, home
        self.settings = Settings(**{**redis.addresses, "home": home, "log_level": "debug", **FAST, **settings})
        self.processes: dict[str, starter.Started] = {}
        home.mkdir(parents=True, exist_ok=True)
        partitions = self.settings.partitions or PARTITIONS
        self.keys = Keys(self.settings.key_prefix, partitions, is_cluster(str(self.settings.redis_url)))
        new_deployment(redis.url, self.keys)

    def client(self) -> Client:
        return Client(self.settings)

    def sleipnir(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """`sleipnir ...` with this stack, to its end."""
        return starter.run([sys.executable, "-m", "sleipnir", *words], self.environment() | settings)

    def start_scheduler(self, name: str = "scheduler", *, env: Mapping[str, str] | None = None) -> None:
        self.start(name, [sys.executable, "-m", "sleipnir_scheduler"], env)

    def start_worker(
        self,
        name: str = "worker",
        queues: str = "scripts,functions",
        *,
        pool: str = "threads",
        concurrency: int = 2,
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> None:
        command = [
            sys.executable, "-m", "celery", "-A", "sleipnir_workers.app", "worker", "-Q", queues, "-P", pool,
            "-c", str(concurrency), "-n", f"{name}@%h", "--loglevel", "INFO", "--without-gossip", "--without-mingle",
        ]  # fmt: skip
        self.start(name, command, env)
        if ready:
            self.wait_for_worker(name)

    def wait_for_worker(self, name: str, timeout_s: float = 60.0) -> None:
        with self.client() as client:
            wait_until(
                lambda: [w for w in client.health().workers if w.name.startswith(f"{name}@")],
                f"worker {name} is announced\n{self.log(name)}",
                timeout_s,
            )

    def environment(self) -> dict[str, str]:
        """The environment of a process of this stack."""
        return {k: v for k, v in os.environ.items() if not k.startswith("SLEIPNIR_")} | self.settings.to_env()

    def start(self, name: str, command: list[str], env: Mapping[str, str] | None = None) -> None:
        environment = {**self.environment(), **(env or {})}
        if "FAULTY_REDIS" in environment:  # tests/faulty_redis/faults.py
            path = [str(FAULTY), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        with (self.home / f"{name}.log").open("ab") as log, Path(os.devnull).open("rb") as nothing:
            self.processes[name] = starter.start(command, environment, nothing, log, log)

    def log(self, name: str) -> str:
        file = self.home / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def signal(self, name: str, signum: int) -> None:
        self.processes[name].send_signal(signum)

    def kill(self, name: str) -> None:
        """kill -9, and be sure that it is gone."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End them all at once. Not gently, which takes seconds and which tests of stopping do for themselves; what
        they started dies with them."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        self.processes = {}

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def write_agent(folder: Path, graph: str | None, **files: str) -> Path:
    """An agent folder with this graph.yaml (None: it has none) and these files; `scripts__a_py` becomes
    `scripts/a.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    if graph is not None:
        (folder / "graph.yaml").write_text(graph)
    for name, text in files.items():
        stem, _, suffix = name.replace("__", "/").rpartition("_")
        file = folder / f"{stem}.{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder
