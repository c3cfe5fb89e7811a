"""Waiting for the first entry of many streams.

One Redis does this with a blocking XREAD. In a cluster a command may only name keys of one slot, so there every node
has a connection on which it tells which of the streams that were read have changed since (CLIENT TRACKING): only these
are read again. A message of a node may be lost with its connection, and a stream that moves to another node changes
without one, so that all are read every SWEEP_S.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from typing import Any, Final

import redis
from hiredis import pack_command

from sleipnir.store.cluster import BROKEN, ClusterClient
from sleipnir.store.connect import BLOCK_MS_MAX, Client
from sleipnir.store.fast_client import execute_packed

SWEEP_S: Final = 2.0
UNTOLD_S: Final = 0.05
"""Between reads of streams whose changes no node tells."""


class StreamWatch:
    """Reads streams, for one thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._of_nodes = _NodeStreams(client) if isinstance(client, ClusterClient) else None
        self._last: tuple[Mapping[str, str], int, int | None] = ({}, 0, None)
        self._command: list[Any] = []
        self._packed = b""

    def read(self, after: Mapping[str, str], *, count: int, block_ms: int | None) -> dict[str, Any]:
        """The entries of streams after these ids, by stream, up to `count` of each; waits up to `block_ms` (None: not;
        BLOCK_MS_MAX at most) for the first. `after` is not changed any more. Streams of a cluster's nodes that do not
        answer are left out; raises the error of one if none does."""
        if not after:
            return {}
        if block_ms is not None:
            block_ms = min(block_ms, BLOCK_MS_MAX)
        if self._of_nodes is not None:
            return self._of_nodes.read(after, count, None if block_ms is None else block_ms / 1000)
        last, *limits = self._last
        if last is not after or limits != [count, block_ms]:  # packing hundreds of names takes as long as a visit
            block = [] if block_ms is None else ["BLOCK", block_ms]
            self._command = ["XREAD", *block, "COUNT", count, "STREAMS", *after, *after.values()]
            self._packed, self._last = pack_command(tuple(self._command)), (after, count, block_ms)
        return dict(execute_packed(self._client, self._packed, self._command) or {})


class _NodeStreams:
    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._lines: dict[str, Any] = {}
        """The connection to each node, by its address."""
        self._after: Mapping[str, str] = {}
        """The streams that are read, and the ids of the last call."""
        self._changed: set[str] = set()
        """Those that may have entries which were not read."""
        self._swept_s = -SWEEP_S

    def read(self, after: Mapping[str, str], count: int, wait_s: float | None) -> dict[str, Any]:
        until_s = time.monotonic() + (wait_s or 0.0)
        if wait_s is None:  # who does not wait for what nodes tell gets what there is
            self._changed.update(after)
        elif after is not self._after:
            self._changed.update(key for key, id_ in after.items() if self._after.get(key) != id_)
        self._after = after
        while True:
            now_s = time.monotonic()
            if now_s - self._swept_s >= SWEEP_S:
                self._changed.update(after)
                self._swept_s = now_s
            self._changed &= self._after.keys()
            if found := self._look(count):
                return found
            now_s = time.monotonic()
            if now_s >= until_s:
                return {}
            self._wait(min(until_s, self._swept_s + SWEEP_S, now_s + UNTOLD_S if self._changed else until_s) - now_s)

    def _look(self, count: int) -> dict[str, Any]:
        """The entries of changed streams. One that had some may have more, or the same again: it stays changed."""
        found: dict[str, Any] = {}
        failure: Exception | None = None
        keys = self._client.by_node(sorted(self._changed))
        for node, of_node in keys.items():
            try:
                replies = self._exchange(node, of_node, count)
            except BROKEN as error:
                self._drop(node)
                failure = error
                continue
            for key, reply in zip(of_node, replies, strict=True):
                if isinstance(reply, redis.exceptions.AskError):
                    reply = self._client.xread({key: self._after[key]}, count=count)  # follows it
                elif isinstance(reply, Exception):
                    raise reply
                else:
                    self._changed.discard(key)
                if reply and (entries := dict(self._client.converted(("XREAD",), reply))):
                    self._changed.add(key)
                    found |= entries
        if failure is not None:
            self._client.look_again()
            if len(keys) == 1 and not found:
                raise failure
        return found

    def _exchange(self, node: str, keys: list[str], count: int) -> list[Any]:
        line = self._lines.get(node) or self._open(node)
        words: list[Any] = [("XREAD", "COUNT", count, "STREAMS", key, self._after[key]) for key in keys]
        line.send_packed_command((b"".join(map(pack_command, words)),))
        replies = []
        for _ in keys:
            try:
                replies.append(line.read_response())
            except redis.exceptions.ResponseError as error:
                replies.append(error)
        return replies

    def _open(self, node: str) -> Any:
        line = self._lines[node] = self._client.connection_to(node, protocol=3)
        line._parser.set_invalidation_push_handler(self._note)
        line.send_command("CLIENT", "TRACKING", "ON")
        line.read_response()
        return line

    def _drop(self, node: str) -> None:
        """Forget a connection, and with it what its node was to tell."""
        if (line := self._lines.pop(node, None)) is not None:
            line.disconnect()
        self._swept_s = -SWEEP_S

    def _note(self, message: Any) -> None:
        """A node tells which streams have changed (None: all)."""
        names = message[1]
        self._changed.update(self._after if names is None else names)

    def _wait(self, seconds: float) -> None:
        """Wait until a node tells something."""
        poll = select.poll()
        by_socket = {line._sock.fileno(): node for node, line in self._lines.items()}
        for number in by_socket:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(max(0.0, seconds) * 1000):
            node = by_socket[number]
            try:
                while self._lines[node].can_read(0):
                    self._lines[node].read_response(push_request=True)
            except BROKEN:
                self._drop(node)
