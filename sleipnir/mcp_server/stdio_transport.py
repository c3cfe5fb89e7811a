"""Serve one client over standard input and output, as coding assistants start servers.

Rule. Standard output carries the protocol and nothing else: the SDK redirects all other writes to standard error, and
logs go there.
"""

from __future__ import annotations

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from sleipnir.mcp_server.application import AgentServer


def serve(server: AgentServer) -> None:
    """Serve until the client closes standard input. Its runs go on."""
    anyio.run(_serve, server)


async def _serve(server: AgentServer) -> None:
    async with stdio_server() as (incoming, outgoing):
        to_server, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()

        async def pass_on() -> None:
            """The end of the input is the client's end: it must be known before the calls are ended for it."""
            async with to_server, incoming:
                async for message in incoming:
                    await to_server.send(message)
                if server.serving is not None:
                    server.serving.client_is_gone = True

        async with anyio.create_task_group() as beside:
            beside.start_soon(pass_on)
            await server.run(messages, outgoing, server.create_initialization_options())
            beside.cancel_scope.cancel()
