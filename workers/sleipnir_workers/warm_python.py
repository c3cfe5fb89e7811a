"""Start Python scripts without paying for a start of python3: a launcher forks a ready one for each script.

A launcher is a `python3 warm_server.py` that this process starts with its first script and keeps. It has the same
python3 and the same environment as the script, less what names the visit (GRAPH_*, LLM_*), because an interpreter reads
its environment when it starts; scripts with another environment get another launcher. It sees the end of its control
socket when this process is gone, however that went, kills its scripts and goes too. We do not use PR_SET_PDEATHSIG for
it: that is tied to the thread that forks, and a launcher outlives the thread that happened to need it first.

For one script: we send a channel, stdout and stderr over the control socket; the launcher forks; the child leads its
session, says `ready <pid>` on the channel, and waits. All this is done ahead, while another script runs. Then we tell
the group guard, and send the request (what to run, where, with which variables), without which nothing is run. When the
script ends, the launcher says `exited <code>` or `killed <signal>`, and reaps it only when we close the channel: its
group can be signalled until then.

Whatever is not certain to be the same as in a start of its own is not done here: `launch` returns None then, and so it
does when a launcher gives trouble. A script that was running when its launcher died has no known end (`code` is None);
it is the one whose group we signal although init may have reaped it, a moment before.
"""

from __future__ import annotations

import contextlib
import os
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

from sleipnir_workers import group_guard, shims

SERVER: Final = Path(__file__).with_name("warm_server.py")
READY_S = 10.0  # for a launcher to start
FORK_S = 2.0  # for a launcher to fork; a cold start follows
END_S = 10.0  # for a launcher to tell how a script ended; the visit is handed back otherwise
KILLED_S = 10.0  # for a killed script to be dead
RETIRE_S = 600.0  # a launcher knows .pth files and the interpreter as they were at its start
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
"""PYTHON* variables that act on a script through its launcher as they would through a start of its own."""

Key: TypeAlias = tuple[object, ...]


class LauncherLost(Exception):
    """The launcher died, or does not answer; or it did not start, and this says why."""


class NotBegun(Exception):
    """A forked child found that it cannot run the script, and did nothing. A cold start will say why."""


class WarmScript:
    """A running script, the leader of its group; see sandbox.Leader. Its launcher reaps it after `reap`."""

    def __init__(self, channel: socket.socket, stdout: int, stderr: int) -> None:
        self.pid, self.stdout, self.stderr = 0, stdout, stderr
        self.exit_fd = -1  # a pidfd: a launcher that hangs must not hide that the script has ended
        self.code: int | None = None
        self._channel = channel
        self._has_ended = False
        channel.settimeout(FORK_S)
        _running.add(self)

    def await_fork(self) -> None:
        """Until now only asked for, it has a `pid` afterwards. Raises LauncherLost and OSError."""
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
        """Nothing is run before this. Raises LauncherLost and OSError."""
        if _is_readable(self.exit_fd, 0):
            raise LauncherLost("its child died while it waited")
        self._channel.send(request)

    def has_exited(self) -> bool:
        """Asked when `exit_fd` is readable: the launcher says how, unless it is dead itself. Raises NotBegun."""
        if not self._has_ended:
            self._has_ended = True
            with contextlib.suppress(TimeoutError):
                last_word = _receive(self._channel)
                if last_word == b"refused":
                    raise NotBegun
                self.code = _code(last_word)
        return True

    def reap(self) -> None:
        try:
            if not self._has_ended and _is_readable(self.exit_fd, KILLED_S):
                self.has_exited()
        finally:
            group_guard.guard.remove(self.pid)
            self.forget()

    def forget(self) -> None:
        """Close what belongs to this process, once: the numbers are somebody else's after that. In a forked child that
        is all: the script is our parent's."""
        self._channel.close()
        fds, self.stdout, self.stderr, self.exit_fd = (self.stdout, self.stderr, self.exit_fd), -1, -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
        _running.discard(self)


def _receive(channel: socket.socket) -> bytes:
    """The next packet; empty when the other side is gone. Raises TimeoutError."""
    try:
        return channel.recv(PACKET_BYTES)
    except ConnectionResetError:
        return b""


def _is_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()  # not select.select: it refuses descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _code(packet: bytes) -> int | None:
    """As subprocess has it: the exit code, or the negative number of the signal. None: nobody knows."""
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
                    [_called(program, env), str(SERVER), str(theirs.fileno())],
                    executable=program,
                    env=dict(env),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,  # as its scripts have: python looks at what its output is when it starts
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
        started, OSError when we are out of something."""
        with self._lock:
            spare, self._spare = self._spare, None
        script = spare or self._ask()
        try:
            if self.has_ended():  # and its children with it, a moment later
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
        self._ask_ahead()
        return script

    def close(self) -> None:
        """Take no more scripts. It ends when those that run have ended."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._close_ends()
                spare, self._spare = self._spare, None  # a thread that still has this launcher must not use it
                if spare is not None:
                    spare.forget()

    def disown(self) -> None:
        """In a forked child: it is our parent's, and must see its socket close with our parent."""
        self._close_ends()
        self._process.returncode = 0  # not our child to wait for

    def _close_ends(self) -> None:
        self._control.close()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def _greeting(self) -> frozenset[str]:
        """The top-level modules it has loaded beyond a bare start."""
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

    def _ask_ahead(self) -> None:
        """The child of the next script is forked while this one runs. It waits, and ends with its channel."""
        if self._spare is not None:
            return
        try:
            script = self._ask()
        except (LauncherLost, OSError):
            return  # the next script will see
        with self._lock:
            if self._spare is None and not self._is_closed:
                self._spare = script
                return
        script.forget()

    def _ask(self) -> WarmScript:
        """Ask for a child that leads a group and waits for a request."""
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as theirs:
            channel, their_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            kept.callback(channel.close)
            theirs.callback(their_channel.close)
            ends = [their_channel.fileno()]
            pipes = []
            for _ in ("stdout", "stderr"):
                read, write = os.pipe()
                kept.callback(os.close, read)
                theirs.callback(os.close, write)
                pipes.append(read)
                ends.append(write)
            self._send(ends)
            kept.pop_all()
        return WarmScript(channel, *pipes)

    def _send(self, fds: Sequence[int]) -> None:
        with self._lock:
            if self._is_closed:
                raise LauncherLost("it was retired")
            try:
                socket.send_fds(self._control, [b"f"], fds)
            except OSError as error:
                raise LauncherLost(str(error)) from error


