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
from tests.mcp_clients import MODES, content_of, text_of
from tests.processes import Stack
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
