"""Atomic writes: content is written to a staging folder and moved into place in one step; remains of killed processes
are removed.

A staging folder is `.knowledge-<random>` next to where its content goes, so on the same disk. Beside it is
`.knowledge-<random>.lock`, which its process holds locked: the kernel releases it when the process ends in any way. So
a lock file that can be locked belongs to an abandoned folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".knowledge-"
_LOCK = ".lock"


@contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, which is created; afterwards the folder is removed with its remaining content."""
    parent.mkdir(parents=True, exist_ok=True)
    clear_up(parent)
    lock = _own_lock(parent)
    folder = _folder_of(lock)
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.remove()


def abandoned(parent: Path) -> list[Path]:
    """The staging folders in `parent` whose processes are dead."""
    folders = []
    for path in parent.glob(f"{PREFIX}*{_LOCK}"):
        with contextlib.suppress(OSError):
            lock = Lock(path)
            if lock.take_alone(wait=False):
                folders.append(_folder_of(lock))
            lock.close()
    return folders


def clear_up(parent: Path) -> None:
    """Remove the staging folders in `parent` whose processes are dead."""
    for path in parent.glob(f"{PREFIX}*{_LOCK}"):
        with contextlib.suppress(OSError):
            lock = Lock(path)
            if lock.take_alone(wait=False):
                shutil.rmtree(_folder_of(lock), ignore_errors=True)
                lock.remove()
            lock.close()


def put_in_place(staged: Path, target: Path) -> None:
    """Move a file or folder out of its staging folder. A file that is there is replaced. The moved folder survives a
    crash of the machine. Raises OSError (ENOTEMPTY, EEXIST) for a folder that is there."""
    for path in (*staged.rglob("*"), staged):
        sync(path)
    staged.rename(target)
    sync(target.parent)


def is_there(error: OSError) -> bool:
    """Whether put_in_place failed because another process was faster."""
    return error.errno in (errno.ENOTEMPTY, errno.EEXIST)


def make_removable(folder: Path) -> None:
    """Open the folders below, and itself, for their owner; links are left alone. Folders that cannot be opened are
    left."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    for current, names, _ in os.walk(folder):  # which looks into a folder only after this
        for path in (Path(current, name) for name in names):
            with contextlib.suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)


def sync(path: Path) -> None:
    """Have the disk store a file or a folder durably."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _own_lock(parent: Path) -> Lock:
    while True:
        lock = Lock(parent / f"{PREFIX}{secrets.token_hex(6)}{_LOCK}")
        if lock.take_alone():
            return lock
        lock.close()  # another process removed it before we held the lock


def _folder_of(lock: Lock) -> Path:
    return lock.path.with_name(lock.path.name.removesuffix(_LOCK))


class Lock:
    """A lock file, made if it is not there. It is let go with the process. For one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take_alone(self, *, wait: bool = True) -> bool:
        """False: others hold it, or it was removed while we waited. The shared lock is released first."""
        return self._take(fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def take_shared(self) -> bool:
        """Beside others that share it. False: it was removed while we waited."""
        return self._take(fcntl.LOCK_SH)

    def _take(self, how: int) -> bool:
        try:
            fcntl.flock(self._fd, how)
        except OSError as error:
            # A disk without locks: assume no other process, and remove no remains of others.
            return error.errno in (errno.ENOLCK, errno.ENOTSUP) and not how & fcntl.LOCK_NB
        return os.fstat(self._fd).st_nlink > 0

    def remove(self) -> None:
        """Let go of what we hold alone, for good."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go. Twice is safe."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
