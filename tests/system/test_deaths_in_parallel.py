"""Processes die where only graphs that branch can be: when a step closes, in a map, in a reducer, in a choice."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.failpoints import VARIABLE
from tests.processes import RedisServer, Stack, wait_until, write_agent

NODE = '''
import os, threading, zlib
from pathlib import Path

MARKS = Path({marks!r})


def hang_at_first(name):
    """The first caller of this name never returns; it can only be killed."""
    try:
        os.close(os.open(MARKS / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    threading.Event().wait(60)


def note(name):
    with open(MARKS / "ran", "a") as file:
        file.write(name + "\\n")


def a(state):
    note("a")
    return {{"log": "a"}}


def b(state):
    note("b")
    return {{"log": "b"}}


def done(state):
    note("done")
    return {{"saw": state["log"]}}


def item(state):
    if state["n"] == 3:
        hang_at_first("hangs")
    note("item" + str(state["n"]))
    return {{"output": state["n"] * 10}}


def fold(current, incoming):
    hang_at_first("hangs")
    return (current or []) + [incoming]


def choose(state):
    hang_at_first("hangs")
    return "done"
'''

TWO = """
name: two
version: sleipnir/1
start: split
engine: ENGINE
state: {log: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [a, b]}
  a: {type: function, call: "node.py:a"}
  b: {type: function, call: "node.py:b"}
  done: {type: function, call: "node.py:done", wait_for: [a, b]}
"""

MAP = """
name: many
start: each
initial_state: {numbers: [0, 1, 2, 3, 4, 5]}
nodes:
  each: {type: map, over: "{{numbers}}", as: n, branch: item, collect_into: log, max_concurrency: 2, next: done}
  item: {type: function, call: "node.py:item"}
  done: {type: function, call: "node.py:done", next: e}
  e: {type: end}
"""

REDUCER = TWO.replace("{type: list, reducer: append}", '{reducer: "node.py:fold"}')
CHOICE = TWO.replace('call: "node.py:a"}', 'call: "node.py:a", next: c}').replace(
    ", wait_for: [a, b]}", '}\n  c: {type: router, branch: {call: "node.py:choose"}}'
)

both = pytest.mark.parametrize("engine", ["bsp", "dag"])


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet. Its lease is longer than a busy machine delays a heartbeat: these
    tests count executions."""
    prefix = request.node.name.replace("[", "-").replace("]", "")
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, owner_ttl_s=0.5, lease_s=6.0) as stack:
        yield stack


def submitted(client: Client, folder: Path, graph: str) -> Run:
    return client.submit(write_agent(folder / "agent", graph, node_py=NODE.format(marks=str(folder))))


def ran(folder: Path) -> Counter[str]:
    return Counter((folder / "ran").read_text().split())


def kill_while_it_hangs(own: Stack, client: Client, folder: Path, graph: str) -> Run:
    """The run, after the worker was killed that had something in hand which hangs, and another one came."""
    own.start_scheduler()
    own.start_worker("victim", concurrency=4)
    run = submitted(client, folder, graph)
    wait_until(lambda: (folder / "hangs").exists(), "something hangs")
    own.kill("victim")
    own.start_worker("second", concurrency=4)
    assert run.wait(60).status == "completed", run.error
    return run


@both
@pytest.mark.parametrize("side", ["before", "after"])
def test_the_scheduler_is_killed_when_the_last_branch_ends_and_the_step_closes(
    own: Stack, tmp_path: Path, side: str, engine: str
) -> None:
    own.start_worker(concurrency=1)
    own.start_scheduler("victim", env={VARIABLE: f"commit.{side}=kill@3"})
    with own.client() as client:
        run = submitted(client, tmp_path, TWO.replace("ENGINE", engine))
        victim = own.processes.pop("victim")
        wait_until(lambda: victim.poll() is not None, f"the scheduler dies\n{own.log('victim')}")
        assert victim.returncode == -signal.SIGKILL
        own.start_scheduler("second")
        assert run.wait(60).status == "completed", run.error
        assert run.state()["saw"] == ["a", "b"]
        assert Counter(step.node for step in run.history() if step.node) == {"split": 1, "a": 1, "b": 1, "done": 1}
        assert ran(tmp_path) == {"a": 1, "b": 1, "done": 1}


def test_a_worker_is_killed_while_items_of_a_map_run(own: Stack, tmp_path: Path) -> None:
    with own.client() as client:
        run = kill_while_it_hangs(own, client, tmp_path, MAP)
        assert run.state()["log"] == [0, 10, 20, 30, 40, 50]
        items = Counter(step.item[1] for step in run.history() if step.item)
        assert items == dict.fromkeys(range(6), 1)
        assert ran(tmp_path).keys() == {"done", *(f"item{number}" for number in range(6))}


@both
def test_a_worker_is_killed_while_a_reducer_of_the_agent_runs(own: Stack, tmp_path: Path, engine: str) -> None:
    with own.client() as client:
        run = kill_while_it_hangs(own, client, tmp_path, REDUCER.replace("ENGINE", engine))
        assert run.state()["saw"] == ["a", "b"], "folded once, in visit order"
        assert ran(tmp_path) == {"a": 1, "b": 1, "done": 1}, "what is folded is not made again"


@both
def test_a_worker_is_killed_while_a_function_chooses_the_way(own: Stack, tmp_path: Path, engine: str) -> None:
    with own.client() as client:
        run = kill_while_it_hangs(own, client, tmp_path, CHOICE.replace("ENGINE", engine))
        assert "a" in run.state()["saw"]
        assert ran(tmp_path) == {"a": 1, "b": 1, "done": 1}
