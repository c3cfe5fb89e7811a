"""Whether the directory of a run's caller is the same one on a worker: equal paths are not sufficient.

A client records the marks of the directory with the run. A worker computes the marks of its directory at that path, and
one common mark means that it is the same directory. Marks are digests, so they do not reveal the id or the name of a
machine.

Rules. On Linux there are three marks, and each of them is sufficient.

1. The view: the boot of the kernel, the mount namespace, the root directory and the host's name. Two processes with the
same view have the same directories, even if they were recreated.
2. The directory: the boot, its device and its inode, which no other directory has at the time. So a directory that is
mounted into a container is recognised, and a different one at the same path in a container or a service is not.
3. The installation, for runs that go on after a restart: /etc/machine-id, the host's name, and the inodes of the root
   directory and of this one. Not in a container (a PID namespace of its own): an image has one machine-id or none for
   all containers of it. The host's name distinguishes clones of a virtual machine.

On other systems there is one mark: the host's name and network address.
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
    """The identity of a process's system. Empty values give no mark."""

    boot: str
    view: str
    installation: str

    @classmethod
    def linux(cls, root: Path, host: str) -> System:
        """The identity with this root directory and this host's name."""
        status = root.stat()
        boot = _text(root / "proc/sys/kernel/random/boot_id")
        mounts = _link(root / "proc/self/ns/mnt")
        view = _mark("view", boot, mounts, status.st_dev, status.st_ino, host) if boot and mounts else ""
        machine = _text(root / "etc/machine-id") or _text(root / "var/lib/dbus/machine-id")
        is_installed = _link(root / "proc/self/ns/pid") == _FIRST_PID_NAMESPACE and machine not in ("", "uninitialized")
        return cls(boot, view, _mark("installation", machine, host, status.st_ino) if is_installed else "")

    @classmethod
    @cache
    def here(cls) -> System:
        """This process's; read once."""
        if sys.platform == "linux":
            return cls.linux(Path("/"), platform.node())
        return cls("", _mark("view", platform.node(), f"{uuid.getnode():x}"), "")

    def marks(self, directory: str) -> str:
        """The marks of a directory, separated by blanks. "-": it has none here."""
        marks = [self.view]
        try:
            at = os.stat(directory)  # noqa: PTH116
        except (OSError, ValueError):  # it does not exist, or is not a path
            pass
        else:
            marks += [_mark("directory", self.boot, at.st_dev, at.st_ino)] if self.boot else []
            marks += [_mark("installed", self.installation, at.st_ino)] if self.installation else []
        return " ".join(filter(None, marks)) or NONE

    def has(self, directory: str, marks: str) -> bool:
        """Whether the directory on this machine is the one of `marks`."""
        if self.view and self.view in marks:
            return True
        return not ({*marks.split()} - {NONE}).isdisjoint(self.marks(directory).split())


def _mark(*parts: str | int) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:_LENGTH]


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  (it names no file)
    except OSError:
        return ""
