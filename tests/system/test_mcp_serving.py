"""Agents as tools of an MCP server: the real `mcp` client over stdio, a real scheduler, workers and Redis."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from mcp.types import CallToolResult

from sleipnir.testing import ModelServer, Reply, Request
from tests.mcp_clients import MODES, content_of, folder_names, log_of, serving, text_of, until
from tests.processes import RedisServer, Stack, write_agent

GREETING = """
name: greeting
description: Greets people.
version: sleipnir/1
start: greet
conversation_starters: ["Greet Ann"]
variables:
  - {name: tone, description: How to greet, default: kind}
  - {name: team, description: Who greets}
  - {name: api_key, description: Of the greeter, default: "swordfish-7"}
state:
  times: {type: int, required: true, description: How often}
  names: {type: list, items: string, default: [Ann]}
nodes:
  greet: {type: function, call: "steps.py:greet", next: done}
  done: {type: end, output: "{{greeting}}"}
"""
STEPS = """
import os
def greet(state):
    team = os.environ.get("LLM_AGENT_VAR_TEAM", "")
    return {"greeting": {"to": state["names"], "times": state["times"], "said": state["initial_prompt"]}}
"""
SLOW = """
name: slow
version: sleipnir/1
start: work
nodes:
  work: {type: function, call: "steps.py:work", next: done}
  done: {type: end, output: "done {{initial_prompt}}"}
"""
WORK = """
import pathlib, time
from sleipnir import emit_progress
def work(state):
    emit_progress(40, "reading")
    with open("BEGUN", "a") as file:
        file.write("x")
    while not pathlib.Path("GO").exists():
        time.sleep(0.05)
    return {}
"""
BROKEN = "name: broken\nstart: nowhere\nnodes: {}\n"
FAILING = """
name: failing
version: sleipnir/1
start: work
nodes:
  work: {type: script, script: scripts/work.py, next: done}
  done: {type: end}
