"""The indexes on the shelf, for builders: made of bases, and made anew where they cannot be used."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sleipnir.errors import KnowledgeError
from sleipnir.knowledge.order import Notice, Progress
from sleipnir_workers.knowledge import artefact
from sleipnir_workers.knowledge.artefact import Artefact, Info, UnusableIndex
from sleipnir_workers.knowledge.base import Base
from sleipnir_workers.knowledge.shelf import Damaged, Shelf


class Indexes:
    """Every method raises KnowledgeError when the shelf cannot be used."""

    def __init__(self, shelf: Shelf, tell: Callable[[Progress | Notice], None]) -> None:
        self.shelf, self._tell = shelf, tell

    @contextmanager
    def open(self, digest: str) -> Iterator[Artefact]:
        """Raises UnusableIndex."""
        held = self.shelf.open(digest)
        try:
            index = Artefact.open(held.folder)
            try:
                yield index
            finally:
                index.close()
        finally:
            held.close()

    def usable(self, digest: str) -> Info | None:
        """What is on the shelf, if it can be searched. If it cannot, it is taken off."""
        if not self.shelf.has(digest):
            return None
        try:
            with self.open(digest) as index:
                return index.info
        except (Damaged, UnusableIndex) as error:
            self._tell(Notice(f"{error}; it is written anew"))
            self.shelf.drop(digest)
            return None

    def share(self, base: Base, digest: str) -> Info:
        """Put the index of a base on the shelf, unless it is there."""
        known = self.usable(digest)
        if known is not None:
            return known
        written: list[Info] = []

        def write(folder: Path) -> None:
            try:
                artefact.write(base, folder, digest)
            except sqlite3.Error as error:  # which names neither the file nor the disk
                raise KnowledgeError(f"cannot write {folder / artefact.DATABASE}: {error}", "store") from error
            index = Artefact.open(folder)
            written.append(index.info)
            index.close()

        def moved(done: int, total: int) -> None:
            self._tell(Progress("share", done, total, self.shelf.name))

        self._tell(Progress("share", 0, None, self.shelf.name))
        self.shelf.put(digest, write, moved)
        return written[-1]
