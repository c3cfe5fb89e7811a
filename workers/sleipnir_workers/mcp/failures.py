"""What goes wrong with an MCP server. The texts are read by models and by people; they hold no secret of mcp.json."""

from __future__ import annotations


class McpFailed(Exception):
    """The server cannot be reached, died, did not answer in time, or refused. `str()` says which server and why."""


class ConnectionLost(Exception):
    """The connection ended before the answer came. `unheard`: the server said itself that it did not do the request."""

    def __init__(self, message: str, *, unheard: bool = False) -> None:
        super().__init__(message)
        self.unheard = unheard
