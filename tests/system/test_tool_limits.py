"""Limits of tools for the whole deployment: calls of several runs, on several workers, share them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

GRAPH = """
name: busy
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages}
nodes:
  ask: {type: llm, tools_node: work, next: done}
  work: {type: tools, tools: [slow, quick], parallel: {max: 4}, next: ask}
  done: {type: end, output: "{{last_response}}"}
"""
TOOLS = """
import threading
from pathlib import Path

FOLDER = Path("PLACE")

def _note(text):
    with (FOLDER / "log").open("a") as file:
        file.write(text + "\\n")

def slow():
    '''Take long.'''
    _note("begins")
    while not (FOLDER / "go").exists():
        threading.Event().wait(0.01)
    _note("ends")
    return {"done": True}

def quick():
    '''Take no time.'''
    _note("quick")
    return {"done": True}
"""


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    limits = tmp_path / "limits.yaml"
    limits.write_text("tools:\n  slow: {max_parallel: 1}\n")
    with Stack(redis_server, tmp_path / "home", key_prefix="tool-limits", limits=limits) as running:
        yield running


def log(folder: Path) -> list[str]:
    file = folder / "log"
    return file.read_text().split() if file.exists() else []


def put_off(run: Run) -> list[str]:
    """The visits of a run that a limit has put off, with the reasons."""
    return [str(event.data["reason"]) for event in run.events(follow=False) if event.type == "visit_put_off"]


def replies(request: Request) -> Reply | str:
    return "done" if request.turn > 1 else Reply(calls=[Call("slow"), Call("slow"), Call("quick")])


@pytest.mark.conformance("TL-12")
def test_no_two_calls_of_a_limited_tool_run_at_once_in_all_of_the_deployment(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "busy", GRAPH, tools_py=TOOLS.replace("PLACE", str(tmp_path)))
    with ModelServer(replies) as model, stack.client() as client:
        stack.start_scheduler()
        stack.start_worker("models", "llm", env=model.env(), ready=False)
        for name in ("one", "two"):
            stack.start_worker(name, concurrency=4, ready=False)
        for name in ("models", "one", "two"):
            stack.wait_for_worker(name)
        runs = [client.submit(agent, "go") for _ in range(2)]
        wait_until(lambda: sum(len({*put_off(run)}) for run in runs) >= 2, "calls of both runs are put off")
        wait_until(lambda: log(tmp_path).count("quick") == 2, "the other tool is not held up")
        wait_until(lambda: "begins" in log(tmp_path), "one call of the limited tool runs")
        assert log(tmp_path).count("begins") == 1, "eight slots are free, and one call runs"
        assert "limit 'tool:slow'" in str([put_off(run) for run in runs])
        assert "tool:slow" in stack.sleipnir("limits").stdout
        (tmp_path / "go").touch()
        assert [run.wait(60).status for run in runs] == ["completed"] * 2
        slow = [line for line in log(tmp_path) if line != "quick"]
        assert slow == ["begins", "ends"] * 4
        assert client_has_no_failed_visits(client, runs)


def client_has_no_failed_visits(client: Client, runs: list[Run]) -> bool:
    return all(step.ok for run in runs for step in client.run(run.id).history())
