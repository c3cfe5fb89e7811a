"""Agent nodes that map values, on real processes that are killed: each value arrives once, as it was.

The run at the top has a child with functions for mappers, whose child is mapped with templates; all are in partitions
of their own.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.failpoints import VARIABLE
from sleipnir.runs.run import child_id
from tests.branching import committed
from tests.processes import RedisServer, Stack, wait_until, write_agent

BIG = 2**60 + 1
"""A whole number that no float holds."""

TOP = """
name: top
version: sleipnir/1
start: ask
state: {n: int, big: int, log: {type: list, reducer: append}}
nodes:
  ask: {type: agent, agent: middle, map_in: "maps.py:into", map_out: "maps.py:out", event_scope: desk, next: again}
  again: {type: agent, agent: middle, prompt: "{{n}}", map_in: {n: "{{n}}", big: "{{big}}", secret: "{{secret}}"},
          map_out: {n: "{{child.state.n}}", log: "{{child.status}}"}, next: done}
  done: {type: end, output: "{{n}} {{big}} {{log}}"}
"""
MAPS = """
def into(state):
    return {"n": state["n"] + 1, "big": state["big"], "secret": state["secret"]}


def out(state, child):
    assert type(child["state"]["n"]) is int
    return {"n": child["state"]["n"], "big": child["state"]["big"], "log": child["status"]}
"""
MIDDLE = """
name: middle
version: sleipnir/1
start: below
state: {n: int, big: int}
nodes:
  below: {type: agent, agent: leaf, input: {from: initial_prompt}, map_in: {n: "{{n}}", big: "{{big}}"},
          map_out: {n: "{{child.state.n}}", big: "{{child.state.big}}", long: "{{child.state.long}}"}}
"""
LEAF = """
name: leaf
version: sleipnir/1
start: work
state: {n: int, big: int}
nodes: {work: {type: function, call: "work.py:work"}}
"""
WORK = """
def work(state):
    assert "secret" not in state
    return {"n": state["n"] * 2, "big": state["big"] + 1, "long": "x" * 300_000, "unused": "y" * 1_000}
"""
STATE = {"n": 3, "big": BIG, "secret": "s"}
OUTPUT = f'16 {BIG + 1} ["completed","completed"]'


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    agents = tmp_path / "agents"
    write_agent(agents / "top", TOP, maps_py=MAPS)
    write_agent(agents / "middle", MIDDLE)
    write_agent(agents / "leaf", LEAF, work_py=WORK)
    prefix = "".join(each for each in request.node.name if each.isalnum())
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, agents_dir=agents, owner_ttl_s=0.5) as stack:
        yield stack


def ends_right(client: Client, run: Run) -> None:
    run.wait(60)
    assert (run.status, run.output) == ("completed", OUTPUT), run.error
    assert committed(run) == {"ask": 1, "again": 1, "done": 1}
    for seq, scope in ((1, "desk"), (2, None)):
        child = client.run(child_id(run.id, seq))
        assert (child.status, child.info().event_scope) == ("completed", scope)
        assert committed(child) == {"below": 1}
        leaf = client.run(child_id(child.id, 1))
        assert committed(leaf) == {"work": 1}
        assert leaf.info().event_scope == (None if scope is None else "desk/leaf")
        assert "secret" not in leaf.state()


def dies(stack: Stack, name: str) -> None:
    process = stack.processes.pop(name)
    wait_until(lambda: process.poll() is not None, f"{name} comes to its failpoint\n{stack.log(name)}")
    assert process.returncode == -signal.SIGKILL, stack.log(name)


@pytest.mark.conformance("AG-09", "AG-21", "AG-24")
@pytest.mark.parametrize(
    "point", ["commit.after=kill@4", "child_ended.before=kill@1", "child_ended.after=kill@2", "create_run.after=kill@2"]
)
def test_the_scheduler_is_killed_while_values_travel(own: Stack, point: str) -> None:
    own.start_worker(concurrency=4)
    own.start_scheduler("victim", env={VARIABLE: point})
    with own.client() as client:
        run = client.submit("top", state=STATE)
        dies(own, "victim")
        own.start_scheduler("second")
        ends_right(client, run)


@pytest.mark.parametrize("point", ["claim.after=kill@1", "deliver.before=kill@1", "deliver.after=kill@3"])
def test_a_worker_is_killed_while_it_maps(own: Stack, point: str) -> None:
    own.start_scheduler()
    own.start_worker("victim", env={VARIABLE: point})
    with own.client() as client:
        run = client.submit("top", state=STATE)
        dies(own, "victim")
        own.start_worker("second", concurrency=4)
        ends_right(client, run)


FRAGILE = """
name: fragile
version: sleipnir/1
start: ask
nodes:
  ask: {type: agent, agent: stumbles, map_in: {n: 4}, map_out: "maps.py:out", next: done}
  done: {type: end, output: "{{n}} {{who}}"}
"""
STUMBLES = """
name: stumbles
version: sleipnir/1
start: first
nodes:
  first: {type: function, call: "work.py:first", next: second}
  second: {type: function, call: "work.py:second"}
"""


def test_a_child_that_is_retried_later_is_mapped_and_so_is_one_whose_mapping_failed(own: Stack, tmp_path: Path) -> None:
    """First the child fails, then the function that maps it: each retry goes on with the same child."""
    child_may, mapper_may = tmp_path / "child", tmp_path / "mapper"
    agents = tmp_path / "agents"
    work = f"""
import pathlib
def first(state): return {{"n": state["n"] + 1}}
def second(state):
    if not pathlib.Path({str(child_may)!r}).exists(): raise ValueError("not yet")
    return {{"n": state["n"] * 10}}
"""
    maps = f"""
import pathlib
def out(state, child):
    if not pathlib.Path({str(mapper_may)!r}).exists(): raise KeyError("not yet")
    return {{"n": child["state"]["n"], "who": child["run"]}}
"""
    write_agent(agents / "stumbles", STUMBLES, work_py=work)
    write_agent(agents / "fragile", FRAGILE, maps_py=maps)
    own.start_scheduler()
    own.start_worker()
    with own.client() as client:
        run = client.submit("fragile")
        run.wait(60)
        assert "Agent 'stumbles' failed" in str(run.error)
        child_may.touch()
        run.retry()
        run.wait(60)
        assert "raised KeyError: 'not yet'" in str(run.error)
        mapper_may.touch()
        run.retry()
        run.wait(60)
        child = client.run(child_id(run.id, 1))
        assert (run.status, run.output) == ("completed", f"50 {child.id}"), run.error
        assert committed(child) == {"first": 1, "second": 2}


def test_a_child_that_returns_too_much_fails_its_node_and_says_so(own: Stack, tmp_path: Path) -> None:
    own.start_scheduler(env={"SLEIPNIR_MAX_OUTPUT_BYTES": "100000"})
    own.start_worker()
    with own.client() as client:
        run = client.submit("middle", state={"n": 1, "big": 2})
        run.wait(60)
        assert "the state that `map_out` reads has 300,0" in str(run.error)
        assert "more than SLEIPNIR_MAX_OUTPUT_BYTES allows" in str(run.error)


def test_show_names_the_scope_of_a_child(own: Stack) -> None:
    own.start_scheduler()
    own.start_worker(concurrency=4)
    with own.client() as client:
        run = client.submit("top", state=STATE)
        run.wait(60)
        child = child_id(run.id, 1)
        assert json.loads(own.sleipnir("show", child, "--json").stdout)["event_scope"] == "desk"
        assert [line.split() for line in own.sleipnir("show", child).stdout.splitlines()].count(
            ["event", "scope", "desk"]
        ) == 1
