"""Stream the text of models, and what nodes emit: from their calls to the run's live stream.

One daemon thread per worker process sends for all visits: the text of EVERY_S becomes one piece per visit, and all
pieces go in one round trip. No model call waits for it. While Redis is slow or away, a writer holds MOST_HELD
characters; further text is dropped and counted (`Piece.lost`). The stream is a view: the result is what the visit
delivers.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.store.live import Piece
from sleipnir.store.store import Store

EVERY_S = 0.05  # too short for readers to notice; saves nine of ten calls to Redis
MOST_PER_S = 640  # pieces of one process; with many visits at once, each visit sends less often
FLUSH_S = 0.2  # how long the end of a visit may wait for its last piece
RETRY_S = 0.5  # between tries while Redis is away
GIVE_UP_S = 10.0  # after it, a closed writer whose text could not be sent is forgotten
MOST_HELD = 65_536  # characters per visit: many minutes of any model
MOST_IN_PIECE = 4_096
MOST_EMISSIONS = 1_000  # held per visit: 20,000 a second


class LiveText:
    """The sending side of a worker process. Its thread starts with the first writer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writers: set[TokenWriter] = set()
        self._lock = threading.Lock()
        self._thread_pid: int | None = None
        self._written, self._hurry = threading.Event(), threading.Event()
        self._pause_s = EVERY_S
        self._log = structlog.get_logger().bind(part="live")

    def open(self, run: str, node: str, seq: int, attempt: int, *, turn: int = 0) -> TokenWriter:
        """A writer for one model call of a visit's attempt, and for its repetitions."""
        writer = TokenWriter(self, run, node, seq, attempt, turn)
        with self._lock:
            self._writers.add(writer)
            self._ensure_thread()
        return writer

    def open_emissions(self, run: str, node: str, seq: int, attempt: int) -> EmissionWriter:
        """A writer for what a visit's attempt emits."""
        writer = EmissionWriter(self, run, node, seq, attempt, turn=0)
        with self._lock:
            self._writers.add(writer)
            self._ensure_thread()
        return writer

    def wake(self, *, now: bool = False) -> None:
        """Text was written. `now`: do not wait for more."""
        if now:
            self._hurry.set()
        if not self._written.is_set():
            self._written.set()

    def flush(self, *, only_closed: bool = False) -> bool:
        """Send the text of all writers, or with `only_closed` that of closed ones, whose `close` waits for it.

        False: Redis did not take all of it; the rest is kept and sent first the next time.
        """
        with self._lock:
            writers = [writer for writer in self._writers if writer.is_closed or not only_closed]
        by_run: dict[str, list[Piece]] = defaultdict(list)
        for writer in writers:
            if writer.collect():
                by_run[writer.run] += writer.unsent
        if not only_closed:
            self._pause_s = max(EVERY_S, sum(map(len, by_run.values())) / MOST_PER_S)
        refused = self._send(by_run) if by_run else set()
        for writer in writers:
            if writer.run not in refused:
                writer.sent()
        self._forget([writer for writer in writers if writer.has_ended()])
        return not refused

    def _send(self, by_run: dict[str, list[Piece]]) -> set[str]:
        """Returns the runs whose pieces Redis did not take."""
        try:
            with self._store.errors():
                return self._store.live.add(by_run)
        except StoreUnavailable as error:
            self._log.debug("text of models cannot be sent for now", error=str(error))
            return set(by_run)

    def _ensure_thread(self) -> None:
        """Threads do not survive a fork, so a pool child starts its own."""
        if self._thread_pid == os.getpid():
            return
        self._thread_pid = os.getpid()
        threading.Thread(target=self._flush_forever, name="live", daemon=True).start()

    def _flush_forever(self) -> None:
        pause = threading.Event()
        while True:
            self._written.wait()
            try:
                ends_sent = self._flush_ends(time.monotonic() + self._pause_s)
                self._written.clear()
                if not (self.flush() and ends_sent):
                    pause.wait(RETRY_S)
                    self._written.set()
            except Exception:
                # The thread must outlive any single failure; text that makes it fail must not fail it again.
                self._log.exception("text of models cannot be sent; it is dropped")
                self._drop()
                pause.wait(RETRY_S)

    def _flush_ends(self, until_s: float) -> bool:
        """Wait, and send the text of writers that close meanwhile. Returns False at once if Redis did not take it."""
        while (left_s := until_s - time.monotonic()) > 0 and self._hurry.wait(left_s):
            self._hurry.clear()
            if not self.flush(only_closed=True):
                return False
        return True

    def _drop(self) -> None:
        with self._lock:
            writers = list(self._writers)
        for writer in writers:
            writer.drop()
        self._forget([writer for writer in writers if writer.has_ended()])

    def _forget(self, writers: list[TokenWriter]) -> None:
        if writers:
            with self._lock:
                self._writers.difference_update(writers)


