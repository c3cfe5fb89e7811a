"""Keys that are planted wherever a worker may have one are looked for wherever anybody may look."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Run
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.system.test_task_events import celery_app, events_of

MCP_SERVER = Path(__file__).parents[1] / "integration/workers/mcp/lab_server.py"
PLANTED: Mapping[str, str] = {
    "the environment": "planted-0-in-the-environment",
    "clients: of config.yaml": "planted-1-in-config-yaml",
    "the secrets file": "planted-2-in-the-secrets-file",
    "mcp.json": "planted-3-written-into-mcp-json",
    "a secret that mcp.json names": "planted-4-named-by-mcp-json",
    "the .env of the configuration directory": "planted-5-in-the-env-file",
}
TELL_IMPORTS: Mapping[str, str] = {"PYTHONPROFILEIMPORTTIME": "1"}  # in the log, each when it is imported
PUBLIC = "nobody-minds-that-this-is-seen"
GRAPH = """
name: secrets
start: loop
mcp_servers: [lab]
nodes:
  loop:
    {type: llm, model: "mine:gpt", prompt: "PUBLIC", tools: [environment, "mcp:lab"], next: other,
     state_updates: {said: "{{output}}"}}
  other: {type: llm, model: "openai:gpt-test", prompt: other, state_updates: {more: "{{output}}"}, next: refused}
  refused: {type: llm, model: "filed:gpt", prompt: refused, state_updates: {error: "{{output}}"}, next: shown}
  shown: {type: script, script: scripts/shown.py, next: e}
  e: {type: end, output: "{{said}}{{more}}"}
""".replace("PUBLIC", PUBLIC)
TOOLS = '''
import os
import sys


def environment():
    """All variables."""
    print(dict(os.environ), file=sys.stderr)
    return dict(os.environ)
'''
SHOWN = 'import json, os\nprint(json.dumps({"environment": dict(os.environ)}))\n'


@dataclass(frozen=True)
class Fleet:
    """What the tests look at."""

    stack: Stack
    redis: RedisServer
    model: ModelServer
    run: Run
    tape: Path
    events: list[dict[str, Any]]

    def seen(self) -> Iterator[tuple[str, bytes]]:
        """Everything that anybody can see, with the name of its place. Of Redis, all that was ever written."""
        yield "events for Flower", repr(self.events).encode()
        yield "history", repr(self.run.history()).encode()
        for folder in (self.redis.folder, self.stack.home, self.tape):
            for file in sorted(folder.rglob("*")):
                if file.is_file():
                    yield str(file), file.read_bytes()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A run that has ended. Workers that reach models and workers that run tools share a configuration directory."""
    folder = tmp_path_factory.mktemp("secrets")
    redis = RedisServer()
    try:
        with ModelServer(replies, models=["gpt", "gpt-test"]) as model, _stack(redis, folder, model) as stack:
            app = celery_app(redis, folder, stack.settings.key_prefix)
            with events_of(app) as events, stack.client() as client:
                run = client.submit(write_agent(folder / "secrets", GRAPH, tools_py=TOOLS, scripts__shown_py=SHOWN))
                assert run.wait(80).status == "completed", run.info().error
                wait_until(
                    lambda: len(re.findall("task-(?:succeeded|failed)", str(events))) >= 7,
                    "Flower is told of the last visit",
                )
                yield Fleet(stack, redis, model, run, folder / "tape", events)
    finally:
        redis.stop()


@contextmanager
def _stack(redis: RedisServer, folder: Path, model: ModelServer) -> Iterator[Stack]:
    environment, config, filed, written, named, env_file = PLANTED.values()
    loki = folder / "loki"
    (loki / "functions").mkdir(parents=True)
    client = {"type": "openai-compatible", "api_base": model.url}
    models = [{"name": "gpt", "supports_function_calling": True}]
    clients = [
        {**client, "name": "mine", "api_key": config, "models": models},
        {**client, "name": "filed", "api_key": "{{FILED}}", "models": models},
    ]
    prices = {"mine:gpt": {"input": 1000, "output": 2000}}
    (loki / "config.yaml").write_text(json.dumps({"clients": clients, "prices": prices}))
    (loki / "secrets.env").write_text(f"FILED={filed}\n")
    (loki / "secrets.env").chmod(0o600)
    (loki / ".env").write_text(f"SOME_API_KEY={env_file}\n")
    server = {"command": sys.executable, "args": [str(MCP_SERVER)], "env": {"A_TOKEN": written, "B": "{{NAMED}}"}}
    (loki / "functions" / "mcp.json").write_text(json.dumps({"mcpServers": {"lab": server}}))
    told = {"LOKI_CONFIG_DIR": str(loki)}
    keys = {**model.env(key=environment), "NAMED": named, "SLEIPNIR_RECORD": str(folder / "tape")}
    with Stack(redis, folder / "home", key_prefix="secrets", lease_s=15, warm_llm=False) as stack:
        stack.start_scheduler(env=TELL_IMPORTS)
        stack.start_worker("tools", "scripts,functions", env={**told, **TELL_IMPORTS}, ready=False)
        stack.start_worker("models", "llm", env={**told, **keys}, ready=False)
        yield stack


