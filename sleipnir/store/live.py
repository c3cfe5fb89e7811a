"""The live text of a run: the output of models as it is generated, read together with the run's events.

A worker appends pieces of text. They are a view, not a record: capped, short-lived, written without a fence; only the
visit's delivered result counts. So readers use the places of pieces (`Piece.place`): the pieces of one series (what its
model says, or what it emits) are in order; a piece that is not after the last one is a duplicate or belongs to an
obsolete attempt; a piece with another attempt, turn or draft begins a new text. Readers pull, so a reader that stops
costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from sleipnir import failpoints
from sleipnir.errors import RunNotFound
from sleipnir.messages import FINAL, VERSION
from sleipnir.runs.run import from_fields
from sleipnir.store import record_text
from sleipnir.store.connect import Client, close, is_passing
from sleipnir.store.fast_client import FastLine, fast_client
from sleipnir.store.keys import Keys
from sleipnir.store.scripts import Arg, LuaScript
from sleipnir.store.streams import entries

_ADD_PIECES = LuaScript("add_pieces")

MOST_PIECES = 5_000  # four minutes of one visit; about 0.5 MB
EXPIRE_MS = 600_000  # long enough to reconnect after a broken connection
MOST_READ = 500


@dataclass(frozen=True)
class Piece:
    """Some text of one model call of a visit.

    `turn` is the turn of the conversation, 0 if there is only one. A call that is repeated within the attempt begins
    the next `draft`. Pieces of a draft are numbered from 0. `lost` characters after the text were dropped, because
    Redis was too slow. The `last` piece ends a text, but may be missing.

    Or, with `chunk`, what a node has emitted for the stream mode `custom` (python_graph/emitters.py): a chunk of a
    stream writer, as JSON, or, with `emissions`, any number of emissions, as a JSON list. `lost` then counts emissions,
    and also those of `emissions`: readers of earlier releases know only `chunk`. An empty `chunk` alone says only that
    some were dropped.
    """

    seq: int
    attempt: int
    node: str
    piece: int
    text: str
    turn: int = 0
    draft: int = 1
    lost: int = 0
    last: bool = False
    chunk: str | None = None
    emissions: str = ""
    v: int = VERSION

    @property
    def series(self) -> tuple[int, bool]:
        """What numbers its pieces together: the text of a visit's model, or what the visit emits."""
        return self.seq, self.chunk is not None

    @property
    def place(self) -> tuple[int, int, int, int]:
        """The position of the piece: it increases within a series."""
        return self.attempt, self.turn, self.draft, self.piece

    def to_json(self) -> str:
        """The stored form. `record` would take twice as long: a worker writes a thousand pieces per second."""
        fields: dict[str, Any] = {
            "v": self.v, "seq": self.seq, "attempt": self.attempt, "node": self.node, "piece": self.piece,
            "text": self.text,
        }  # fmt: skip
        if self.turn:
            fields["turn"] = self.turn
        if self.draft != 1:
            fields["draft"] = self.draft
        if self.lost:
            fields["lost"] = self.lost
        if self.last:
            fields["last"] = True
        if self.chunk is not None:
            fields["chunk"] = self.chunk
        if self.emissions:
            fields["emissions"] = self.emissions
        return record_text.text(fields)

    @classmethod
    def from_json(cls, stored: str) -> Piece:
        """Unknown fields, from a newer worker, are ignored."""
        return from_fields(cls, json.loads(stored))


@dataclass(frozen=True)
class EventEntry:
    """The events of one commit: `events` are types and data."""

    id: str
    events: Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class PieceEntry:
    """`number` counts the pieces of the run from 1."""

    id: str
    number: int
    piece: Piece


@dataclass(frozen=True)
class StreamEntries:
    """The result of a read, oldest first; `events_full` and `pieces_full`: there may be more."""

    events: Sequence[EventEntry] = ()
    pieces: Sequence[PieceEntry] = ()
    events_full: bool = False
    pieces_full: bool = False


@dataclass(frozen=True)
class StreamState:
    """Whether a run is over, and the total number of its pieces."""

    is_final: bool
    pieces: int


@failpoints.around(_ADD_PIECES.name)
def _send(line: FastLine, commands: Sequence[Sequence[Arg]]) -> list[Any]:
    return line.execute_commands(commands)


