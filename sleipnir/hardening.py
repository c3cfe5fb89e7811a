"""Close a process that holds secrets to the other processes of its user.

A process's memory and its first environment (`/proc/PID/environ`) can be read by every process of the same user, and
the scripts of a worker run as its user. `refuse_inspection` makes the process not dumpable (PR_SET_DUMPABLE): the
kernel gives these files to root then, and nobody else may trace it. It makes no core dumps any more.

It holds for forks, and ends with an exec and with a change of the user: so each process calls it itself, before it
does anything else, and what it starts by exec (scripts, redis-server, MCP servers) is not affected. Root can read
everything in any case: scripts of a worker that runs as root can, and so they should not. On other systems than Linux
it does nothing.
"""

from __future__ import annotations

import sys

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4


def refuse_inspection() -> None:
    """Let no other process of this user read the memory and the environment of this one. Twice is safe."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def refuses_inspection() -> bool:
    """Whether it does."""
    if sys.platform != "linux":
        return False
    import ctypes

    return int(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)) == 0
