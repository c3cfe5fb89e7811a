"""Start Python scripts without the cost of starting python3: a launcher forks a ready one for each script.

A launcher is a `python3 warm_server.py` that this process starts with its first script and keeps. It has the same
python3 (or another Python, as that of a virtual environment) and the same environment as the script, except for the
variables of the visit (GRAPH_*, LLM_*), because an interpreter reads its environment when it starts; scripts with
another environment get another launcher. When this process ends in any way, the launcher reads the end of its control
socket, kills its scripts and exits. PR_SET_PDEATHSIG is not used for it: that is tied to the thread that forks, and a
launcher outlives the thread that needed it first.

For one script: this process sends a channel, stdout, stderr and a pipe for emissions over the control socket; the
launcher forks; the child leads its session, sends `ready <pid>` on the channel, and waits. All this is done ahead,
while another script runs. Then this process registers the group with the guard and sends the request (what to run,
where, with which variables), without which nothing is run. When the script ends, the launcher sends `exited <code>` or
`killed <signal>`, and reaps the script only when this process closes the channel: until then its group can be
signalled.

Other commands start by a fork of a launcher too, whose child becomes the command (`launch_command`).

If a script is not certain to run as after a start of its own, `launch` returns None, and so it does when a launcher
fails. The end of a script that was running when its launcher died is unknown (`code` is None). Only its group may be
signalled although init may have reaped it a moment before.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from sleipnir_workers.processes import group_guard, shims

SERVER: Final = Path(__file__).with_name("warm_server.py")
READY_S = 10.0  # for a launcher to start
FORK_S = 2.0  # for a launcher to fork; a cold start follows
END_S = 10.0  # for a launcher to report how a script ended; the visit is handed back otherwise
KILLED_S = 10.0  # for a killed script to be dead
RETIRE_S = 600.0  # a launcher keeps .pth files and the interpreter as they were at its start
TRY_AGAIN_S = 60.0  # after a launcher that did not start
MOST_LAUNCHERS = 8
REQUEST_BYTES = 96 * 1024  # one packet; and far below where execve would refuse the environment of a cold start
PACKET_BYTES = 4096

VISIT_VARIABLES = ("GRAPH_", "LLM_")
"""Prefixes of variables that differ from visit to visit, and that no interpreter reads when it starts."""

HONOURED = frozenset(
    "PYTHON" + name
    for name in (
        "BREAKPOINT", "COERCECLOCALE", "DONTWRITEBYTECODE", "FAULTHANDLER", "HASHSEED", "IOENCODING", "NOUSERSITE",
        "OPTIMIZE", "PATH", "SAFEPATH", "UNBUFFERED", "UTF8", "WARNINGS",
    )
)  # fmt: skip
"""PYTHON* variables that affect a script through its launcher as they would through a start of its own."""

_PYTHON: Final = re.compile(r"python3?(\.\d+)?")

EMITS = b"\0GRAPH_EVENTS_FD="
"""What a request has if its script may write to descriptor 3."""

Key: TypeAlias = tuple[object, ...]


class LauncherLost(Exception):
    """The launcher died, does not answer, or did not start; the message says why."""


class NotBegun(Exception):
    """A forked child could not set itself up for the script, and did nothing. A cold start will report why."""


class WarmScript:
    """A running script, the leader of its group; see sandbox.Leader. Its launcher reaps it after `reap`."""

    def __init__(self, channel: socket.socket, stdout: int, stderr: int, events: int) -> None:
        self.pid, self.stdout, self.stderr = 0, stdout, stderr
        self.events: int | None = None  # before the request says whether the script emits
        self._events = events
        self.exit_fd = -1  # a pidfd: a launcher that hangs must not hide that the script has ended
        self.code: int | None = None
        self._channel = channel
        self._has_ended = False
        channel.settimeout(FORK_S)
        _running.add(self)

    def await_fork(self) -> None:
        """Wait for the requested fork; `pid` is set afterwards. Raises LauncherLost and OSError."""
        try:
            word, _, pid = _receive(self._channel).partition(b" ")
        except TimeoutError:
            raise LauncherLost(f"no fork within {FORK_S:g} s") from None
        if word != b"ready":
            raise LauncherLost("it could not fork")
        self._channel.settimeout(END_S)
        self.exit_fd = os.pidfd_open(int(pid))
        self.pid = int(pid)

    def begin(self, request: bytes) -> None:
        """Send the request, before which nothing is run. Raises LauncherLost and OSError."""
        if EMITS in request:
            self.events = self._events
        if _is_readable(self.exit_fd, 0):
            raise LauncherLost("its waiting child died")
        self._channel.send(request)

    def has_exited(self) -> bool:
        """Called when `exit_fd` is readable. Reads from the launcher how it ended, unless that is dead. Raises
        NotBegun."""
        if not self._has_ended:
            self._has_ended = True
            with contextlib.suppress(TimeoutError):
                message = _receive(self._channel)
                if message == b"refused":
                    raise NotBegun
                self.code = _code(message)
        return True

    def reap(self) -> None:
        try:
            if not self._has_ended and _is_readable(self.exit_fd, KILLED_S):
                self.has_exited()
        finally:
            group_guard.guard.remove(self.pid)
            self.forget()

    def forget(self) -> None:
        """Close the descriptors of this process, once: their numbers may be reused after that. A forked child does
        nothing else: the script is its parent's."""
        self._channel.close()
        fds, self.stdout, self.stderr, self.exit_fd = (self.stdout, self.stderr, self.exit_fd, self._events), -1, -1, -1
        self._events, self.events = -1, None
        for fd in fds:
            if fd >= 0:
                os.close(fd)
        _running.discard(self)


