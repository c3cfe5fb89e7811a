"""Clients of `sleipnir mcp serve`, as coding assistants are: the real package, over stdio."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.context import ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult

from tests.processes import Stack
from tests.waiting import wait_until

Answering = Callable[[ElicitRequestParams], ElicitResult]

MODES = ("auto", "legacy")
"""Protocols: the newest one, and that of clients which begin with `initialize`."""


@asynccontextmanager
async def serving(
    stack: Stack,
    *words: str,
    mode: str = "auto",
    answering: Answering | None = None,
    eliciting: ElicitationFnT | None = None,
    env: dict[str, str] | None = None,
) -> AsyncIterator[Client]:
    """A client of a server that it has started; `answering` is its user, or
    `eliciting` in the event loop."""

    async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert answering is not None
        return await anyio.to_thread.run_sync(answering, params)

    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sleipnir", "mcp", "serve", *words],
        env={**stack.environment(), **(env or {})},
        cwd=str(stack.home),
    )
    with (stack.home / "mcp.log").open("a") as log:
        async with Client(
            stdio_client(parameters, errlog=log),
            mode=mode,
            elicitation_callback=eliciting if answering is None else elicit,
            read_timeout_seconds=120,
        ) as client:
            yield client


def log_of(stack: Stack) -> str:
    """What servers of a stack have written to standard error."""
    return (stack.home / "mcp.log").read_text()


def text_of(result: CallToolResult) -> str:
    """The text of a result."""
    return "\n".join(block.text for block in result.content if block.type == "text")


def content_of(result: CallToolResult) -> dict[str, Any]:
    """The structured content of a result about a run."""
    assert isinstance(result.structured_content, dict), result
    return result.structured_content


async def until(condition: Callable[[], Any], description: str) -> Any:
    """As wait_until, while other tasks go on."""
    return await anyio.to_thread.run_sync(wait_until, condition, description)


def folder_names(*folders: Path) -> str:
    """The value of `--agents`."""
    return ",".join(map(str, folders))
