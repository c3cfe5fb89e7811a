"""Protects a process with secrets from the other processes of its user.

A process's memory and its first environment (`/proc/PID/environ`) can be read by every process of the same user, and
the scripts of a worker run as its user. `refuse_inspection` makes the process not dumpable (PR_SET_DUMPABLE): then only
root can read these files or trace it, and it writes no core dumps.

Forks inherit the protection; an exec or a change of the user ends it: so each process calls it at its start, and
programs that it executes (scripts, redis-server, MCP servers) are not affected. Root can always read everything,
including scripts of a worker that runs as root. It has no effect on systems other than Linux.
"""

from __future__ import annotations

import sys

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4


def refuse_inspection() -> None:
    """Prevent other processes of this user from reading this process's memory and environment. Idempotent."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def refuses_inspection() -> bool:
    """Whether this process is protected."""
    if sys.platform != "linux":
        return False
    import ctypes

    return int(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)) == 0
