"""The indexes in the index store, for builders: made from bases, and made again if they cannot be used."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sleipnir.errors import KnowledgeError
from sleipnir.knowledge.order import BuildNotice, Progress
from sleipnir_workers.knowledge import artefact
from sleipnir_workers.knowledge.artefact import Artefact, IndexInfo, UnusableIndex
from sleipnir_workers.knowledge.base import Base
from sleipnir_workers.knowledge.index_store import DamagedIndex, IndexStore


class Indexes:
    """Every method raises KnowledgeError when the index store cannot be used."""

    def __init__(self, index_store: IndexStore, report: Callable[[Progress | BuildNotice], None]) -> None:
        self.index_store, self._report = index_store, report

    @contextmanager
    def open(self, digest: str) -> Iterator[Artefact]:
        """Raises UnusableIndex."""
        stored = self.index_store.open(digest)
        try:
            index = Artefact.open(stored.folder)
            try:
                yield index
            finally:
                index.close()
        finally:
            stored.close()

    def usable(self, digest: str) -> IndexInfo | None:
        """The index in the store, if it can be searched. One that cannot is dropped."""
        if not self.index_store.has(digest):
            return None
        try:
            with self.open(digest) as index:
                return index.info
        except (DamagedIndex, UnusableIndex) as error:
            self._report(BuildNotice(f"{error}; it is written again"))
            self.index_store.drop(digest)
            return None

    def share(self, base: Base, digest: str) -> IndexInfo:
        """Put the index of a base in the index store, unless the store has it."""
        info = self.usable(digest)
        if info is not None:
            return info
        written: list[IndexInfo] = []

        def write(folder: Path) -> None:
            try:
                artefact.write(base, folder, digest)
            except sqlite3.Error as error:  # its text names neither the file nor the disk
                raise KnowledgeError(f"cannot write {folder / artefact.DATABASE}: {error}", "store") from error
            index = Artefact.open(folder)
            written.append(index.info)
            index.close()

        def moved(done: int, total: int) -> None:
            self._report(Progress("share", done, total, self.index_store.name))

        self._report(Progress("share", 0, None, self.index_store.name))
        self.index_store.put(digest, write, moved)
        return written[-1]
