"""Agents of a config.yaml on real processes, with a scripted model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.errors import GraphError
from sleipnir.graph.tools import MESSAGE_TOOLS
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until

CONFIG = """
name: my-helper
model: openai:gpt-test
temperature: 0.25
instructions: You help.
"""
TOOLS = '''
def shout(text: str):
    """Say it loud."""
    return text.upper()
'''


def replies(request: Request) -> Reply:
    """By what the person wrote; `ask` lets the model ask back."""
    prompt = request.prompt
    if request.turn > 1:
        return Reply(f"So: {request.tool_results[-1].text}")
    match prompt:
        case "ask":
            return Reply(calls=[Call("user__ask", {"question": "Which colour?", "options": ["red", "blue"]})])
        case "shout":
            return Reply(calls=[Call("shout", {"text": "hey"})])
        case "fail":
            return Reply(status=400, error="no such thing")
        case _:
            return Reply(f"Hello, {prompt}.")


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(replies) as server:
        yield server


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, model: ModelServer) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix="config") as stack:
        stack.start_scheduler()
        stack.start_worker("models", "llm", env=model.env(), ready=False)
        stack.start_worker("tools", "scripts", ready=False)
        for name in ("models", "tools"):
            stack.wait_for_worker(name)
        yield stack


def helper(folder: Path, config: str = CONFIG, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, text in {"config_yaml": config, **files}.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.mark.conformance("C01", "C02", "C10", "L02", "L03")
def test_an_agent_of_a_config_yaml_answers_asks_and_uses_its_tools(
    own: Stack, model: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = helper(tmp_path / "plain")
    tools = helper(tmp_path / "tools", tools_py=TOOLS)
    with own.client() as client:
        greeted, asked = client.submit(plain, "you"), client.submit(plain, "ask")
        shouted, failed = client.submit(tools, "shout"), client.submit(plain, "fail")
        monkeypatch.setenv("MY_HELPER_MODEL", "openai:gpt-other")
        monkeypatch.setenv("MY_HELPER_TEMPERATURE", "null")
        other = client.submit(plain, "other")
        monkeypatch.delenv("MY_HELPER_MODEL")
        assert other.graph().model == "openai:gpt-other"
        assert greeted.graph().model == "openai:gpt-test"

        assert (greeted.wait(60).status, greeted.output) == ("completed", "Hello, you.")
        assert (other.wait(60).status, other.output) == ("completed", "Hello, other.")
        wait_until(lambda: bool(asked.gates()), "the question is asked")
        [gate] = asked.gates()
        assert (gate.node, gate.question, gate.options) == ("agent", "Which colour?", ("red", "blue"))
        asked.answer("blue", gate)
        assert (asked.wait(60).status, asked.output) == ("completed", 'So: {"answer":"blue"}')
        assert (shouted.wait(60).status, shouted.output) == ("completed", 'So: {"output":"HEY"}')
        ended = failed.wait(60)
        assert (ended.status, failed.output) == ("failed", None)
        assert "no such thing" in (ended.error or "")

        with pytest.raises(GraphError, match=r"Failed to load agent config at '.*/broken/config\.yaml'"):
            client.submit(helper(tmp_path / "broken", "model: a:b"))
        with pytest.raises(GraphError, match=r"has both config\.yaml and graph\.yaml"):
            client.submit(helper(tmp_path / "both", graph_yaml=CONFIG))
    bodies = {request.prompt: request.body for request in model.requests if request.turn == 1}
    assert (bodies["you"]["model"], bodies["you"]["temperature"]) == ("gpt-test", 0.25)
    assert (bodies["other"]["model"], "temperature" in bodies["other"]) == ("gpt-other", False)
    talking = {"user__select", "user__confirm", "user__input", "user__checkbox", *MESSAGE_TOOLS}
    assert {tool["function"]["name"] for tool in bodies["you"]["tools"]} == talking
    assert {tool["function"]["name"] for tool in bodies["shout"]["tools"]} == {"shout", *talking}
