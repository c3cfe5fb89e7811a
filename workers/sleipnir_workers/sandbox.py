"""Run one command for a visit, so that nothing of it outlives the visit.

Rules. The command is the leader of its own session and process group, reads /dev/null, and dies with
the worker (sleipnir.launch), as the rest of its group does (group_guard). Its output is read while it
runs and kept up to a limit. However it ends (by itself, at its timeout, because the visit was lost,
because it printed too much), the whole group is killed before we return, so a background child cannot
hold us up. A process that moves to a session of its own escapes the group; it cannot hold us up either,
but it lives on.

The leader is reaped after its group was signalled: until then its number cannot be given to another
process, so we never signal a stranger.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from sleipnir import launch
from sleipnir_workers import group_guard
from sleipnir_workers.node import VisitLost

TICK_S = 0.1  # how late we may see that the visit was lost; an Event cannot be waited for together with pipes
GRACE_S = 2.0  # between SIGTERM and SIGKILL
LINGER_S = 0.25  # after the leader's exit, for a process substitution that still writes to stdout
STDERR_BYTES = 64 * 1024
_CHUNK = 64 * 1024

Reason: TypeAlias = Literal["exited", "timeout", "stdout_limit"]

KEPT = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL"})
"""Variables of the worker that commands inherit, besides LC_*. Everything else may be a secret."""


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of a worker's environment that the commands it runs may see."""
    return {name: value for name, value in env.items() if name in KEPT or name.startswith("LC_")}


@dataclass(frozen=True)
class Outcome:
    """How a command ended. One of `code` and `signal` is set; with another `reason` than "exited" it was us."""

    reason: Reason
    code: int | None
    signal: int | None
    stdout: bytes
    stderr: str
    """Decoded with replacement; the middle is left out when it was long."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float,
    lost: threading.Event,
    max_stdout_bytes: int,
    grace_s: float = GRACE_S,
) -> Outcome:
    """Run `argv` with exactly `env` in `cwd`, and wait for it.

    Raises VisitLost within about TICK_S of `lost` being set (the group is dead then), and OSError when
    the command cannot be started.
    """
    if lost.is_set():
        raise VisitLost(f"the visit was lost before {argv[0]!r} was started")
    deadline = time.monotonic() + timeout_s
    with _Command(argv, env, cwd, lost, max_stdout_bytes) as command:
        reason = command.wait(deadline)
        if reason == "timeout":
            command.terminate(grace_s)
        elif reason == "exited":
            command.drain(LINGER_S)
    return command.outcome(reason)


class _Command:
    """A running command; leaving the `with` block kills its group and reaps it."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, lost: threading.Event, max_stdout_bytes: int
    ) -> None:
        self._lost = lost
        self._max_stdout_bytes = max_stdout_bytes
        self._stdout = bytearray()
        self._stderr = _HeadAndTail(STDERR_BYTES)
        self._open_pipes = 2
        self._exited = False
        self._guard = group_guard.guard
        tell_fd = self._guard.tell_fd()
        try:
            self._process = subprocess.Popen(
                launch.command(list(argv), tell_fd=tell_fd),
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd=cwd,
                pass_fds=(tell_fd,),
                start_new_session=True,
            )
        finally:
            os.close(tell_fd)
        self._selector = selectors.DefaultSelector()
        try:
            self._guard.add(self._process.pid)
            self._pidfd = self._watch()
        except OSError:  # out of processes or file descriptors
            self._pidfd = None
            self.__exit__()
            raise

    def __enter__(self) -> _Command:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGKILL)
        if self._process.returncode is None:
            # Dead, but not reaped yet: it cannot tell the guard its number any more, and nobody else has that number.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._guard.remove(self._process.pid)
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def wait(self, deadline: float) -> Reason:
        """Wait for the end of the leader; "timeout" and "stdout_limit" leave it running."""
        if not self._pump(deadline, lambda: self._has_exited() or self._too_much()):
            return "timeout"
        return "stdout_limit" if self._too_much() else "exited"

    def terminate(self, grace_s: float) -> None:
        self._signal(signal.SIGTERM)
        self._pump(time.monotonic() + grace_s, self._has_exited)

    def drain(self, seconds: float) -> None:
        """Read on until the pipes are closed, for at most `seconds`: usually they are closed already."""
        self._pump(time.monotonic() + seconds, lambda: self._open_pipes == 0 or self._too_much())

    def outcome(self, reason: Reason) -> Outcome:
        code = self._process.returncode
        return Outcome(
            reason="stdout_limit" if self._too_much() else reason,
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=bytes(self._stdout),
            stderr=self._stderr.text(),
        )

    def _pump(self, deadline: float, done: Callable[[], bool]) -> bool:
        """Read output until `done` (True) or the deadline (False). Raises VisitLost."""
        while not done():
            if self._lost.is_set():
                raise VisitLost("the visit was lost while its command was running; the command was killed")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            for key, _ in self._selector.select(min(remaining, TICK_S)):
                key.data()
        return True

    def _watch(self) -> int | None:
        assert self._process.stdout is not None and self._process.stderr is not None
        for pipe, keep in (
            (self._process.stdout.fileno(), self._keep_stdout),
            (self._process.stderr.fileno(), self._stderr.add),
        ):
            self._selector.register(pipe, selectors.EVENT_READ, lambda p=pipe, k=keep: self._read(p, k))
        if not hasattr(os, "pidfd_open"):
            return None
        pidfd = os.pidfd_open(self._process.pid)
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._note_exit(pidfd))
        return pidfd

    def _read(self, pipe: int, keep: Callable[[bytes], None]) -> None:
        chunk = os.read(pipe, _CHUNK)
        if chunk:
            keep(chunk)
            return
        self._selector.unregister(pipe)
        self._open_pipes -= 1

    def _keep_stdout(self, chunk: bytes) -> None:
        # One byte over the limit is enough to know, and what is over it is never used.
        room = self._max_stdout_bytes + 1 - len(self._stdout)
        self._stdout += chunk[:room]

    def _too_much(self) -> bool:
        return len(self._stdout) > self._max_stdout_bytes

    def _note_exit(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        self._exited = True

    def _has_exited(self) -> bool:
        if self._pidfd is None:  # no pidfd on this platform: polling reaps, once a tick
            return self._process.poll() is not None
        return self._exited

    def _signal(self, signum: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, signum)
        except (ProcessLookupError, PermissionError):  # gone; macOS says EPERM for a group of zombies
            return


class _HeadAndTail:
    """Keeps the first and the last half of `limit` bytes: the start of an error and its end."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        surplus = len(self._tail) - self._half
        if surplus > 0:
            del self._tail[:surplus]
            self._left_out += surplus

    def text(self) -> str:
        gap = f"\n... ({self._left_out} bytes left out)\n".encode() if self._left_out else b""
        return bytes(self._head + gap + self._tail).decode(errors="replace")
