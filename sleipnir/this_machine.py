"""An identity of the machine that a process runs on: equal for two processes that see the same directories.

A client notes it with the directory that a run is started from, and a worker compares it with its own: only if they are
equal does the same path mean the same directory. It is a digest, so it tells nobody the machine's id.

Rules. On Linux it is made of /etc/machine-id, which stays over restarts, and of the root directory's inode, which
differs in a chroot. In a container (a PID namespace of its own), and without a machine-id, the boot and the mount
namespace count too: an image has one machine-id or none, for all containers of it. So each container is a machine,
until it is restarted. On other systems it is made of the host's name and of its network address.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import uuid
from functools import cache
from pathlib import Path

_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, a constant of Linux
_LENGTH = 16


@cache
def machine_id() -> str:
    """16 hexadecimal digits, read once per process."""
    return machine_id_of(Path("/")) if sys.platform == "linux" else _digest(platform.node(), f"{uuid.getnode():x}")


def machine_id_of(root: Path) -> str:
    """That of a Linux system whose root directory is `root`."""
    written = _text(root / "etc/machine-id") or _text(root / "var/lib/dbus/machine-id")
    parts = [written, str(root.stat().st_ino)]
    if written in ("", "uninitialized") or _link(root / "proc/self/ns/pid") != _FIRST_PID_NAMESPACE:
        parts += [_text(root / "proc/sys/kernel/random/boot_id"), _link(root / "proc/self/ns/mnt")]
    return _digest(*parts)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_LENGTH]


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
