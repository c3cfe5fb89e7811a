"""Redis servers that go back in time: an old append-only file is put back, a replica that lacks the last writes is
promoted, the clock is stepped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from glob import glob
from pathlib import Path

from sleipnir.local.supervisor import find_server
from sleipnir.store.connect import Client, connect
from tests.processes import RedisServer, wait_for_redis, wait_until
from tests.secured import free_port

LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/*/faketime/libfaketime.so.1")
WAIT_S = 60.0


def now_ms() -> int:
    """This machine's clock."""
    return int(time.time() * 1000)


def admin(server: RedisServer) -> Client:
    return connect(server.url, retries=0, socket_timeout=5)


def stop_for(server: RedisServer, seconds: float) -> None:
    """It is frozen, and thaws."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    server.process.send_signal(signal.SIGCONT)


def away_for(server: RedisServer, seconds: float) -> None:
    """It is killed, and started again."""
    server.kill()
    time.sleep(seconds)
    server.start()


def copy_append_only_file(server: RedisServer, target: Path) -> None:
    """Copy the files as docs/operations.md describes, while no rewrite replaces them."""
    client = admin(server)
    client.config_set("auto-aof-rewrite-percentage", 0)
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "no rewrite is under way", WAIT_S)
    target.mkdir(parents=True)
    for file in _append_only_files(server.folder):
        (shutil.copytree if file.is_dir() else shutil.copy)(file, target / file.name)
    client.close()


def put_back(server: RedisServer, backup: Path) -> None:
    """Everything that was written since the copy is lost."""
    server.kill()
    for file in _append_only_files(server.folder):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    shutil.copytree(backup, server.folder, dirs_exist_ok=True)
    server.start()


def _append_only_files(folder: Path) -> list[Path]:
    """One file before Redis 7, then a directory."""
    return [file for file in (folder / "appendonlydir", folder / "appendonly.aof") if file.exists()]


class Replicated(RedisServer):
    """A server with a replica. Clients find the serving one at the same address."""

    def __init__(self) -> None:
        self._port = free_port()
        super().__init__("--bind", "127.0.0.1", "--port", str(self._port))
        self._replica = RedisServer()
        admin(self._replica).replicaof("127.0.0.1", self._port)
        self.is_followed()

    def is_followed(self) -> None:
        replica = admin(self._replica)
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up", "the replica follows", WAIT_S)
        replica.close()

    def cut_off(self) -> None:
        """The replica no longer receives data."""
        admin(self._replica).replicaof("NO", "ONE")

    def promote(self) -> None:
        """Stop the server and start the replica at its address."""
        self.kill()
        Path(self._replica.socket).replace(self.socket)
        self.process, self._replica.process = self._replica.process, None
        wait_for_redis(self.url)

    def stop(self) -> None:
        super().stop()
        self._replica.stop()


def faketime() -> Path | None:
    """The library of Debian's package `faketime`, or the one that FAKETIME_LIBRARY names. None: there is none."""
    files = [os.environ.get("FAKETIME_LIBRARY", ""), *(file for pattern in LIBRARIES for file in glob(pattern))]  # noqa: PTH207
    return next((Path(file) for file in files if file and Path(file).is_file()), None)


def why_no_clock() -> str:
    """The reason why the clock of a server cannot be set on this machine; empty if it can."""
    if faketime() is None:
        return "libfaketime is not here (Debian's package `faketime`)"
    version = subprocess.run([find_server(), "--version"], capture_output=True, text=True, check=True, timeout=10)
    return "libfaketime breaks servers that are linked with jemalloc" if "malloc=jemalloc" in version.stdout else ""


class Stepped(RedisServer):
    """A server whose clock can be set; other processes have the machine's."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._offset_s = 0
        super().__init__()

    def launch(self, *more_options: str) -> None:
        file = self.folder / "time"
        file.write_text("+0")
        self.through = (
            "env", f"LD_PRELOAD={self._library}", f"FAKETIME_TIMESTAMP_FILE={file}", "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1",
        )  # fmt: skip
        super().launch(*more_options)

    def step(self, seconds: int) -> None:
        """Set the clock forward, or back."""
        self._offset_s += seconds
        (self.folder / "time").write_text(f"{self._offset_s:+d}")
        client = admin(self)
        off_s = int(client.time()[0]) - time.time()
        client.close()
        if abs(off_s - self._offset_s) > 5:
            raise RuntimeError(f"the clock of Redis is off by {off_s:.0f} s instead of {self._offset_s} s")


class SmallDisk:
    """A tmpfs. A context manager; `folder` None: this process may not mount one."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._folder, self._megabytes = folder, megabytes
        self.folder: Path | None = None

    def __enter__(self) -> SmallDisk:
        self._folder.mkdir()
        options = f"size={self._megabytes}m"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self._folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            done = subprocess.CompletedProcess(command, 1, "", str(error))
        if done.returncode == 0:
            self.folder = self._folder
        else:
            print(f"  no tmpfs can be mounted here: {done.stderr.strip()}", file=sys.stderr)
        return self

    def fill(self) -> None:
        assert self.folder is not None
        try:
            with (self.folder / "filler").open("ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError:
            pass  # it is full

    def free(self) -> None:
        assert self.folder is not None
        (self.folder / "filler").unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)
