"""What the tests take from the shell that starts them, and what they do not.

TESTED_REDIS names the server that they use: a path, or `embedded` for the binary of the extra. Unset: as `sleipnir run`
chooses it, the first on PATH, else the embedded one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sleipnir.local.supervisor import embedded_server, find_server

VARIABLE = "TESTED_REDIS"
OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "GNUMAKEFLAGS")
"""A make that a test starts is nobody's sub-make: those print `Entering directory`, and obey flags."""


def set_up() -> None:
    """Change the environment of this process, before anything is started. Safe to call twice."""
    for name in OF_MAKE:
        os.environ.pop(name, None)
    if wanted := os.environ.get(VARIABLE):
        _put_first_on_path(_server(wanted))


def tested_redis() -> str:
    """One line for the head of the report."""
    server = find_server()
    version = subprocess.run([server, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    return f"redis: {server.resolve()}: {version.strip()}"


def _server(wanted: str) -> Path:
    server = embedded_server() if wanted == "embedded" else Path(wanted).absolute()
    if server is None or not os.access(server, os.X_OK):
        raise SystemExit(f"{VARIABLE}={wanted}: there is no such server")
    return server


def _put_first_on_path(server: Path) -> None:
    """What tests start finds its server on PATH, so a folder with this one goes before all others."""
    folder = Path(tempfile.mkdtemp(prefix="tested-redis-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "redis-server").symlink_to(server)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    os.environ[VARIABLE] = ""  # done; pytest's workers inherit PATH
