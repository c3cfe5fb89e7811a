"""A run's stream: its events and streamed text of models, as one resumable sequence.

It is based on two Redis streams; one read returns both at the same time, so they are merged by time. A `Position` is a
reader's position in each. Losses are reported: if a stream was trimmed before it was read, there is a `gap`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sleipnir import waiting
from sleipnir.errors import StoreUnavailable, UsageError
from sleipnir.runs.views import STEP_MODES, StepInfo, StreamEvent, StreamMode, mode_of
from sleipnir.store.live import EventEntry, Piece, PieceEntry, StreamEntries, StreamState
from sleipnir.store.store import Store
from sleipnir.store.streams import before, ms_of

if TYPE_CHECKING:
    from sleipnir.client.step_chunks import UnreadJournal
    from sleipnir.runs.transitions import Step

T = TypeVar("T")

ALL_MODES: tuple[StreamMode, ...] = ("messages", "custom", "updates", "tools", "events")
PATIENCE_S = 30.0  # for a Redis that restarts or fails over
MOST_RESTORED = 1_000  # journal steps that are read at once
_RETRY_S = 0.25
BLOCK_MS = 2_000


@dataclass(frozen=True)
class Position:
    """A reader's position: all events up to entry `event`, of that entry the first `seen` (None: all); the pieces up to
    the run's piece `number`, which is entry `piece`; with `part` it is the one before, and of `piece` so many emissions
    are read. `step` journal entries have been read, and of the next one so many `chunks`. `closed` is the number of the
    last visit whose end was seen."""

    event: str = "0-0"
    seen: int | None = None
    piece: str = "0-0"
    number: int = 0
    part: int | None = None
    step: int = 0
    chunks: int = 0
    closed: int = 0

    @property
    def entries(self) -> tuple[str, str]:
        """The ids of the events and of the pieces after which to read on."""
        return (
            self.event if self.seen is None else before(self.event),
            self.piece if self.part is None else before(self.piece),
        )

    def __str__(self) -> str:
        part = "" if self.part is None else f"+{self.part}"
        part += f"~{self.step}.{self.chunks}" if self.step or self.chunks else ""
        part += f"^{self.closed}" if self.closed else ""
        return f"{self.event}:{'' if self.seen is None else self.seen}/{self.piece}:{self.number}{part}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises UsageError for a text that is not the id of an event."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not a position in a run's stream; give the `id` of one of its events")
        event, seen, piece, number, part, step, chunks, closed = match.groups()
        return cls(
            event, int(seen) if seen else None, piece, int(number), int(part) if part else None, int(step or 0),
            int(chunks or 0), int(closed or 0),
        )  # fmt: skip


_CURSOR = re.compile(
    r"(?!0-0:\d)(0-0|[1-9]\d{0,18}-\d{1,19}):(\d{0,9})/(0-0|[1-9]\d{0,18}-\d{1,19}):(\d{1,18})(?:\+(\d{1,9}))?"
    r"(?:~(\d{1,12})\.(\d{1,6}))?(?:\^(\d{1,12}))?",
    re.ASCII,
)


class VisibleEvents(NamedTuple):
    """What a caller sees of the modes that it wants; see Run.stream."""

    terminal_only: bool = False
    lifecycle: bool = True
    final_messages: bool = False


def stream(
    store: Store,
    run_id: str,
    modes: Collection[StreamMode] | None,
    cursor: str | None,
    visible: VisibleEvents = VisibleEvents(),  # noqa: B008
) -> Iterator[StreamEvent]:
    """See Run.stream."""
    reader = Reader(
        store, run_id, wanted_modes(modes, visible), Position() if cursor is None else Position.parse(cursor)
    )
    return (event for event in reader.shown(visible) if event is not None)


def wanted_modes(modes: Collection[StreamMode] | None, visible: VisibleEvents) -> frozenset[StreamMode]:
    """The modes that are read. Raises UsageError for one that is none."""
    wanted = frozenset(ALL_MODES if modes is None else modes)
    for mode in sorted(wanted - frozenset((*ALL_MODES, *STEP_MODES))):
        raise UsageError(f"there is no stream mode {mode!r}; there are {', '.join((*ALL_MODES, *STEP_MODES))}")
    return wanted if visible.lifecycle else wanted - {"updates", "tools", "events"}


def _of_terminals(store: Store, run_id: str, events: Iterator[StreamEvent | None]) -> Iterator[StreamEvent | None]:
    """The events without the texts of nodes that others follow."""
    from sleipnir.client.pinned_graph import pinned_graph
    from sleipnir.graph.terminals import terminals

    shown = patiently(store, lambda: terminals(pinned_graph(store, store.runs.spec(run_id))))
    for event in events:
        if event is None or event.type != "text" or event.data["node"] in shown:
            yield event


def with_messages(events: Iterator[StreamEvent | None]) -> Iterator[StreamEvent | None]:
    """The events, and after the last piece of a text an event `message` with the whole of it."""
    texts: dict[int, tuple[list[str], int | None]] = {}
    for event in events:
        yield event
        if event is None or event.type != "text":
            continue
        data = event.data
        parts, lost = texts.pop(data["seq"], ([], None)) if data["piece"] else ([], 0)
        parts.append(data["text"])
        lost = None if lost is None else lost + data["lost"]
        if not data["last"]:
            texts[data["seq"]] = parts, lost
        elif text := "".join(parts):
            about = {name: data[name] for name in ("seq", "attempt", "node", "turn", "draft")}
            yield replace(event, type="message", data={**about, "text": text, "lost": lost})


class Reader:
    """Follows one run for one caller. `_at` advances with every entry, whether it is passed on or not. If it does not
    wait, it yields None when there is nothing more for now. Events of the types `also` are passed in any mode."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        wanted: frozenset[StreamMode],
        at: Position,
        *,
        waits: bool = True,
        also: frozenset[str] = frozenset(),
    ) -> None:
        self._store, self._run_id, self._wanted, self._at = store, run_id, wanted, at
        self._waits, self._also = waits, also | {"run_ended"}
        self._places: dict[tuple[int, bool], tuple[int, ...]] = {}
        self._reads_pieces = not wanted.isdisjoint(("messages", "custom"))
        self._journal: UnreadJournal | None = None

    @property
    def at(self) -> Position:
        """What has been read."""
        return self._at

    def shown(self, visible: VisibleEvents) -> Iterator[StreamEvent | None]:
        """What a caller sees."""
        events = self.follow()
        if visible.terminal_only:
            events = _of_terminals(self._store, self._run_id, events)
        return with_messages(events) if visible.final_messages else events

    def follow(self) -> Iterator[StreamEvent | None]:
        """All events, until the run has ended."""
        standing, is_resumed = self._standing(), self._at != Position()
        if not self._wanted.isdisjoint(STEP_MODES):
            seen = self._at.step
            self._journal = patiently(
                self._store, lambda: _unread_journal(self._store, self._run_id, self._wanted, seen)
            )
        while True:
            read = self._read(wait=self._waits and not standing.is_final)
            if self._has_missed_events(read, is_resumed):
                yield from self._restored(read)
                yield self._events_gap(read)
            if self._has_missed_pieces(read, standing):
                yield self._pieces_gap(standing.pieces)
            is_resumed = False
            if not read.events and not read.pieces:
                if standing.is_final:
                    yield from self._rest()
                    return
                if not self._waits:
                    yield None
                standing = self._standing()
                continue
            ends_run = _ends_run(read)
            if ends_run or standing.is_final:  # a retry may have begun since
                standing = self._standing()
            if ends_run and standing.is_final:
                yield from self._merged(_without_afterthoughts(read))
                yield from self._rest()
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
                if self._journal is not None:
                    yield from self._chunks_of(self._journal, entry, type_, data)
                self._at = replace(self._at, event=entry.id, seen=None if is_last else count)
                if type_ == "visit_closed":
                    self._at = replace(self._at, closed=data["seq"])
                mode = mode_of(type_)
                if mode in self._wanted or type_ in self._also or _is_failure(type_, data):
                    yield StreamEvent(str(self._at), ms_of(entry.id), type_, data, mode)

    def _chunks_of(
        self, journal: UnreadJournal, entry: EventEntry, type_: str, data: Mapping[str, Any]
    ) -> Iterator[StreamEvent]:
        """The chunks of the journal that come before an event, or with it."""
        yield from self._steps(journal, patiently(self._store, lambda: journal.of_event(type_, data)))
        at_ms = ms_of(entry.id)
        chunks = journal.begun(type_, data, at_ms)
        for count, chunk in enumerate(chunks, 1):
            if count > self._at.chunks:
                self._at = replace(self._at, chunks=count)
                yield StreamEvent(str(self._at), at_ms, chunk.type, chunk.data, chunk.mode)
        if chunks:
            self._at = replace(self._at, chunks=0)

    def _rest(self) -> Iterator[StreamEvent]:
        """The chunks of what is left of the journal."""
        if (journal := self._journal) is not None:
            yield from self._steps(journal, patiently(self._store, journal.rest))

    def _steps(
        self, journal: UnreadJournal, entries: Iterable[tuple[Step, Mapping[str, str]]]
    ) -> Iterator[StreamEvent]:
        for step, texts in entries:
            chunks = journal.chunks.add(step, texts)
            after = replace(self._at, step=step.step + 1, chunks=0)
            for count, chunk in enumerate(chunks, 1):
                if count > self._at.chunks:
                    self._at = after if count == len(chunks) else replace(self._at, chunks=count)
                    yield StreamEvent(str(self._at), step.at_ms, chunk.type, chunk.data, chunk.mode)
            self._at = after

    def _texts_of(self, entry: PieceEntry) -> Iterator[StreamEvent]:
        piece, number = entry.piece, entry.number
        if number > self._at.number + 1:
            yield self._pieces_gap(number - 1, ms_of(entry.id))
        skipped = (self._at.part or 0) if entry.id == self._at.piece else 0
        self._at = replace(self._at, piece=entry.id, number=number, part=None)
        if piece.place <= self._places.get(piece.series, ()):
            return
        self._places[piece.series] = piece.place
        if piece.chunk is None and "messages" in self._wanted:
            yield StreamEvent(str(self._at), ms_of(entry.id), "text", _data(piece), "messages")
        elif piece.chunk is not None and "custom" in self._wanted:
            yield from self._emissions_of(entry, skipped)

    def _emissions_of(self, entry: PieceEntry, skipped: int) -> Iterator[StreamEvent]:
        after, emissions = self._at, _emissions(entry.piece)
        for count, data in enumerate(emissions[skipped:], skipped + 1):
            is_last = count == len(emissions)
            self._at = after if is_last else replace(after, number=after.number - 1, part=count)
            yield StreamEvent(str(self._at), ms_of(entry.id), "custom", data, "custom")

    def _restored(self, read: StreamEntries) -> Iterator[StreamEvent]:
        """The ends of visits that were dropped, from the journal: those after the last one that was seen, and before
        the first one that is still there. None, if that cannot be told."""
        kept = (data["seq"] for entry in read.events for type_, data in entry.events if type_ == "visit_closed")
        first = next(kept, None)
        if first is None or (self._at.event != "0-0" and not self._at.closed):
            return
        after: int | None = None
        if self._at.closed:
            newest = patiently(self._store, lambda: self._last_end(self._at.closed, first))
            if newest is None:
                return
            after = newest
        while page := patiently(self._store, partial(self._store.runs.history, self._run_id, after, MOST_RESTORED)):
            for step in page:
                after = step.step
                if step.seq == first:
                    return
                if step.seq is not None and step.role == "node" and step.item is None and step.part is None:
                    self._at = replace(self._at, closed=step.seq)
                    if "updates" in self._wanted or not step.ok:
                        data = restored_end(step)
                        yield StreamEvent(str(self._at), step.at_ms, "visit_closed", data, "updates")

    def _last_end(self, seq: int, before: int) -> int | None:
        """The last journal step of a visit that comes before that of another one."""
        found = None
        for step, _ in self._store.runs.entries(self._run_id):
            if step.seq == before:
                break
            if step.seq == seq:
                found = step.step
        return found

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
        return not patiently(self._store, lambda: self._store.live.has_event(self._run_id, self._at.event))

    def _has_missed_pieces(self, read: StreamEntries, standing: StreamState) -> bool:
        """Whether pieces were trimmed before this read. `_texts_of` detects it if others follow."""
        none_left = not read.pieces and not read.pieces_full
        return self._reads_pieces and none_left and standing.pieces > self._at.number

    def _read(self, *, wait: bool) -> StreamEntries:
        events, pieces = self._at.entries
        read = patiently(
            self._store,
            lambda: self._store.live.read(
                self._run_id,
                events=events,
                pieces=pieces if self._reads_pieces else None,
                block_ms=BLOCK_MS if wait else None,
            ),
        )
        return _settled(read)

    def _standing(self) -> StreamState:
        return patiently(self._store, lambda: self._store.live.standing(self._run_id))


