"""Server-sent events of one request as a response: frames as they are made, until they end or the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

SEND_S: Final = 60.0
"""A client that takes nothing for so long is taken for one that has left."""
BEAT: Final = b": beat\n\n"
"""A sign of life, which clients ignore."""


T = TypeVar("T")


class FrameStream(Response):
    """The response."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        every = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(None, 200, {**every, **headers}, "text/event-stream")

    def frames(self) -> AsyncGenerator[bytes]:
        """What is sent."""
        raise NotImplementedError

    async def client_has_left(self) -> None:
        """The client has left before the last frame."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
            has_left = not pump.done() or not pump.result()
        finally:
            await _end(pump, gone)
        if has_left:
            await self.client_has_left()

    async def _pump(self, send: Send) -> bool:
        """False: the client takes nothing any more."""
        async with contextlib.aclosing(self.frames()) as frames:
            async for frame in frames:
                if not await _sent(send, frame):
                    return False
        return await _sent(send, b"", more=False)


async def _sent(send: Send, text: bytes, *, more: bool = True) -> bool:
    message: Message = {"type": "http.response.body", "body": text, "more_body": more}
    try:
        async with asyncio.timeout(SEND_S):
            await send(message)
    except (TimeoutError, OSError):
        return False
    return True


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of work for a client, whose request was read. None: the client has left, and the work is cancelled."""
    done, gone = asyncio.create_task(work), asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((done, gone), return_when=asyncio.FIRST_COMPLETED)
        return done.result() if done.done() else None
    finally:
        await _end(done, gone)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
