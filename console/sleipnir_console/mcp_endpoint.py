"""Agents as tools of an MCP server at /mcp: streamable HTTP, for operators.

Rules. Each request is checked like one of a route with the permission `operator`, and its call is in the name of its
sender. There are no sessions: a request says all, so any process can take it, and nobody can go on with another's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from sleipnir.mcp_server.application import AgentServer
from sleipnir.mcp_server.options import ServerOptions
from sleipnir.runs.actor import Actor
from sleipnir.settings import Settings
from sleipnir_console.permissions import Caller, Permission, caller_of, refusal

PATH: Final = "/mcp"
PERMISSION: Final[Permission] = "operator"


class McpEndpoint:
    """The endpoint, as an ASGI application; `running` is around all of its requests."""

    def __init__(self, settings: Settings, is_stopping: Callable[[], bool]) -> None:
        server = AgentServer(settings, ServerOptions(), _actor_of, is_stopping)
        self._requests = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=settings.console_body_bytes
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While the application serves."""
        async with self._requests.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises HttpProblem."""
        request = Request(scope, receive)
        caller: Caller = await request.app.state.authenticate(request)
        request.state.caller = caller
        if not caller.may(PERMISSION):
            raise refusal(caller, PERMISSION)
        await self._requests.handle_request(scope, receive, send)


def _actor_of(request: Request) -> Actor:
    return replace(caller_of(request).by, via="mcp")