def _receive(channel: socket.socket) -> bytes:
    """The next packet; empty when the other end is closed. Raises TimeoutError."""
    try:
        return channel.recv(PACKET_BYTES)
    except ConnectionResetError:
        return b""


def _is_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()  # not select.select: it refuses descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _code(packet: bytes) -> int | None:
    """As in subprocess: the exit code, or the negative number of the signal. None: unknown."""
    word, _, number = packet.partition(b" ")
    match word:
        case b"exited":
            return int(number)
        case b"killed":
            return -int(number)
        case _:
            return None


class Launcher:
    """One python3 that forks. Raises LauncherLost when it does not start."""

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._is_closed = False
        self._spare: WarmScript | None = None
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [_argv0(program, env), str(SERVER), str(theirs.fileno())],
                    executable=program,
                    env=dict(env),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,  # as its scripts have: python checks the kind of its output at its start
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                raise LauncherLost(str(error)) from error
        self.started_at = time.monotonic()
        try:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
            self.preloaded = self._greeting()
        except BaseException:
            self._process.kill()
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def run(self, request: bytes, mark: int = -1) -> WarmScript:
        """Start a script, with the mark of its command (descendants.py). Raises LauncherLost if it was certainly not
        started, OSError when descriptors or processes are exhausted."""
        with self._lock:
            spare, self._spare = self._spare, None
        script = spare or self._request_fork()
        try:
            if self.has_ended():  # its children end a moment later
                raise LauncherLost("it has died")
            script.await_fork()
            group_guard.guard.add(script.pid)
            if mark >= 0:
                resource.prlimit(script.pid, resource.RLIMIT_MSGQUEUE, (mark, mark))
            script.begin(request)
        except (LauncherLost, OSError) as error:
            group_guard.guard.remove(script.pid)
            script.forget()
            raise LauncherLost(str(error)) from error
        self._fork_ahead()
        return script

    def close(self) -> None:
        """Accept no more scripts. The launcher ends when its running scripts have ended."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._close_ends()
                spare, self._spare = self._spare, None  # a thread that still has this launcher must not use it
                if spare is not None:
                    spare.forget()

    def disown(self) -> None:
        """In a forked child: close the sockets, so that the parent's launcher sees them close with the parent."""
        self._close_ends()
        self._process.returncode = 0  # not our child to wait for

    def _close_ends(self) -> None:
        self._control.close()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _greeting(self) -> frozenset[str]:
        """The top-level modules that it has loaded beyond a bare start."""
        self._control.settimeout(READY_S)
        try:
            word, _, names = _receive(self._control).decode().partition(" ")
        except TimeoutError:
            raise LauncherLost(f"not ready within {READY_S:g} s") from None
        if word != "ready":
            self._process.wait(READY_S)
            assert self._process.stderr is not None
            raise LauncherLost(self._process.stderr.read().decode(errors="replace").strip() or "it ended")
        self._control.settimeout(FORK_S)
        return frozenset(name.partition(".")[0] for name in names.split(","))

    def _fork_ahead(self) -> None:
        """Have the child of the next script forked while this one runs. It waits, and ends with its channel."""
        if self._spare is not None:
            return
        try:
            script = self._request_fork()
        except (LauncherLost, OSError):
            return  # the next script reports it
        with self._lock:
            if self._spare is None and not self._is_closed:
                self._spare = script
                return
        script.forget()

    def _request_fork(self) -> WarmScript:
        """Request a child that leads a group and waits for its script."""
        with contextlib.ExitStack() as own_ends, contextlib.ExitStack() as sent_ends:
            channel, their_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            own_ends.callback(channel.close)
            sent_ends.callback(their_channel.close)
            ends = [their_channel.fileno()]
            pipes = []
            for _ in ("stdout", "stderr", "events"):
                read, write = os.pipe()
                own_ends.callback(os.close, read)
                sent_ends.callback(os.close, write)
                pipes.append(read)
                ends.append(write)
            self._send(ends)
            own_ends.pop_all()
        return WarmScript(channel, *pipes)

    def _send(self, fds: Sequence[int]) -> None:
        with self._lock:
            if self._is_closed:
                raise LauncherLost("it was retired")
            try:
                socket.send_fds(self._control, [b"f"], fds)
            except OSError as error:
                raise LauncherLost(str(error)) from error


