"""Summaries of older messages of threads, on real processes: what the model is sent (spec/graph-package.md F51)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir import Client
from sleipnir.client.client import Run
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, write_agent

CHAT = """
name: chat
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages}
session: {max_history: 10, concurrent: queue, summary: {max_words: 7, template: "S: {{summary}}"}}
nodes:
  ask: {type: llm, instructions: "Talk.", tools_node: work, next: again}
  work: {type: tools, tools: [look], next: ask}
  again: {type: llm, instructions: "Talk again.", input: history, next: e}
  e: {type: end, output: "{{last_response}}"}
"""
TOOLS = '''
def look(at: str) -> str:
    """Look.

    Args:
        at: what
    """
    return f"seen {at}"
'''
PER_TURN = 5
"""Messages of a turn: the user's, the call, its result, and two answers."""


class Model:
    """A call for each text of the user, then answers. `hangs` names what hangs next: `summary` or `call`."""

    def __init__(self) -> None:
        self.hangs: list[str] = []
        self.fails = False
        self.server = ModelServer(self.reply)

    def reply(self, request: Request) -> Reply:
        if is_summary(request) and self.fails:
            return Reply(status=400, error="no room")
        if is_summary(request):
            return Reply(f"short {request.prompt.count('user: ')}", hang=self._is_next("summary"))
        if request.messages[-1]["role"] == "user":
            return Reply(calls=[Call("look", {"at": request.prompt})], hang=self._is_next("call"))
        return Reply(f"saw {len(request.messages)}")

    def _is_next(self, what: str) -> bool:
        if self.hangs[:1] != [what]:
            return False
        self.hangs.pop(0)
        return True


def is_summary(request: Request) -> bool:
    return "nothing but the" in str(request.messages[0]["content"])


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    with model.server:
        yield model


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path, model: Model) -> Iterator[Stack]:
    fast = {"lease_s": 1.0, "heartbeat_s": 0.2, "redispatch_after_s": 0.5, "owner_ttl_s": 0.5}
    with Stack(redis_server, tmp_path / "stack", key_prefix=tmp_path.name, **fast) as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("models", "llm", env=model.server.env(), ready=False)
        stack.start_worker("tools", "scripts", ready=False)
        for name in ("models", "tools"):
            stack.wait_for_worker(name)
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as client:
        yield client


def ended(run: Run) -> Run:
    assert run.wait(60).status == "completed", run.error
    return run


def sent(request: Request) -> list[str]:
    """What a request sends: the texts of the system and of the user, and the roles of the others."""
    told = ("system", "user")
    return [str(each["content"]) if each["role"] in told else each["role"] for each in request.messages]


ANSWER = ["assistant", "tool", "assistant", "assistant"]


@pytest.mark.conformance("SE-03")
def test_a_turn_with_too_much_history_sends_a_summary_of_the_older_part(
    client: Client, model: Model, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "chat", CHAT, tools_py=TOOLS)
    runs = [client.submit(agent, f"p{number}", thread="t") for number in range(5)]  # the later ones wait
    asked: list[list[Request]] = [[] for _ in runs]
    for run in runs:
        ended(run)
    for request in model.server.requests:
        users = [each["content"] for each in request.messages if each["role"] == "user"]
        asked[3 if is_summary(request) else int(users[-1][1:])].append(request)
    assert [sum(map(is_summary, requests)) for requests in asked] == [0, 0, 0, 1, 0], "one, and once"
    made, *others = asked[3]
    assert made.prompt.startswith("user: p0\n\nassistant calls look with ")
    assert "p1" in made.prompt
    assert "p2" not in made.prompt, "the last turn is sent whole"
    begin = ["S: short 2", "p2", *ANSWER, "p3"]
    assert [sent(request) for request in others] == [
        ["Talk.", *begin],
        ["Talk.", *begin, *ANSWER[:2]],
        ["Talk again.", *begin, *ANSWER[:3]],
    ]
    assert sent(asked[4][0]) == ["Talk.", *begin, *ANSWER, "p4"]
    state = runs[-1].state()
    assert len(state["messages"]) == 5 * PER_TURN, "the state keeps all messages"
    assert (state["_summary"]["text"], state["_summary"]["run"]) == ("short 2", runs[3].id)
    assert [run.info().usage.calls for run in runs] == [3, 3, 3, 4, 3], "the summary is counted"


def test_a_worker_dies_while_the_summary_is_made_and_after_it(
    stack: Stack, client: Client, model: Model, tmp_path: Path
) -> None:
    agent = write_agent(tmp_path / "chat", CHAT, tools_py=TOOLS)
    for number in range(3):
        ended(client.submit(agent, f"p{number}", thread="t"))
    before = len(model.server.requests)
    model.hangs += ["summary", "call"]
    run = client.submit(agent, "p3", thread="t")
    for asked in (1, 3):  # the summary hangs; then there is another one, and the call after it hangs
        model.server.wait_for_requests(before + asked, 60)
        stack.kill("models")
        stack.start_worker("models", "llm", env=model.server.env())
    ended(run)
    kinds = ["summary" if is_summary(request) else "call" for request in model.server.requests[before:]]
    assert kinds == ["summary", "summary", "call", "summary", "call", "call", "call"]
    written = [step for step in run.history() if step.step and "_summary" in step.keys]
    assert [step.node for step in written] == ["ask"], "one commit has it, with the reply"
    assert run.state()["_summary"]["messages"] == 2 * PER_TURN
    ended(client.submit(agent, "p4", thread="t"))
    assert not any(map(is_summary, model.server.requests[before + len(kinds) :])), "the next turn goes on from it"


def test_a_failed_summary_is_told_in_the_narration(client: Client, stack: Stack, model: Model, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "chat", CHAT, tools_py=TOOLS)
    for number in range(3):
        ended(client.submit(agent, f"p{number}", thread="t"))
    model.fails = True
    failing = ended(client.submit(agent, "p3", thread="t"))
    told = stack.sleipnir("watch", failing.id)
    assert "the history is not summarised" in told.stdout + told.stderr, told
    whole = [text for number in range(3) for text in (f"p{number}", *ANSWER)]
    asked = [request for request in model.server.requests if request.prompt == "p3"]
    assert [sent(request) for request in asked] == [["Talk.", *whole, "p3"]], "all messages are sent"
    assert failing.state()["_summary"] == {"run": failing.id}, "no other node of the turn tries it"
    model.fails = False
    assert ended(client.submit(agent, "p4", thread="t")).state()["_summary"]["text"] == "short 3"
