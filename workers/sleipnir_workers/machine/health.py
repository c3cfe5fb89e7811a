"""Whether this worker's machine can run visits: its disks, its memory, its processes, its file descriptors.

Rules. A failure is the machine's in two cases. Before the node's own work has begun: every error of the operating
system on our own files and processes (`MachineFailed.of`). After it has begun: an error that names an exhausted machine
counts only if the machine fails its own check at that moment (`failure_behind`): an author's code can raise any error.
The check costs a few milliseconds, so it is made after such a failure and before a queue is taken again, never before
a visit.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from sleipnir.errors import EXHAUSTED, MachineFailed
from sleipnir_workers.machine.host import this_host

ROOM_BYTES = 1 << 20  # with less on its disk the next visit fails: its state file alone may be larger
DESCRIPTORS = 16  # for the start of one command, with its pipes, its pidfd and its selector
MEMORY_BYTES = 16 << 20
FORK_S = 10.0


def failure_behind(error: BaseException) -> MachineFailed | None:
    """The machine's failure, with `begun`, that caused an error of a node's code; None: the error is the node's own."""
    if not (isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in EXHAUSTED)):
        return None
    try:
        check(this_host().settings.home)
    except MachineFailed as failure:
        return MachineFailed(failure.part, failure.args[0], begun=True)
    return None


def check(home: Path, programs: Iterable[str] = ()) -> None:
    """Use a little of everything that a visit needs. Raises MachineFailed. `programs` are interpreters to find."""
    for folder in dict.fromkeys((home, Path(tempfile.gettempdir()))):
        _check_disk(folder)
    _check_descriptors()
    _check_memory()
    _check_processes()
    for program in programs:
        if shutil.which(program) is None:
            raise MachineFailed("interpreter", f"{program} is not on PATH")


def has_room(folder: Path) -> bool:
    """Whether the disk of `folder` has room for a visit. One system call; True where that is unknown."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return True
    return disk.f_bavail * disk.f_frsize >= ROOM_BYTES and (disk.f_files == 0 or disk.f_favail > 0)


def _check_disk(folder: Path) -> None:
    folder = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    try:
        if not has_room(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(4096))
            file.flush()
            os.fsync(file.fileno())  # some file systems notice only now that there is no room
    except OSError as error:
        raise MachineFailed.of(error, f"cannot write below {folder}") from error


def _check_descriptors() -> None:
    try:
        with ExitStack() as opened:
            for _ in range(DESCRIPTORS // 2):
                for fd in os.pipe():
                    opened.callback(os.close, fd)
    except OSError as error:
        raise MachineFailed.of(error, "cannot open a pipe", part="descriptors") from error


def _check_memory() -> None:
    try:
        bytearray(MEMORY_BYTES)
    except MemoryError as error:
        raise MachineFailed("memory", f"cannot allocate {MEMORY_BYTES >> 20} MiB") from error


def _check_processes() -> None:
    program = shutil.which("true")
    command = [program] if program else [sys.executable, "-I", "-S", "-c", ""]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=FORK_S, env={})
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not within {FORK_S:g} s"
        raise MachineFailed("processes", f"cannot start a process: {reason}") from error
