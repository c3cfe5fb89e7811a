"""The indexes that this process has open, by digest: opened at the first search, and kept while others do not need the
room. Threads share them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.shelf import Open, Shelf

MOST_OPEN = 16


@dataclass
class _Lent:
    index: Artefact
    on_shelf: Open
    readers: int = 0

    def close(self) -> None:
        self.index.close()
        self.on_shelf.close()


class ReadingRoom:
    """At most `most` indexes that nobody reads stay open: those read last. What an index is named by never changes, so
    one that is open is never out of date."""

    def __init__(self, shelf: Shelf, most: int = MOST_OPEN) -> None:
        self._shelf, self._most = shelf, most
        self._lent: OrderedDict[str, _Lent] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def read(self, digest: str) -> Iterator[Artefact]:
        """Raises KnowledgeError when it is not on the shelf, and UnusableIndex when it cannot be read."""
        lent = self._take(digest)
        try:
            yield lent.index
        finally:
            self._give_back(lent)

    def _take(self, digest: str) -> _Lent:
        # Under the lock: two threads that want the same index, which may have to be fetched, get it once.
        with self._lock:
            lent = self._lent.get(digest)
            if lent is None:
                on_shelf = self._shelf.open(digest)
                try:
                    lent = self._lent[digest] = _Lent(Artefact.open(on_shelf.folder), on_shelf)
                except BaseException:
                    on_shelf.close()
                    raise
            self._lent.move_to_end(digest)
            lent.readers += 1
            return lent

    def _give_back(self, lent: _Lent) -> None:
        with self._lock:
            lent.readers -= 1
            for digest in [digest for digest, each in self._lent.items() if not each.readers]:
                if len(self._lent) > self._most:
                    self._lent.pop(digest).close()
