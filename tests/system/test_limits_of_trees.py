"""Agents below agents, on real processes: while they wait no worker is busy, and how deep and how many there may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from sleipnir.client.client import Client, Run
from sleipnir.store.connect import connect
from sleipnir.testing import Call, ModelServer, Reply, Request
from sleipnir_workers.celeryconfig import celery_config
from tests.processes import RedisServer, Stack, wait_until, write_agent

BOSS = """
name: boss
model: openai:gpt-test
can_spawn_agents: true
max_concurrent_agents: 3
max_agent_depth: 2
"""
MIDDLE = """
name: middle
start: below
nodes:
  below: {type: agent, agent: asks, prompt: "again", state_updates: {got: "{{output}}"}, next: done}
  done: {type: end, output: "middle got {{got}}"}
"""
ASKS = """
name: asks
start: work
nodes:
  work: {type: function, call: "work.py:work", next: ask}
  ask: {type: input, question: "What now?", state_updates: {now: "{{input}}"}, next: done}
  done: {type: end, output: "now {{now}}"}
"""
WORK = """
def work(state):
    return {"worked": True}
"""
SPAWN = "agent__spawn"
FULL = {"status": "error", "message": "At capacity: 3/3 agents running. Wait for one to finish or cancel one."}
TOO_DEEP = {"status": "error", "message": "Max agent depth exceeded (3/2)"}
REFUSED = 3  # times that a model that spawns for ever is refused before it gives up


def model(request: Request) -> Reply | str:
    told = next(str(each["content"]) for each in request.messages if each["role"] == "user")
    results = [json.loads(each["content"]) for each in request.messages if each["role"] == "tool"]
    match told, request.turn:
        case "delegate", 1:
            return Reply(calls=[Call(SPAWN, {"agent": "middle", "prompt": "go"})], hang=True)
        case (("delegate" | "nest"), 2) if results[0]["status"] == "ok":
            return Reply(calls=[Call("agent__collect", {"id": results[0]["id"]})])
        case "delegate", _:
            return f"boss got {results[-1]['output']}"
        case "nest", 1:
            return Reply(calls=[Call(SPAWN, {"agent": "boss", "prompt": "nest"})])
        case "nest", 2:
            return json.dumps(results[0])
        case "nest", _:
            return str(results[-1]["output"])
        case "spawn for ever", turn if results.count(FULL) < REFUSED:
            return Reply(calls=[Call(SPAWN, {"agent": "asks", "prompt": f"number {turn}"})])
    return json.dumps(results)


@pytest.fixture
def lab(redis_server: RedisServer, tmp_path: Path) -> Iterator[tuple[Stack, Client, ModelServer]]:
    agents = tmp_path / "agents"
    (agents / "boss").mkdir(parents=True)
    (agents / "boss" / "config.yaml").write_text(BOSS)
    write_agent(agents / "middle", MIDDLE)
    write_agent(agents / "asks", ASKS, work_py=WORK)
    settings = {"key_prefix": f"limits-{tmp_path.name}", "agents_dir": agents}
    with ModelServer(model) as server, Stack(redis_server, tmp_path / "home", **settings) as stack:
        stack.start_scheduler()
        stack.start_worker("one", "llm,functions", concurrency=4, env=server.env(), ready=False)
        stack.wait_for_worker("one", 90)
        with stack.client() as client:
            yield stack, client, server


class Busy:
    """What workers have in hand, as Redis and Celery know it."""

    def __init__(self, stack: Stack, client: Client) -> None:
        self._keys, self._redis = client.store.keys, connect(stack.redis.url)
        self._celery = Celery("watcher")
        self._celery.config_from_object(celery_config(stack.settings))

    def leases(self) -> list[str]:
        """Of all partitions."""
        parts = map(self._keys.of_partition, range(self._keys.partitions))
        return [lease for part in parts for lease in self._redis.zrange(part.leases, 0, -1)]

    def tasks(self) -> list[Any]:
        """Tasks that workers execute, or have taken to do so."""
        inspect = self._celery.control.inspect(timeout=60, limit=1)
        replies = [inspect.active(), inspect.reserved()]
        assert all(replies), "the worker answers"
        return [task for reply in replies for tasks in (reply or {}).values() for task in tasks]


def below(client: Client, run: Run) -> list[Run]:
    return [client.run(child.id) for child in client.store.runs.children([run.id])[run.id]]


@pytest.mark.conformance("G05", "W03")
def test_no_worker_is_busy_while_three_levels_wait_for_a_person(lab: tuple[Stack, Client, ModelServer]) -> None:
    stack, client, server = lab
    busy = Busy(stack, client)
    run = client.submit("boss", "delegate")
    server.wait_for_requests(1, 90)
    assert len(busy.leases()) == len(busy.tasks()) == 1, "the model thinks"
    server.release()
    wait_until(lambda: bool(run.gates()), "the gate is open", 60)
    wait_until(lambda: not busy.leases(), "the worker has let go of the last visit")
    for _ in range(3):
        assert (busy.tasks(), busy.leases()) == ([], [])
    [gate] = run.gates()
    assert (run.status, gate.place) == ("waiting", "agent[3]/below/ask")
    run.answer("sleep", gate=gate.place)
    assert run.wait(60).status == "completed"
    assert run.output == "boss got middle got now sleep"


@pytest.mark.conformance("W05", "W06")
def test_agents_that_spawn_for_ever_end_at_the_limits(lab: tuple[Stack, Client, ModelServer]) -> None:
    _, client, _ = lab
    deep, wide = client.submit("boss", "nest"), client.submit("boss", "spawn for ever")
    assert (deep.wait(60).error, json.loads(str(deep.output))) == (None, TOO_DEEP)
    [second] = below(client, deep)
    [third] = below(client, second)
    assert (below(client, third), third.output) == ([], deep.output)
    assert wide.wait(60).error is None
    spawned = json.loads(str(wide.output))
    assert [result["status"] for result in spawned[:3]] == ["ok"] * 3
    assert spawned[3:] == [FULL] * REFUSED
    children = below(client, wide)
    assert len(children) == 3
    wait_until(lambda: all(child.status == "cancelled" for child in children), "nobody asks for them any more")
