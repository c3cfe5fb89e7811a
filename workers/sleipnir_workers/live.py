"""Say what a model says while it says it: from the callbacks of model calls to the run's live stream.

One daemon thread per worker process sends for all visits: what came within EVERY_S becomes one piece per visit, and all
pieces go in one round trip. Nobody waits for it. While Redis is slow or away a writer holds so much text; what is
beyond is dropped and counted (`Piece.lost`), for it is a view: what counts is what the visit delivers.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from types import TracebackType

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.store.live import Piece
from sleipnir.store.store import Store

EVERY_S = 0.05  # a reader sees no difference to at once, and it spares Redis nine calls of ten
MOST_PER_S = 640  # pieces of one process: of many visits at once, each one comes less often
FLUSH_S = 0.2  # how long the end of a visit may wait for its last piece
RETRY_S = 0.5  # between tries while Redis is away
GIVE_UP_S = 10.0  # a visit that has ended and could not be told of is forgotten
MOST_HELD = 65_536  # characters per visit: many minutes of any model
MOST_IN_PIECE = 4_096


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

    def wake(self, *, now: bool = False) -> None:
        """Something was written. `now`: do not wait for more."""
        if now:
            self._hurry.set()
        if not self._written.is_set():
            self._written.set()

    def flush(self, *, only_closed: bool = False) -> bool:
        """Send what there is, or only the ends of those who wait for it: the others come at their own pace.

        False: Redis did not take all of it; it is kept, and goes first the next time.
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
        self._forget([writer for writer in writers if writer.is_over()])
        return not refused

    def _send(self, by_run: dict[str, list[Piece]]) -> set[str]:
        """The runs whose pieces were not taken."""
        try:
            with self._store.errors():
                return self._store.live.add(by_run)
        except StoreUnavailable as error:
            self._log.debug("what models say cannot be sent for now", error=str(error))
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
                taken = self._flush_ends(time.monotonic() + self._pause_s)  # what comes meanwhile goes along
                self._written.clear()
                if not (self.flush() and taken):
                    pause.wait(RETRY_S)
                    self._written.set()
            except Exception:
                # The thread must outlive any single failure, and what makes it fail must not do so for ever.
                self._log.exception("what models say cannot be sent; it is dropped")
                self._drop()
                pause.wait(RETRY_S)

    def _flush_ends(self, until_s: float) -> bool:
        """Wait, and send what is in a hurry meanwhile. False, at once: Redis did not take it."""
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
        self._forget([writer for writer in writers if writer.is_over()])

    def _forget(self, writers: list[TokenWriter]) -> None:
        if writers:
            with self._lock:
                self._writers.difference_update(writers)


class TokenWriter:
    """Takes the text of one model call, token by token; thread-safe. A context manager that closes it.

    Nothing here raises, and nothing blocks but `close`, for up to FLUSH_S. `unsent` is the sending thread's.
    """

    def __init__(self, to: LiveText, run: str, node: str, seq: int, attempt: int, turn: int) -> None:
        self.run, self.unsent = run, list[Piece]()
        self._to, self._node, self._seq, self._attempt, self._turn = to, node, seq, attempt, turn
        self._draft, self._number = 1, 0
        self._parts: list[str] = []
        self._held = self._lost = 0
        self._is_anew = False
        self._closed_s: float | None = None
        self._lock, self._told = threading.Lock(), threading.Event()

    def write(self, text: str) -> None:
        """More text. Dropped, and counted, when too much is held already, or after `close`."""
        if not text:
            return
        with self._lock:
            if self._closed_s is not None:
                return
            if self._lost or self._held + len(text) > MOST_HELD:
                self._lost += len(text)  # and so all that follows, until what is held is collected: no hole in between
            else:
                self._parts.append(text)
                self._held += len(text)
        self._to.wake()

    def restart(self) -> None:
        """The call is made again within this attempt: readers drop what it has said so far."""
        with self._lock:
            self._take()
            self._is_anew = self._is_anew or self._number > 0
            self._draft += 1
            self._number = 0
        self._to.wake()

    def close(self) -> None:
        """Nothing follows. Waits until readers can know all of it, for up to FLUSH_S; it is sent later if need be."""
        with self._lock:
            if self._closed_s is None:
                self._closed_s = time.monotonic()
        self._to.wake(now=True)
        self._told.wait(FLUSH_S)

    @property
    def is_closed(self) -> bool:
        return self._closed_s is not None

    def collect(self) -> bool:
        """Make pieces of what was written, unless some are still to be sent. True: there is something to send."""
        if self.unsent:
            return True
        with self._lock:
            is_last = self._closed_s is not None and not self._told.is_set()
            says_something = self._parts or self._lost or self._is_anew or (is_last and self._number)
            if says_something:
                self.unsent = self._pieces(*self._take(), is_last)
            elif is_last:
                self._told.set()  # it said nothing, so nobody need know that it ends
        return bool(self.unsent)

    def sent(self) -> None:
        """What was to be sent has been."""
        if self.unsent and self.unsent[-1].last:
            self._told.set()
        self.unsent = []
        if self._parts or (self._closed_s is not None and not self._told.is_set()):
            self._to.wake()  # it came while older pieces were still to be sent

    def drop(self) -> None:
        """What was to be sent cannot be; that it is missing is told instead."""
        if self.unsent:
            lost = sum(len(piece.text) + piece.lost for piece in self.unsent)
            with self._lock:
                self.unsent = [self._piece("", lost, self.unsent[-1].last)]

    def is_over(self) -> bool:
        """Whether it is closed and told of, or that was tried for long enough."""
        if self._closed_s is None:
            return False
        return self._told.is_set() or time.monotonic() > self._closed_s + GIVE_UP_S

    def _take(self) -> tuple[str, int]:
        """What is held, and how much after it was dropped; neither is, then."""
        text, lost = "".join(self._parts), self._lost
        self._parts, self._held, self._lost = [], 0, 0
        return text, lost

    def _pieces(self, text: str, lost: int, is_last: bool) -> list[Piece]:
        text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair could not be sent
        first, rest, pieces = text[:MOST_IN_PIECE], text[MOST_IN_PIECE:], list[Piece]()
        while rest:
            pieces.append(self._piece(first))
            first, rest = rest[:MOST_IN_PIECE], rest[MOST_IN_PIECE:]
        self._is_anew = False
        return [*pieces, self._piece(first, lost, is_last)]

    def _piece(self, text: str, lost: int = 0, is_last: bool = False) -> Piece:
        number = self._number
        self._number += 1
        return Piece(self._seq, self._attempt, self._node, number, text, self._turn, self._draft, lost, is_last)

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