def replies(request: Request) -> Reply:
    """Look at both environments, as far as a model can. The provider of the last node repeats the key."""
    environment, config, filed, *_ = PLANTED.values()
    match request.prompt:
        case "other":
            assert request.authorization == f"Bearer {environment}"
            return Reply(f"and {PUBLIC}")
        case "refused":
            assert request.authorization == f"Bearer {filed}"
            return Reply(status=401, error=f"Incorrect API key provided: {filed}")
    assert request.authorization == f"Bearer {config}"
    if request.turn > 1:
        return Reply(PUBLIC)
    of_server = {"tool": "environment", "arguments": {}}
    return Reply("Let me see.", calls=[Call("environment"), Call("mcp_invoke_lab", of_server)])


def forms(text: str) -> Iterator[bytes]:
    """How a text looks in bytes, and in base64, in which Celery may put its messages, wherever it begins there."""
    yield text.encode()
    for offset in range(3):
        encoded = base64.b64encode(b" " * offset + text.encode())
        yield encoded[4 if offset else 0 : -4]


@pytest.mark.conformance("M16")
def test_no_planted_key_is_seen_in_redis_logs_events_messages_environments_or_recordings(fleet: Fleet) -> None:
    seen = dict(fleet.seen())
    for place, key in PLANTED.items():
        found = [where for where, data in seen.items() if any(form in data for form in forms(key))]
        assert found == [], f"a key of {place} is seen"
    state = fleet.run.state()
    assert "PATH" in state["environment"], "the script has printed its environment"
    assert "Incorrect API key provided: [redacted]" in state["error"]
    results = [message["content"] for message in fleet.model.requests[1].messages if message["role"] == "tool"]
    assert [("PATH" in text, "[redacted]" in text) for text in results] == [(True, False), (True, True)]


def test_it_would_be_seen_if_there_were_one(fleet: Fleet) -> None:
    """What is no secret is in all those places."""
    places = [where for where, data in fleet.seen() if PUBLIC.encode() in data]
    assert [name for name in ("appendonly", "tape") if not any(name in where for where in places)] == []
    run = fleet.run.id
    seen = [where for where, data in fleet.seen() if any(form in data for form in forms(run))]
    assert [name for name in ("Flower", "appendonly", "models.log", "tools.log") if name not in str(seen)] == []
    written = b"".join(data for where, data in fleet.seen() if "appendonly" in where)
    assert f"run={run} node=loop".encode() in written, "a Celery message"
    assert b'"tool_calls":' in written, "the conversation, though it is forgotten now"


def test_schedulers_and_workers_that_run_tools_import_no_library_of_models_or_mcp_servers(fleet: Fleet) -> None:
    """Never in their lives, in which they ran both."""
    mine = {"scheduler": "sleipnir_scheduler.planner.loops", "tools": "sleipnir_workers.tools.call"}
    for name, module in mine.items():
        imported = set(re.findall(r"^import time:.*\| +([\w.]+)$", fleet.stack.log(name), re.MULTILINE))
        assert module in imported
        assert imported & {"litellm", "openai", "mcp", "tiktoken"} == set(), name


def test_the_cost_of_a_loop_is_reported_per_turn_and_in_total(fleet: Fleet) -> None:
    """By the prices of config.yaml: 1,000 and 2,000 USD per million tokens, and 10 and 5 tokens per answer."""
    assert "model calls" in fleet.stack.sleipnir("show", fleet.run.id).stdout
    shown = json.loads(fleet.stack.sleipnir("show", fleet.run.id, "--json").stdout)
    steps = json.loads(fleet.stack.sleipnir("history", fleet.run.id, "--json").stdout)
    turns = [step["usage"] for step in steps if step["node"] == "loop" and step.get("usage")]
    assert turns == [{"input_tokens": 10, "output_tokens": 5, "calls": 1, "model": "mine:gpt", "cost_usd": 0.02}] * 2
    assert shown["usage"]["calls"] == 4
    assert shown["usage"]["input_tokens"] == 30
