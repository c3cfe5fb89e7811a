"""The state on a Redis Cluster: its nodes fail one by one, fail over, and slots move while runs go on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sleipnir.batches.records import row_run_id
from sleipnir.client.client import Client
from sleipnir.client.run import Run
from sleipnir.errors import ConfigError, NotReplicated, RunNotFound, StoreUnavailable
from sleipnir.failpoints import VARIABLE
from sleipnir.runs.run import child_id
from sleipnir.settings import Settings
from sleipnir.store.cluster import slot_of
from sleipnir.store.scripts import Arg, LuaScript
from sleipnir.waiting import sleep
from tests.asking import ASK, COUNT
from tests.processes import RedisServer, Stack, write_agent
from tests.redis_cluster import ClusterNode, ServerCluster
from tests.waiting import wait_until

NAP = """
name: nap
start: a
nodes:
  a: {type: function, call: "f.py:f", next: done}
  done: {type: end, output: "{{n}}"}
"""
SLEEP = "import time\n\n\ndef f(state):\n    time.sleep(0.1)\n    return {'n': 1}\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(broker: RedisServer) -> Iterator[ServerCluster]:
    """Three primaries, each with a replica."""
    made = ServerCluster(3, 1, broker_url=broker.url, node_timeout_ms=3_000)
    yield made
    made.stop()


@pytest.fixture
def without_replicas(broker: RedisServer) -> Iterator[ServerCluster]:
    made = ServerCluster(3, broker_url=broker.url)
    yield made
    made.stop()


@pytest.fixture
def stack(cluster: ServerCluster, tmp_path: Path) -> Iterator[Stack]:
    with Stack(cluster, tmp_path / "home", key_prefix=tmp_path.name, agents_dir=tmp_path) as running:
        running.start_scheduler()
        running.start_worker()
        yield running


@pytest.fixture
def ask(tmp_path: Path) -> Path:
    return write_agent(tmp_path / "ask", ASK, f_py=COUNT)


def node_of(cluster: ServerCluster, run: Run) -> ClusterNode:
    return cluster.primary_of(run._store.keys.of_run(run.id).run)


def all_ask(runs: list[Run]) -> None:
    for run in runs:
        wait_until(lambda run=run: gates_of(run), f"run {run.id} asks", 60)  # type: ignore[misc]


def complete(runs: list[Run]) -> None:
    for run in runs:
        run.answer("yes")
    for run in runs:
        info = run.wait(90)
        assert (info.status, run.output) == ("completed", "yes 2"), info.error


def asking_everywhere(client: Client, cluster: ServerCluster, ask: Path, count: int = 12) -> list[Run]:
    """So many runs that ask, or more, some on each node."""
    runs = [client.submit(ask) for _ in range(count)]
    primaries = {node.port for node in cluster.nodes if node.is_primary}
    while {node_of(cluster, run).port for run in runs} != primaries:
        runs.append(client.submit(ask))
    all_ask(runs)
    return runs


def test_runs_are_on_all_nodes(cluster: ServerCluster, stack: Stack, ask: Path) -> None:
    with stack.client() as client:
        complete(asking_everywhere(client, cluster, ask))
    done = stack.sleipnir("doctor")
    assert done.returncode == 0, done.stdout
    assert "3 nodes" in done.stdout


def test_what_is_wrong_with_one_node_is_wrong_with_the_deployment(cluster: ServerCluster, stack: Stack) -> None:
    ill = next(node for node in cluster.nodes if node.is_primary)
    with stack.client() as client:
        sound = client.health()
        assert (sound.appendonly, sound.maxmemory) == (True, 0)
        ill.client.config_set("appendonly", "no")
        ill.client.config_set("maxmemory", 2**30)
        try:
            found = client.health()
        finally:
            ill.client.config_set("appendonly", "yes")
            ill.client.config_set("maxmemory", 0)
        assert (found.appendonly, found.maxmemory) == (False, 2**30)


def test_slots_move_while_runs_go_on(cluster: ServerCluster, stack: Stack, ask: Path) -> None:
    with stack.client() as client:
        keys, runs = client.store.keys, asking_everywhere(client, cluster, ask)
        before = generations(client)
        moved = {keys.partition_of(run.id) for run in runs}
        for partition in sorted(moved):
            slot = slot_of(keys.of_partition(partition).inbox)
            source = cluster.primary_of(keys.of_partition(partition).inbox)
            target = next(node for node in cluster.nodes if node.is_primary and node is not source)
            cluster.move_slot(slot, source, target)
        complete(runs)
        complete(asking_everywhere(client, cluster, ask, 30))
        wait_until(lambda: all(serving(client, cluster)), "all partitions know the servers that they are on", 30)
        assert generations(client) == before, "nothing was lost"


def test_a_script_waits_for_its_slot_and_is_not_executed_in_part(
    cluster: ServerCluster, stack: Stack, ask: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key by which it is sent is with one node, and another one that it uses with another node already."""
    script, waits, found = LuaScript("newest_listed"), threading.Event(), list[Any]()
    args: dict[str, Arg] = {"most_ms": "+inf", "least_ms": "-inf", "limit": 10}
    with stack.client() as client:
        run = client.submit(ask)
        all_ask([run])
        part = client.store.keys.of_partition(client.store.keys.partition_of(run.id))
        slot, source = slot_of(part.inbox), cluster.primary_of(part.inbox)
        target = next(node for node in cluster.nodes if node.is_primary and node is not source)
        first, second = islice(source.client.scan_iter(f"{part.tag}:lists:*", count=1000, _type="zset"), 2)
        cluster.begin_to_move(slot, source, target)
        cluster.move_keys([second], source, target)
        reading = threading.Thread(
            target=lambda: found.append(script(client.store._client, {"first": first}, args, [second]))
        )
        with monkeypatch.context() as patched:
            patched.setattr("sleipnir.store.cluster.sleep", lambda seconds: (waits.set(), sleep(seconds)))
            reading.start()
            wait_until(lambda: waits.is_set() or not reading.is_alive(), "it is called", 30)
            cluster.move_slot(slot, source, target)
            reading.join(60)
        assert waits.is_set()
        assert [reply[::2] for reply in found] == [[run.id]]
        complete([run])


