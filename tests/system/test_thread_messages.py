"""Conversations on threads, on real processes: what the model is sent in each turn (spec/graph-package.md F50, F51)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir import Client
from sleipnir.client.client import Run
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

CHAT = """
name: chat
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages}
KEYS
nodes:
  ask: {type: llm, instructions: "Talk.", tools_node: work, next: e}
  work: {type: tools, tools: [look], next: ask}
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


def replies(request: Request) -> Reply:
    """A call for each text of the user, then an answer with the number of messages that were sent."""
    last = request.messages[-1]
    if not request.tools:
        return Reply("yes")
    if last["role"] == "tool":
        return Reply(f"saw {len(request.messages)}")
    return Reply("", calls=[Call("look", {"at": str(last["content"])})])


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(replies) as model:
        yield model


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[Stack]:
    fast = {"lease_s": 1.0, "heartbeat_s": 0.2, "redispatch_after_s": 0.5, "owner_ttl_s": 0.5}
    with Stack(redis_server, tmp_path_factory.mktemp("talks"), key_prefix="talks", **fast) as stack:
        start(stack, model)
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as client:
        yield client


def start(stack: Stack, model: ModelServer) -> None:
    stack.start_scheduler("scheduler")
    stack.start_worker("models", "llm", env=model.env(), ready=False)
    stack.start_worker("tools", "scripts", ready=False)
    for name in ("models", "tools"):
        stack.wait_for_worker(name)


def chat(folder: Path, keys: str = "") -> Path:
    return write_agent(folder, CHAT.replace("KEYS", keys), tools_py=TOOLS)


def said(run: Run) -> list[str]:
    """The conversation at the end of a run: the roles, with the texts of the user."""
    assert run.wait(60).status == "completed", run.error
    sent = run.state()["messages"]
    assert len({message["id"] for message in sent}) == len(sent), "no message is there twice"
    return [message["content"] if message["role"] == "user" else message["role"] for message in sent]


ANSWER = ["assistant", "tool", "assistant"]


@pytest.mark.conformance("EX-08", "SE-01")
def test_the_second_turn_sends_the_first_one_and_nothing_twice(client: Client, tmp_path: Path) -> None:
    agent = chat(tmp_path / "full")
    first = client.submit(agent, "one", thread="t")
    assert said(first) == ["one", *ANSWER]
    second = client.submit(agent, "two", thread="t")
    assert said(second) == ["one", *ANSWER, "two", *ANSWER]
    assert (first.output, second.output) == ("saw 4", "saw 8"), "with the instructions"
    assert said(client.submit(agent, "three", thread="other")) == ["three", *ANSWER], "never across threads"


def test_a_turn_of_its_own_history_and_a_capped_one(client: Client, tmp_path: Path) -> None:
    of_request = chat(tmp_path / "request", "history: request")
    capped = chat(tmp_path / "capped", "session: {max_history: 5}")
    for agent, seen in ((of_request, [4, 4, 4]), (capped, [4, 8, 8])):
        runs = [client.submit(agent, prompt, thread="t") for prompt in ("one",)]
        for prompt in ("two", "three"):
            said(runs[-1])
            runs.append(client.submit(agent, prompt, thread="t"))
        said(runs[-1])
        assert [run.output for run in runs] == [f"saw {number}" for number in seen]


@pytest.mark.conformance("SE-02")
def test_a_message_of_a_tool_that_is_given_is_no_input_of_the_user(client: Client, tmp_path: Path) -> None:
    agent = chat(tmp_path / "tool")
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    given = [
        {"id": "1", "role": "user", "content": "one"},
        {"id": "2", "role": "assistant", "content": "", "tool_calls": [call]},
        {"id": "3", "role": "tool", "tool_call_id": "c1", "content": "given"},
    ]
    run = client.submit(agent, "", thread="t", state={"messages": given})
    assert said(run) == ["one", *ANSWER]
    assert run.output == "saw 4"


