"""Feeds of events: shared readers, listeners of any speed, bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from sleipnir.client.async_client import AsyncClient
from sleipnir.runs.views import StreamEvent
from sleipnir_console import event_feeds
from sleipnir_console.event_feeds import EventFeeds, FeedKey, Listener

KEY = FeedKey("run", frozenset(("updates",)), children=False)


class ScriptedStreams:
    """Streams of one run with `count` events, the ids of which are their numbers. `opened` are the cursors of readers;
    those that are not the first one to be opened run freely, the first one to `allowed`."""

    def __init__(self, count: int) -> None:
        self.count, self.allowed, self.opened = count, count, list[str | None]()

    async def stream(self, run: str, modes: Any, cursor: str | None, *, subgraphs: bool) -> AsyncIterator[StreamEvent]:
        self.opened.append(cursor)
        for number in range(int(cursor or 0) + 1, self.count + 1):
            while number > self.allowed:
                await asyncio.sleep(0)
            yield StreamEvent(str(number), number, "visit_closed", {"text": "x" * 100}, "updates")
            await asyncio.sleep(0)


def feeds_of(streams: ScriptedStreams) -> EventFeeds:
    return EventFeeds(cast(AsyncClient, streams), lambda: False)


async def rest(listener: Listener) -> list[int]:
    """The numbers of the events that it gets, to the end."""
    text = b""
    while not listener.is_over:
        await listener.news(5)
        text += await listener.take()
    return [int(line.removeprefix(b"id: ")) for line in text.splitlines() if line.startswith(b"id: ")]


def test_a_hundred_listeners_share_one_reader() -> None:
    async def scene() -> None:
        streams = ScriptedStreams(500)
        feeds = feeds_of(streams)

        async def listen() -> list[int]:
            async with feeds.listen(KEY, None) as listener:
                return await rest(listener)

        for numbers in await asyncio.gather(*(listen() for _ in range(100))):
            assert numbers == list(range(1, 501))
        assert streams.opened == [None]

    asyncio.run(scene())


def test_a_listener_resumes_in_the_shared_feed_if_that_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feeds, "MOST_FRAMES", 10)

    async def scene() -> None:
        streams = ScriptedStreams(30)
        streams.allowed = 20
        feeds = feeds_of(streams)
        async with feeds.listen(KEY, None) as first:
            while first._feed._first + len(first._feed._frames) < 20:
                await asyncio.sleep(0)
            async with feeds.listen(KEY, "15") as near, feeds.listen(KEY, "3") as far:
                streams.allowed = 30
                assert await rest(near) == list(range(16, 31))
                assert await rest(far) == list(range(4, 31))
            assert streams.opened == [None, "3"]
            assert await rest(first) == list(range(1, 31)), "what it was too slow for was read again"
        assert feeds._shared == {}
        assert feeds._open == set()

    asyncio.run(scene())


def test_what_a_feed_keeps_is_bounded_however_slow_its_listener_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feeds, "MOST_BYTES", 2_000)

    async def scene() -> None:
        streams = ScriptedStreams(300)
        feeds = feeds_of(streams)
        async with feeds.listen(KEY, None) as listener:
            most = 0
            for _ in range(1_000):
                most = max(most, listener._feed._bytes)
                await asyncio.sleep(0)
            assert most < 3_000
            assert await rest(listener) == list(range(1, 301))

    asyncio.run(scene())
