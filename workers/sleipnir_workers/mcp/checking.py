"""Try every server of an mcp.json: start it, list its tools, end it. For start-up checks and for operators."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sleipnir.tools.mcp_config import McpServer
from sleipnir_workers.mcp.connections import START_S, Connections
from sleipnir_workers.mcp.failures import McpFailed

AT_ONCE = 8  # servers that start together: each may be an npx that unpacks a package


@dataclass(frozen=True)
class CheckedServer:
    """What came of one server: its number of tools, or what is wrong."""

    server: str
    tools: int | None = None
    problem: str | None = None


def check_each(servers: Mapping[str, McpServer], *, start_s: float = START_S) -> list[CheckedServer]:
    """Start every server, at most `start_s` seconds each. Returns when all that was started is gone again."""
    connections = Connections(start_s=start_s)

    def check_one(server: McpServer) -> CheckedServer:
        try:
            return CheckedServer(server.name, tools=connections.count_tools(server))
        except McpFailed as error:
            return CheckedServer(server.name, problem=str(error))

    try:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="mcp-check") as pool:
            return list(pool.map(check_one, servers.values()))
    finally:
        connections.close()


def check(servers: Mapping[str, McpServer], *, start_s: float = START_S) -> list[str]:
    """What is wrong with the servers, one text each; nothing when all of them work."""
    return [checked.problem for checked in check_each(servers, start_s=start_s) if checked.problem is not None]