def generations(client: Client) -> dict[str, str]:
    store = client.store
    return {key: store._client.hget(key, "id") for key in store.keys.generations}


def serving(client: Client, cluster: ServerCluster) -> Iterator[bool]:
    """By partition whether its generation has the server that serves it."""
    for key in client.store.keys.generations:
        server: Any = cluster.primary_of(key).client.info("server")
        yield client.store._client.hget(key, "server") == server["run_id"]


def test_runs_continue_where_a_node_has_failed_over(cluster: ServerCluster, stack: Stack, ask: Path) -> None:
    with stack.client() as client:
        runs = asking_everywhere(client, cluster, ask)
        failing = node_of(cluster, runs[0])
        wait_until(lambda: follows(failing, cluster), "its replica has all of it", 30)
        failing.kill()
        wait_until(lambda: node_of(cluster, runs[0]) is not failing, "its replica is a primary", 60)
        complete(runs)
        failing.start()
        wait_until(cluster.is_whole, "it is a replica now", 60)
    wait_until(lambda: "a new generation begins" in stack.log("scheduler"), "the fail-over was noticed", 30)


def follows(node: ClusterNode, cluster: ServerCluster) -> bool:
    """Whether the replica of this node has received what it has written."""
    port = int(node.client.info("replication")["slave0"]["port"])
    replica = next(each for each in cluster.nodes if each.port == port)
    offset = int(node.client.info("replication")["master_repl_offset"])
    return int(replica.client.info("replication")["slave_repl_offset"]) >= offset


