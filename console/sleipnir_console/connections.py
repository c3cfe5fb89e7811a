"""Connections of clients that send slowly or nothing, and requests that are no HTTP.

Rules. A connection has `WAIT_S` to send the next request's line and headers, and of those that are sending them at most
`MOST_WAITING` stay open: with more, the one that has waited longest is closed. So memory is bounded, whatever clients
do, and a new one is served. What is no HTTP is answered with a problem document, as any other error.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sleipnir_console.problems import MEDIA_TYPE, HttpProblem

WAIT_S: Final = 15.0
"""For the headers of a request, from the connection or from the end of the last response on."""
MOST_WAITING: Final = 500
"""Half-sent headers have up to 192 kB each (main.py)."""


class BoundedProtocol(H11Protocol):
    """One connection of a client."""

    _waiting: dict[BoundedProtocol, asyncio.TimerHandle] = {}  # noqa: RUF012  # of all, the one that waits longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP. In the middle of a response there is no way to say so."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = json.dumps(HttpProblem("bad-request", msg).document()).encode()
        headers = [("content-type", MEDIA_TYPE), ("content-length", str(len(body))), ("connection", "close")]
        events: tuple[Any, ...] = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _look(self) -> None:
        """A connection waits for headers unless one of its requests is being answered."""
        is_waiting = (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()
        if not is_waiting:
            self._stop_waiting()
        elif self not in self._waiting:
            self._waiting[self] = self.loop.call_later(WAIT_S, self.transport.abort)
            if len(self._waiting) > MOST_WAITING:
                next(iter(self._waiting)).transport.abort()

    def _stop_waiting(self) -> None:
        timer = self._waiting.pop(self, None)
        if timer is not None:
            timer.cancel()
