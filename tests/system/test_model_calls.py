"""Calls of models and of their tools on both engines: pieces of streams, other models for a run, sets of tools, and
what a run shows of tools that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.testing import Call, Reply
from tests.both_engines import ENGINES, Engine, Fleet, engine_of
from tests.integration.workers.mcp.servers import write_mcp_json
from tests.processes import RedisServer, write_agent

TOOLS = """
def count(text: str):
    '''Count words.

    Args:
        text: the text
    '''
    return len(text.split())

def fail():
    '''Fail.'''
    raise ValueError("broken bell")

def odd():
    '''Return what is no JSON.'''
    return {1, 2}
"""
NODE = """
name: caller
version: sleipnir/1
model: openai:gpt-test
start: ask
TOP
nodes:
  ask: {type: llm, prompt: "{{initial_prompt}}", tools: [TOOLS], state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""


@pytest.fixture(scope="module")
def fleet(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    home = tmp_path_factory.mktemp("fleet")
    write_mcp_json(home / "config")
    with Fleet(redis_server, home, env={"LOKI_CONFIG_DIR": str(home / "config")}) as fleet:
        yield fleet


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    write_mcp_json(tmp_path / "config")
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "config"))
    yield from engine_of(request)


def caller(folder: Path, tools: str = "count", top: str = "", code: str = TOOLS) -> Path:
    return write_agent(folder / "caller", NODE.replace("TOOLS", tools).replace("TOP", top), tools_py=code)


def asks_for(name: str, **arguments: Any) -> Reply:
    return Reply(calls=[Call(name, arguments)])


@pytest.mark.conformance("LL-15")
def test_calls_that_arrive_in_many_pieces_are_whole(fleet: Fleet, tmp_path: Path) -> None:
    texts = ["one two three", "four five"]
    calls = [Call("count", {"text": text}) for text in texts]
    fleet.replies([Reply("Let me count.", calls=calls, piece_characters=1), "5"])
    outcome = fleet.run(caller(tmp_path), "count")
    assert (outcome.status, outcome.output) == ("completed", "Let me count.\n5"), outcome.error
    first, second = fleet.requests
    assert first.wants_stream, "the calls came in pieces of one character"
    [said] = [message for message in second.messages if message["role"] == "assistant"]
    assert [json.loads(call["function"]["arguments"]) for call in said["tool_calls"]] == [{"text": t} for t in texts]
    assert [result.text for result in second.tool_results] == ["3", "2"]


@pytest.mark.conformance("LL-22")
def test_another_model_is_chosen_for_a_run_and_shown(engine: Engine, tmp_path: Path) -> None:
    engine.replies(["a", "b"])
    agent = caller(tmp_path)
    chosen = engine.run(agent, "x", overrides={"ask": {"model": "openai:gpt-other"}})
    usual = engine.run(agent, "x")
    assert [request.model for request in engine.requests] == ["gpt-other", "gpt-test"]
    for outcome, model in ((chosen, "openai:gpt-other"), (usual, "openai:gpt-test")):
        [step] = [step for step in outcome.trace.steps if step.node == "ask"]
        assert step.usage is not None
        assert model in str(outcome.events)


@pytest.mark.conformance("LL-24")
def test_tools_of_a_server_have_names_of_their_own(engine: Engine, tmp_path: Path) -> None:
    own = TOOLS + "\ndef echo(value: str):\n    '''Echo.\n\n    Args:\n        value: it\n    '''\n    return 'own'\n"
    agent = caller(tmp_path, 'echo, "mcp:plain"', "mcp_servers: [plain]", own)
    invoke = asks_for("mcp_invoke_plain", tool="echo", arguments={"value": "hello"})
    engine.replies([asks_for("echo", value="x"), invoke, "done"])
    outcome = engine.run(agent, "x")
    assert outcome.status == "completed", outcome.error
    first, second, third = engine.requests
    assert first.tools == ["echo", "mcp_search_plain", "mcp_describe_plain", "mcp_invoke_plain"]
    assert [result.text for result in second.tool_results] == ['{"output":"own"}']
    assert "hello" in third.tool_results[-1].text