PARENT = """
name: parent
start: sure
nodes:
  sure: {type: input, question: "Begin?", next: call}
  call: {type: agent, agent: ask, prompt: "hi", state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""


@pytest.mark.parametrize("loses", ["start", "end"])
def test_what_a_node_was_told_and_has_lost_is_told_again(
    cluster: ServerCluster, stack: Stack, tmp_path: Path, ask: Path, loses: str
) -> None:
    """The start of a child, which another node owed to it, or the end of a child that is on another node."""
    assert ask.is_dir()
    with stack.client() as client:
        parents = [client.submit(write_agent(tmp_path / "parent", PARENT)) for _ in range(9)]
        all_ask(parents)
        children = {run.id: Run(client.store, child_id(run.id, 2), client.settings) for run in parents}
        parent = next(run for run in parents if node_of(cluster, run) is not node_of(cluster, children[run.id]))
        child = children[parent.id]
        if loses == "end":
            parent.answer("yes")
            wait_until(lambda: gates_of(child), "the child asks", 60)
        failing = node_of(cluster, child if loses == "start" else parent)
        replica = next(node for node in cluster.nodes if node.follows(failing))
        wait_until(lambda: follows(failing, cluster), "its replica has all of it", 30)
        cluster.cut_off(failing, replica)
        if loses == "end":
            child.answer("yes")
            wait_until(lambda: parent.info().is_final, "the parent is over, as its node has it", 60)
        else:
            parent.answer("yes")
            wait_until(lambda: gates_of(child), "the child asks, as its node has it", 60)
        failing.kill()
        replica.resume()
        wait_until(
            lambda: node_of(cluster, child) is not failing and node_of(cluster, parent) is not failing,
            "its replica is a primary",
            60,
        )
        if loses == "start":
            wait_until(lambda: gates_of(child), "the child is started again, and asks", 90)
            child.answer("yes")
        info = parent.wait(90)
        assert (info.status, parent.output) == ("completed", "yes 2"), info.error
        assert child.info().status == "completed"
        failing.start()
        wait_until(cluster.is_whole, "it is a replica now", 60)
    assert "effects are delivered again" in stack.log("scheduler")


def test_a_run_is_acknowledged_once_a_replica_has_it(
    cluster: ServerCluster, stack: Stack, tmp_path: Path, ask: Path
) -> None:
    acknowledged = replace(stack.settings, ack_wait_replicas=1)
    with Client(acknowledged) as client:
        run = client.submit(ask, request_id="first")
        all_ask([run])
        primary = node_of(cluster, run)
        replica = next(node for node in cluster.nodes if node.follows(primary))
        cluster.cut_off(primary, replica)
        with pytest.raises(NotReplicated, match=f"run '{run.id}' is answered, but after 2 s fewer than 1 replicas"):
            run.answer("yes")
        with pytest.raises(NotReplicated, match=f"run '{run.id}' is accepted"):
            client.submit(ask, request_id="first")
        names = (f"batch{number}" for number in range(99))
        named = next(name for name in names if cluster.primary_of(client.store.keys.of_batch(name).batch) is primary)
        with pytest.raises(NotReplicated, match=f"batch '{named}' is accepted"):
            client.batch(ask, [{"prompt": "hi"}], id=named)
        replica.resume()
        wait_until(lambda: replica.follows(primary), "the replica is back", 60)
        assert client.submit(ask, request_id="first").id == run.id
        assert client.batch(ask, [{"prompt": "hi"}], id=named).submitted.known == 1
        info = run.wait(90)
        assert (info.status, run.output) == ("completed", "yes 2"), info.error


def gates_of(run: Run) -> Any:
    """Its questions; none while it, or its node, is not there."""
    try:
        return run.gates()
    except (RunNotFound, StoreUnavailable):
        return []


def test_runs_on_other_nodes_go_on_while_one_is_away(
    without_replicas: ServerCluster, tmp_path: Path, ask: Path
) -> None:
    cluster = without_replicas
    with Stack(cluster, tmp_path / "home", key_prefix=tmp_path.name) as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        runs = asking_everywhere(client, cluster, ask)
        away = node_of(cluster, runs[0])
        there = [run for run in runs if node_of(cluster, run) is away]
        others = [run for run in runs if run not in there]
        away.kill()
        complete(others)
        with pytest.raises(StoreUnavailable, match=str(away.port)):
            there[0].info()
        shown = stack.sleipnir("show", there[0].id)
        assert shown.returncode != 0
        assert str(away.port) in shown.stderr
        away.start()
        wait_until(cluster.is_whole, "the node is back", 60)
        complete(there)


def test_rows_on_other_nodes_begin_while_one_is_away(
    without_replicas: ServerCluster, tmp_path: Path, ask: Path
) -> None:
    cluster = without_replicas
    with Stack(cluster, tmp_path / "home", key_prefix=tmp_path.name) as stack, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker()
        first = cluster.primary_of(client.store.keys.of_partition(0).inbox)
        away = next(node for node in cluster.nodes if node is not first)

        def is_there(name: str) -> bool:
            """Whether neither the batch nor its first row is on the node that fails."""
            keys = client.store.keys.of_batch(name).batch, client.store.keys.of_run(row_run_id(name, 0)).run
            return away not in map(cluster.primary_of, keys)

        names = [f"batch{number}" for number in range(50)]
        goes_on, waits = next(filter(is_there, names)), next(name for name in names if not is_there(name))
        rows = [{"prompt": str(number)} for number in range(24)]
        batches = [client.batch(ask, rows, id=name, canary=1) for name in (goes_on, waits)]
        runs, waiting = (
            [Run(client.store, batch.run_id(row), client.settings) for row in range(len(rows))] for batch in batches
        )
        canaries = [runs.pop(0), waiting.pop(0)]
        all_ask(canaries)
        complete(canaries)
        for batch in batches:
            wait_until(lambda batch=batch: batch.info().state == "canary", "its canary is over")  # type: ignore[misc]
        others = [run for run in runs if node_of(cluster, run) is not away]
        assert 0 < len(others) < len(runs)
        away.kill()
        batches[0].resume()
        all_ask(others)
        away.start()
        wait_until(cluster.is_whole, "the node is back", 60)
        batches[1].resume()
        all_ask([*runs, *waiting])


def test_schedulers_tell_the_one_that_admits_rows_how_much_work_their_partitions_have(
    without_replicas: ServerCluster, tmp_path: Path
) -> None:
    """The rows of a batch go on when two of three die, the one that admits may be among them."""
    nap = write_agent(tmp_path / "nap", NAP, f_py=SLEEP)
    names = [f"scheduler-{number}" for number in range(3)]
    with Stack(without_replicas, tmp_path / "home", partitions=256, owner_ttl_s=3.0) as stack, stack.client() as client:
        for name in names:
            stack.start_scheduler(name)

        def shares() -> list[int]:
            return sorted(Counter(client.store.partitions.owners().values()).values())

        wait_until(
            lambda: len(shares()) == 3 and sum(shares()) == 256 and shares()[0] >= 84, "they share the partitions"
        )
        stack.start_worker(concurrency=8)
        batch = client.batch(nap, ({"prompt": str(number)} for number in range(400)))
        published: set[int] = set()

        def others_publish() -> bool:
            counts = client.store.outstanding.published(500)
            published.update(*(count.partitions for count in counts))
            assert batch.info().active <= 200, "far more than the window, which is 4 per slot"
            return len(published) >= 168

        wait_until(others_publish, "two of three publish what they have")
        for name in names[1:]:
            stack.kill(name)
        wait_until(lambda: batch.info().state == "done", "all rows have ended", 120)
        assert batch.info().completed == 400


def test_a_cluster_needs_another_broker(cluster: ServerCluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SLEIPNIR_BROKER_URL is not set: Celery does not work on a Redis Cluster"):
        Client(Settings(redis_url=cluster.url, home=tmp_path))
    with pytest.raises(ConfigError, match="SLEIPNIR_BROKER_URL is one: Celery does not work on a Redis Cluster"):
        Client(Settings(redis_url=cluster.url, broker_url=cluster.url, home=tmp_path))


def test_forks_of_runs_on_other_nodes_survive_the_death_of_a_scheduler(
    cluster: ServerCluster, tmp_path: Path, ask: Path
) -> None:
    """A fork and its source are changed by two scripts, if they are in different slots."""
    with Stack(cluster, tmp_path / "home", key_prefix=tmp_path.name) as stack, stack.client() as client:
        stack.start_scheduler("first")
        stack.start_worker()
        sources = client.batch(ask, ({"key": f"k{number}"} for number in range(10)), key="key")
        rows = [client.run(id_) for id_ in wait_for_questions(client, sources.id, 10)]
        complete(rows)
        stack.kill("first")
        forks = client.fork_batch(sources.id, before="sure")
        stack.start_scheduler("victim", env={VARIABLE: "list_fork.before=kill"})
        victim = stack.processes.pop("victim")
        wait_until(lambda: victim.poll() is not None, f"it dies\n{stack.log('victim')}", 60)
        stack.start_scheduler("second")
        complete([client.run(id_) for id_ in wait_for_questions(client, forks.id, 10)])
        listed = [fork.id for row in rows for fork in client.store.runs.forks(row.id, 0, 10).forks]
        assert len(listed) == len(set(listed)) == 10


def wait_for_questions(client: Client, batch: str, count: int) -> list[str]:
    """The ids of the runs of a batch, once all of them ask."""
    return wait_until(
        lambda: (
            found if len(found := [run.id for run in client.runs(batch=batch, status={"waiting"})]) == count else []
        ),
        f"all runs of {batch} ask",
        90,
    )
