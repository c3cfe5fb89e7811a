"""The indexes that this process has open, by digest: opened by the first search, and closed when there are too many.
Threads share them.

Opening an index may fetch it over the network. So it is opened in a thread of its own, once for all its readers, and
searches of other indexes continue. A reader that stops waiting does not stop the fetch: the next reader uses it.
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
TICK_S = 0.25  # between checks whether the caller still waits


@dataclass
class _OpenArtefact:
    index: Artefact
    stored: OpenIndex
    readers: int = 0

    def close(self) -> None:
        self.index.close()
        self.stored.close()


class _Opening:
    """An index that is being opened. `error` is why it failed."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: BaseException | None = None


class OpenIndexes:
    """At most `most` indexes stay open unless they are being read; the least recently read is closed first. The content
    of a digest never changes, so an open index is never out of date."""

    def __init__(self, index_store: IndexStore, most: int = MOST_OPEN) -> None:
        self._index_store, self._most = index_store, most
        self._lent: OrderedDict[str, _OpenArtefact] = OrderedDict()
        self._opening: dict[str, _Opening] = {}
        self._lock = threading.Lock()

    @contextmanager
    def read(self, digest: str, tick: Callable[[], None] = lambda: None) -> Iterator[Artefact]:
        """`tick` is called at least every TICK_S while the index is opened; an error that it raises ends the waiting.

        Raises KnowledgeError when it is not in the index store, and UnusableIndex when it cannot be read.
        """
        lent = self._take(digest, tick)
        try:
            yield lent.index
        finally:
            with self._lock:
                lent.readers -= 1
                self._close_unused()

    def _take(self, digest: str, tick: Callable[[], None]) -> _OpenArtefact:
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
            if opening.error is not None:
                raise opening.error

    def _begin(self, digest: str) -> _Opening:
        opening = self._opening[digest] = _Opening()
        # A daemon thread: a fetch without readers must not keep the worker from stopping. The next fetch cleans up.
        threading.Thread(target=self._open, args=(digest, opening), name="opening", daemon=True).start()
        return opening

    def _open(self, digest: str, opening: _Opening) -> None:
        lent: _OpenArtefact | None = None
        try:
            stored = self._index_store.open(digest)
            try:
                lent = _OpenArtefact(Artefact.open(stored.folder), stored)
            except BaseException:
                stored.close()
                raise
        except BaseException as error:
            opening.error = error
        with self._lock:
            del self._opening[digest]
            if lent is not None:
                self._lent[digest] = lent
                self._close_unused(keep=digest)
        opening.over.set()

    def _give_back(self, lent: _OpenArtefact) -> None:
        with self._lock:
            lent.readers -= 1
            self._close_unused()

    def _close_unused(self, keep: str | None = None) -> None:
        unused = [digest for digest, lent in self._lent.items() if not lent.readers and digest != keep]
        for digest in unused:
            if len(self._lent) > self._most:
                self._lent.pop(digest).close()
