"""Feeds: the events of runs for any number of listeners, with one reader for each run.

Rules. A feed keeps its newest frames, and each listener has a place among them, so a slow one holds nobody: one that
falls behind what is kept goes on alone, from the last event that it has, and misses nothing. Memory is bounded by the
number of feeds, whatever the runs write and however slowly listeners read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.client.async_client import AsyncClient
from sleipnir.errors import SleipnirError
from sleipnir.runs.views import StreamEvent, StreamMode
from sleipnir_console.problems import HttpProblem, problem_of

MOST_FRAMES: Final = 1_000
MOST_BYTES: Final = 2**20
"""What a feed keeps of its newest frames."""
MOST_FEEDS: Final = 2_000
"""Feeds at once: each holds a connection to Redis."""
STOP_LOOK_S: Final = 0.2


@dataclass(frozen=True)
class FeedKey:
    """What listeners have in common who share a reader: the run and what they see of it."""

    run: str
    modes: frozenset[StreamMode]
    children: bool


@dataclass(frozen=True)
class Frame:
    """An event, as it is sent to each listener."""

    id: str
    text: bytes


class Feed:
    """The events of a run after `cursor` (None: from the oldest stored one), read by a task of its own. Listeners have
    places: the number of the next frame, counted from 0. One that is `alone` is waited for, instead of left behind."""

    def __init__(self, client: AsyncClient, key: FeedKey, cursor: str | None, *, alone: bool) -> None:
        self.key, self.cursor, self.listeners = key, cursor, 0
        self.error: SleipnirError | None = None
        self.is_over = False
        self._frames: deque[Frame] = deque()
        self._first, self._bytes, self._alone = 0, 0, alone
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._reader = asyncio.create_task(self._read(client), name=f"feed of {key.run}")

    async def _read(self, client: AsyncClient) -> None:
        events = client.stream(self.key.run, sorted(self.key.modes), self.cursor, subgraphs=self.key.children)
        try:
            async for event in events:
                self._add(Frame(event.id, frame_text(event)))
                while self._alone and self._is_full():
                    self._room.clear()
                    await self._room.wait()
        except SleipnirError as error:
            self.error = error
        finally:
            self.is_over = True
            self.wake()
            with contextlib.suppress(SleipnirError):
                await events.aclose()  # type: ignore[attr-defined]  # it is a generator

    def _add(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._bytes += len(frame.text)
        while self._is_full() and not self._alone and len(self._frames) > 1:
            self._drop()
        self.wake()

    def _is_full(self) -> bool:
        return len(self._frames) > MOST_FRAMES or self._bytes > MOST_BYTES

    def _drop(self) -> None:
        self._bytes -= len(self._frames.popleft().text)
        self._first += 1

    def wake(self) -> None:
        """Let all listeners look."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, timeout_s: float) -> None:
        """Return when there may be something, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    def place_after(self, cursor: str | None) -> int | None:
        """The place of a listener that has read up to a cursor. None: the feed does not have what follows it."""
        if cursor == self.cursor:
            return 0 if self._first == 0 else None
        for number, frame in enumerate(self._frames, self._first):
            if frame.id == cursor:
                return number + 1
        return None

    def frames(self, place: int) -> list[Frame] | None:
        """The frames from a place on. None: they are not kept any more."""
        if place < self._first:
            return None
        return [self._frames[at] for at in range(place - self._first, len(self._frames))]

    def has_more(self, place: int) -> bool:
        """Whether there are frames from a place on, kept or not."""
        return place < self._first + len(self._frames)

    def done(self, place: int) -> None:
        """The frames before this place were taken: one that has a single listener needs them no more."""
        if self._alone:
            while self._first < place:
                self._drop()
            self._room.set()

    async def close(self) -> None:
        """End the reader."""
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader


def frame_text(event: StreamEvent) -> bytes:
    """The event in the format of server-sent events."""
    data: dict[str, Any] = dict(vars(event))
    del data["id"]
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"id: {event.id}\nevent: {event.type}\ndata: {text}\n\n".encode("utf-8", "replace")


def problem_text(error: SleipnirError) -> bytes:
    """An error at the end of a stream, as an event `problem` without an id: the reader resumes at its last event."""
    document = json.dumps(problem_of(error).document(), ensure_ascii=False)
    return f"event: problem\ndata: {document}\n\n".encode("utf-8", "replace")


class EventFeeds:
    """The feeds of a server."""

    def __init__(self, client: AsyncClient, is_stopping: Callable[[], bool]) -> None:
        self._client, self.is_stopping = client, is_stopping
        self._shared: dict[FeedKey, Feed] = {}
        self._open: set[Feed] = set()
        self._watch: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def listen(self, key: FeedKey, cursor: str | None) -> AsyncIterator[Listener]:
        """A listener, from a cursor on."""
        listener = Listener(self, key, cursor)
        try:
            yield listener
        finally:
            await listener.close()

    def feed(self, key: FeedKey, cursor: str | None) -> tuple[Feed, int]:
        """A feed that has what follows the cursor, and the place of that: the shared one, if it can be."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._wake_at_stop(), name="feeds end with the server")
        if len(self._open) >= MOST_FEEDS:
            raise HttpProblem("too-many-streams", f"{MOST_FEEDS:,} runs are being followed here")
        feed = self._shared.get(key)
        if feed is None or feed.is_over:
            feed = self._shared[key] = Feed(self._client, key, cursor, alone=False)
        place = feed.place_after(cursor)
        if place is None:
            feed, place = Feed(self._client, key, cursor, alone=True), 0
        feed.listeners += 1
        self._open.add(feed)
        return feed, place

    async def leave(self, feed: Feed) -> None:
        """One listener less. The last one ends the feed."""
        feed.listeners -= 1
        if feed.listeners == 0:
            self._open.discard(feed)
            if self._shared.get(feed.key) is feed:
                del self._shared[feed.key]
            await feed.close()

    async def _wake_at_stop(self) -> None:
        while self._open:
            if self.is_stopping():
                for feed in self._open:
                    feed.wake()
            await asyncio.sleep(STOP_LOOK_S)


class Listener:
    """One reader of a run's events, over as many feeds as it takes."""

    def __init__(self, feeds: EventFeeds, key: FeedKey, cursor: str | None) -> None:
        self._feeds, self._key, self._cursor = feeds, key, cursor
        self._feed, self._place = feeds.feed(key, cursor)

    @property
    def is_over(self) -> bool:
        """Whether nothing follows what was taken."""
        return self._feed.is_over and not self._feed.has_more(self._place)

    @property
    def error(self) -> SleipnirError | None:
        """Why the events ended, if it is not the end of the run."""
        return self._feed.error

    async def news(self, timeout_s: float) -> None:
        """Return when there may be frames to take, when the events have ended, or after so many seconds."""
        if not self._feed.is_over and not self._feed.has_more(self._place):
            await self._feed.news(timeout_s)

    async def take(self) -> bytes:
        """The frames since the last call; empty: none yet."""
        frames = self._feed.frames(self._place)
        if frames is None:  # too slow for the shared feed
            left = self._feed
            self._feed, self._place = self._feeds.feed(self._key, self._cursor)
            await self._feeds.leave(left)
            return b""
        if frames:
            self._place, self._cursor = self._place + len(frames), frames[-1].id
            self._feed.done(self._place)
        return b"".join(frame.text for frame in frames)

    async def close(self) -> None:
        await self._feeds.leave(self._feed)
