"""Node streams: the text of a model that one node of a run passes to another while both run.

The text of a stream is written by one visit at a time: its `owner`. It has a place, which grows with each attempt and
each repeated call. A text at a new place replaces the earlier one, unless it goes on where that ended (the next turn of
a conversation). Offsets count characters, and a write is applied only at the end of what is stored: so a repeated one
changes nothing, and a writer sends again what a store has lost. A board holds the streams of runs:
store/node_streams.py on the fleet, memory/node_streams.py in process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from sleipnir.runs.visits import ChildWait, Ended, Failed, Loop, Visit, VisitState, Work

MOST_AHEAD: Final = 65_536
"""Characters that a writer may be ahead of a live reader before it waits."""

READING_MS: Final = 15_000
"""For how long a reader that says nothing more counts as live."""

Kind: TypeAlias = Literal["begin", "text", "end", "error"]


@dataclass(frozen=True)
class StreamName:
    """A stream of a run."""

    run: str
    name: str


@dataclass(frozen=True)
class TextPlace:
    """Where a text comes from: the visit `owner` that writes the stream, in attempt `owner_attempt` if another run
    writes for it, and the visit, attempt and draft that make the text. Later texts have greater places."""

    owner: int
    owner_attempt: int
    seq: int
    attempt: int
    draft: int = 1

    def __str__(self) -> str:
        """Texts are in the order of the places."""
        return f"{self.owner:012}{self.owner_attempt:06}{self.seq:012}{self.attempt:06}{self.draft:06}"


@dataclass(frozen=True)
class StreamWrite:
    """Text to append at the offset `at`, and then perhaps the end (`end`, or `error` with its message). Up to `base`,
    it is the text of earlier places."""

    place: TextPlace
    base: int
    at: int
    text: str = ""
    last: Literal["", "end", "error"] = ""
    message: str = ""


@dataclass(frozen=True)
class StreamReply:
    """`stored` characters of the text are there. `is_applied`: with the written ones. `is_obsolete`: another text has
    replaced it, or the run is gone. A live reader has not read `unread` of them."""

    stored: int
    is_applied: bool
    is_obsolete: bool = False
    unread: int = 0


@dataclass(frozen=True)
class StreamPart:
    """One entry of a stream: the beginning of a text of visit `owner`, text at an offset, or its end."""

    id: str
    kind: Kind
    owner: int = 0
    at: int = 0
    text: str = ""


@dataclass(frozen=True)
class WriterState:
    """The visit that writes a stream. `state` None: it is over. `failed`: it has ended, and badly. `child` is the run
    that writes for it, `queue` where a worker takes it."""

    seq: int
    state: VisitState | None = None
    failed: bool = False
    child: str | None = None
    queue: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in (None, "ended", "failed")


class NodeStreams(Protocol):
    """The streams of runs. Methods may raise StoreUnavailable; any call may be repeated."""

    def write(self, stream: StreamName, part: StreamWrite) -> StreamReply: ...

    def read(self, stream: StreamName, after: str, wait_s: float) -> Sequence[StreamPart]:
        """The entries after this id (`0-0`: all), once there are some, or none after the wait."""

    def mark(self, stream: StreamName, seq: int, node: str, read: int | None) -> None:
        """The visit `seq` is live and has read so many characters; None: it waits for node `node` to begin."""

    def leave(self, stream: StreamName, seq: int) -> None:
        """The visit reads no more."""

    def writers(self, stream: StreamName, node: str) -> list[WriterState]:
        """The live visits of a node, by number."""

    def writer(self, stream: StreamName, seq: int) -> WriterState: ...

    def output(self, stream: StreamName, seq: int, child: str | None) -> str | None:
        """The output of the run `child`, or else of the one that visit `seq` has waited for. None: it has none."""


def state_of(visit: Visit) -> WriterState:
    """The writer that a visit in a frontier is."""
    body = visit.body
    child = body.child.run if isinstance(body, ChildWait) else None
    if isinstance(body, Work) and body.child is not None:
        child = body.child.run
    seq = body.id if isinstance(body, Loop) else visit.seq
    failed = (isinstance(body, Ended) and not body.ok) or isinstance(body, Failed)
    return WriterState(seq, body.state, failed, child, body.queue if isinstance(body, Work) else None)
