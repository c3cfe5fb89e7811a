"""Whether a directory that a run's caller names is the same one on a worker: equal paths alone do not say so.

A client notes the marks of the directory with the run. A worker makes those of the directory that has the path there,
and one mark in common means that it is the same one. Marks are digests, so they tell nobody the id or the name of a
machine.

Rules. On Linux there are three, and each of them suffices.

1. The view: the boot of the kernel, the mount namespace, the root directory and the host's name. Two processes with the
   same view see the same directories, whatever was made anew meanwhile.
2. The directory: the boot, its device and its inode, which no other directory has at the time. So one that is mounted
   into a container is recognised, and another one that a container or a service has at the same path is not.
3. The installation, for runs that go on after a restart: /etc/machine-id, the host's name, and the inodes of the root
   directory and of this one. Not in a container (a PID namespace of its own): an image has one machine-id or none for
   all containers of it. The host's name tells clones of a virtual machine apart.

On other systems there is one: the host's name and network address.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, a constant of Linux
_LENGTH = 12
NONE = "-"


@dataclass(frozen=True)
class System:
    """What a process sees of the system that it runs on. What is empty makes no mark."""

    boot: str
    view: str
    installation: str

    @classmethod
    def linux(cls, root: Path, host: str) -> System:
        """That with this root directory and this host's name."""
        found = root.stat()
        boot = _text(root / "proc/sys/kernel/random/boot_id")
        mounts = _link(root / "proc/self/ns/mnt")
        view = _mark("view", boot, mounts, found.st_dev, found.st_ino, host) if boot and mounts else ""
        machine = _text(root / "etc/machine-id") or _text(root / "var/lib/dbus/machine-id")
        is_installed = _link(root / "proc/self/ns/pid") == _FIRST_PID_NAMESPACE and machine not in ("", "uninitialized")
        return cls(boot, view, _mark("installation", machine, host, found.st_ino) if is_installed else "")

    @classmethod
    @cache
    def here(cls) -> System:
        """This process's; read once."""
        if sys.platform == "linux":
            return cls.linux(Path("/"), platform.node())
        return cls("", _mark("view", platform.node(), f"{uuid.getnode():x}"), "")

    def marks(self, directory: str) -> str:
        """The marks of a directory, with blanks between them. "-": it has none here."""
        found = [self.view]
        try:
            at = os.stat(directory)  # noqa: PTH116
        except (OSError, ValueError):  # it is not there, or no path
            pass
        else:
            found += [_mark("directory", self.boot, at.st_dev, at.st_ino)] if self.boot else []
            found += [_mark("installed", self.installation, at.st_ino)] if self.installation else []
        return " ".join(filter(None, found)) or NONE

    def has(self, directory: str, marks: str) -> bool:
        """Whether the directory is here the one that `marks` are of."""
        if self.view and self.view in marks:
            return True
        return not ({*marks.split()} - {NONE}).isdisjoint(self.marks(directory).split())


def _mark(*parts: str | int) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:_LENGTH]


def _text(file: Path) -> str:
    try:
        return file.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  (it names no file)
    except OSError:
        return ""
