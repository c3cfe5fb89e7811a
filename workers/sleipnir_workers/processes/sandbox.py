"""Run one command for a visit, so that none of its processes outlives the visit.

Rules. The command is the leader of its own session and process group, reads /dev/null, and dies with
the worker (sleipnir.local.launch), as the rest of its group does (group_guard). Its output is read while it
runs and kept up to a limit; without a limit its first and its last part are kept. However it ends (by
itself, at its timeout, because the visit was lost, because it printed too much), the whole group is
killed before `run` returns, so a background child cannot delay it. Descendants that have moved to sessions of
their own are killed as well (descendants.py).

The leader is reaped after its group was signalled: until then its number cannot be given to another
process, so no foreign process is ever signalled.

With `events` it can write to descriptor 3, which is read as its output is; what it has not written before it ends is
not waited for.

A command may be started by a fork (warm_python), one in Python of a ready python3, under the same rules.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from sleipnir.errors import EXHAUSTED, MachineFailed
from sleipnir.local import launch
from sleipnir_workers.execution.execution import ProcessLost, VisitLost
from sleipnir_workers.processes import descendants, group_guard, shims, warm_python

TICK_S = 0.1  # between checks whether the visit was lost: an Event and pipes cannot be waited for together
GRACE_S = 2.0  # between SIGTERM and SIGKILL
LINGER_S = 0.25  # after the leader's exit, for a process substitution that still writes to stdout
STDERR_BYTES = 64 * 1024
EVENTS_FD = "GRAPH_EVENTS_FD"
_CHUNK = 64 * 1024
EVENTS_PAUSE_S = 0.01  # between reads of descriptor 3: to be woken by each line would cost the command a twentieth
_MUCH = 16 * 1024  # of a pipe of 64 KiB: what fills it faster is read at once, so that it blocks no command
_MOST_LAST_READS = 32  # of a pipe of 64 KiB, which Linux lets a process enlarge to 1 MiB

Reason: TypeAlias = Literal["exited", "timeout", "stdout_limit"]

KEPT = frozenset({"PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL"})
"""Variables of the worker that commands inherit, besides LC_*. Everything else may be a secret."""


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The part of a worker's environment that its commands may see."""
    return {name: value for name, value in env.items() if name in KEPT or name.startswith("LC_")}


@dataclass(frozen=True)
class CommandOutcome:
    """How a command ended. Either `code` or `signal` is set. It was killed here unless `reason` is "exited"."""

    reason: Reason
    code: int | None
    signal: int | None
    stdout: bytes
    stderr: str
    """Decoded with replacement; the middle of a long text is left out."""


def signal_name(signum: int) -> str:
    """For messages: `signal 9 (SIGKILL)`."""
    try:
        return f"signal {signum} ({signal.Signals(signum).name})"
    except ValueError:  # real-time signals have no name
        return f"signal {signum}"


class Leader(Protocol):
    """The first process of a command's group, whose number is that of the group. It is already running."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> int:
        """A descriptor to read from, as `stderr` is. All are open until `reap`."""

    @property
    def stderr(self) -> int: ...

    @property
    def events(self) -> int | None:
        """The same for its descriptor 3, if it has one."""

    @property
    def exit_fd(self) -> int | None:
        """Readable when it has exited; None on platforms without pidfds, where `has_exited` is polled."""

    def has_exited(self) -> bool:
        """Called when `exit_fd` is readable, or at any time without one."""

    def reap(self) -> None:
        """Wait for its end and release its number. Its group has been killed."""

    @property
    def code(self) -> int | None:
        """Exit code, or the negative number of a signal, after `reap`. None if it is unknown."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float,
    lost: threading.Event,
    max_stdout_bytes: int | None,
    grace_s: float = GRACE_S,
    warm: bool = False,
    events: Callable[[bytes], None] | None = None,
    stdin: int | None = None,
) -> CommandOutcome:
    """Run `argv` with exactly `env` in `cwd`, and wait for it.

    `max_stdout_bytes`: a command that prints more is killed. None: its stdout is only a log, kept as stderr is.

    `warm`: start it by a fork, `python3 FILE` even by one of a ready python3, where the only difference is speed.

    `stdin` is a descriptor that it reads from; None: its stdin is empty. Such a command is not `warm`.

    `events` takes what it writes to descriptor 3, whose number the variable GRAPH_EVENTS_FD has; None: it has none.

    Raises VisitLost within about TICK_S of `lost` being set (the group is dead then), ProcessLost when the launcher
    of a warm script died and the script with it, MachineFailed when this machine cannot start any command now, and
    OSError when it cannot start this one.
    """
    if lost.is_set():
        raise VisitLost(f"the visit was lost before {argv[0]!r} was started")
    deadline = time.monotonic() + timeout_s
    if events is not None:
        env = {**env, EVENTS_FD: str(launch.EVENTS)}

    children = descendants.of_this_process()

    def wait_for(leader: Leader) -> CommandOutcome:
        with _Command(leader, lost, max_stdout_bytes, events) as command:
            reason = command.wait(deadline)
            if reason == "timeout":
                command.terminate(grace_s)
            elif reason == "exited":
                command.drain(LINGER_S)
            command.read_last_events()
        return command.outcome(reason)

    try:
        with children.of_command() as mark:
            if warm and stdin is None and (forked := _forked(argv, env, cwd, mark)):
                with contextlib.suppress(warm_python.NotBegun):
                    return wait_for(forked)
            return wait_for(_ColdStart(shims.without_shim(argv, env, cwd), env, cwd, mark, events is not None, stdin))
    except OSError as error:
        if error.errno == errno.E2BIG or error.filename in (cwd, str(cwd)):
            raise  # the visit's request is at fault, not the machine
        raise MachineFailed.of(
            error, "cannot start a command", part=EXHAUSTED.get(error.errno or 0, "sandbox")
        ) from error