INSTRUCTED = """
name: instructed
version: sleipnir/1
start: retrieve
model: openai:gpt-test
state: {messages: messages}
nodes:
  retrieve: {type: script, script: retrieve.py, next: ask}
  ask: {type: llm, placeholders: trpc, instructions: "INSTRUCTIONS", next: e}
  e: {type: end, output: "{{last_response}}"}
"""
RETRIEVE = """
import json, os
state = json.loads(os.environ["GRAPH_STATE"])
prompt = state["initial_prompt"]
print(json.dumps({"temp:context": f"about {prompt}", "temp:input": prompt.upper()} if prompt != "again" else {}))
"""


def instructed(folder: Path, instructions: str) -> Path:
    return write_agent(folder, INSTRUCTED.replace("INSTRUCTIONS", instructions), retrieve_py=RETRIEVE)


def sent(model: ModelServer, text: str) -> list[tuple[str, str]]:
    """The instructions of the requests whose last message is this text of the user, and the text."""
    requests = [request.messages for request in model.requests if request.messages[-1]["content"] == text]
    return [(str(messages[0]["content"]), str(messages[-1]["content"])) for messages in requests]


@pytest.mark.conformance("EX-11")
def test_each_run_has_its_own_invocation_values(client: Client, model: ModelServer, tmp_path: Path) -> None:
    agent = instructed(tmp_path / "cases", "Case {invocation:case}, topic {topic}, {invocation:gone?}.")
    values = [{"invocation:case": "a", "topic": "bells"}, {"invocation:case": "b"}, {}]
    for number, given in enumerate(values):
        assert client.submit(agent, f"turn {number}", thread="t", state=given).wait(60).status == "completed"
    assert [sent(model, f"turn {number}") for number in range(3)] == [
        [("Case a, topic bells, .", "turn 0")],
        [("Case b, topic bells, .", "turn 1")],
        [("Case {invocation:case}, topic bells, .", "turn 2")],
    ]


@pytest.mark.conformance("EX-12")
def test_retrieved_texts_are_in_the_instructions_and_the_users_text_stays_raw(
    client: Client, model: ModelServer, tmp_path: Path
) -> None:
    """In our sense of "graph state unchanged": what is retrieved is in keys of this run, and in no other."""
    agent = instructed(tmp_path / "retrieved", "Context: {temp:context?}; asked: {temp:input?}.")
    first = client.submit(agent, "bells", thread="t")
    assert first.wait(60).status == "completed", first.error
    assert sent(model, "bells") == [("Context: about bells; asked: BELLS.", "bells")]
    changed = {key for key, value in first.state().items() if first.state_at(0).get(key) != value}
    assert {key for key in changed if key.startswith("temp:")} == {"temp:context", "temp:input"}
    assert changed & {"initial_prompt", "topic"} == set()
    assert first.state()["messages"][0]["content"] == "bells"
    second = client.submit(agent, "again", thread="t")
    assert second.wait(60).status == "completed", second.error
    assert sent(model, "again") == [("Context: ; asked: .", "again")], "the next turn has its own"


def test_queued_turns_begin_with_the_messages_that_they_may_while_everything_dies(
    stack: Stack, client: Client, model: ModelServer, tmp_path: Path
) -> None:
    agent = chat(tmp_path / "queued", "session: {concurrent: queue, max_history: 5}")
    for name in ("scheduler", "models", "tools"):
        stack.kill(name)
    runs = [client.submit(agent, f"p{number}", thread="t") for number in range(4)]
    start(stack, model)
    for number in (1, 3):
        wait_until(lambda at=number: runs[at].info().is_final, f"turn {number} ends")  # type: ignore[misc]
        for name in ("models", "scheduler", "tools"):
            stack.kill(name)
        start(stack, model)
    assert [said(run) for run in runs] == [
        ["p0", *ANSWER],
        *(["p0", *ANSWER, "p1", *ANSWER],),
        *([f"p{number - 1}", *ANSWER, f"p{number}", *ANSWER] for number in (2, 3)),
    ]
    assert [run.output for run in runs] == ["saw 4", "saw 8", "saw 8", "saw 8"]
