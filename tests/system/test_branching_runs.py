"""What people and programs see of runs that branch: where they are, what they did, and what a retry runs again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client
from sleipnir.runs.views import Reason, VisitInfo
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: branching
start: split
initial_state: {items: [0, 1, 2, 3, 4, 5]}
settings: {max_concurrency: 2}
nodes:
  split: {type: function, call: "f.py:nothing", next: [a, b, c, fan]}
  a: {type: function, call: "f.py:quick", next: meet}
  b: {type: function, call: "f.py:held", next: meet}
  c: {type: function, call: "f.py:held", next: meet}
  fan: {type: map, over: "{{items}}", as: item, branch: work, collect_into: results, output_key: r, next: meet}
  work: {type: function, call: "f.py:work"}
  meet: {type: function, call: "f.py:nothing", next: done}
  done: {type: end, output: "{{results}}"}
"""
# The branches b and c, and the items 4 and 5, wait for the file `go`; the items 2 and 3 fail until there is `good`.
F = """
import pathlib, threading
here = pathlib.Path({folder!r})
def _wait_for_go():
    while not (here / "go").exists():
        threading.Event().wait(0.01)
def nothing(state):
    return {{}}
def quick(state):
    return {{"a": 1}}
def held(state):
    _wait_for_go()
    return {{}}
def work(state):
    item = state["item"]
    if item > 3:
        _wait_for_go()
    if item in (2, 3) and not (here / "good").exists():
        raise ValueError(f"no {{item}} today")
    return {{"r": item}}
"""


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"branch-{tmp_path.name}") as running:
        running.start_scheduler()
        running.start_worker("w", "functions", concurrency=4)
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


def command(stack: Stack, *arguments: str) -> tuple[str, str]:
    """What it prints on stdout and stderr."""
    done = stack.sleipnir(*arguments)
    return done.stdout, done.stderr


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_progress_of_a_branching_run_its_failures_and_the_effect_of_a_retry_are_shown(
    stack: Stack, client: Client, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "branching", GRAPH, f_py=F.format(folder=str(tmp_path)))
    run = client.submit(agent)

    def live() -> dict[str, VisitInfo] | None:
        visits = {visit.node if visit.item is None else f"item {visit.item[1]}": visit for visit in run.info().visits}
        both = [visits.get("item 4"), visits.get("item 5")]
        settled = all(visit is not None and visit.state == "started" for visit in [*both, visits.get("c")])
        return visits if settled else None

    visits = wait_until(live, "all that can end has ended")
    assert visits["a"].state == "ended"
    assert visits["a"].reason == Reason("siblings")
    assert visits["fan"].reason == Reason("items", progress=(4, 6), failed=2, under_way=2)
    assert visits["item 4"].item == (visits["fan"].seq, 4)
    shown = words(command(stack, "show", run.id)[0])
    assert "at a (has ended, waits for the other visits of its step)" in shown
    assert "at fan (4 of 6 items, 2 failed, 2 at once)" in shown
    assert [line for line in shown if line.startswith("at work, item 4 (runs on w@")]
    assert [line for line in shown if line.startswith("at b (runs on w@")]

    (tmp_path / "go").touch()
    assert run.wait(60).status == "failed"
    assert "retry runs again 2 of 6 items of fan; a, b, c have ended" in words(command(stack, "show", run.id)[0])
    listed = command(stack, "history", run.id)[0]
    [row] = [line for line in words(listed) if "items 0-5: 6 visits, 2 failed, slowest " in line]
    assert " fan " in row
    assert len(
        [line for line in words(command(stack, "history", "--items", run.id)[0]) if " work function, item" in line]
    )
    entries: list[dict[str, Any]] = json.loads(command(stack, "history", "--json", run.id)[0])
    assert sorted(entry["item"][1] for entry in entries if entry["item"]) == [0, 1, 2, 3, 4, 5]

    (tmp_path / "good").touch()
    assert (
        f"run {run.id} continues: runs again 2 of 6 items of fan; a, b, c have ended\n"
        in command(stack, "retry", run.id)[1]
    )
    output, narrated = command(stack, "watch", run.id)
    assert json.loads(output) == [0, 1, 2, 3, 4, 5]
    assert "▸ split -> a, b, c, fan\n" in narrated
    assert "▸   a: merged: a\n" in narrated
    assert "▸ retried at fan\n▸ fan (map)\n▸   map 5/6\n▸   map 6/6\n▸ fan -> meet\n" in narrated
    assert {"▸ a -> meet", "▸ b -> meet", "▸ c -> meet"} <= set(narrated.splitlines())
    assert {step.node: step.next for step in run.history() if step.ok and step.item is None and step.node} == {
        "split": ("a", "b", "c", "fan"), "a": "meet", "b": "meet", "c": "meet", "fan": "meet",
        "meet": "done", "done": None,
    }  # fmt: skip


ASKING = """
name: asking
version: sleipnir/1
start: split
engine: dag
nodes:
  split: {type: function, call: "f.py:nothing", next: [yes_no, slow]}
  yes_no: {type: approval, question: "Well?", options: ["y", "n"], routes: {"y": b, "n": b}, on_other: b}
  slow: {type: function, call: "f.py:held", next: name}
  name: {type: input, question: "Who?"}
  b: {type: end, output: "done"}
"""


def test_without_an_answer_other_branches_continue_until_the_run_only_waits(
    stack: Stack, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    agent = write_agent(tmp_path / "asking", ASKING, f_py=F.format(folder=str(tmp_path)))
    _, narrated = command(stack, "run", str(agent), "--answer", "name=Ann")
    lines = narrated.splitlines()
    assert "▸   name: answered: Ann" in lines
    assert next(line for line in lines if line.startswith("run ")).endswith("waits for an answer to 'yes_no': Well?")
    [gate] = client.gates()
    assert gate.node == "yes_no"
    client.run(gate.run).answer("y")
    assert client.run(gate.run).wait(60).status == "completed"