class TokenWriter:
    """Takes the text of one model call, token by token; thread-safe. A context manager that closes it.

    No method raises, and only `close` blocks, for up to FLUSH_S. `unsent` belongs to the sending thread.
    """

    _marks_end = True

    def __init__(self, to: LiveText, run: str, node: str, seq: int, attempt: int, turn: int) -> None:
        self.run, self.unsent = run, list[Piece]()
        self._to, self._node, self._seq, self._attempt, self._turn = to, node, seq, attempt, turn
        self._draft, self._number = 1, 0
        self._parts: list[str] = []
        self._held = self._lost = 0
        self._is_restarted = False
        self._closed_s: float | None = None
        self._lock, self._end_sent = threading.Lock(), threading.Event()

    def write(self, text: str) -> None:
        """Append text. It is dropped and counted when too much is held already, and ignored after `close`."""
        if not text:
            return
        with self._lock:
            if self._closed_s is not None:
                return
            if self._lost or self._held + len(text) > MOST_HELD:
                self._lost += len(
                    text
                )  # like all text that follows until the held text is collected: one gap, at its end
            else:
                self._parts.append(text)
                self._held += len(text)
        self._to.wake()

    def restart(self) -> None:
        """The call is repeated within this attempt: readers drop its text so far."""
        with self._lock:
            self._take()
            self._is_restarted = self._is_restarted or self._number > 0
            self._draft += 1
            self._number = 0
        self._to.wake()

    def close(self) -> None:
        """End the text. Waits up to FLUSH_S until all of it is sent; what is unsent then is sent later."""
        with self._lock:
            if self._closed_s is None:
                self._closed_s = time.monotonic()
        self._to.wake(now=True)
        self._end_sent.wait(FLUSH_S)

    @property
    def is_closed(self) -> bool:
        return self._closed_s is not None

    def collect(self) -> bool:
        """Make pieces of the written text, unless older ones are unsent. True: there is something to send."""
        if self.unsent:
            return True
        with self._lock:
            is_last = self._closed_s is not None and not self._end_sent.is_set()
            ends_text = is_last and self._number and self._marks_end
            has_content = self._parts or self._lost or self._is_restarted or ends_text
            if has_content:
                self.unsent = self._pieces(*self._take(), is_last)
            elif is_last:
                self._end_sent.set()  # no text was sent, so readers need not see its end
        return bool(self.unsent)

    def sent(self) -> None:
        """The unsent pieces have been sent."""
        if self.unsent and self.unsent[-1].last:
            self._end_sent.set()
        self.unsent = []
        if self._parts or (self._closed_s is not None and not self._end_sent.is_set()):
            self._to.wake()  # for text that came while older pieces were unsent

    def drop(self) -> None:
        """The unsent pieces cannot be sent: replace them by one that counts the lost text."""
        if self.unsent:
            lost = sum(len(piece.text) + piece.lost for piece in self.unsent)
            with self._lock:
                self.unsent = [self._gap(lost, self.unsent[-1].last)]

    def has_ended(self) -> bool:
        """Whether it is closed, and its end was sent or has been tried for GIVE_UP_S."""
        if self._closed_s is None:
            return False
        return self._end_sent.is_set() or time.monotonic() > self._closed_s + GIVE_UP_S

    def _take(self) -> tuple[list[str], int]:
        """Remove and return the parts of the held text, and the number of characters dropped after it."""
        parts, lost = self._parts, self._lost
        self._parts, self._held, self._lost = [], 0, 0
        return parts, lost

    def _pieces(self, parts: list[str], lost: int, is_last: bool) -> list[Piece]:
        text = "".join(parts).encode("utf-8", "replace").decode()  # half of a surrogate pair could not be sent
        first, remaining, pieces = text[:MOST_IN_PIECE], text[MOST_IN_PIECE:], list[Piece]()
        while remaining:
            pieces.append(self._piece(first))
            first, remaining = remaining[:MOST_IN_PIECE], remaining[MOST_IN_PIECE:]
        self._is_restarted = False
        return [*pieces, self._piece(first, lost, is_last)]

    def _gap(self, lost: int, is_last: bool) -> Piece:
        return self._piece("", lost, is_last)

    def _piece(self, text: str, lost: int = 0, is_last: bool = False, chunk: str | None = None) -> Piece:
        number = self._number
        self._number += 1
        return Piece(self._seq, self._attempt, self._node, number, text, self._turn, self._draft, lost, is_last, chunk)

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EmissionWriter(TokenWriter):
    """Takes what a node emits (python_graph/emitters.py): JSON, at most MOST_IN_PIECE characters each. Larger ones, and
    those beyond MOST_EMISSIONS, are dropped and counted. Emissions that are sent together share pieces."""

    _marks_end = False

    def __init__(self, to: LiveText, run: str, node: str, seq: int, attempt: int, turn: int) -> None:
        super().__init__(to, run, node, seq, attempt, turn)
        self._counts: list[int] = []  # of the emissions of each unsent piece

    def write(self, text: str) -> None:
        """Append an emission; ignored after `close`."""
        size = len(text)
        with self._lock:
            if self._closed_s is not None:
                return
            if len(self._parts) >= MOST_EMISSIONS or self._held + size > MOST_HELD or size > MOST_IN_PIECE:
                self._lost += 1
            else:
                self._parts.append(text)
                self._held += size
                if len(self._parts) > 1:
                    return  # the first one has called for the sending thread
        self._to.wake()

    def skip(self, count: int) -> None:
        """So many emissions could not be taken."""
        if count:
            with self._lock:
                if self._closed_s is None:
                    self._lost += count
            self._to.wake()

    @property
    def has_room(self) -> bool:
        """Whether the next emission is taken. False: it is not worth making it."""
        return len(self._parts) < MOST_EMISSIONS and self._held < MOST_HELD

    def _pieces(self, parts: list[str], lost: int, is_last: bool) -> list[Piece]:
        groups = _groups(parts)
        pieces = [self._emitted(group, is_last and not lost and group is groups[-1]) for group in groups]
        self._counts = list(map(len, groups))
        return [*pieces, self._gap(lost, is_last)] if lost or not pieces else pieces

    def _emitted(self, group: list[str], is_last: bool) -> Piece:
        if len(group) == 1 and group[0].startswith(_CHUNK):
            return self._piece("", 0, is_last, chunk=group[0][len(_CHUNK) : -1])
        return replace(self._piece("", len(group), is_last, chunk=""), emissions=f"[{','.join(group)}]")

    def drop(self) -> None:
        if self.unsent:
            gaps = sum(piece.lost for piece in self.unsent if not piece.emissions)
            with self._lock:
                self.unsent = [self._gap(sum(self._counts) + gaps, self.unsent[-1].last)]
                self._counts = []

    def _gap(self, lost: int, is_last: bool) -> Piece:
        return self._piece("", lost, is_last, chunk="")


_CHUNK = '{"chunk":'


def _groups(parts: list[str]) -> list[list[str]]:
    """Emissions that share a piece: as many as it has room for."""
    groups, group, room = list[list[str]](), list[str](), 0
    for part in parts:
        size = len(part) + 1
        if size > room:
            group, room = [], MOST_IN_PIECE + 1
            groups.append(group)
        group.append(part)
        room -= size
    return groups


class VisitEmissions:
    """Passes on what one attempt of a visit emits. The writer is opened by the first emission: most visits have none.
    A context manager that closes it."""

    def __init__(self, open_writer: Callable[[], EmissionWriter]) -> None:
        self._open_writer = open_writer
        self._writer: EmissionWriter | None = None
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """An emission, as JSON."""
        (self._writer or self._opened()).write(text)

    def skip(self, count: int) -> None:
        """So many emissions could not be taken."""
        (self._writer or self._opened()).skip(count)

    @property
    def has_room(self) -> bool:
        """Whether the next emission is taken."""
        return self._writer is None or self._writer.has_room

    def _opened(self) -> EmissionWriter:
        with self._lock:
            if self._writer is None:
                self._writer = self._open_writer()
        return self._writer

    def __enter__(self) -> VisitEmissions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
