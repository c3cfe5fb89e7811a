"""Kill the process groups of commands whose worker died.

launch.py ties a command to its worker, but the command's own children do not inherit that tie. So
every worker process that runs commands has one small companion (`python -I -S group_guard.py`). It reads
which groups are running, as lines `+N` and `-N` on its stdin, and kills them when stdin ends, which is when the
worker has ended in any way. A command writes its own group before it begins (launch.py), so that a worker
that dies right after starting it leaves nothing behind. The companion has a session of its own, so that
a signal that kills the worker's group does not reach it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from typing import IO

SIGKILL = 9


class GroupGuard:
    """A worker process's side. The companion is started on first use, and again if it was killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: set[int] = set()
        self._companion: subprocess.Popen[bytes] | None = None

    def tell_fd(self) -> int:
        """A descriptor of the companion's stdin, which the caller closes. A command writes its own group there before
        it begins, so that none is missed. Raises OSError if no companion can be started."""
        with self._lock:
            if self._companion is None or self._companion.poll() is not None:
                self._start()
            assert self._companion is not None
            return os.dup(_stdin(self._companion).fileno())

    def add(self, group: int) -> None:
        """From now on `group` dies with this process. Raises OSError if no companion can be started."""
        with self._lock:
            self._groups.add(group)
            if not self._write(f"+{group}\n"):
                self._start()

    def remove(self, group: int) -> None:
        """Call it before the group's leader is reaped: until then no other group has its number."""
        with self._lock:
            self._groups.discard(group)
            self._write(f"-{group}\n")

    @property
    def companion_pid(self) -> int | None:
        """None before the first group."""
        return None if self._companion is None else self._companion.pid

    def close(self) -> None:
        """End the companion, and with it every group that was not removed."""
        with self._lock:
            if self._companion is not None:
                _stdin(self._companion).close()
                self._companion.wait()
                self._companion = None

    def forget(self) -> None:
        """In a forked child: close the pipe to the parent's companion, whose stdin must end with the parent."""
        if self._companion is not None:
            _stdin(self._companion).close()
            self._companion.returncode = 0  # not our child to wait for

    def _write(self, line: str) -> bool:
        """False if there is no companion."""
        if self._companion is None or self._companion.poll() is not None:
            return False
        try:
            _stdin(self._companion).write(line.encode())
        except BrokenPipeError:
            return False
        return True

    def _start(self) -> None:
        if self._companion is not None:
            _stdin(self._companion).close()
            self._companion.kill()  # a companion that is still alive would kill the groups
            self._companion.wait()
        self._companion = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        _stdin(self._companion).write("".join(f"+{group}\n" for group in self._groups).encode())


def _stdin(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


guard = GroupGuard()


@atexit.register
def _at_exit() -> None:
    guard.close()


def _after_fork() -> None:
    global guard
    guard.forget()
    guard = GroupGuard()


os.register_at_fork(after_in_child=_after_fork)


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, SIGKILL)


if __name__ == "__main__":
    main()