class _EnvironmentLauncher:
    """The launcher for one environment, started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unusable_until = 0.0
        self.launcher: Launcher | None = None

    def get(self, program: str, env: Mapping[str, str]) -> Launcher | None:
        """The launcher, or None if none can be started."""
        with self._lock:
            now = time.monotonic()
            if self.launcher is not None and now - self.launcher.started_at > RETIRE_S:
                self._drop()
            if self.launcher is None and now >= self._unusable_until:
                try:
                    self.launcher = Launcher(program, env)
                except LauncherLost as error:
                    self._unusable_until = now + TRY_AGAIN_S
                    _log().warning("no warm start for Python scripts", python=program, error=str(error))
            return self.launcher

    def lost(self, launcher: Launcher, error: LauncherLost) -> None:
        with self._lock:
            if self.launcher is launcher:
                _log().warning("the launcher of Python scripts is replaced", pid=launcher.pid, error=str(error))
                self._drop()

    def retire(self) -> None:
        with self._lock:
            if self.launcher is not None:
                self._drop()

    def _drop(self) -> None:
        assert self.launcher is not None
        self.launcher.close()
        _retired.append(self.launcher)
        self.launcher = None


class WarmPython:
    """The launchers of this process, at most MOST_LAUNCHERS. The least recently used one is closed first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: OrderedDict[Key, _EnvironmentLauncher] = OrderedDict()

    def launch(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, mark: int = -1) -> WarmScript | None:
        """Start `python3 FILE`, or a Python that is named by its path. None: start it cold. Raises OSError when
        descriptors or processes are exhausted."""
        request = packet(argv, env, cwd)
        program = _interpreter(argv[0], env, cwd)
        if request is None or program is None:
            return None
        at_start = {name: value for name, value in env.items() if not name.startswith(VISIT_VARIABLES)}
        slot = self._slot((*_identity(program), *sorted(at_start.items())))
        return self._run(slot, request, mark, program, at_start, _modules_beside(argv[1]))

    def launch_command(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, mark: int = -1
    ) -> WarmScript | None:
        """Start any command. A launcher of no particular environment forks, and the fork becomes the command, which
        saves the start of an interpreter that would become it (launch.py). None: start it in that way."""
        request = command_packet(argv, env, cwd)
        return None if request is None else self._run(self._slot(("command",)), request, mark, sys.executable, {})

    def _run(
        self,
        slot: _EnvironmentLauncher,
        request: bytes,
        mark: int,
        program: str,
        env: Mapping[str, str],
        modules: frozenset[str] = frozenset(),
    ) -> WarmScript | None:
        for _ in range(2):
            launcher = slot.get(program, env)
            if launcher is None or launcher.preloaded & modules:
                return None
            try:
                return launcher.run(request, mark)
            except LauncherLost as error:
                slot.lost(launcher, error)
        return None

    def launchers(self) -> list[Launcher]:
        return [slot.launcher for slot in list(self._slots.values()) if slot.launcher is not None]

    def close(self) -> None:
        """Close all launchers. The next script starts another."""
        with self._lock:
            while self._slots:
                self._slots.popitem()[1].retire()

    def _slot(self, key: Key) -> _EnvironmentLauncher:
        with self._lock:
            slot = self._slots.setdefault(key, _EnvironmentLauncher())
            self._slots.move_to_end(key)
            if len(self._slots) > MOST_LAUNCHERS:
                self._slots.popitem(last=False)[1].retire()
            _retired[:] = [launcher for launcher in _retired if not launcher.has_ended()]
            return slot