class Live:
    """`client` is for readers. `connect` makes the client of the one thread that adds pieces."""

    def __init__(self, client: Client, keys: Keys, connect: Callable[[], Client]) -> None:
        self._client, self._keys, self._connect = client, keys, connect
        self._line: FastLine | None = None

    def add(self, pieces: Mapping[str, Sequence[Piece]]) -> set[str]:
        """Append pieces by run, in one round trip. Returns the runs whose pieces Redis refuses for now.

        Pieces of missing runs are dropped. Nothing is repeated: if this raises, some may have been added.
        """
        commands = [self._command(run_id, of_run) for run_id, of_run in pieces.items()]
        try:
            self._line = self._line or self._new_line()
            replies = _send(self._line, commands)
        except BaseException:
            self._drop_line()
            raise
        refused = {run_id for run_id, reply in zip(pieces, replies, strict=True) if isinstance(reply, Exception)}
        for reply in replies:
            if isinstance(reply, redis.exceptions.NoScriptError):
                self._drop_line()  # the next one loads it
            elif isinstance(reply, Exception) and not is_passing(reply):
                raise reply
        return refused

    def _new_line(self) -> FastLine:
        client = self._connect()
        _ADD_PIECES.load(client)
        return fast_client(client)

    def close(self) -> None:
        """Close the connection that adds pieces. The next piece opens another."""
        self._drop_line()

    def _drop_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            close(line.client)

    def _command(self, run_id: str, pieces: Sequence[Piece]) -> list[Arg]:
        run = self._keys.of_run(run_id)
        args: dict[str, Arg] = {"most": MOST_PIECES, "expire_ms": EXPIRE_MS}
        vector = _ADD_PIECES.vector({"run": run.run, "live": run.live}, args, [piece.to_json() for piece in pieces])
        return ["EVALSHA", _ADD_PIECES.sha, len(_ADD_PIECES.keys), *vector]

    def read(self, run_id: str, *, events: str, pieces: str | None, block_ms: int | None) -> StreamEntries:
        """The entries after these ids in the run's events and pieces (None: not read), as of one moment for both.

        Waits up to `block_ms` for the first (None: not at all).
        """
        run = self._keys.of_run(run_id)
        after: dict[Any, Any] = {run.events: events}
        if pieces is not None:
            after[run.live] = pieces
        reply: Any = self._client.xread(after, count=MOST_READ, block=block_ms)
        by_stream = dict(reply or {})
        events_read = list(entries({run.events: by_stream.get(run.events, ())}))
        pieces_read = list(entries({run.live: by_stream.get(run.live, ())}))
        return StreamEntries(
            [EventEntry(id_, json.loads(fields["e"])) for id_, fields in events_read],
            [
                PieceEntry(id_, int(fields["number"]), from_fields(Piece, json.loads(fields["p"])))
                for id_, fields in pieces_read
            ],
            events_full=len(events_read) == MOST_READ,
            pieces_full=len(pieces_read) == MOST_READ,
        )

    def runs_with_more(self, after: Mapping[str, tuple[str, str | None]], *, block_ms: int | None) -> set[str]:
        """Those of several runs that have entries after these ids in their events or pieces (None: not looked at); also
        a run that does not exist yet. Waits up to `block_ms` for the first (None: not at all)."""
        names: dict[str, str] = {}
        streams: dict[Any, Any] = {}
        for run_id, (events, pieces) in after.items():
            run = self._keys.of_run(run_id)
            for key, place in ((run.events, events), (run.live, pieces)):
                if place is not None:
                    names[key], streams[key] = run_id, place
        reply: Any = self._client.xread(streams, count=1, block=block_ms)
        return {names[key] for key in dict(reply or {})}

    def has_event(self, run_id: str, id_: str) -> bool:
        """Whether this entry still exists; then all later ones exist too."""
        return bool(self._client.xrange(self._keys.of_run(run_id).events, id_, id_))

    def has_event_up_to(self, run_id: str, id_: str) -> bool:
        """Whether an entry up to this id still exists; then none after it was dropped."""
        return bool(self._client.xrange(self._keys.of_run(run_id).events, "-", id_, count=1))

    def standing(self, run_id: str) -> StreamState:
        """The state of a run; a failed run that is being retried is not over. Raises RunNotFound."""
        status, retrying, pieces = self._client.hmget(self._keys.of_run(run_id).run, ["status", "retrying", "pieces"])
        if status is None:
            raise RunNotFound(f"no run {run_id!r}: never submitted here, or finished longer ago than the retention")
        is_continuing = retrying and status != "completed"
        return StreamState(status in FINAL and not is_continuing, int(pieces or 0))
