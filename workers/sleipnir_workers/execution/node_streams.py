"""Both ends of a node stream, over a board (sleipnir/runs/node_streams.py): the visit that writes it, and the one that
reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Final, Literal

from sleipnir.errors import StoreUnavailable
from sleipnir.graph.model import AgentNode, Node
from sleipnir.messages import VisitResult
from sleipnir.python_graph.node_streams import RESET, StreamError, StreamItem, StreamNotBegun
from sleipnir.runs.node_streams import (
    MOST_AHEAD,
    READING_MS,
    NodeStreams,
    StreamName,
    StreamPart,
    StreamWrite,
    TextPlace,
    WriterState,
)

MOST_IN_PART: Final = 16_384  # characters of one entry
STALL_S: Final = 10.0  # that a writer waits for a reader that does not go on; then it waits no more for it
_POLL_S: Final = 0.05
_LOOK_S: Final = 0.5  # between looks at the writer's visit while it writes nothing
_RETRY_S: Final = 0.5  # between tries while the store is away


class StreamWriter:
    """Passes the text of a model on, as it comes. Thread-safe; only `close` raises, and only what the store raises when
    the visit is lost meanwhile is swallowed: such a text is obsolete.

    `earlier` is the text of earlier turns of the conversation: the stream goes on after it.
    """

    def __init__(self, board: NodeStreams, stream: StreamName, place: TextPlace, lost: threading.Event) -> None:
        self._board, self._stream, self._place, self._lost = board, stream, place, lost
        self._text, self._base, self._stored = "", 0, 0
        self._is_obsolete = self._waits_no_more = False
        self._again_s = 0.0
        self._lock = threading.RLock()

    def begin(self, earlier: str = "") -> None:
        """Say that the text begins. Without it, the first text does."""
        with self._lock:
            self._text = earlier
            self._base = self._stored = len(earlier)
            self._try_to_send()

    def write(self, text: str) -> None:
        """Append text. It is kept while the store is away."""
        if not text:
            return
        with self._lock:
            if self._base and len(self._text) == self._base:
                text = f"\n{text}"  # as the texts of turns are joined
            self._text += text.encode("utf-8", "replace").decode()  # half of a surrogate pair could not be sent
            self._try_to_send()

    def restart(self) -> None:
        """The model is asked again: its text so far does not count."""
        with self._lock:
            if len(self._text) > self._base:
                place = self._place
                self._place = TextPlace(place.owner, place.owner_attempt, place.seq, place.attempt, place.draft + 1)
                self._text = self._text[: self._base]
                self._stored = self._base

    def settle(self, text: str) -> None:
        """The answer of the model: what has come of it already, or not."""
        text = text.encode("utf-8", "replace").decode()
        with self._lock:
            written = self._text[self._base :].removeprefix("\n" if self._base else "")
            if not text.startswith(written):
                self.restart()
                written = ""
            self.write(text[len(written) :])

    def close(self, result: VisitResult) -> None:
        """Store all text, and its end unless the text goes on in another visit. Waits for the store until the visit is
        lost."""
        if result.later_ms is not None or result.interrupt is not None:
            return
        last: Literal["", "end", "error"] = "end" if result.ok else "error"
        if result.ok and (result.calls or result.goes_on):
            last = ""
        while not self._lost.is_set():
            try:
                with self._lock:
                    self._send(last, (result.error or "")[:2_000])
                return
            except StoreUnavailable:
                self._lost.wait(_RETRY_S)

    def _try_to_send(self) -> None:
        if time.monotonic() < self._again_s:
            return
        try:
            self._send()
        except StoreUnavailable:
            self._again_s = time.monotonic() + _RETRY_S

    def _send(self, last: Literal["", "end", "error"] = "", message: str = "") -> None:
        """Raises StoreUnavailable."""
        while not self._is_obsolete and not self._lost.is_set():
            text = self._text[self._stored : self._stored + MOST_IN_PART]
            is_last = self._stored + len(text) == len(self._text)
            part = StreamWrite(self._place, self._base, self._stored, text, last if is_last else "", message)
            reply = self._board.write(self._stream, part)
            self._is_obsolete, self._stored = reply.is_obsolete, reply.stored
            if reply.stored > len(self._text):
                self._is_obsolete = True  # of another execution of the same attempt, which only a fence ends
            if reply.is_applied and is_last:
                if reply.unread > MOST_AHEAD:
                    self._wait_for_reader(reply.unread)
                return

    def _wait_for_reader(self, unread: int) -> None:
        """Until the reader is near, is gone, or does not go on for STALL_S."""
        until_s = time.monotonic() + STALL_S
        while not self._waits_no_more and unread > MOST_AHEAD and not self._lost.wait(_POLL_S):
            reply = self._board.write(self._stream, StreamWrite(self._place, self._base, self._stored))
            if reply.unread < unread:
                unread, until_s = reply.unread, time.monotonic() + STALL_S
            self._waits_no_more = time.monotonic() > until_s


class StreamSource:
    """What one visit reads of a stream, from its beginning. `writer` is the node that writes it; `wait_s` the longest
    wait for its beginning."""

    def __init__(
        self,
        board: NodeStreams,
        stream: StreamName,
        writer: Node,
        seq: int,
        stopped: Callable[[], bool],
        wait_s: float,
    ) -> None:
        self._board, self._stream, self._writer, self._seq = board, stream, writer, seq
        self._stopped, self._wait_s = stopped, wait_s
        self._target: int | None = None
        self._child: str | None = None
        self._owner: int | None = None
        self._given = ""
        self._last: StreamPart | None = None
        self._marked_s = 0.0

    def items(self) -> Generator[StreamItem]:
        """The text, piece by piece; RESET: it begins anew. Raises StreamError, also when it is stopped, and
        StreamNotBegun."""
        try:
            yield from self._read()
        finally:
            with suppress(StoreUnavailable):
                self._board.leave(self._stream, self._seq)

    def _read(self) -> Iterator[StreamItem]:
        after, begin_s, look_s = "0-0", time.monotonic(), 0.0
        while not self._stopped():
            try:
                if self._target is None or time.monotonic() >= look_s:
                    self._find_target()
                parts = self._board.read(self._stream, after, _LOOK_S if self._last is None else _POLL_S)
                if not parts and (state := self._state()) is not None and state.is_over:
                    parts = self._board.read(self._stream, after, 0.0)  # what came before it was over
                    if not parts:
                        yield from self._rest(state)
                        return
                for part in parts:
                    after = part.id
                    yield from self._taken(part)
                self._mark(bool(parts))
            except StoreUnavailable:
                time.sleep(_RETRY_S)
            look_s = time.monotonic() + _LOOK_S
            if self._owner is None and time.monotonic() > begin_s + self._wait_s:
                raise self._not_begun()
        raise StreamError(f"the stream {self._stream.name!r} is not read any more")

    def _find_target(self) -> None:
        """The visit whose text is read: the live one, or else the last that has written."""
        live = self._board.writers(self._stream, self._writer.id) if self._owner is None else []
        if len(live) > 1:
            raise StreamError(
                f"{len(live)} visits of node '{self._writer.id}' write the stream {self._stream.name!r} at once"
            )
        if live:
            self._target, self._child = live[0].seq, live[0].child

    def _state(self) -> WriterState | None:
        """The visit that writes. None: it is not known."""
        seq = self._target if self._target is not None else self._owner
        if seq is None:
            return None
        state = self._board.writer(self._stream, seq)
        self._child = state.child or self._child
        return state

    def _taken(self, part: StreamPart) -> Iterator[StreamItem]:
        if self._target is not None and part.owner < self._target:
            return  # an earlier round of a loop
        if self._owner is not None and part.owner != self._owner:
            raise StreamError(
                f"another visit of node '{self._writer.id}' has replaced the stream {self._stream.name!r}"
            )
        self._owner = part.owner
        if part.kind == "begin":
            self._last = None
            if self._given:
                self._given = ""
                yield RESET
        elif part.kind == "text":
            self._last = None
            text = part.text[max(0, len(self._given) - part.at) :]
            if part.at > len(self._given):
                raise StreamError(f"text of the stream {self._stream.name!r} is missing after {len(self._given)}")
            self._given += text
            if text:
                yield text
        else:
            self._last = part

    def _rest(self, state: WriterState) -> Iterator[StreamItem]:
        """What is left of the text of a visit that is over. Raises StreamError if it is not complete."""
        name, node = self._stream.name, self._writer.id
        if isinstance(self._writer, AgentNode) and not state.failed:
            output = self._board.output(self._stream, state.seq, self._child)
            if output is None:
                raise StreamError(f"agent node '{node}', which writes the stream {name!r}, has ended without an output")
            yield from self._settled(output)
        elif self._last is not None and self._last.kind == "end" and not state.failed:
            return
        elif self._last is not None and self._last.kind == "error":
            raise StreamError(f"node '{node}', which writes the stream {name!r}, has failed: {self._last.text}")
        elif state.failed:
            raise StreamError(f"node '{node}', which writes the stream {name!r}, has failed")
        else:
            raise StreamError(f"node '{node}' has ended without all text of the stream {name!r}")

    def _settled(self, output: str) -> Iterator[StreamItem]:
        """The output of a child, as far as its text was not given."""
        if not output.startswith(self._given):
            self._given = ""
            yield RESET
        if rest := output[len(self._given) :]:
            yield rest

    def _mark(self, has_read: bool) -> None:
        now_s = time.monotonic()
        if has_read or now_s > self._marked_s + READING_MS / 3_000:
            read = None if self._owner is None else len(self._given)
            self._board.mark(self._stream, self._seq, self._writer.id, read)
            self._marked_s = now_s

    def _not_begun(self) -> StreamNotBegun:
        states = self._board.writers(self._stream, self._writer.id)
        why = "the run has not come to it"
        if states and states[0].state == "ready":
            why = "it waits for a slot of the run (max_concurrency)"
        elif states and states[0].state == "waiting":
            why = "it waits"
        elif states and states[0].queue is not None:
            why = f"it is queued on {states[0].queue!r}, and needs a free worker while this one waits"
        return StreamNotBegun(
            f"node '{self._writer.id}' has not begun to write the stream {self._stream.name!r} within "
            f"{self._wait_s:g}s: {why}"
        )
