"""A Redis as we advise it: started by ops/deploy/redis/start.sh, with its users, behind TLS.

If the redis-server at hand was built with TLS, it has a TLS port itself; else a front before it has.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from sleipnir.local import launch
from sleipnir.local.supervisor import find_server
from sleipnir.store.connect import connect
from tests.processes import wait_for_redis
from tests.tls import TlsFront, make_certificates

FILES = Path(__file__).parents[1] / "ops" / "deploy" / "redis"
PASSWORD = "planted4c1f88e2d0"
ADMIN = "user admin on >all ~* &* +@all\n"
"""For tests, which look at what was refused; no deployment has it."""


class SecuredRedis:
    """Stops with `stop`. `url` is for the user that services are; `tls_url` the same over TLS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = make_certificates(folder)
        shutil.copytree(FILES, folder / "redis")
        with (folder / "redis" / "users.acl").open("a") as users:
            users.write(ADMIN)
        port, tls_port = free_port(), free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        options += ["--unixsocket", str(folder / "redis.sock")]
        has_tls = _has_tls(find_server())
        if has_tls:
            options += ["--tls-port", str(tls_port), "--tls-auth-clients", "no"]
            options += ["--tls-cert-file", str(self.certificates.certificate)]
            options += ["--tls-key-file", str(self.certificates.key)]
            options += ["--tls-ca-cert-file", str(self.certificates.authority)]
        with (folder / "redis.log").open("wb") as log:
            self._process = subprocess.Popen(
                launch.command(["sh", str(folder / "redis" / "start.sh"), *options]),
                env=redis_environment(folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.url = f"redis://sleipnir:{PASSWORD}@127.0.0.1:{port}/0"
        self.admin_url = f"redis://admin:all@127.0.0.1:{port}/0"
        wait_for_redis(self.url)
        self._front = None if has_tls else TlsFront(str(folder / "redis.sock"), self.certificates)
        at = f"sleipnir:{PASSWORD}@localhost:{self._front.port if self._front else tls_port}"
        self.tls_url = f"rediss://{at}/0?ssl_ca_certs={self.certificates.authority}"
        self.untrusted_url = f"rediss://{at}/0"

    def refused(self) -> list[tuple[str, str]]:
        """Why, and what: each command, key or channel that a user was not allowed.

        How a client of redis-py names its library is left out: that command came with Redis 7.2.
        """
        admin: Any = connect(self.admin_url)
        entries = [(str(entry["reason"]), str(entry["object"])) for entry in admin.acl_log()]
        return [(reason, what) for reason, what in entries if not what.startswith("client")]

    def forget_refused(self) -> None:
        admin: Any = connect(self.admin_url)
        admin.acl_log_reset()

    def stop(self) -> None:
        if self._front is not None:
            self._front.stop()
        self._process.kill()
        self._process.wait()


def redis_environment(folder: Path) -> dict[str, str]:
    """For start.sh: the redis-server that we use is the first on PATH, and it keeps its users in `folder`."""
    path = folder / "bin"
    path.mkdir(exist_ok=True)
    (path / "redis-server").symlink_to(find_server().resolve())
    found = f"{path}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": found, "REDIS_PASSWORD": PASSWORD, "TMPDIR": str(folder)}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _has_tls(server: Path) -> bool:
    """A server without TLS does not know the option; none is started."""
    done = subprocess.run([str(server), "--tls-port", "none"], capture_output=True, text=True, timeout=60)
    return "integer" in done.stdout + done.stderr
