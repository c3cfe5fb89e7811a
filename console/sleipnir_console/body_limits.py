"""Limits on the bodies of requests: bytes, and the time between two pieces of one.

A body that is streamed to its route (rows of a batch) has no limit of its own: the route reads it in pieces, and checks
each. Its path is in `UNLIMITED`.
"""

from __future__ import annotations

import asyncio
import re
from math import inf
from time import monotonic
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sleipnir_console.error_responses import response_of
from sleipnir_console.problems import HttpProblem

PIECE_S: Final = 30.0
"""How long the next piece of a body may take: a client that sends nothing holds a connection for no longer."""
BODY_S: Final = 120.0
"""How long a body with a limit may take in all: otherwise one byte a time would hold a connection for ever."""
UNLIMITED: Final = re.compile(r"/api/v1/batches(/[^/]+/rows)?|/new-batch")


class BodyLimit:
    """Middleware: refuses bodies above `most_bytes`, and those that stop arriving."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = None if UNLIMITED.fullmatch(scope["path"]) else self._most_bytes
        if most is not None and _announced(scope) > most:
            await _answer(_too_large(most), scope, receive, send)
            return
        body, has_begun = _LimitedBody(receive, most), False

        async def sent(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, body.receive, sent)
        except HttpProblem as problem:  # a route raises it where no handler stands, as in streams
            if has_begun:
                raise
            await _answer(problem, scope, receive, send)


class _LimitedBody:
    def __init__(self, receive: Receive, most: int | None) -> None:
        self._receive, self._most, self._bytes, self._is_complete = receive, most, 0, False
        self._end_s = inf if most is None else monotonic() + BODY_S

    async def receive(self) -> Message:
        if self._is_complete:  # what follows is the end of the connection, for which one may wait long
            return await self._receive()
        try:
            async with asyncio.timeout(min(PIECE_S, self._end_s - monotonic())):
                message = await self._receive()
        except TimeoutError:
            detail = f"no piece of the body came for {PIECE_S:g} s, or it took more than {BODY_S:g} s"
            raise HttpProblem("too-slow", detail, headers=_CLOSE) from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
            if self._most is not None and self._bytes > self._most:
                raise _too_large(self._most)
        return message


_CLOSE: Final = {"Connection": "close"}
"""The rest of the body is not read, so the connection cannot be used for another request."""


def _too_large(most: int) -> HttpProblem:
    return HttpProblem("too-large", f"a body may have {most:,} bytes", {"limit_bytes": most}, _CLOSE)


def _announced(scope: Scope) -> int:
    """The length that the client announces; 0: none, or no number."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


async def _answer(problem: HttpProblem, scope: Scope, receive: Receive, send: Send) -> None:
    await response_of(problem, scope)(scope, receive, send)
