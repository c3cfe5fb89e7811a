"""A run's stream: its events and streamed text of models, as one resumable sequence.

It is based on two Redis streams; one read returns both at the same time, so they are merged by time. A `Position` is a
reader's position in each. Losses are reported: if a stream was trimmed before it was read, there is a `gap`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from sleipnir import waiting
from sleipnir.errors import StoreUnavailable, UsageError
from sleipnir.runs.views import StreamEvent, StreamMode, mode_of
from sleipnir.store.live import EventEntry, Piece, PieceEntry, StreamEntries, StreamState
from sleipnir.store.store import Store
from sleipnir.store.streams import before, ms_of

T = TypeVar("T")

ALL_MODES: tuple[StreamMode, ...] = ("messages", "custom", "updates", "tools", "events")
PATIENCE_S = 30.0  # for a Redis that restarts or fails over
_RETRY_S = 0.25
_BLOCK_MS = 2_000


@dataclass(frozen=True)
class Position:
    """A reader's position: all events up to entry `event`, of that entry the first `seen` (None: all); the pieces up to
    entry `piece`, which is the run's piece `number`."""

    event: str = "0-0"
    seen: int | None = None
    piece: str = "0-0"
    number: int = 0

    def __str__(self) -> str:
        return f"{self.event}:{'' if self.seen is None else self.seen}/{self.piece}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises UsageError for a text that is not the id of an event."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not a position in a run's stream; give the `id` of one of its events")
        event, seen, piece, number = match.groups()
        return cls(event, int(seen) if seen else None, piece, int(number))


_CURSOR = re.compile(
    r"(?!0-0:\d)(0-0|[1-9]\d{0,18}-\d{1,19}):(\d{0,9})/(0-0|[1-9]\d{0,18}-\d{1,19}):(\d{1,18})", re.ASCII
)


def stream(
    store: Store, run_id: str, modes: Collection[StreamMode] | None, cursor: str | None
) -> Iterator[StreamEvent]:
    """See Run.stream."""
    wanted = frozenset(ALL_MODES if modes is None else modes)
    for mode in sorted(wanted - frozenset(ALL_MODES)):
        raise UsageError(f"there is no stream mode {mode!r}; there are {', '.join(ALL_MODES)}")
    return _Reader(store, run_id, wanted, Position() if cursor is None else Position.parse(cursor)).follow()