def _unread_journal(store: Store, run_id: str, wanted: frozenset[StreamMode], seen: int) -> UnreadJournal:
    """That of a stored run, of whose journal so many entries were seen. Raises UsageError for modes that the run does
    not have, RunNotFound."""
    # Commands that only watch do not need these.
    from sleipnir.client.pinned_graph import pinned_graph
    from sleipnir.client.state_snapshots import RunSnapshots
    from sleipnir.client.step_chunks import ChunkedRun, StepChunks, UnreadJournal

    spec = store.runs.spec(run_id)
    graph, parent = pinned_graph(store, spec), None
    if not wanted.isdisjoint(("checkpoints", "debug")) and graph.engine == "bsp":
        parent = RunSnapshots(store, run_id).one(0).parent_config
    chunks = StepChunks(ChunkedRun(run_id, spec, graph, wanted, parent), store.runs.fold_of_past(run_id, spec))
    tail = UnreadJournal(chunks, lambda first: store.runs.written_after(run_id, first))
    tail.skip(seen)
    return tail


def restored_end(step: StepInfo) -> dict[str, Any]:
    """The data of the event of a visit's end, from its journal step. The journal has no notes."""
    return {
        "seq": step.seq, "node": step.node, "kind": step.kind, "ok": step.ok,
        "next": list(step.next) if isinstance(step.next, tuple) else step.next, "keys": list(step.keys),
        "took_ms": step.took_ms, "notes": [], "error": step.error, "restored": True,
    }  # fmt: skip


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


_PIECE_FIELDS = tuple(field.name for field in fields(Piece) if field.name not in ("chunk", "emissions", "v"))


def _emissions(piece: Piece) -> list[dict[str, Any]]:
    about = {"seq": piece.seq, "attempt": piece.attempt, "node": piece.node, "lost": 0}
    if piece.emissions:
        return [{**about, **emission} for emission in json.loads(piece.emissions)]
    return [{**about, "chunk": json.loads(piece.chunk)} if piece.chunk else {**about, "lost": piece.lost}]


def patiently(store: Store, ask: Callable[[], T]) -> T:
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
