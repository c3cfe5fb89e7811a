"""An MCP server written with the SDK, for tests: `python lab_server.py` on stdio; `lab()` for an HTTP server."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.types import ToolAnnotations

PIXEL = b"\x89PNG and so on"


def lab(many: int = 0) -> MCPServer:
    """`many` tools more: each takes a millisecond and more to declare."""
    server = MCPServer("lab")
    calls = 0

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers and give their sum."""
        return a + b

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def pid() -> int:
        """The number of the process."""
        return os.getpid()

    @server.tool()
    def environment() -> dict[str, str]:
        """All variables of the process."""
        return dict(os.environ)

    @server.tool()
    def broken() -> str:
        """Always fails."""
        raise RuntimeError("it is broken")

    @server.tool()
    def picture() -> Image:
        """A picture of one pixel."""
        return Image(data=PIXEL, format="png")

    @server.tool()
    def third_time() -> int:
        """Dies at the third call."""
        nonlocal calls
        calls += 1
        if calls == 3:
            print("cannot count to three", file=sys.stderr, flush=True)
            os._exit(7)
        return calls

    @server.tool()
    async def hang() -> str:
        """Never answers."""
        await asyncio.Event().wait()
        return ""

    @server.tool()
    async def grow(context: Context) -> str:
        """Adds a tool to the server."""

        def sprout() -> str:
            return "new"

        server.add_tool(sprout, name="sprout", description="Grew later.")
        await context.notify_tools_changed()
        return "grown"

    for number in range(many):
        server.add_tool(lambda number=number: number, name=f"item_{number}", description=f"Gives item number {number}.")
    return server


if __name__ == "__main__":
    lab().run()
