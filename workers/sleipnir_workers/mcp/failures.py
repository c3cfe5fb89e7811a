"""Failures of MCP servers. Models and people read the texts; these contain no secret of mcp.json."""

from __future__ import annotations


class McpFailed(Exception):
    """The server cannot be reached, died, timed out or refused. The text names the server and the reason."""


class ConnectionLost(Exception):
    """The connection ended before the answer. `not_executed`: the server reported that it ignored the request."""

    def __init__(self, message: str, *, not_executed: bool = False) -> None:
        super().__init__(message)
        self.not_executed = not_executed
