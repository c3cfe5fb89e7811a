"""The object of the MCP server behind streamable HTTP, as a deployable mounts it: without state, and each call in the
name of its sender."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitRequestParams, ElicitResult

from sleipnir.mcp_server.application import AgentServer
from sleipnir.mcp_server.options import ServerOptions
from sleipnir.runs.actor import Actor
from tests.console import Answer, Console, console_of
from tests.mcp_clients import MODES, content_of, text_of
from tests.processes import RedisServer, Stack
from tests.system.test_mcp_questions import asking


@asynccontextmanager
async def address_of(stack: Stack, agent: Path) -> AsyncIterator[str]:
    """The address of a server on this machine; a request names its sender in a header."""
    server = AgentServer(
        stack.settings, ServerOptions(agents=(str(agent),)), lambda request: Actor(request.headers["who"], "", "mcp")
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        app = server.streamable_http_app(stateless_http=True)
        serving = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        task = asyncio.ensure_future(serving.serve([listening]))
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            serving.should_exit = True
            await task


@pytest.mark.parametrize("mode", MODES)
def test_calls_over_http_are_in_the_name_of_their_sender(stack: Stack, tmp_path: Path, mode: Any) -> None:
    agent = asking(tmp_path)
    asked: list[str] = []

    async def elicit(context: object, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"answer": "refuse"})

    async def use() -> str:
        async with (
            address_of(stack, agent) as address,
            httpx2.AsyncClient(headers={"who": "ann"}) as http,
            Client(streamable_http_client(address, http_client=http), mode=mode, elicitation_callback=elicit) as client,
        ):
            result = await client.call_tool("asking", {"prompt": "12 EUR"})
            content = content_of(result)
            if mode == "legacy":  # the server cannot ask over this transport, so the question is in the result
                [question] = content["questions"]
                given = {"run_id": question["run_id"], "question_id": question["question_id"], "answer": "refuse"}
                await client.call_tool("answer_question", given)
                result = await client.call_tool("wait_for_run", {"run_id": content["run_id"]})
            assert text_of(result) == "refused"
            return str(content["run_id"])

    run_id = asyncio.run(use())
    assert len(asked) == (0 if mode == "legacy" else 1)
    with stack.client() as client:
        info = client.run(run_id).info()
        assert [change.by for change in info.changes if change.what == "answered"] == ["ann (mcp)"]


def test_the_http_api_has_the_tools_for_operators_only(redis_server: RedisServer, tmp_path: Path) -> None:
    agent = asking(tmp_path / "agents")
    roles = ("viewer", "approver", "operator", "admin")
    with Stack(redis_server, tmp_path / "home", key_prefix="mcp-http", agents_dir=agent.parent) as own:
        own.start_scheduler()
        own.start_worker()
        with own.client() as client:
            access = client.access
            for name in roles:
                access.add_user(name, None, {"default": name})
            access.add_user("foreigner", None, {"other": "admin"})
            tokens = {name: access.create_token(name).text for name in (*roles, "foreigner")}
        with console_of(own) as console:
            assert _status(console, None) == (401, "unauthenticated")
            assert _status(console, "wrong") == (401, "unauthenticated")
            assert _status(console, tokens["foreigner"]) == (404, "not-found")
            for name in ("viewer", "approver"):
                assert _status(console, tokens[name]) == (403, "forbidden"), name
            assert _status(console, tokens["operator"], "http://evil.example")[0] == 403
            for name in ("operator", "admin"):
                run_id = asyncio.run(_used(f"http://127.0.0.1:{console.port}/mcp", tokens[name]))
                with own.client() as client:
                    [answered] = [each for each in client.run(run_id).info().changes if each.what == "answered"]
                    assert answered.by.startswith(f"{name}/") and answered.by.endswith("(mcp)"), answered


def _status(console: Console, token: str | None, origin: str = "") -> tuple[int, str]:
    """The status of the answer to a request, and the type of its problem."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Origin": origin} if origin else {}
    connection = console.connection()
    connection.request("POST", "/mcp", b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', headers)
    response = connection.getresponse()
    answer = Answer(response.status, response.headers, response.read())
    connection.close()
    return answer.status, answer.problem


async def _used(address: str, token: str) -> str:
    """Run the agent with the tools, and return the run's id."""

    async def elicit(context: object, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": "refuse"})

    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(address, http_client=http), elicitation_callback=elicit) as client,
    ):
        result = await client.call_tool("asking", {"prompt": "12 EUR"})
        assert text_of(result) == "refused"
        return str(content_of(result)["run_id"])