@pytest.mark.conformance("LL-25")
def test_new_tools_of_a_server_are_found_and_the_own_ones_stay(engine: Engine, tmp_path: Path) -> None:
    agent = caller(tmp_path, 'count, "mcp:plain"', "mcp_servers: [plain]")
    grow = asks_for("mcp_invoke_plain", tool="grow", arguments={})

    def find() -> Reply:
        return asks_for("mcp_search_plain", query="late")

    engine.replies([grow, find(), asks_for("mcp_invoke_plain", tool="late", arguments={"value": "v"}), "done"])
    outcome = engine.run(agent, "x")
    assert outcome.status == "completed", outcome.error
    found = json.loads(engine.requests[2].tool_results[-1].text)
    assert "late" in [tool["name"] for tool in found]
    assert '\\"v\\"' in engine.requests[3].tool_results[-1].text
    assert engine.requests[0].tools == engine.requests[3].tools


@pytest.mark.conformance("LL-26")
def test_tools_that_are_edited_count_from_the_next_run_on(engine: Engine, tmp_path: Path) -> None:
    agent = caller(tmp_path)
    engine.replies([asks_for("count", text="a b"), "2", asks_for("count", text="a b"), "2 words"])
    assert engine.run(agent, "x").output == "2"
    caller(tmp_path, code=TOOLS.replace("return len(text.split())", "return f'{len(text.split())} words'"))
    assert engine.run(agent, "x").output == "2 words"
    results = [request.tool_results[-1].text for request in engine.requests if request.turn == 2]
    assert results == ["2", '{"output":"2 words"}']


@pytest.mark.conformance("TL-27")
def test_a_tool_that_waits_shows_its_call_and_is_no_failure(engine: Engine, tmp_path: Path) -> None:
    graph = """
name: asking
version: sleipnir/1
model: openai:gpt-test
start: ask
state: {messages: messages}
nodes:
  ask: {type: llm, tools_node: work}
  work: {type: tools, tools: [{name: browse, external: true, schema: {properties: {url: {type: string}}}}], next: ask}
"""
    engine.replies([asks_for("browse", url="a.example")])
    outcome = engine.run(write_agent(tmp_path / "asking", graph), "look")
    assert (outcome.status, outcome.error) == ("waiting", None)
    [gate] = outcome.asked
    assert gate.payload["arguments"] == {"url": "a.example"} and "browse" in str(gate.payload)
    assert [data["node"] for data in outcome.data("visit_closed") if not data["ok"]] == []
    assert not [event for event in outcome.events if event.type == "visit_retrying"]


@pytest.mark.conformance("TL-32")
def test_the_trace_has_tools_skills_and_their_failures(engine: Engine, tmp_path: Path) -> None:
    calls = [Call("count", {"text": "a"}), Call("fail", {}), Call("skill__list", {})]
    engine.replies([Reply(calls=calls), "done"])
    outcome = engine.run(caller(tmp_path, "count, fail", "skills_enabled: true"), "x")
    assert (outcome.status, outcome.output) == ("completed", "done"), outcome.error
    [step] = [step for step in outcome.trace.steps if step.node == "ask"]
    assert {(tool.name, tool.turn, tool.ok) for tool in step.tools} == {
        ("count", 1, True),
        ("fail", 1, False),
        ("skill__list", 1, True),
    }
    assert step.tool_count == 3
    [failure] = [tool.error for tool in step.tools if not tool.ok]
    assert failure == "tool 'fail' failed: exit"


@pytest.mark.conformance("TL-32")
def test_the_trace_has_a_tool_whose_result_cannot_be_stored(engine: Engine, tmp_path: Path) -> None:
    graph = """
name: odd
version: sleipnir/1
model: openai:gpt-test
start: ask
state: {messages: messages}
nodes:
  ask: {type: llm, tools_node: work}
  work: {type: tools, on_error: message, next: ask,
         tools: [{name: odd, call: "tools.py:odd", schema: {properties: {}}}]}
"""
    engine.replies([asks_for("odd"), "done"])
    outcome = engine.run(write_agent(tmp_path / "odd", graph, tools_py=TOOLS), "x")
    assert outcome.status == "completed", outcome.error
    [tool] = [tool for step in outcome.trace.steps for tool in step.tools]
    assert (tool.name, tool.ok) == ("odd", False) and "not JSON" in (tool.error or "")
