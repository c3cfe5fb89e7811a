"""Real processes for the bench: a redis-server and what runs on it, each tied to this process and stopped by pid."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ops.bench.figures import BenchFailed
from sleipnir.local import launch
from sleipnir.local.supervisor import find_server
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

PYTHON = sys.executable
STOP_S = 30  # longer than a worker drains

Groups = Mapping[str, Sequence[Sequence[str]]]
"""Commands by the name of their group, for the profile."""


@contextmanager
def redis_server(folder: Path, *, appendfsync: str = "everysec") -> Iterator[tuple[str, int]]:
    """URL and pid of a server with the settings of the embedded stack: an append-only file, a private socket."""
    socket = folder / "redis.sock"
    command = [
        str(find_server()), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", appendfsync, "--save", "",
        "--stream-node-max-bytes", "1024", "--loglevel", "warning",
    ]  # fmt: skip
    process = subprocess.Popen(launch.command(command), stdout=subprocess.DEVNULL)
    try:
        wait_until(socket.exists, "redis-server is up")
        yield f"unix://{socket}?db=0", process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def processes(groups: Groups, env: Mapping[str, str], folder: Path) -> Iterator[dict[str, list[int]]]:
    """Start the commands of all groups; yields their pids by group. Their output is in `folder`/services.log."""
    with (folder / "services.log").open("wb") as log:
        started = {
            group: [
                subprocess.Popen(launch.command(list(command)), env=environment(env), stdout=log, stderr=log)
                for command in commands
            ]
            for group, commands in groups.items()
        }
        everything = [process for group in started.values() for process in group]
        try:
            yield {group: [process.pid for process in members] for group, members in started.items()}
        finally:
            for process in everything:
                process.terminate()
            for process in everything:
                stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process that was asked to stop has ended; kill it after the timeout."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """That of this process without what would change the engine's settings, with our packages importable, and
    `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    path = [str(ROOT), str(ROOT / "scheduler"), str(ROOT / "workers")]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), **extra}


@contextmanager
def workspace() -> Iterator[Path]:
    """A folder with a short path: a socket's path has 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="slp-bench-") as folder:
        yield Path(folder)


def output_of(command: Sequence[str], env: Mapping[str, str], timeout_s: float = 600) -> str:
    """What a command prints. Raises BenchFailed with the end of its stderr."""
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{Path(command[1]).name} was not done after {timeout_s:g} s") from None
    if done.returncode:
        raise BenchFailed(f"{Path(command[1]).name} failed: {last_line(done.stderr)}")
    return done.stdout


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


def version_of(program: Path) -> str:
    """The first dotted number that `program --version` prints; "?" if there is none."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10).stdout
    version = re.search(r"\d+(\.\d+)+", output)
    return version[0] if version else "?"
