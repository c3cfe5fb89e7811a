"""The index store: it shares the indexes of knowledge bases by digest. An index in it is always complete.

An index store is a folder that all workers can read and search: their processes share one memory map. Or it is
`s3://bucket/prefix` (bucket.py), from which a worker fetches the indexes that it needs (cache.py).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from sleipnir.errors import EXHAUSTED, KnowledgeError, MachineFailed
from sleipnir.knowledge.files import is_digest
from sleipnir.staging import is_there, put_in_place, staging

Moved: TypeAlias = Callable[[int, int], None]
"""Called with the number of shared bytes and the total."""


class DamagedIndex(KnowledgeError):
    """The content in the index store is not the one that was put there. It can be dropped and put again."""


class OpenIndex:
    """An index in `folder` that is not dropped before `close` is called or this process ends."""

    def __init__(self, folder: Path, close: Callable[[], None] = lambda: None) -> None:
        self.folder, self.close = folder, close


class IndexStore(Protocol):
    """Every method raises KnowledgeError (`store`) when the index store cannot be used."""

    name: str

    def has(self, digest: str) -> bool: ...

    def put(self, digest: str, write: Callable[[Path], None], moved: Moved = lambda done, total: None) -> int:
        """Let `write` fill a folder, and put that in the index store; returns its bytes. An index that is already there
        is kept. Two processes may do it at once."""

    def open(self, digest: str) -> OpenIndex:
        """Raises KnowledgeError also for a digest that is not in the index store, and DamagedIndex."""

    def drop(self, digest: str) -> None:
        """Remove the index, if the store has it."""


class FolderIndexStore:
    """A folder, which may be on a network file system. Renaming in it must be atomic."""

    def __init__(self, root: Path) -> None:
        self.root, self.name = root, str(root)

    def has(self, digest: str) -> bool:
        return self._folder(digest).is_dir()

    def put(self, digest: str, write: Callable[[Path], None], moved: Moved = lambda done, total: None) -> int:
        target = self._folder(digest)
        try:
            with staging(self.root) as folder:
                staged = folder / digest
                staged.mkdir()
                write(staged)
                size = size_of(staged)
                try:
                    put_in_place(staged, target)
                except OSError as error:
                    if not is_there(error):
                        raise
        except OSError as error:
            raise disk_error(error, self.root) from error
        moved(size, size)
        return size

    def open(self, digest: str) -> OpenIndex:
        folder = self._folder(digest)
        if not folder.is_dir():
            raise not_there(digest, self.name)
        return OpenIndex(folder)

    def drop(self, digest: str) -> None:
        folder = self._folder(digest)
        try:
            if folder.is_dir():
                with staging(self.root) as removed:
                    folder.rename(removed / digest)
        except FileNotFoundError:
            return  # another process was faster
        except OSError as error:
            raise disk_error(error, self.root) from error

    def _folder(self, digest: str) -> Path:
        return self.root / checked(digest)


def checked(digest: str) -> str:
    """Check that it is a digest, as it becomes part of a path. Raises KnowledgeError."""
    if not is_digest(digest):
        raise KnowledgeError(f"{digest!r} is not the digest of a knowledge base", "usage")
    return digest


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def not_there(digest: str, index_store: str) -> KnowledgeError:
    return KnowledgeError(f"knowledge base {digest[:12]} is not in the index store {index_store}", "store")


def disk_error(error: OSError, path: Path, doing: str = "write") -> KnowledgeError:
    """`path` is named if the error names no file. It is the machine's failure if a resource is exhausted or access is
    denied; any other error may be caused by the content."""
    message = f"cannot {doing} {error.filename or path}: {error.strerror or error}"
    part = EXHAUSTED.get(error.errno or 0) or ("disk" if error.errno in (errno.EACCES, errno.EPERM) else None)
    return KnowledgeError(message, "store", machine=None if part is None else MachineFailed(part, message))
