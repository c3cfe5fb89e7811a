"""Agents that start agents, on real processes: each is started once, whatever dies."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until

BOSS = """
name: boss
model: openai:gpt-test
can_spawn_agents: true
summarization_threshold: 10
max_concurrent_agents: 5
"""
HELPER = """
name: helper
model: openai:gpt-test
"""
ASKS = """
name: asks
start: ask
nodes:
  ask: {type: input, question: "What now?", state_updates: {now: "{{input}}"}, next: done}
  done: {type: end, output: "now {{now}}"}
"""
ASKER = """
name: asker
model: openai:gpt-test
"""
TASKS = ("one", "two", "three")


class Model:
    """Spawns three helpers, an agent that asks a person and one that asks the model; lists, answers and collects them.
    Helpers answer once they may."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.may_end = threading.Event()
        self.listed = ""
        self.outputs: dict[str, str] = {}
        self.replies = 0
        self.announced = False

    def __call__(self, request: Request) -> Reply | str:
        if request.prompt in TASKS:
            self.asked[request.prompt] += 1
            if not self.may_end.is_set():
                return Reply(hang=True)
        self.replies += 1
        return self._answer(request)

    def _answer(self, request: Request) -> Reply | str:
        if request.prompt in TASKS:
            return f"did {request.prompt}"
        [told] = [str(message["content"]) for message in request.messages if message["role"] == "user"]
        if told == "ask" and request.turn == 2:
            return str(json.loads(request.prompt)["answer"])
        if told == "ask":
            return Reply(calls=[Call("user__ask", {"question": "Which?", "options": ["a", "b"]})])
        if request.prompt.startswith("Summarize the following sub-agent output from 'asks'"):
            return "dinner"
        message_of = [message for message in request.messages if message["role"] == "tool"]
        results = [str(message["content"]) for message in message_of if "escalation" not in message["tool_call_id"]]
        self.announced = self.announced or len(results) < len(message_of)
        match request.turn:
            case 1:
                helpers = [Call("agent__spawn", {"agent": "helper", "prompt": task}) for task in TASKS]
                others = [Call("agent__spawn", {"agent": agent, "prompt": "ask"}) for agent in ("asks", "asker")]
                return Reply(calls=[*helpers, *others])
            case 2:
                return Reply(calls=[Call("agent__list", {})])
            case 3:
                self.listed = results[-1]
                ids = re.findall(r'"id":"(\w+)"', results[-1])
                return Reply(calls=[Call("agent__collect", {"id": each}) for each in ids])
        found = [json.loads(result) for result in results[5 + 1 :]]
        self.outputs |= {each["id"]: each["output"] for each in found if each["status"] == "completed"}
        left = {each["id"]: each for each in found if "id" in each and each["id"] not in self.outputs}
        questions = {each["escalation_id"] for waiting in left.values() for each in waiting["pending_escalations"]}
        if not left:
            return " ".join(self.outputs[each["id"]] for each in json.loads(self.listed)["agents"])
        replies = [Call("agent__reply_escalation", {"escalation_id": each, "reply": "b"}) for each in questions]
        return Reply(calls=[*replies, *(Call("agent__collect", {"id": each}) for each in left)])


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    agents = tmp_path / "agents"
    for name, file, text in (
        ("boss", "config.yaml", BOSS), ("helper", "config.yaml", HELPER), ("asks", "graph.yaml", ASKS),
        ("asker", "config.yaml", ASKER), ("broken", "graph.yaml", "name: ["),
    ):  # fmt: skip
        (agents / name).mkdir(parents=True)
        (agents / name / file).write_text(text)
    settings = {"key_prefix": "spawning", "agents_dir": agents, "owner_ttl_s": 0.5}
    with Stack(redis_server, tmp_path / "home", **settings) as stack:
        yield stack


def has_ended(client: Client, run: Run, agent: str) -> bool:
    children = client.store.runs.children([run.id])[run.id]
    found = client.store.runs.find([child.id for child in children])
    return any(info.agent == agent and info.status == "completed" for info in found if info is not None)


@pytest.mark.conformance("W01", "W03", "W04", "W11", "W13")
def test_an_agent_collects_the_results_of_its_agents_although_all_workers_are_killed(own: Stack) -> None:
    model = Model()
    with ModelServer(model) as server, own.client() as client:
        own.start_scheduler()
        own.start_worker("models", "llm", env=server.env(), concurrency=4, ready=False)
        run = client.submit("boss", "go")
        wait_until(lambda: len(model.asked) == len(TASKS), "all helpers are at work", 90)
        wait_until(lambda: has_ended(client, run, "asker"), "the one that asks has its answer", 60)
        wait_until(lambda: run.status == "waiting", "the boss waits for them, without a worker", 60)
        own.kill("models")
        model.may_end.set()
        own.start_worker("models", "llm", env=server.env(), concurrency=4, ready=False)
        wait_until(lambda: bool(run.gates()), "one of the agents asks a person", 60)
        run.answer("dinner", gate="agent/ask")
        info = run.wait(90)
        children = client.store.runs.children([run.id])[run.id]
    assert info.error is None
    assert run.output == "did one did two did three dinner b"
    assert [child.agent for child in children] == ["helper", "helper", "helper", "asks", "asker"]
    assert model.asked == dict.fromkeys(TASKS, 2), "the first time, a worker was killed"
    assert json.loads(model.listed)["active_count"] == 5
    assert model.announced, "with the results of calls the question was announced"
    assert info.usage.calls == model.replies, "what children and summaries cost is what it costs"