class _Reader:
    """Follows one run for one caller. `_at` advances with every entry, whether it is passed on or not."""

    def __init__(self, store: Store, run_id: str, wanted: frozenset[StreamMode], at: Position) -> None:
        self._store, self._run_id, self._wanted, self._at = store, run_id, wanted, at
        self._places: dict[int, tuple[int, ...]] = {}
        self._reads_pieces = not wanted.isdisjoint(("messages", "custom"))

    def follow(self) -> Iterator[StreamEvent]:
        standing, is_resumed = self._standing(), self._at != Position()
        while True:
            read = self._read(wait=not standing.is_final)
            if self._has_missed_events(read, is_resumed):
                yield self._events_gap(read)
            if self._has_missed_pieces(read, standing):
                yield self._pieces_gap(standing.pieces)
            is_resumed = False
            if not read.events and not read.pieces:
                if standing.is_final:
                    return
                standing = self._standing()
                continue
            ends_run = _ends_run(read)
            standing = self._standing() if ends_run else replace(standing, is_final=False)
            if standing.is_final:
                yield from self._merged(_without_afterthoughts(read))
                return
            yield from self._merged(read)

    def _merged(self, read: StreamEntries) -> Iterator[StreamEvent]:
        """In order of time; within one millisecond, text comes before events."""
        entries: list[EventEntry | PieceEntry] = [*read.pieces, *read.events]
        for entry in sorted(entries, key=lambda entry: ms_of(entry.id)):
            if isinstance(entry, EventEntry):
                yield from self._events_of(entry)
            else:
                yield from self._texts_of(entry)

    def _events_of(self, entry: EventEntry) -> Iterator[StreamEvent]:
        skipped = (self._at.seen or 0) if entry.id == self._at.event else 0
        for count, (type_, data) in enumerate(entry.events, 1):
            is_last = count == len(entry.events)
            if count > skipped:
                self._at = replace(self._at, event=entry.id, seen=None if is_last else count)
                mode = mode_of(type_)
                if mode in self._wanted or type_ == "run_ended" or _is_failure(type_, data):
                    yield StreamEvent(str(self._at), ms_of(entry.id), type_, data, mode)

    def _texts_of(self, entry: PieceEntry) -> Iterator[StreamEvent]:
        piece, number = entry.piece, entry.number
        if number > self._at.number + 1:
            yield self._pieces_gap(number - 1, ms_of(entry.id))
        self._at = replace(self._at, piece=entry.id, number=number)
        if piece.place > self._places.get(piece.seq, ()):
            self._places[piece.seq] = piece.place
            mode: StreamMode = "messages" if piece.chunk is None else "custom"
            if mode in self._wanted:
                data = _data(piece) if piece.chunk is None else _chunk_data(piece, piece.chunk)
                yield StreamEvent(str(self._at), ms_of(entry.id), "text" if mode == "messages" else mode, data, mode)

    def _pieces_gap(self, number: int, at_ms: int = 0) -> StreamEvent:
        """The pieces up to this one are missing."""
        lost = number - self._at.number
        self._at = replace(self._at, number=number)
        return StreamEvent(str(self._at), at_ms or ms_of(self._at.piece), "gap", {"lost": lost}, "messages")

    def _events_gap(self, read: StreamEntries) -> StreamEvent:
        if read.events:
            self._at = replace(self._at, event=read.events[0].id, seen=0)
        return StreamEvent(str(self._at), ms_of(self._at.event), "gap", {"lost": None}, "events")

    def _has_missed_events(self, read: StreamEntries, is_resumed: bool) -> bool:
        """Whether events were dropped before they were read. If one read returns all of a short stream, none can have
        been dropped."""
        if not (is_resumed or read.events_full):
            return False
        if self._at.event == "0-0":
            return bool(read.events) and read.events[0].events[0][0] not in ("run_started", "slot_asked")
        return not _patiently(self._store, lambda: self._store.live.has_event(self._run_id, self._at.event))

    def _has_missed_pieces(self, read: StreamEntries, standing: StreamState) -> bool:
        """Whether pieces were trimmed before this read. `_texts_of` detects it if others follow."""
        none_left = not read.pieces and not read.pieces_full
        return self._reads_pieces and none_left and standing.pieces > self._at.number

    def _read(self, *, wait: bool) -> StreamEntries:
        at = self._at
        read = _patiently(
            self._store,
            lambda: self._store.live.read(
                self._run_id,
                events=at.event if at.seen is None else before(at.event),
                pieces=at.piece if self._reads_pieces else None,
                block_ms=_BLOCK_MS if wait else None,
            ),
        )
        return _settled(read)

    def _standing(self) -> StreamState:
        return _patiently(self._store, lambda: self._store.live.standing(self._run_id))


def _ends_run(entries: StreamEntries) -> bool:
    """Whether the last event is the end of the run, which may have been retried since."""
    return bool(entries.events) and not entries.events_full and entries.events[-1].events[-1][0] == "run_ended"


def _without_afterthoughts(read: StreamEntries) -> StreamEntries:
    """Without text of attempts that were obsolete when the run ended."""
    end_ms = ms_of(read.events[-1].id)
    return replace(read, pieces=[entry for entry in read.pieces if ms_of(entry.id) <= end_ms])


def _settled(read: StreamEntries) -> StreamEntries:
    """Without entries after the end of a stream that was not read completely, because its next entry may be earlier."""
    ends = [
        ms_of(entries[-1].id)
        for entries, is_full in ((read.events, read.events_full), (read.pieces, read.pieces_full))
        if is_full
    ]
    if not ends:
        return read
    return StreamEntries(
        [entry for entry in read.events if ms_of(entry.id) <= min(ends)],
        [entry for entry in read.pieces if ms_of(entry.id) <= min(ends)],
        events_full=True,
        pieces_full=True,
    )


def _is_failure(type_: str, data: Mapping[str, Any]) -> bool:
    return type_ == "visit_closed" and not data["ok"]


def _data(piece: Piece) -> dict[str, Any]:
    return {name: getattr(piece, name) for name in _PIECE_FIELDS}


_PIECE_FIELDS = tuple(field.name for field in fields(Piece) if field.name not in ("chunk", "v"))


def _chunk_data(piece: Piece, chunk: str) -> dict[str, Any]:
    data = {"seq": piece.seq, "attempt": piece.attempt, "node": piece.node, "lost": piece.lost}
    return {**data, "chunk": json.loads(chunk)} if chunk else data


def _patiently(store: Store, ask: Callable[[], T]) -> T:
    """The reply, repeated while Redis is away. Raises StoreUnavailable after PATIENCE_S."""
    deadline: float | None = None
    while True:
        try:
            with store.errors():
                return ask()
        except StoreUnavailable:
            deadline = deadline or time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline:
                raise
            waiting.sleep(_RETRY_S)