def packet(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> bytes | None:
    """The request that makes a child the script, or None if the script would not run as after a cold start."""
    if sys.platform != "linux" or len(argv) != 2 or not Path(argv[1]).is_absolute():
        return None
    if any(name.startswith("PYTHON") and name not in HONOURED for name in env):
        return None
    if not all(Path(entry).is_absolute() for entry in env.get("PYTHONPATH", "/").split(os.pathsep)):
        return None  # python3 makes it absolute at its start, which a launcher does in another directory
    variables = [f"{name}={value}" for name, value in env.items() if name.startswith(VISIT_VARIABLES)]
    env_chars = sum(len(name) + len(value) for name, value in env.items())
    return _joined("script", str(cwd), *argv, *variables) if env_chars <= REQUEST_BYTES else None


def command_packet(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> bytes | None:
    """The request that makes a child the command; None: it has no form for it."""
    variables = [f"{name}={value}" for name, value in env.items()]
    if sys.platform != "linux" or any("=" in name for name in env):
        return None
    return _joined("command", str(cwd), str(len(argv)), *argv, *variables)


def _joined(*fields: str) -> bytes | None:
    packet = os.fsencode("\0".join(fields))
    return packet if len(packet) <= REQUEST_BYTES and packet.count(b"\0") == len(fields) - 1 else None


def _interpreter(name: str, env: Mapping[str, str], cwd: Path) -> str | None:
    """The absolute path of `python3`, or of the program that a shim of this name starts, or of a Python that is named
    by its path, as that of a virtual environment; None for other programs, and for other scripts of these names."""
    if name != "python3" and not (Path(name).is_absolute() and _PYTHON.fullmatch(Path(name).name)):
        return None
    program = shutil.which(name, path=env.get("PATH"))
    if program is None or not Path(program).is_absolute():
        return None
    with Path(program).open("rb") as file:
        is_script = file.read(2) == b"#!"
    if not is_script:
        return program
    return shims.python3(env, cwd) if name == "python3" else None


def _argv0(program: str, env: Mapping[str, str]) -> str:
    """The name that a shell or a shim would start it by, from which python derives its home."""
    return "python3" if shutil.which("python3", path=env.get("PATH")) == program else program


def _identity(program: str) -> tuple[str, int, int]:
    """Changes when an upgrade replaces python3."""
    status = Path(program).stat()
    return program, status.st_ino, status.st_mtime_ns


def _modules_beside(path: str) -> frozenset[str]:
    """The modules that `import` would find in the script's own folder first."""
    with os.scandir(Path(path).resolve().parent) as entries:
        return frozenset(entry.name.partition(".")[0] for entry in entries)


def _log() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger


warm_python = WarmPython()
_running: set[WarmScript] = set()
_retired: list[Launcher] = []


def _after_fork() -> None:
    """In a forked child: close the sockets to the parent's launchers and scripts, which must see the parent's end.
    Locks are replaced because other threads of the parent may have held them."""
    global warm_python
    for launcher in warm_python.launchers():
        launcher.disown()
    for script in list(_running):
        script.forget()
    _retired.clear()
    warm_python = WarmPython()


os.register_at_fork(after_in_child=_after_fork)
