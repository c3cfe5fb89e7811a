"""Start `python -m MODULE ...` or `python -c CODE ...` quickly: from a process that has the libraries loaded.

Nearly all that a scheduler, a worker or a command costs before it does anything is importing Celery, pydantic and
their like, and the tests start hundreds of them. A process from here is as real as any other: it has a pid, an
environment, a log, signals and a death of its own. starter_server.py forks it, of which there are three:

bare    has the libraries. For processes with failpoints, which our code looks for while it is imported.
engine  has our own code too, but for what is made for its process while it is imported (OF_A_PROCESS).
models  has litellm too, whose import costs more than all else together. For workers that ask models.

What is not as from a cold start: the hash seed is shared, `/proc/PID/cmdline` and `environ` are the server's, and the
interpreter is not taken apart at the end (starter_server.Ending). A command whose environment speaks to the interpreter
or to a library is started cold (`suits`), and so is whatever our own command line starts: test_command_line.py,
test_deployment.py and tests/integration/cli show that a cold start does the same.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Literal, TypeAlias

from sleipnir.failpoints import VARIABLE
from sleipnir.local import launch

SERVER = Path(__file__).with_name("starter_server.py")
READ_WHILE_IMPORTED = ("PYTHON", "LC_", "LANG", "TZ", "CELERY", "KOMBU", "LITELLM")

Kind: TypeAlias = Literal["bare", "engine", "models"]


class Process:
    """One that was forked for us; the part of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], told: int) -> None:
        self.args, self._told = arguments, told
        self.pid = int(self._line())
        self.returncode: int | None = None

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            more = os.read(self._told, 1)
            assert more, "the starter has died"
            line += more
        return line

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        return code

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout_s)[0]:
            self.returncode = int(self._line())
            os.close(self._told)
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Started: TypeAlias = Process | subprocess.Popen[bytes]


class Starter:
    """A server, which lives as long as this process, and the requests to it. For one thread."""

    def __init__(self, kind: Kind) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
        with theirs:
            theirs.set_inheritable(True)
            self._server = subprocess.Popen(
                launch.command([sys.executable, str(SERVER), kind, str(theirs.fileno())]),
                env=env, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
            )  # fmt: skip

    def start(
        self, arguments: Sequence[str], env: Mapping[str, str], stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
    ) -> Process:
        """`arguments` is what follows `python`."""
        told, tell = os.pipe()
        request = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": str(Path.cwd())})
        try:
            streams = [stdin.fileno(), stdout.fileno(), stderr.fileno(), tell]
            socket.send_fds(self._control, [request.encode()], streams)
        finally:
            os.close(tell)
        return Process(arguments, told)

    def stop(self) -> None:
        """What it has started dies with it."""
        self._server.kill()
        self._server.wait()
        self._control.close()


@cache
def starter(kind: Kind) -> Starter:
    """That of this process, started when it is first wanted."""
    made = Starter(kind)
    atexit.register(made.stop)
    return made


def suits(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the command is a module or code for this Python, and nothing that is loaded already has looked at what
    its environment says otherwise than this one."""
    if command[0] != sys.executable or command[1] not in ("-m", "-c") or sys.platform != "linux":
        return False
    names = {name for name in {**env, **os.environ} if name.startswith(READ_WHILE_IMPORTED)}
    return all(env.get(name) == os.environ.get(name) for name in names)


def kind_for(command: Sequence[str], env: Mapping[str, str]) -> Kind:
    """The server that has the most of what this command will import, and nothing that it may not."""
    if env.get(VARIABLE):
        return "bare"
    queues = command[command.index("-Q") + 1] if "-Q" in command else ""
    return "models" if "llm" in queues.split(",") else "engine"


def start(
    command: Sequence[str], env: Mapping[str, str], stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]
) -> Started:
    """Start a command with nothing but this environment; it dies with us."""
    if suits(command, env):
        return starter(kind_for(command, env)).start(command[1:], env, stdin, stdout, stderr)
    return subprocess.Popen(launch.command(list(command)), env=env, stdin=stdin, stdout=stdout, stderr=stderr)


def run(
    command: Sequence[str], env: Mapping[str, str], *, text: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with `text` as its stdin."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        said.write(text.encode())
        said.seek(0)
        process = start(command, env, said, out, err)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        printed = [file.seek(0) or file.read().decode() for file in (out, err)]
        return subprocess.CompletedProcess(list(command), code, *printed)
