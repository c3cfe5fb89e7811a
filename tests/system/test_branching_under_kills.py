"""Graphs that branch, while workers and schedulers are killed with -9: the end is the one of a run without faults.

All graphs run at once, on both engines, so that one death hits every node of every graph: a worker's while each run is
inside another of its nodes, or at the exact line where a failpoint kills. Each committed visit is there once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.failpoints import VARIABLE
from tests.branching import NODES, OUTPUTS, Scratch, both, committed, completed, known_agent
from tests.processes import RedisServer, Stack, wait_until


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    prefix = request.node.name.replace("[", "-").replace("]", "")
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, owner_ttl_s=0.5) as stack:
        yield stack


class Case(NamedTuple):
    """A run of one of the known graphs."""

    name: str
    scratch: Scratch
    run: Run

    def ends_right(self, client: Client) -> None:
        assert completed(client, self.run) == OUTPUTS[self.name]
        assert committed(self.run) == NODES[self.name] | {"done": 1}


def start(client: Client, folder: Path, name: str, engine: str, *, hang: str | None = None, hold: str = "") -> Case:
    scratch = Scratch(folder / f"{name}-{engine}-{hang}")
    if hang:
        scratch.hang(hang)
    scratch.hold(*hold.split())
    return Case(name, scratch, scratch.start(client, known_agent(folder / "agents", name, engine)))


def dies(stack: Stack, name: str) -> None:
    """The process ends by its failpoint, and by nothing else."""
    process = stack.processes.pop(name)
    wait_until(lambda: process.poll() is not None, f"{name} comes to its failpoint\n{stack.log(name)}")
    assert process.returncode == -signal.SIGKILL, stack.log(name)


@pytest.mark.conformance("DU-01")
def test_a_worker_is_killed_inside_each_node(own: Stack, tmp_path: Path) -> None:
    own.start_scheduler()
    own.start_worker("first", concurrency=40)
    with own.client() as client:
        cases = [
            (node, start(client, tmp_path, name, engine, hang=node))
            for engine in ("bsp", "dag")
            for name, nodes in NODES.items()
            for node in nodes
        ]
        for node, case in cases:
            wait_until(
                lambda node=node, case=case: case.scratch.hangs(node) and alone(case.run, node),  # type: ignore[misc]
                f"{case.name} hangs in {node}, and nothing else runs",
            )
        before = [case.scratch.counts() for _, case in cases]
        own.kill("first")
        own.start_worker("second", concurrency=12)
        for (node, case), earlier in zip(cases, before, strict=True):
            case.ends_right(client)
            counts = case.scratch.counts()
            assert counts.pop(node) > earlier[node], "what the dead worker did not finish is run again"
            assert counts == {name: count for name, count in NODES[case.name].items() if name != node}


def alone(run: Run, node: str) -> bool:
    """Whether only this node is at work."""
    return {visit.node for visit in run.info().visits if visit.state == "started"} == {node}


@pytest.mark.parametrize("point", ["claim.after", "deliver.after"])
@pytest.mark.conformance("DU-01")
def test_a_worker_is_killed_between_its_tasks(own: Stack, tmp_path: Path, point: str) -> None:
    own.start_scheduler()
    own.start_worker("victim", env={VARIABLE: f"{point}=kill@3"})
    with own.client() as client:
        cases = [start(client, tmp_path, name, engine) for engine in ("bsp", "dag") for name in NODES]
        dies(own, "victim")
        own.start_worker("second", concurrency=6)
        for case in cases:
            case.ends_right(client)


@both
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.conformance("DU-01", "JN-03", "DG-09")
def test_the_scheduler_is_killed_between_the_ends_of_two_branches(
    own: Stack, tmp_path: Path, side: str, engine: str
) -> None:
    """The third commit is the end of the first branch: what has arrived is not forgotten, nor counted twice."""
    own.start_worker(concurrency=4)
    own.start_scheduler("victim", env={VARIABLE: f"commit.{side}=kill@3"})
    with own.client() as client:
        case = start(client, tmp_path, "joining", engine, hold="b")
        dies(own, "victim")
        own.start_scheduler("second")
        case.scratch.go("b")
        case.ends_right(client)
        assert case.scratch.counts() == NODES["joining"]


@both
@pytest.mark.parametrize("point", ["publish.before", "publish.after"])
@pytest.mark.conformance("FO-08")
def test_commands_that_were_planned_and_not_yet_executed_survive_the_scheduler(
    own: Stack, tmp_path: Path, point: str, engine: str
) -> None:
    """Upstream's checkpoint of a loop has no pending commands: its run resumes with nothing to do, and completes."""
    own.start_worker(concurrency=4)
    own.start_scheduler("victim", env={VARIABLE: f"{point}=kill@2"})
    with own.client() as client:
        case = start(client, tmp_path, "map-reduce", engine)
        dies(own, "victim")
        own.start_scheduler("second")
        case.ends_right(client)
        assert case.scratch.counts() == NODES["map-reduce"]
