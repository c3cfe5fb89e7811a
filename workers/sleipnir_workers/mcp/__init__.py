"""MCP servers for llm nodes: connections kept alive in this process, and three functions of each for a model.

What others use: `configured` for the servers there are, `declarations` for the model's request, `answer` for a call,
`here` for this process's connections, `close` when the worker stops, `check` at start-up.

The SDK (`mcp`) takes half a second and 60 MB to import, and workers without llm nodes never need it: it is imported
inside functions only, by the first connection.
"""

from __future__ import annotations

import os
import threading

from sleipnir_workers.mcp.calls import answer
from sleipnir_workers.mcp.checking import Checked, check, check_each
from sleipnir_workers.mcp.configured import configured
from sleipnir_workers.mcp.declarations import declarations, function_name, split_name
from sleipnir_workers.mcp.failure import McpFailed
from sleipnir_workers.mcp.sessions import Sessions

__all__ = [
    "Checked",
    "McpFailed",
    "Sessions",
    "answer",
    "check",
    "check_each",
    "close",
    "configured",
    "declarations",
    "function_name",
    "here",
    "split_name",
]

_lock = threading.Lock()
_sessions: Sessions | None = None


def here() -> Sessions:
    """The connections of this process. Opens none."""
    global _sessions
    with _lock:
        if _sessions is None:
            _sessions = Sessions()
        return _sessions


def close() -> None:
    """End every connection of this process and every server it started. Twice is safe; `here` would begin anew."""
    global _sessions
    with _lock:
        sessions, _sessions = _sessions, None
    if sessions is not None:
        sessions.close()


def _after_fork() -> None:
    """The parent's connections, and the thread that serves them, are the parent's."""
    global _lock, _sessions
    _lock, _sessions = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
