"""Node streams in Redis: a Redis stream per name and run, which the next attempt of its writer empties.

A writer appends at an offset (stream_write.lua), so every call may be repeated, and what Redis has lost is sent again.
Readers remove nothing: one that starts over reads from the beginning. The text lives for `retention` after the last
write, because a failed run may be retried as long as it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

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
from sleipnir.runs.visits import BRANCH
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.record_text import text as json_text
from sleipnir.store.runs import Runs
from sleipnir.store.scripts import Arg, LuaScript
from sleipnir.store.streams import entries
from sleipnir.store.visit_records import read_visit

_WRITE = LuaScript("stream_write")

MOST_READ = 200
"""Entries of one read."""

_PAGE = 1_000


class RedisStreams:
    """A NodeStreams. Thread-safe."""

    def __init__(self, client: Client, keys: Keys, runs: Runs, errors: Callable[[], Any], *, retention_ms: int) -> None:
        """`errors` is a context that raises StoreUnavailable."""
        self._client, self._keys, self._runs, self._errors = client, keys, runs, errors
        self._expire_ms = retention_ms

    def write(self, stream: StreamName, part: StreamWrite) -> StreamReply:
        """One call of the script. Raises StoreUnavailable."""
        of_run, place = self._keys.of_run(stream.run), part.place
        keys = {
            "run": of_run.run,
            "head": of_run.stream(stream.name),
            "text": of_run.stream_text(stream.name),
            "read": of_run.stream_read(stream.name),
        }
        args: dict[str, Arg] = {
            "place": str(place), "owner": place.owner, "base": part.base, "at": part.at, "count": len(part.text),
            "piece": part.text, "last": part.last, "message": part.message, "expire_ms": self._expire_ms,
        }  # fmt: skip
        with self._errors():
            code, length, unread = _WRITE(self._client, keys, args)
        return StreamReply(length, code == 1, code == -1, unread)

    def read(self, stream: StreamName, after: str, wait_s: float) -> Sequence[StreamPart]:
        """Raises StoreUnavailable."""
        key = self._keys.of_run(stream.run).stream_text(stream.name)
        with self._errors():
            reply: Any = self._client.xread({key: after}, count=MOST_READ, block=max(1, int(wait_s * 1000)))
        return [
            StreamPart(id_, cast("Kind", fields["k"]), int(fields["o"]), int(fields.get("a", 0)), fields.get("t", ""))
            for id_, fields in entries(dict(reply or {}))
        ]

    def mark(self, stream: StreamName, seq: int, node: str, read: int | None) -> None:
        """Raises StoreUnavailable."""
        of_run = self._keys.of_run(stream.run)
        with self._errors():
            pipe = self._client.pipeline(transaction=False)
            if read is None:
                pipe.hset(of_run.stream_waits, str(seq), json_text({"stream": stream.name, "node": node}))
                pipe.pexpire(of_run.stream_waits, READING_MS)
            else:
                pipe.set(of_run.stream_read(stream.name), read, px=READING_MS)
                pipe.hdel(of_run.stream_waits, str(seq))
            pipe.execute()

    def leave(self, stream: StreamName, seq: int) -> None:
        """Raises StoreUnavailable."""
        of_run = self._keys.of_run(stream.run)
        with self._errors():
            pipe = self._client.pipeline(transaction=False)
            pipe.delete(of_run.stream_read(stream.name))
            pipe.hdel(of_run.stream_waits, str(seq))
            pipe.execute()

    def writers(self, stream: StreamName, node: str) -> list[WriterState]:
        """Reads all live visits, page by page. Raises StoreUnavailable."""
        frontier, named = self._keys.of_run(stream.run).frontier, f'"node":{json_text(node)}'
        with self._errors():
            texts = [text for _, text in self._client.hscan_iter(frontier, count=_PAGE) if named in text]
        visits = (read_visit(text, stream.run) for text in texts)
        states = [state_of(visit) for visit in visits if visit.place == BRANCH and visit.node == node]
        return sorted(states, key=lambda state: state.seq)

    def writer(self, stream: StreamName, seq: int) -> WriterState:
        """Raises StoreUnavailable."""
        with self._errors():
            text = self._client.hget(self._keys.of_run(stream.run).frontier, str(seq))
        return WriterState(seq) if text is None else state_of(read_visit(text, stream.run))

    def output(self, stream: StreamName, seq: int, child: str | None) -> str | None:
        """Raises StoreUnavailable."""
        with self._errors():
            if child is None:
                children = self._runs.children([stream.run])[stream.run]
                child = next((each.id for each in reversed(children) if each.seq == seq), None)
            return None if child is None else self._client.get(self._keys.of_run(child).output)