"""


def greeting(folder: Path) -> Path:
    return write_agent(folder / "greeting", GREETING, steps_py=STEPS)


def slow(folder: Path) -> Path:
    """An agent that has begun when the file BEGUN is there, and ends when GO is."""
    work = WORK.replace("BEGUN", str(folder / "BEGUN")).replace("GO", str(folder / "GO"))
    return write_agent(folder / "slow", SLOW, steps_py=work)


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_is_a_tool_with_a_schema_and_a_result(stack: Stack, tmp_path: Path, mode: str) -> None:
    agents = folder_names(greeting(tmp_path), write_agent(tmp_path / "broken", BROKEN))

    async def use() -> None:
        async with serving(stack, "--agents", str(tmp_path / "greeting"), mode=mode) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            tool = tools["greeting"]
            assert tool.description == "Greets people.\nFor example: Greet Ann"
            schema = tool.input_schema
            assert schema["required"] == ["state", "variables"]
            assert schema["properties"]["state"]["properties"] == {
                "times": {"type": "integer", "description": "How often"},
                "names": {"type": "array", "items": {"type": "string"}, "default": ["Ann"]},
            }
            assert schema["properties"]["state"]["required"] == ["times"]
            variables = schema["properties"]["variables"]
            assert variables["required"] == ["team"]
            assert variables["properties"]["tone"]["default"] == "kind"
            assert "swordfish" not in json.dumps(schema), "a default that is a secret is not shown"

            arguments = {"prompt": "hi", "state": {"times": 2}, "variables": {"team": "web"}}
            result = await client.call_tool("greeting", arguments)
            content = content_of(result)
            assert not result.is_error
            assert (content["agent"], content["status"]) == ("greeting", "completed")
            assert content["result"] == {"to": ["Ann"], "times": 2, "said": "hi"}
            assert text_of(result) == content["output"]

            shown = content_of(await client.call_tool("show_run", {"run_id": content["run_id"]}))
            assert shown["result"] == content["result"]
            listed = content_of(await client.call_tool("list_runs", {"agent": "greeting"}))["runs"]
            assert content["run_id"] in [run["run_id"] for run in listed]
            hints = {name: each.annotations for name, each in tools.items() if each.annotations}
            assert hints["show_run"].read_only_hint and hints["cancel_run"].destructive_hint
            assert not hints["greeting"].read_only_hint

    asyncio.run(use())
    refused = stack.sleipnir("mcp", "serve", "--agents", agents)
    assert (refused.returncode, refused.stdout) == (2, ""), "a named agent that cannot run is refused at the start"
    assert "broken" in refused.stderr and "Traceback" not in refused.stderr


def test_wrong_calls_start_no_run_and_say_what_is_wrong(stack: Stack, tmp_path: Path) -> None:
    good, failing = (
        greeting(tmp_path),
        write_agent(tmp_path / "failing", FAILING, scripts__work_py="raise SystemExit(3)"),
    )

    async def use() -> list[CallToolResult]:
        async with serving(stack, "--agents", folder_names(good, failing)) as client:
            calls = [
                ("greeting", {"prompt": "hi"}),
                ("greeting", {"state": {"times": "two"}, "variables": {"team": "web"}}),
                ("greeting", {"state": {"times": 2, "tmes": 3}, "variables": {"team": "web"}}),
                ("greetings", {"prompt": "hi"}),
                ("show_run", {"run_id": "aaaaaaaaaaaa"}),
                ("list_runs", {"limit": 0}),
                ("failing", {"prompt": ""}),
            ]
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    with stack.client() as client:
        before = client.run_count()
        results = asyncio.run(use())
        assert client.run_count() == before + 1, "only that of the agent which fails"
    assert all(result.is_error for result in results)
    told = [text_of(result) for result in results]
    assert "'state' is a required property" in told[0] or "'variables' is a required property" in told[0]
    assert told[1] == "the arguments do not fit: $.state.times: 'two' is not of type 'integer'"
    assert "'tmes' was unexpected" in told[2]
    assert told[3] == "there is no tool 'greetings'. Did you mean \"greeting\"?"
    assert "no run 'aaaaaaaaaaaa'" in told[4] or "aaaaaaaaaaaa" in told[4]
    assert "$.limit" in told[5]
    assert content_of(results[6])["status"] == "failed"
    assert not any("Traceback" in text for text in told)


@pytest.mark.parametrize("mode", MODES)
def test_a_long_run_tells_its_progress_and_its_call_returns_before_its_end(
    stack: Stack, tmp_path: Path, mode: str
) -> None:
    agent, messages = slow(tmp_path), list[str]()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        messages.append(f"{progress:g} {message}")

    async def use() -> None:
        async with serving(stack, "--agents", str(agent), "--wait", "2", mode=mode) as client:
            result = await client.call_tool("slow", {"prompt": "it"}, progress_callback=note)
            content = content_of(result)
            assert (result.is_error, content["status"]) == (False, "running")
            assert content["at"] and content["at"][0].startswith("work (")
            assert f"Call wait_for_run with run_id {content['run_id']}" in text_of(result)
            (tmp_path / "GO").touch()
            async with asyncio.timeout(60):
                while (
                    ended := await client.call_tool("wait_for_run", {"run_id": content["run_id"]})
                ).is_error is False:
                    if content_of(ended)["status"] == "completed":
                        break
            assert text_of(ended) == "done it"

    asyncio.run(use())
    assert messages[0] == "1 work (function)"
    assert any(message.endswith("work: 40 % reading") for message in messages), messages
    numbers = [float(message.split()[0]) for message in messages]
    assert numbers == sorted(set(numbers)), "progress increases"


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_call_cancels_its_run_unless_runs_are_detached(
    stack: Stack, tmp_path: Path, mode: str, detach: bool
) -> None:
    agent = slow(tmp_path)

    async def use() -> str:
        words = ("--detach",) if detach else ()
        async with serving(stack, "--agents", str(agent), *words, mode=mode) as client:
            call = asyncio.ensure_future(client.call_tool("slow", {"prompt": "it"}))
            await until((tmp_path / "BEGUN").exists, "the run works")
            call.cancel()
            await asyncio.wait([call])
            [run] = content_of(await client.call_tool("list_runs", {"limit": 1}))["runs"]
            with stack.client() as other:
                handle = other.run(run["run_id"])
                if not detach:
                    await until(lambda: handle.status == "cancelled", "the run is cancelled")
                assert content_of(await client.call_tool("show_run", {"run_id": handle.id}))["agent"] == "slow"
                return handle.id

    run_id = asyncio.run(use())
    (tmp_path / "GO").touch()
    with stack.client() as client:
        run = client.run(run_id)
        assert run.wait(60).status == ("completed" if detach else "cancelled")
        who = [change.by for change in run.info().changes if change.what == "cancelled"]
        assert all("(mcp)" in by for by in who) and len(who) == (0 if detach else 1)


def test_a_client_that_goes_away_leaves_its_run_alone(stack: Stack, tmp_path: Path) -> None:
    agent = slow(tmp_path)
    # The package's own end of a client cancels what is pending, so this one leaves as a killed process does.
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "slow", "arguments": {"prompt": "it"}}},
    ]  # fmt: skip
    command = [sys.executable, "-m", "sleipnir", "mcp", "serve", "--agents", str(agent)]
    with subprocess.Popen(
        command, env=stack.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write("this is no message\n" + "".join(json.dumps(line) + "\n" for line in lines))
        server.stdin.flush()
        asyncio.run(until((tmp_path / "BEGUN").exists, "the run works"))
        server.stdin.close()
        written = server.stdout.read().splitlines()
        assert server.wait(60) == 0
    assert [json.loads(line)["jsonrpc"] for line in written] == ["2.0"] * len(written), "the protocol and nothing else"
    with stack.client() as client:
        [info] = client.runs(1, agents=["slow"])
        assert info.status == "running"
        (tmp_path / "GO").touch()
        assert client.run(info.id).wait(60).status == "completed"


def test_a_worker_that_is_killed_during_a_call_is_not_noticed_by_the_client(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    agent = slow(tmp_path)

    async def use(stack: Stack) -> CallToolResult:
        async with serving(stack, "--agents", str(agent)) as client:
            call = asyncio.ensure_future(client.call_tool("slow", {"prompt": "it"}))
            await until((tmp_path / "BEGUN").exists, "the run works")
            stack.kill("worker")
            (tmp_path / "GO").touch()
            await anyio.to_thread.run_sync(stack.start_worker)
            return await call

    with Stack(redis_server, tmp_path / "home", key_prefix="mcp-killed") as stack:
        stack.start_scheduler()
        stack.start_worker()
        result = asyncio.run(use(stack))
    assert text_of(result) == "done it"
    assert (tmp_path / "BEGUN").read_text() == "xx", "the visit ran again"


def test_redis_that_is_away_is_an_error_of_the_tool_and_the_server_goes_on(tmp_path: Path) -> None:
    redis, agent = RedisServer(), greeting(tmp_path)
    arguments = {"state": {"times": 1}, "variables": {"team": "web"}}

    async def use(stack: Stack) -> None:
        redis.kill()
        async with serving(stack, "--agents", str(agent)) as client:
            assert "greeting" in [tool.name for tool in (await client.list_tools()).tools]
            for name, given in (("greeting", arguments), ("list_runs", {})):
                refused = await client.call_tool(name, given)
                assert refused.is_error and "Redis" in text_of(refused), refused
            redis.start()
            assert (await client.call_tool("list_runs", {})).is_error is False
            stack.start_scheduler()
            await anyio.to_thread.run_sync(stack.start_worker)
            assert content_of(await client.call_tool("greeting", arguments))["status"] == "completed"

    with Stack(redis, tmp_path / "home") as stack:
        asyncio.run(use(stack))
        assert "Traceback" not in log_of(stack)
    redis.stop()


def test_a_request_id_that_comes_again_is_the_same_run(stack: Stack, tmp_path: Path) -> None:
    agent = greeting(tmp_path)
    arguments = {"state": {"times": 1}, "variables": {"team": "web"}, "request_id": f"order {tmp_path}"}

    async def use() -> set[str]:
        ids = set()
        for _ in range(2):
            async with serving(stack, "--agents", str(agent)) as client:
                for _ in range(2):
                    ids.add(content_of(await client.call_tool("greeting", arguments))["run_id"])
        return ids

    assert len(asyncio.run(use())) == 1


def test_a_client_sees_the_runs_of_its_agents_and_its_namespace_only(stack: Stack, tmp_path: Path) -> None:
    mine, other = greeting(tmp_path), slow(tmp_path)
    (tmp_path / "GO").touch()
    with stack.client() as client:
        of_another_agent, elsewhere = (
            client.submit(other, "it"),
            client.submit(mine, state={"times": 1}, namespace="elsewhere", variables={"team": "T"}),
        )
        of_another_agent.wait(60)

    async def use() -> None:
        async with serving(stack, "--agents", str(mine)) as client:
            for name in ("show_run", "wait_for_run", "cancel_run"):
                for hidden in (of_another_agent, elsewhere):
                    refused = await client.call_tool(name, {"run_id": hidden.id})
                    assert refused.is_error and text_of(refused) == f"no run {hidden.id!r}", name
            assert content_of(await client.call_tool("list_runs", {"agent": "slow"})) == {"runs": []}
            listed = content_of(await client.call_tool("list_runs"))["runs"]
            assert {run["agent"] for run in listed} <= {"greeting"}
            assert elsewhere.id not in {run["run_id"] for run in listed}

    asyncio.run(use())


FRIEND = """
name: Friend
description: Talks.
model: openai:gpt-test
instructions: Be kind.
"""


def test_an_agent_with_a_model_goes_on_with_a_session(redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "friend").mkdir()
    (tmp_path / "friend" / "config.yaml").write_text(FRIEND)

    def heard(request: Request) -> Reply:
        said = [str(message["content"]) for message in request.messages if message["role"] == "user"]
        return Reply(f"heard {' '.join(said)}")

    async def use(stack: Stack) -> list[str]:
        async with serving(stack, "--agents", str(tmp_path / "friend")) as client:
            [tool] = [tool for tool in (await client.list_tools()).tools if tool.name == "friend"]
            assert set(tool.input_schema["properties"]) == {"prompt", "session", "request_id"}
            given = [{"prompt": prompt, "session": "desk"} for prompt in ("one", "two")]
            results = [await client.call_tool("friend", each) for each in given]
            assert content_of(results[0])["usage"]["calls"] == 1
            return [text_of(result) for result in results]

    with ModelServer(heard) as model, Stack(redis_server, tmp_path / "home", key_prefix="mcp-model") as stack:
        stack.start_scheduler()
        stack.start_worker("models", "llm", env=model.env())
        assert asyncio.run(use(stack)) == ["heard one", "heard one two"]
