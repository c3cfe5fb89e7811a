"""The indexes that this process has open, by digest: opened at the first search, and kept while others do not need the
room. Threads share them.

Opening one may mean that it is fetched from far away. So it is opened in a thread of its own, once for all who want it,
and searches of other indexes go on. Who waits no longer stops nothing: what was fetched is there for who asks next.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.index_store import IndexStore, OpenIndex

MOST_OPEN = 16
TICK_S = 0.25  # how late we may see that the caller goes


@dataclass
class _Lent:
    index: Artefact
    stored: OpenIndex
    readers: int = 0

    def close(self) -> None:
        self.index.close()
        self.stored.close()


class _Opening:
    """One that is under way. `failed` is why it came to nothing."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.failed: BaseException | None = None


class OpenIndexes:
    """At most `most` indexes that nobody reads stay open: those read last. What an index is named by never changes, so
    one that is open is never out of date."""

    def __init__(self, index_store: IndexStore, most: int = MOST_OPEN) -> None:
        self._index_store, self._most = index_store, most
        self._lent: OrderedDict[str, _Lent] = OrderedDict()
        self._opening: dict[str, _Opening] = {}
        self._lock = threading.Lock()

    @contextmanager
    def read(self, digest: str, tick: Callable[[], None] = lambda: None) -> Iterator[Artefact]:
        """`tick` is called every TICK_S at most while it is opened, and what it raises ends the waiting.

        Raises KnowledgeError when it is not in the index store, and UnusableIndex when it cannot be read.
        """
        lent = self._take(digest, tick)
        try:
            yield lent.index
        finally:
            self._give_back(lent)

    def _take(self, digest: str, tick: Callable[[], None]) -> _Lent:
        while True:
            with self._lock:
                if (lent := self._lent.get(digest)) is not None:
                    self._lent.move_to_end(digest)
                    lent.readers += 1
                    return lent
                opening = self._opening.get(digest) or self._begin(digest)
            tick()
            while not opening.over.wait(TICK_S):
                tick()
            if opening.failed is not None:
                raise opening.failed

    def _begin(self, digest: str) -> _Opening:
        opening = self._opening[digest] = _Opening()
        # Daemon: a fetch that nobody waits for must not keep the worker from stopping. Who fetches next clears up.
        threading.Thread(target=self._open, args=(digest, opening), name="opening", daemon=True).start()
        return opening

    def _open(self, digest: str, opening: _Opening) -> None:
        lent: _Lent | None = None
        try:
            stored = self._index_store.open(digest)
            try:
                lent = _Lent(Artefact.open(stored.folder), stored)
            except BaseException:
                stored.close()
                raise
        except BaseException as error:
            opening.failed = error
        with self._lock:
            del self._opening[digest]
            if lent is not None:
                self._lent[digest] = lent
                self._make_room(but_for=digest)
        opening.over.set()

    def _give_back(self, lent: _Lent) -> None:
        with self._lock:
            lent.readers -= 1
            self._make_room()

    def _make_room(self, but_for: str | None = None) -> None:
        for digest in [each for each, lent in self._lent.items() if not lent.readers and each != but_for]:
            if len(self._lent) > self._most:
                self._lent.pop(digest).close()
