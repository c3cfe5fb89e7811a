"""Fail-overs of a Redis Cluster that lose acknowledged writes, and exactly which ones they lost.

Replicas do not promote themselves, so that this module decides the moment. A node is killed, mostly after its replica
was cut off from it for up to a second. The append-only file of the dead node has every write that it acknowledged: a
server of its own loads the file, and each key is compared with what the replica has. Then the replica takes the node's
place, and the node comes back as its replica.

A run has lost something if a key of its own differs, or an entry or a member of another key that names it. Redis'
documented rules explain that such a run is gone, or that it, or one that depends on it, ends in another way. Nothing
else is explained, and a run that has lost nothing keeps all promises.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ops.chaos.robot import STALL_S
from ops.chaos.verdict import Kind, Wrong
from sleipnir.client import client as api
from sleipnir.runs.views import RunInfo
from sleipnir.store import connect as redis_client
from tests.processes import RedisServer
from tests.redis_cluster import ClusterNode, ServerCluster
from tests.waiting import wait_until

NODE_OPTIONS: Final = ("--cluster-replica-no-failover", "yes")
CUT_OFF: Final = 0.7
"""The share of fail-overs that lose what the node has written since its replica was cut off."""
LONGEST_CUT_S: Final = 1.0
WAIT_S: Final = 30.0
OUTAGE_S: Final = 2.5
"""At least as long is a node away: nodes have to agree first that it has failed (`cluster-node-timeout`)."""
AT_ONCE: Final = 500  # keys of one round trip

OWN: Final[frozenset[Kind]] = frozenset({"lost", "differs"})
"""What may be wrong with a run that has lost writes: it is gone, or a person's request is, or a node that counts its
executions was executed once more. The data of a node go back to an earlier point together, and what others had told it
is told again. So no loss explains a run that is stuck, a double commit, a state that is not the fold of its journal, or
keys that are left over."""
OF_RELATIVES: Final[frozenset[Kind]] = frozenset({"differs"})
"""What may be wrong with a run that has lost nothing, but depends on one that has."""


@dataclass(frozen=True)
class Loss:
    """What one fail-over lost: the names of runs, or of what else, in the entries and members that differ, by key."""

    keys: Mapping[str, frozenset[str]]

    @property
    def names(self) -> frozenset[str]:
        """Of everything that has lost something; those of runs are among them."""
        return frozenset(name for names in self.keys.values() for name in names)


class Losses:
    """What all fail-overs of a campaign have lost."""

    def __init__(self, losses: Iterable[Loss] = ()) -> None:
        self.all = list(losses)

    @property
    def by_run(self) -> Counter[str]:
        """How many fail-overs each run has lost something in. Names of other things are among them."""
        return Counter(name for loss in self.all for name in loss.names)

    def forgotten(self, executions: Iterable[str]) -> dict[str, int]:
        """How many executions of each visit (`run/seq`) may belong to a past that Redis does not remember: one for each
        fail-over in which its run has lost something."""
        lost = self.by_run
        return {place: lost[run] for place in executions if (run := place.partition("/")[0]) in lost}

    def wait_for_runs(self, client: api.Client) -> None:
        """Until the runs that have lost something are over, child runs too; at most STALL_S."""
        names, end_s = sorted(self.by_run), time.monotonic() + STALL_S
        while any(info is not None and not info.is_final for info in _find(client, names)):
            if time.monotonic() > end_s:
                break
            time.sleep(0.5)

    def sort(
        self, wrongs: Iterable[Wrong], infos: Sequence[RunInfo], run_ids: Iterable[str]
    ) -> tuple[list[Wrong], list[Wrong]]:
        """The promises that are broken, and what the losses explain. `infos` are the runs that are there, `run_ids` all
        that were accepted."""
        lost = self.by_run.keys() & {*run_ids, *(info.id for info in infos)}
        near = lost | _relatives(infos, lost)
        broken, explained = list[Wrong](), list[Wrong]()
        for wrong in wrongs:
            run = wrong.text.partition(":")[0]
            by_loss, by_relation = wrong.kind in OWN and run in lost, wrong.kind in OF_RELATIVES and run in near
            (explained if by_loss or by_relation else broken).append(wrong)
        return broken, explained

    def facts(self, run_ids: Iterable[str], explained: Iterable[Wrong]) -> dict[str, Any]:
        runs = frozenset(run_ids)
        return {
            "fail_overs": len(self.all),
            "losing": sum(not loss.names.isdisjoint(runs) for loss in self.all),
            "keys": sum(len(loss.keys) for loss in self.all),
            "runs": len(self.by_run.keys() & runs),
            "explained": dict(Counter(wrong.kind for wrong in explained)),
        }


def _find(client: api.Client, names: Sequence[str]) -> list[RunInfo | None]:
    with client.store.errors():
        return client.store.runs.find(names)


def _relatives(infos: Sequence[RunInfo], lost: Collection[str]) -> frozenset[str]:
    """The runs below and above those that have lost something, and the forks of all of these: they wait for each other,
    or have gone on from what was lost."""
    above = {info.id: {info.parent, info.forked_from, info.previous} - {None} for info in infos}
    near, more = set[str](), set(lost)
    while more:
        near |= more
        below = {run for run, sources in above.items() if sources & more}
        parents = {info.parent for info in infos if info.id in more and info.parent is not None}
        more = (below | parents) - near
    return frozenset(near)


def fail_over(cluster: ServerCluster, chance: random.Random) -> Loss | None:
    """Let a replica take the place of its node, and return what that lost. None: no node has a replica that follows."""
    pairs = [(node, replica) for node in cluster.nodes for replica in cluster.nodes if replica.follows(node)]
    if not pairs:
        return None
    node, replica = chance.choice(pairs)
    cut_s = chance.uniform(0.1, LONGEST_CUT_S) if chance.random() < CUT_OFF else 0.0
    if cut_s:
        cluster.cut_off(node, replica)
        time.sleep(cut_s)
    node.kill()
    replica.resume()
    killed_s = time.monotonic()
    wait_until(lambda: _is_apart(replica), f"the replica on port {replica.port} has read what it was sent", WAIT_S)
    loss = _difference(node, replica)
    time.sleep(max(0.0, killed_s + OUTAGE_S - time.monotonic()))
    replica.client.execute_command("CLUSTER FAILOVER TAKEOVER")
    wait_until(lambda: replica.is_primary, f"the replica on port {replica.port} is a primary", WAIT_S)
    node.start()
    wait_until(lambda: node.follows(replica), f"the server on port {node.port} is a replica", WAIT_S)
    return loss


def _is_apart(replica: ClusterNode) -> bool:
    info: Any = replica.client.info("replication")
    return bool(info["master_link_status"] == "down")


def _difference(node: ClusterNode, replica: ClusterNode) -> Loss:
    """What a dead node had and its replica has not, and the reverse: what the node had removed."""
    server = RedisServer("--dir", str(node.folder))
    had, has = redis_client.connect(server.url), _reading(replica)
    try:
        keys = sorted({*had.scan_iter(count=1000), *has.scan_iter(count=1000)})
        differing = [
            key for key, one, other in zip(keys, _dumps(had, keys), _dumps(has, keys), strict=True) if one != other
        ]
        names = {key: _names(key, _elements(had, key) ^ _elements(has, key)) for key in differing}
        return Loss({key: names[key] for key in differing if names[key]})
    finally:
        had.close()
        has.close()
        server.stop()


def _reading(replica: ClusterNode) -> redis_client.Client:
    """A client that may read from a replica, also after its connection was cut."""

    def greet(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("READONLY")
        connection.read_response()

    return redis_client.connect(f"redis://{replica.address}", redis_connect_func=greet)


def _dumps(client: redis_client.Client, keys: Sequence[str]) -> list[Any]:
    found = list[Any]()
    for first in range(0, len(keys), AT_ONCE):
        pipe = client.pipeline(transaction=False)
        for key in keys[first : first + AT_ONCE]:
            pipe.dump(key)
        found += pipe.execute()
    return found


_READ: Final[Mapping[str, Callable[[redis_client.Client, str], set[tuple[str, str]]]]] = {
    "none": lambda client, key: set(),
    "string": lambda client, key: {("", str(client.get(key)))},
    "list": lambda client, key: {("", f"{at} {text}") for at, text in enumerate(client.lrange(key, 0, -1))},
    "set": lambda client, key: {(member, "") for member in client.smembers(key)},
    "zset": lambda client, key: {(member, "") for member in client.zrange(key, 0, -1)},
    "hash": lambda client, key: set(client.hgetall(key).items()),
    "stream": lambda client, key: {(entry.get("run", ""), f"{id_} {entry}") for id_, entry in client.xrange(key)},
}
"""The elements of a value by its type: what names them, and the rest of them. The scores of a sorted set are times,
which heartbeats and looks renew."""


def _elements(client: redis_client.Client, key: str) -> set[tuple[str, str]]:
    return _READ[client.type(key)](client, key)


def _names(key: str, elements: Iterable[tuple[str, str]]) -> frozenset[str]:
    """What has lost something, if these elements of a key differ: the run whose key it is, or those that the elements
    name; else the key itself."""
    if not elements:
        return frozenset()
    if ":run:" in key:
        return frozenset({key.partition(":run:")[2].partition(":")[0]})
    return frozenset(name.partition("/")[0] or key for name, _ in elements)