def _forked(argv: Sequence[str], env: Mapping[str, str], cwd: Path, mark: int) -> Leader | None:
    """The command, started by a fork: as a script of a warm python3 if it is one. None: it must be started cold."""
    launchers = warm_python.warm_python
    if script := launchers.launch(argv, env, cwd, mark):
        return script
    return launchers.launch_command(shims.without_shim(argv, env, cwd), env, cwd, mark)


class _ColdStart:
    """A leader that is a child of this process."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, mark: int, emits: bool, stdin: int | None = None
    ) -> None:
        self._guard = group_guard.guard
        tell_fd = self._guard.tell_fd()
        self.events: int | None = None
        events_fd = -1
        try:
            if emits:
                self.events, events_fd = os.pipe()
            self._process = subprocess.Popen(
                launch.command(list(argv), tell_fd=tell_fd, mark=mark, events_fd=events_fd),
                bufsize=0,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd=cwd,
                pass_fds=(tell_fd, events_fd) if emits else (tell_fd,),
                start_new_session=True,
            )
        except BaseException:
            self._close_events()
            raise
        finally:
            os.close(tell_fd)
            if events_fd >= 0:
                os.close(events_fd)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._pipes = self._process.stdout, self._process.stderr
        self.pid = self._process.pid
        self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        self.exit_fd: int | None = None
        try:
            self._guard.add(self.pid)
            if hasattr(os, "pidfd_open"):
                self.exit_fd = os.pidfd_open(self.pid)
        except OSError:  # no process or file descriptor left
            os.killpg(self.pid, signal.SIGKILL)
            self.reap()
            raise

    def has_exited(self) -> bool:
        if self.exit_fd is None:  # no pidfd on this platform: polling reaps, once a tick
            return self._process.poll() is not None
        return True

    def reap(self) -> None:
        if self._process.returncode is None:
            # Dead, but not reaped yet: it cannot send the guard its number any more, and no other process has it.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._guard.remove(self.pid)
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()
        self._close_events()
        if self.exit_fd is not None:
            os.close(self.exit_fd)

    def _close_events(self) -> None:
        if self.events is not None:
            os.close(self.events)

    @property
    def code(self) -> int | None:
        return self._process.returncode


class _Command:
    """A running command; leaving the `with` block kills its group and reaps it."""

    def __init__(
        self,
        leader: Leader,
        lost: threading.Event,
        max_stdout_bytes: int | None,
        take_events: Callable[[bytes], None] | None,
    ) -> None:
        self._leader = leader
        self._lost = lost
        self._take_events = take_events
        self._stdout = _HeadAndTail(STDERR_BYTES) if max_stdout_bytes is None else _FirstBytes(max_stdout_bytes)
        self._stderr = _HeadAndTail(STDERR_BYTES)
        self._open_pipes = 2
        self._exited = False
        try:
            self._selector = selectors.DefaultSelector()
        except OSError:  # no file descriptor left
            self._kill()
            raise
        for pipe, keep in ((leader.stdout, self._stdout.add), (leader.stderr, self._stderr.add)):
            self._selector.register(pipe, selectors.EVENT_READ, lambda p=pipe, k=keep: self._read(p, k))
        if leader.events is not None and take_events is not None:
            os.set_blocking(leader.events, False)
            self._selector.register(leader.events, selectors.EVENT_READ, self._read_some_events)
        self._events_again_s: float | None = None
        if leader.exit_fd is not None:
            self._selector.register(leader.exit_fd, selectors.EVENT_READ, self._note_exit)

    def __enter__(self) -> _Command:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._kill()

    def wait(self, deadline: float) -> Reason:
        """Wait for the end of the leader; "timeout" and "stdout_limit" leave it running."""
        if not self._pump(deadline, lambda: self._has_exited() or self._stdout.exceeds_limit):
            return "timeout"
        return "stdout_limit" if self._stdout.exceeds_limit else "exited"

    def terminate(self, grace_s: float) -> None:
        self._signal(signal.SIGTERM)
        self._pump(time.monotonic() + grace_s, self._has_exited)

    def drain(self, seconds: float) -> None:
        """Read on until the pipes are closed, for at most `seconds`: usually they are closed already."""
        self._pump(time.monotonic() + seconds, lambda: self._open_pipes == 0 or self._stdout.exceeds_limit)

    def read_last_events(self) -> None:
        """Read what is in the pipe, and no more: what holds it open may be a background child. It may be as much as the
        pipe can hold, which is bounded, but a child may fill it again."""
        for _ in range(_MOST_LAST_READS):
            if self._take_events is None or not self._read_events():
                return

    def outcome(self, reason: Reason) -> CommandOutcome:
        code = self._leader.code
        if code is None:
            if reason == "exited":
                raise ProcessLost("the script died with its launcher")
            code = -signal.SIGKILL
        return CommandOutcome(
            reason="stdout_limit" if self._stdout.exceeds_limit else reason,
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=self._stdout.content(),
            stderr=self._stderr.content().decode(errors="replace"),
        )

    def _pump(self, deadline: float, done: Callable[[], bool]) -> bool:
        """Read output until `done` (True) or the deadline (False). Raises VisitLost."""
        while not done():
            if self._lost.is_set():
                raise VisitLost("the visit was lost while its command was running; the command was killed")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            for key, _ in self._selector.select(min(remaining, TICK_S, self._until_events())):
                key.data()
        return True

    def _until_events(self) -> float:
        """How long descriptor 3 is not waited for; its pause ends here."""
        if self._events_again_s is None:
            return TICK_S
        left_s = self._events_again_s - time.monotonic()
        if left_s > 0:
            return left_s
        assert self._leader.events is not None
        self._events_again_s = None
        self._selector.register(self._leader.events, selectors.EVENT_READ, self._read_some_events)
        return TICK_S

    def _read_some_events(self) -> None:
        """Read what there is, and let more come together."""
        if 0 < self._read_events() < _MUCH and self._leader.events is not None:
            self._selector.unregister(self._leader.events)
            self._events_again_s = time.monotonic() + EVENTS_PAUSE_S

    def _read(self, pipe: int, keep: Callable[[bytes], None]) -> None:
        chunk = os.read(pipe, _CHUNK)
        if chunk:
            keep(chunk)
            return
        self._selector.unregister(pipe)
        self._open_pipes -= 1

    def _read_events(self) -> int:
        """The number of bytes; 0: there are none."""
        if self._leader.events is None or self._take_events is None:
            return 0
        try:
            chunk = os.read(self._leader.events, _CHUNK)
        except BlockingIOError:
            return 0
        if chunk:
            self._take_events(chunk)
        elif self._leader.events in self._selector.get_map():
            self._selector.unregister(self._leader.events)
        return len(chunk)

    def _note_exit(self) -> None:
        assert self._leader.exit_fd is not None
        self._selector.unregister(self._leader.exit_fd)
        self._exited = self._leader.has_exited()

    def _has_exited(self) -> bool:
        return self._exited if self._leader.exit_fd is not None else self._leader.has_exited()

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._leader.reap()

    def _signal(self, signum: signal.Signals) -> None:
        try:
            os.killpg(self._leader.pid, signum)
        except (ProcessLookupError, PermissionError):  # it has ended; macOS raises EPERM for a group of zombies
            return


class _FirstBytes:
    """Keeps `limit` bytes and one more, which shows that the limit was exceeded; the content is not used then."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()

    def add(self, chunk: bytes) -> None:
        self._kept += chunk[: self._limit + 1 - len(self._kept)]

    @property
    def exceeds_limit(self) -> bool:
        return len(self._kept) > self._limit

    def content(self) -> bytes:
        return bytes(self._kept)


class _HeadAndTail:
    """Keeps the first and the last `limit`/2 bytes: the start of an error and its end."""

    exceeds_limit = False

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

    def content(self) -> bytes:
        gap = f"\n... ({self._left_out} bytes left out)\n".encode() if self._left_out else b""
        return bytes(self._head + gap + self._tail)
