"""Indexes that were fetched to this machine: the most recently used ones, up to a bound, one folder per digest.

A process that uses an index has a shared lock of its lock file; one that fetches or drops it has an exclusive lock. So
two processes that need the same index fetch it once, and an open one is not dropped. A fetch that dies leaves a staging
folder, which the next one removes. An index that is larger than the bound is the only one that is kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from sleipnir.staging import Lock, put_in_place, staging
from sleipnir_workers.knowledge.index_store import OpenIndex, disk_error, size_of


class Cache:
    """`limit_bytes` is enforced before each fetch. Thread-safe: every call opens its own lock files."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root, self._limit_bytes = root, limit_bytes

    def open(self, digest: str, size: Callable[[], int], fetch: Callable[[Path], None]) -> OpenIndex:
        """The folder of `digest`. If it is missing, `size` returns its future size, and `fetch` fills a folder.

        Raises KnowledgeError when the disk is full, and the errors of `size` and `fetch`.
        """
        folder = self.root / digest
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            while (lock := self._share_lock(folder, size, fetch)) is None:
                pass
        except OSError as error:
            raise disk_error(error, self.root) from error
        return OpenIndex(folder, lock.close)

    def _share_lock(self, folder: Path, size: Callable[[], int], fetch: Callable[[Path], None]) -> Lock | None:
        """The shared lock of the folder, which then exists. None: it was dropped meanwhile."""
        lock = Lock(self._lock_of(folder))
        try:
            if lock.take_shared() and not folder.is_dir() and lock.take_alone():
                self._fetch_once(folder, size, fetch)
            if lock.take_shared() and folder.is_dir():
                os.utime(lock.path)  # its mtime is the time of the last use
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()
        return None

    def _fetch_once(self, folder: Path, size: Callable[[], int], fetch: Callable[[Path], None]) -> None:
        if folder.is_dir():
            return
        self._make_room(size())
        with staging(self.root) as staging_folder:
            staged = staging_folder / folder.name
            staged.mkdir()
            fetch(staged)
            put_in_place(staged, folder)

    def _make_room(self, needed_bytes: int) -> None:
        """Drop the least recently used indexes that are not open, until `needed_bytes` fit."""
        folders = [path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith(".")]
        sizes = {folder: size_of(folder) for folder in folders}
        used = sum(sizes.values())
        for folder in sorted(folders, key=self._used_ns):
            if used + needed_bytes <= self._limit_bytes:
                return
            if self.drop(folder.name):
                used -= sizes[folder]

    def drop(self, digest: str) -> bool:
        """Returns False if a process has it open: then it is kept."""
        folder = self.root / digest
        if not folder.is_dir():
            return True
        lock = Lock(self._lock_of(folder))
        if not lock.take_alone(wait=False):
            lock.close()
            return False
        with staging(self.root) as removed, contextlib.suppress(FileNotFoundError):
            folder.rename(removed / digest)
        lock.remove()
        return True

    def _used_ns(self, folder: Path) -> int:
        lock = self._lock_of(folder)
        return lock.stat().st_mtime_ns if lock.exists() else 0

    def _lock_of(self, folder: Path) -> Path:
        return folder.with_name(f".{folder.name}.lock")
