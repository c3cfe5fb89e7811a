"""Check every server of an mcp.json: start it, list its tools, stop it. For start-up and for operators."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sleipnir.tools.mcp_config import McpServer
from sleipnir_workers.mcp.connections import START_S, Connections
from sleipnir_workers.mcp.failures import McpFailed

CONCURRENT_STARTS = 8  # each may be an npx that unpacks a package


@dataclass(frozen=True)
class CheckedServer:
    """The result for one server: its number of tools, or its problem."""

    server: str
    tools: int | None = None
    problem: str | None = None


def check_each(servers: Mapping[str, McpServer], *, start_s: float = START_S) -> list[CheckedServer]:
    """Check every server, at most `start_s` seconds each. Returns after all of them have stopped."""
    connections = Connections(start_s=start_s)

    def check_one(server: McpServer) -> CheckedServer:
        try:
            return CheckedServer(server.name, tools=connections.count_tools(server))
        except McpFailed as error:
            return CheckedServer(server.name, problem=str(error))

    try:
        with ThreadPoolExecutor(CONCURRENT_STARTS, thread_name_prefix="mcp-check") as pool:
            return list(pool.map(check_one, servers.values()))
    finally:
        connections.close()


def check(servers: Mapping[str, McpServer], *, start_s: float = START_S) -> list[str]:
    """The problems of the servers, one text each; empty if all servers work."""
    return [checked.problem for checked in check_each(servers, start_s=start_s) if checked.problem is not None]
