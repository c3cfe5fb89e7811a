"""Kill what a command leaves behind in sessions of its own: `setsid`, a double fork, a daemon.

A command's process group is killed at its end (sandbox.py), but a process can leave its group. So:

- A command's leader is a child subreaper (launch.py, warm_server.py): a descendant that loses its parent becomes the
  leader's child, however often it forks. When the leader is dead too, it becomes a child of this process, which is a
  subreaper as well.
- A command has a mark that its descendants inherit and cannot remove without being root: a hard limit of its own for
  the bytes in POSIX message queues (RLIMIT_MSGQUEUE, which is hardly ever used), a little lower than this process's.
  The mark distinguishes adopted children from those that our own code has started.

After the leader's death, each adopted child that has the command's mark, or a mark of no running command, is killed and
reaped, until there is none: its own children are adopted by this process in turn. A worker that is killed cannot do
this; the groups of its commands die then (group_guard.py), and processes that have left their group live on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import structlog

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
MARKS = 100_000
USUAL_BYTES = 819_200  # the kernel's default, used if this process has no limit
KILL_S = 5.0  # for processes that fork faster than they are killed


class Descendants:
    """The marks of this process's running commands."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._next = 0
        self._was_subreaper = is_subreaper()
        self._highest = _become_subreaper()
        self._adopts = self._highest >= 0

    @contextlib.contextmanager
    def of_command(self) -> Iterator[int]:
        """A mark for one command. The leader is dead and reaped at the end of the block; its remaining descendants are
        killed then. -1 on platforms without marks."""
        if self._highest < 0:
            yield -1
            return
        with self._lock:
            if not self._adopts:
                self._adopts = _set_subreaper(True)
            while True:
                self._next = (self._next + 1) % MARKS
                mark = self._highest - self._next
                if mark not in self._running:
                    break
            self._running.add(mark)
        try:
            yield mark
        finally:
            self._end(mark)
            with self._lock:
                self._running.discard(mark)

    def resign(self) -> None:
        """Adopt no processes until the next command, if none is running. For programs that execute visits themselves:
        the orphans of what else they start are not theirs to reap."""
        with self._lock:
            if self._adopts and not self._running and not self._was_subreaper:
                self._adopts = not _set_subreaper(False)

    def _end(self, mark: int) -> None:
        """Kill and reap the remaining descendants of a command. A system call for each child."""
        deadline = time.monotonic() + KILL_S
        while remaining := [pid for pid in _adopted() if self._is_left(pid, mark)]:
            for pid in remaining:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in remaining:
                _reap(pid, deadline)
            if time.monotonic() > deadline:
                structlog.get_logger().error(
                    "processes that a command has left behind cannot be killed", pids=remaining
                )
                return

    def _is_left(self, pid: int, mark: int) -> bool:
        try:
            limit = resource.prlimit(pid, resource.RLIMIT_MSGQUEUE)[1]
        except OSError:  # it has ended, or belongs to another user
            return False
        if not 0 <= limit <= self._highest:
            return False
        with self._lock:
            return limit == mark or limit not in self._running


def _become_subreaper() -> int:
    """The highest mark; -1 where processes cannot be marked."""
    if sys.platform != "linux":
        return -1
    hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
    highest = (USUAL_BYTES if hard == resource.RLIM_INFINITY else hard) - 1
    if highest < MARKS or not _children_file().exists():
        return -1
    return highest if _set_subreaper(True) else -1


def _set_subreaper(adopts: bool) -> bool:
    """Whether it could be set."""
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0) == 0)


def is_subreaper() -> bool:
    """Whether orphans among its descendants become children of this process."""
    if sys.platform != "linux":
        return False
    value = ctypes.c_int(0)
    return ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0) == 0 and bool(value.value)


def _children_file() -> Path:
    """That of the main thread, which is the one that adopts children."""
    pid = os.getpid()
    return Path(f"/proc/{pid}/task/{pid}/children")


def _adopted() -> list[int]:
    """The children of the main thread: the adopted ones, and those that it has started itself."""
    try:
        return list(map(int, _children_file().read_bytes().split()))
    except OSError:
        return []


def _reap(pid: int, deadline: float) -> None:
    """Wait for a child that was killed."""
    pause_s = 0.0002
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.01)


_instance: Descendants | None = None
_lock = threading.Lock()


def of_this_process() -> Descendants:
    """The instance of this process: a forked child has none of its parent's commands."""
    global _instance
    instance = _instance
    if instance is None:
        with _lock:
            instance = _instance = _instance or Descendants()
    return instance


def resign() -> None:
    """As Descendants.resign, if this process has run commands."""
    if _instance is not None:
        _instance.resign()


def _after_fork() -> None:
    global _instance, _lock
    _instance, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
