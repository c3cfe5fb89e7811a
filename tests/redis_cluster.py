"""A real Redis Cluster: several redis-server processes on free ports of 127.0.0.1, with replicas if they are wanted.

TESTED_REDIS_NODES=3 lets the tests use one of so many primaries where they would use the session's Redis, which is
Celery's broker then (`make test-cluster`).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import redis

from sleipnir.local import launch
from sleipnir.local.supervisor import find_server
from sleipnir.store.cluster import slot_of
from tests.waiting import wait_until

VARIABLE: Final = "TESTED_REDIS_NODES"
SLOTS: Final = 16_384
NODE_TIMEOUT_MS: Final = 15_000
"""After which a node counts as failed, and its replica takes its place: Redis' default."""


def wanted_nodes() -> int:
    """0: the tests use one Redis."""
    return int(os.environ.get(VARIABLE) or 0)


def free_port_of_node() -> int:
    """A port below the ephemeral ones, such that the port of the cluster's bus (10,000 above) is free as well."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as of_clients, socket.socket() as of_bus, contextlib.suppress(OSError):
            of_clients.bind(("127.0.0.1", port))
            of_bus.bind(("127.0.0.1", port + 10_000))
            return port


class ClusterNode:
    """One server of a cluster. It can be killed and started again."""

    def __init__(self, folder: Path, node_timeout_ms: int, options: tuple[str, ...]) -> None:
        self._node_timeout_ms = node_timeout_ms
        self.folder, self.port, self._options = folder, free_port_of_node(), options
        folder.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=self.port, decode_responses=True, socket_timeout=10)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        command = [
            str(find_server()), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            "--cluster-enabled", "yes", "--cluster-node-timeout", str(self._node_timeout_ms),
            "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0",
            "--appendonly", "yes", "--appendfsync", "no", "--save", "", *self._options,
        ]  # fmt: skip
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(launch.command(command), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.exceptions.RedisError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def resume(self) -> None:
        """Continue a server that was cut off; another one does so anyway."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def follows(self, primary: ClusterNode) -> bool:
        """Whether it is a replica of that node, and connected."""
        try:
            info: Any = self.client.info("replication")
        except redis.exceptions.RedisError:
            return False
        is_its = info["role"] == "slave" and info["master_port"] == primary.port
        return bool(is_its and info["master_link_status"] == "up")

    def start(self) -> None:
        self.launch()
        wait_until(self.answers, f"the server on port {self.port} answers")

    @property
    def id(self) -> str:
        return str(self.client.execute_command("CLUSTER MYID"))

    @property
    def is_primary(self) -> bool:
        return bool(self.client.role()[0] in ("master", b"master"))


class ServerCluster:
    """A cluster of `primaries`, each with `replicas`. It stands for a RedisServer (processes.py). `broker_url` is the
    broker of what uses it."""

    def __init__(
        self,
        primaries: int = 3,
        replicas: int = 0,
        *options: str,
        broker_url: str = "",
        node_timeout_ms: int = NODE_TIMEOUT_MS,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slp-cluster-"))
        count = primaries * (1 + replicas)
        self.nodes = [ClusterNode(self.folder / str(number), node_timeout_ms, options) for number in range(count)]
        self.url = f"redis-cluster://{','.join(node.address for node in self.nodes[:primaries])}"
        self.addresses: Mapping[str, str] = {"redis_url": self.url, "broker_url": broker_url}
        """The settings that name it."""
        self.start()
        self._join(primaries)

    def start(self) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            wait_until(node.answers, f"the server on port {node.port} answers")

    @property
    def urls(self) -> Sequence[str]:
        """Of each server, for a client of a single one."""
        return [f"redis://{node.address}" for node in self.nodes]

    def _join(self, primaries: int) -> None:
        for number, node in enumerate(self.nodes):
            node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            if number < primaries:
                first, last = SLOTS * number // primaries, SLOTS * (number + 1) // primaries
                node.client.execute_command("CLUSTER ADDSLOTS", *range(first, last))
            self.nodes[0].client.execute_command("CLUSTER MEET", "127.0.0.1", node.port)
        wait_until(self._know_each_other, "all nodes of the cluster know each other", 60)
        for number, node in enumerate(self.nodes[primaries:]):
            node.client.execute_command("CLUSTER REPLICATE", self.nodes[number % primaries].id)
        wait_until(self.is_whole, "the cluster serves all slots", 60)

    def _know_each_other(self) -> bool:
        return all(len(node.client.execute_command("CLUSTER NODES")) == len(self.nodes) for node in self.nodes)

    def is_whole(self) -> bool:
        """Whether every node that answers knows of a primary for each slot, and every replica follows its primary."""
        for node in self.nodes:
            if not node.answers():
                return False
            info: Any = node.client.execute_command("CLUSTER INFO")
            if info["cluster_state"] != "ok" or info["cluster_slots_ok"] != str(SLOTS):
                return False
            if not node.is_primary and node.client.info("replication")["master_link_status"] != "up":
                return False
        return True

    def primaries(self) -> list[ClusterNode]:
        """The nodes that serve slots, as far as they answer."""
        return [node for node in self.nodes if node.answers() and node.is_primary]

    def primary_of(self, key: str) -> ClusterNode:
        """The node that serves a key."""
        port = self._server_of(slot_of(key), next(node for node in self.nodes if node.answers()))
        return next(node for node in self.nodes if node.port == port)

    def cut_off(self, primary: ClusterNode, replica: ClusterNode) -> None:
        """What a node writes from now on does not reach its replica: its socket is closed, and the replica is stopped
        until it is resumed, so that it cannot connect again."""
        assert replica.process is not None
        replica.process.send_signal(signal.SIGSTOP)
        try:
            primary.client.execute_command("CLIENT KILL TYPE replica")
        except BaseException:
            replica.resume()
            raise

    def move_slot(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """Migrate a slot as `redis-cli --cluster reshard` does, while it is in use. The target gives itself a higher
        epoch than those that it has heard of: a node with a higher one than that could take the slot back."""
        wait_until(self._are_of_one_epoch, "all nodes have heard of the newest epoch")
        self.begin_to_move(slot, source, target)
        while keys := source.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 20):
            self.move_keys(keys, source, target)
        wait_until(lambda: self._agree(slot, source, target), f"all nodes agree where slot {slot} is")

    def begin_to_move(self, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        """Until `move_slot` has ended, each key of the slot is with one of the two nodes."""
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, keys: Sequence[str], source: ClusterNode, target: ClusterNode) -> None:
        source.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)

    def _are_of_one_epoch(self) -> bool:
        infos = [node.client.execute_command("CLUSTER INFO") for node in self.nodes]
        return len({info["cluster_current_epoch"] for info in infos}) == 1

    def _agree(self, slot: int, source: ClusterNode, target: ClusterNode) -> bool:
        """Tell the primaries where a slot is. A node that had not heard of the newest epoch is told again."""
        primaries = [node for node in self.nodes if node.is_primary]
        for node in (target, source, *primaries):
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", target.id)
        return all(self._server_of(slot, node) == target.port for node in self.nodes)

    def _server_of(self, slot: int, asked: ClusterNode) -> int | None:
        """The port of the node that serves a slot, as another one sees it."""
        for first, last, primary, *_ in asked.client.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last:
                return int(primary[1])
        return None

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        """For good: its data go too."""
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.kill()
            node.client.close()
        shutil.rmtree(self.folder, ignore_errors=True)
