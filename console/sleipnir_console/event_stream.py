"""Server-sent events of a run as a response: frames, a comment every 15 s, the end."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sleipnir_console.error_responses import response_of
from sleipnir_console.event_feeds import EventFeeds, FeedKey, Listener, problem_text
from sleipnir_console.problems import problem_of

MEDIA_TYPE: Final = "text/event-stream"
BEAT_S: Final = 15.0
BEAT: Final = b": beat\n\n"
RETRY: Final = b"retry: 2000\n\n"
"""How long a browser waits before it connects again, in milliseconds."""
FIRST_S: Final = 1.0
"""How long the status of the response waits for the first event: an error, or a run without more events, is known by
then."""
SEND_S: Final = 60.0
"""A listener that takes nothing for so long is given up; it resumes where it was."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(Response):
    """The response. 204 if the run has ended and there is nothing after the cursor: a browser then asks no more."""

    def __init__(self, request: Request, feeds: EventFeeds, key: FeedKey, cursor: str | None) -> None:
        super().__init__(None, 200, dict(_HEADERS), MEDIA_TYPE)
        self._request, self._feeds, self._key, self._cursor = request, feeds, key, cursor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._feeds.listen(self._key, self._cursor) as listener:
            await listener.news(FIRST_S)
            first = await listener.take()
            if not first and listener.is_over:
                if listener.error is not None:
                    answer = response_of(problem_of(listener.error), self._request.scope)
                else:
                    answer = Response(status_code=204)
                await answer(scope, receive, send)
                return
            headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _Sending(listener, self._feeds, receive, send).run(RETRY + first)


class _Sending:
    def __init__(self, listener: Listener, feeds: EventFeeds, receive: Receive, send: Send) -> None:
        self._listener, self._feeds, self._receive, self._send = listener, feeds, receive, send

    async def run(self, first: bytes) -> None:
        """Send until the events end, the listener leaves, or the server stops."""
        pump = asyncio.create_task(self._pump(first))
        gone = asyncio.create_task(self._until_gone())
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, gone):
                task.cancel()
            await asyncio.gather(pump, gone, return_exceptions=True)

    async def _pump(self, text: bytes) -> None:
        while await self._sent(text):
            if self._feeds.is_stopping():
                text = b""
                break
            if self._listener.is_over:
                text = b"" if self._listener.error is None else problem_text(self._listener.error)
                break
            await self._listener.news(BEAT_S)
            text = await self._listener.take() or (b"" if self._listener.is_over else BEAT)
        await self._sent(text, more=False)

    async def _sent(self, text: bytes, *, more: bool = True) -> bool:
        """False: the listener takes nothing."""
        message: Message = {"type": "http.response.body", "body": text, "more_body": more}
        try:
            async with asyncio.timeout(SEND_S):
                await self._send(message)
        except TimeoutError:
            return False
        return True

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
