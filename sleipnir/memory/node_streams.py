"""Node streams in one process: a NodeStreams over the runs of a MemoryStore."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sleipnir.memory.store import MemoryStore
from sleipnir.runs.node_streams import (
    READING_MS,
    Kind,
    StreamName,
    StreamPart,
    StreamReply,
    StreamWrite,
    WriterState,
    state_of,
)
from sleipnir.runs.visits import BRANCH, Visit


@dataclass
class _Text:
    """The text of one stream, and how far a reader that lives until `read_until_s` is."""

    place: str = ""
    owner: int = 0
    length: int = 0
    is_done: bool = False
    parts: list[StreamPart] = field(default_factory=list)
    read: int = 0
    read_until_s: float = 0.0


class MemoryStreams:
    """The streams of all runs of a store. Thread-safe. It keeps them as long as the store is used."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._texts: dict[StreamName, _Text] = {}
        self._changed = threading.Condition()
        self._last_id = 0

    def write(self, stream: StreamName, part: StreamWrite) -> StreamReply:
        """As stream_write.lua."""
        with self._changed:
            text, place = self._texts.setdefault(stream, _Text()), str(part.place)
            if place < text.place:
                return StreamReply(0, is_applied=False, is_obsolete=True)
            if place != text.place:
                if text.owner != part.place.owner or text.length != part.base:
                    text.parts.clear()
                    text.length = 0
                    self._add(text, part, "begin")
                text.place, text.owner, text.is_done = place, part.place.owner, False
            is_applied = part.at == text.length
            if is_applied and part.text:
                self._add(text, part, "text", part.text)
                text.length += len(part.text)
            if is_applied and part.last and not text.is_done:
                text.is_done = True
                self._add(text, part, part.last, part.message)
            self._changed.notify_all()
            unread = text.length - text.read if time.monotonic() < text.read_until_s else 0
            return StreamReply(text.length, is_applied, unread=max(0, unread))

    def _add(self, text: _Text, part: StreamWrite, kind: Kind, words: str = "") -> None:
        self._last_id += 1
        text.parts.append(StreamPart(f"{self._last_id}-0", kind, part.place.owner, part.at, words))

    def read(self, stream: StreamName, after: str, wait_s: float) -> Sequence[StreamPart]:
        number = int(after.partition("-")[0])
        found: list[StreamPart] = []

        def has_some() -> bool:
            text = self._texts.get(stream)
            found[:] = [part for part in text.parts if int(part.id.partition("-")[0]) > number] if text else []
            return bool(found)

        with self._changed:
            self._changed.wait_for(has_some, wait_s)
        return found

    def mark(self, stream: StreamName, seq: int, node: str, read: int | None) -> None:
        if read is not None:
            with self._changed:
                text = self._texts.setdefault(stream, _Text())
                text.read, text.read_until_s = read, time.monotonic() + READING_MS / 1000

    def leave(self, stream: StreamName, seq: int) -> None:
        with self._changed:
            if (text := self._texts.get(stream)) is not None:
                text.read_until_s = 0.0

    def writers(self, stream: StreamName, node: str) -> list[WriterState]:
        visits = [visit for visit in self._live(stream) if visit.node == node and visit.place == BRANCH]
        return sorted(map(state_of, visits), key=lambda state: state.seq)

    def writer(self, stream: StreamName, seq: int) -> WriterState:
        return next((state_of(visit) for visit in self._live(stream) if visit.seq == seq), WriterState(seq))

    def _live(self, stream: StreamName) -> list[Visit]:
        while True:
            try:
                return list(self._store.runs[stream.run].view.frontier.values())
            except RuntimeError:  # a commit of another thread has changed it meanwhile
                time.sleep(0)

    def output(self, stream: StreamName, seq: int, child: str | None) -> str | None:
        if child is None:
            children = self._store.runs[stream.run].children.values()
            child = next((each.id for each in children if each.seq == seq), None)
        return None if child is None else self._store.runs[child].output
