"""A private PostgreSQL cluster for the peers: default settings (so fsync is on), a unix socket, gone afterwards."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.figures import BenchFailed, NotMeasured
from ops.bench.processes import last_line, workspace
from tests.waiting import wait_until

PLACES = Path("/usr/lib/postgresql")  # where Debian keeps the servers, out of PATH
USER = "bench"
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Server:
    """The address of a peer's storage, and the process id of its server: 0 without a server."""

    url: str
    pid: int


@contextmanager
def server() -> Iterator[Server]:
    """A new cluster. Raises NotMeasured if there is no PostgreSQL here, or no user who may run it."""
    programs = find()
    identity = _identity()
    with workspace() as folder:
        data, log = folder / "data", folder / "postgres.log"
        if identity:
            os.chown(folder, identity["user"], identity["group"])
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-A", "trust", "-U", USER, "-E", "UTF8", "--no-locale"],
            capture_output=True, text=True, cwd=folder, **identity,
        )  # fmt: skip
        if made.returncode:
            raise BenchFailed(f"initdb failed: {last_line(made.stderr)}")
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
        command = [str(programs / "postgres"), "-D", str(data), *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=folder, preexec_fn=_tied_to_us(), **identity
            )
        try:
            wait_until(lambda: process.poll() is not None or b"ready to accept" in log.read_bytes(), "PostgreSQL is up")
            if process.poll() is not None:
                raise BenchFailed(f"PostgreSQL did not start: {last_line(log.read_text())}")
            yield Server(f"postgresql://{USER}@/postgres?host={folder}", process.pid)
        finally:
            process.send_signal(signal.SIGINT)  # its fast shutdown: connections are closed, not waited for
            process.wait(60)


def find() -> Path:
    """The folder with `initdb` and `postgres`: from PATH, else the newest of Debian's. Raises NotMeasured."""
    in_path = shutil.which("initdb")
    folders = [Path(in_path).resolve().parent] if in_path else []
    folders += sorted(PLACES.glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    raise NotMeasured("PostgreSQL not found")


def _identity() -> Mapping[str, Any]:
    """Arguments of Popen: PostgreSQL refuses to run as root, so root lends it an unprivileged user."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise NotMeasured("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`")


def _tied_to_us() -> Callable[[], None]:
    """The child calls this before it becomes PostgreSQL: the kernel then stops it when this process ends. launch.py
    cannot do it here, as the other user may lack the right to read our interpreter."""
    libc = ctypes.CDLL(None, use_errno=True)

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)

    return ask