class _Slot:
    """The launcher for one environment, started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unusable_until = 0.0
        self.launcher: Launcher | None = None

    def get(self, program: str, env: Mapping[str, str]) -> Launcher | None:
        """A launcher, or None if none can be started here."""
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
    """The launchers of this process, at most MOST_LAUNCHERS, the least recently used one going first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: OrderedDict[Key, _Slot] = OrderedDict()

    def launch(self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, mark: int = -1) -> WarmScript | None:
        """Start `python3 FILE`. None: start it cold. Raises OSError when we are out of descriptors or processes."""
        request = packet(argv, env, cwd)
        program = _interpreter(env, cwd)
        if request is None or program is None:
            return None
        at_start = {name: value for name, value in env.items() if not name.startswith(VISIT_VARIABLES)}
        slot = self._slot((*_identity(program), *sorted(at_start.items())))
        for _ in range(2):
            launcher = slot.get(program, at_start)
            if launcher is None or launcher.preloaded & _modules_beside(argv[1]):
                return None
            try:
                return launcher.run(request, mark)
            except LauncherLost as error:
                slot.lost(launcher, error)
        return None

    def launchers(self) -> list[Launcher]:
        return [slot.launcher for slot in list(self._slots.values()) if slot.launcher is not None]

    def close(self) -> None:
        """Let all launchers go. The next script starts another."""
        with self._lock:
            while self._slots:
                self._slots.popitem()[1].retire()

    def _slot(self, key: Key) -> _Slot:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            if len(self._slots) > MOST_LAUNCHERS:
                self._slots.popitem(last=False)[1].retire()
            _retired[:] = [launcher for launcher in _retired if not launcher.has_ended()]
            return slot


def packet(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> bytes | None:
    """What a child needs to become the script, or None if that would not be the same as a cold start."""
    if sys.platform != "linux" or len(argv) != 2 or argv[0] != "python3" or not Path(argv[1]).is_absolute():
        return None
    if any(name.startswith("PYTHON") and name not in HONOURED for name in env):
        return None
    if not all(Path(entry).is_absolute() for entry in env.get("PYTHONPATH", "/").split(os.pathsep)):
        return None  # made absolute when python3 starts, in another directory
    variables = [f"{name}={value}" for name, value in env.items() if name.startswith(VISIT_VARIABLES)]
    fields = [os.fsencode(field) for field in (str(cwd), *argv, *variables)]
    everything = sum(len(name) + len(value) for name, value in env.items())
    if any(b"\0" in field for field in fields) or everything > REQUEST_BYTES:
        return None
    packet = b"\0".join(fields)
    return packet if len(packet) <= REQUEST_BYTES else None


def _interpreter(env: Mapping[str, str], cwd: Path) -> str | None:
    """The absolute path of `python3`, or of what a shim called so starts; None for any other script."""
    program = shutil.which("python3", path=env.get("PATH"))
    if program is None or not Path(program).is_absolute():
        return None
    with Path(program).open("rb") as file:
        is_script = file.read(2) == b"#!"
    return shims.python3(env, cwd) if is_script else program


def _called(program: str, env: Mapping[str, str]) -> str:
    """The name it is started by, from which python finds its home: as a shell and as a shim do."""
    return "python3" if shutil.which("python3", path=env.get("PATH")) == program else program


def _identity(program: str) -> tuple[str, int, int]:
    """Another one for a python3 that was replaced by an upgrade."""
    found = Path(program).stat()
    return program, found.st_ino, found.st_mtime_ns


def _modules_beside(path: str) -> frozenset[str]:
    """What `import` would find in the script's own folder before anything else."""
    return frozenset(entry.name.partition(".")[0] for entry in Path(path).resolve().parent.iterdir())


def _log() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger


warm_python = WarmPython()
_running: set[WarmScript] = set()
_retired: list[Launcher] = []


def _after_fork() -> None:
    """In a forked child: let go of the parent's launchers and scripts, which must see its end. Other threads of the
    parent may have held locks."""
    global warm_python
    for launcher in warm_python.launchers():
        launcher.disown()
    for script in list(_running):
        script.forget()
    _retired.clear()
    warm_python = WarmPython()


os.register_at_fork(after_in_child=_after_fork)
