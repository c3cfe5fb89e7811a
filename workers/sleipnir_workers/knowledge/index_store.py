"""The index store: where the indexes of knowledge bases are shared, by digest. An index is on it complete or not at
all.

An index store is a folder that all workers see, and they search what lies there: their processes share one memory map.
Or it is `s3://bucket/prefix` (bucket.py), from which a worker fetches what it is asked for (cache.py).
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
"""Told how many bytes of how many are shared."""


class DamagedIndex(KnowledgeError):
    """What is in the index store is not what was put there. It can be dropped and put again."""


class OpenIndex:
    """An index in `folder` that nobody drops before `close` is called, or this process ends."""

    def __init__(self, folder: Path, close: Callable[[], None] = lambda: None) -> None:
        self.folder, self.close = folder, close


class IndexStore(Protocol):
    """Every method raises KnowledgeError (`store`) when the index store cannot be used."""

    name: str

    def has(self, digest: str) -> bool: ...

    def put(self, digest: str, write: Callable[[Path], None], moved: Moved = lambda done, total: None) -> int:
        """Let `write` fill a folder, and put that in the index store; returns its bytes. What is there already is kept.
        Two processes may do it at once."""

    def open(self, digest: str) -> OpenIndex:
        """Raises KnowledgeError also for what is not in the index store, and DamagedIndex."""

    def drop(self, digest: str) -> None:
        """Remove it, if it is there."""


class FolderIndexStore:
    """A folder, which may be on a network: of the file system it takes that renaming is one step."""

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
                with staging(self.root) as away:
                    folder.rename(away / digest)
        except FileNotFoundError:
            return  # somebody else was faster
        except OSError as error:
            raise disk_error(error, self.root) from error

    def _folder(self, digest: str) -> Path:
        return self.root / checked(digest)


def checked(digest: str) -> str:
    """A digest becomes a part of a path, so it must be one. Raises KnowledgeError."""
    if not is_digest(digest):
        raise KnowledgeError(f"{digest!r} is not the digest of a knowledge base", "usage")
    return digest


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def not_there(digest: str, index_store: str) -> KnowledgeError:
    return KnowledgeError(f"knowledge base {digest[:12]} is not in the index store {index_store}", "store")


def disk_error(error: OSError, place: Path, doing: str = "write") -> KnowledgeError:
    """`place` is what could not be written, where the error itself names nothing. The machine's failure, if the error
    says what is exhausted, or that the file is not for us: anything else may be the content's."""
    said = f"cannot {doing} {error.filename or place}: {error.strerror or error}"
    part = EXHAUSTED.get(error.errno or 0) or ("disk" if error.errno in (errno.EACCES, errno.EPERM) else None)
    return KnowledgeError(said, "store", machine=None if part is None else MachineFailed(part, said))
