"""Indexes that were fetched to this machine: those used last, up to a bound, one folder per digest.

Who uses one shares its lock file, who fetches or drops it holds that alone. So two processes that want the same one
fetch it once, and none is dropped that is open. A fetch that dies leaves a staging folder, which the next one clears
up. One that is larger than the bound is kept alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from sleipnir.staging import Lock, put_in_place, staging
from sleipnir_workers.knowledge.index_store import OpenIndex, disk_error, size_of


class Cache:
    """`limit_bytes` is checked before each fetch. Thread-safe: every call has lock files of its own."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root, self._limit_bytes = root, limit_bytes

    def open(self, digest: str, size: Callable[[], int], fetch: Callable[[Path], None]) -> OpenIndex:
        """The folder of `digest`. If it is not there, `size` says how large it will be, and `fetch` fills a folder.

        Raises KnowledgeError when the disk is full, and what these two raise.
        """
        folder = self.root / digest
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            while (lock := self._shared(folder, size, fetch)) is None:
                pass
        except OSError as error:
            raise disk_error(error, self.root) from error
        return OpenIndex(folder, lock.close)

    def _shared(self, folder: Path, size: Callable[[], int], fetch: Callable[[Path], None]) -> Lock | None:
        """The lock of a folder that is there. None: it was dropped under our hands."""
        lock = Lock(self._lock_of(folder))
        try:
            if lock.take_shared() and not folder.is_dir() and lock.take_alone():
                self._fetch_once(folder, size, fetch)
            if lock.take_shared() and folder.is_dir():
                os.utime(lock.path)  # when it was used last
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
        with staging(self.root) as beside:
            staged = beside / folder.name
            staged.mkdir()
            fetch(staged)
            put_in_place(staged, folder)

    def _make_room(self, wanted: int) -> None:
        """Drop what was used longest ago, and is not open, until `wanted` more bytes fit."""
        kept = [path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith(".")]
        sizes = {folder: size_of(folder) for folder in kept}
        used = sum(sizes.values())
        for folder in sorted(kept, key=self._used_ns):
            if used + wanted <= self._limit_bytes:
                return
            if self.drop(folder.name):
                used -= sizes[folder]

    def drop(self, digest: str) -> bool:
        """False: it is open somewhere, and kept."""
        folder = self.root / digest
        if not folder.is_dir():
            return True
        lock = Lock(self._lock_of(folder))
        if not lock.take_alone(wait=False):
            lock.close()
            return False
        with staging(self.root) as away, contextlib.suppress(FileNotFoundError):
            folder.rename(away / digest)
        lock.remove()
        return True

    def _used_ns(self, folder: Path) -> int:
        lock = self._lock_of(folder)
        return lock.stat().st_mtime_ns if lock.exists() else 0

    def _lock_of(self, folder: Path) -> Path:
        return folder.with_name(f".{folder.name}.lock")
