"""MCP servers for llm nodes: the connections of this process, and three functions per server for a model.

`configured` reads the servers, `declarations` are for the model's request, `answer` handles a call,
`process_connections` are this process's connections, `close` ends them, `check` is for start-up.

The import of the SDK (`mcp`) takes half a second and 60 MB, and workers without llm nodes never need it. So the first
connection imports it, inside functions.
"""

from __future__ import annotations

import os
import threading

from sleipnir_workers.mcp.calls import answer
from sleipnir_workers.mcp.checking import CheckedServer, check, check_each
from sleipnir_workers.mcp.configuration import configured
from sleipnir_workers.mcp.connections import Connections
from sleipnir_workers.mcp.declarations import declarations, function_name, split_name
from sleipnir_workers.mcp.failures import McpFailed

__all__ = [
    "CheckedServer",
    "Connections",
    "McpFailed",
    "answer",
    "check",
    "check_each",
    "close",
    "configured",
    "declarations",
    "function_name",
    "process_connections",
    "split_name",
]

_lock = threading.Lock()
_connections: Connections | None = None


def process_connections() -> Connections:
    """The connections of this process; opens none."""
    global _connections
    with _lock:
        if _connections is None:
            _connections = Connections()
        return _connections


def close() -> None:
    """End every connection of this process and every server that it started. Idempotent; a later
    `process_connections` creates new ones."""
    global _connections
    with _lock:
        connections, _connections = _connections, None
    if connections is not None:
        connections.close()


def _after_fork() -> None:
    """A child process must not use the connections and the thread of its parent."""
    global _lock, _connections
    _lock, _connections = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
