"""A disk that is full until a test makes room: a small tmpfs where this user may mount one, else a file in the way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sleipnir.agents.bundle import UNPACKED

SIZE_BYTES = 4 << 20


class FullDisk:
    """`folder` is on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb") as file:
            try:
                while os.write(file.fileno(), b"x" * 4096):
                    pass
            except OSError:
                return

    def make_room(self) -> None:
        self._ballast.unlink()


class Obstacle(FullDisk):
    """Where nothing can be mounted: nothing can be written below the folder's unpacked agents."""

    def fill(self) -> None:
        (self.folder / UNPACKED).touch()

    def make_room(self) -> None:
        (self.folder / UNPACKED).unlink()


@contextmanager
def full_disk(folder: Path) -> Iterator[FullDisk]:
    """`folder`, which is made, on a disk that is full."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    disk = FullDisk(folder) if is_mounted else Obstacle(folder)
    disk.fill()
    try:
        yield disk
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
