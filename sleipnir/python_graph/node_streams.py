"""Node streams in the code of a node: `open_stream` reads the text of another node while its model writes it.

Rules (spec/graph-package.md F47). The node says which stream it reads (`stream_input`), and reads it from its beginning
in each execution. If the writer is executed again, or its model is asked again, RESET comes before the new text. The
text ends when the visit of the writer has ended well; if that fails, reading raises StreamError.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, TypeAlias


class StreamReset:
    """The type of RESET: the text so far does not count, and begins anew."""

    def __repr__(self) -> str:
        return "RESET"


RESET: Final = StreamReset()

StreamItem: TypeAlias = str | StreamReset

NextItem: TypeAlias = Callable[[], StreamItem | None]
"""The next item of a stream, once it is there; None: it has ended."""


class StreamError(Exception):
    """The node that writes a stream has failed, or its text is not complete."""


class StreamNotBegun(TimeoutError):
    """The node that writes a stream has not begun in time. Trying again may help."""


class NodeStream:
    """The text of a node stream: pieces of it, and RESET. Iterate over it with `for` or `async for`, once."""

    def __init__(self, next_item: NextItem) -> None:
        self._next_item = next_item

    def __iter__(self) -> Iterator[StreamItem]:
        return self

    def __next__(self) -> StreamItem:
        item = self._next_item()
        if item is None:
            raise StopIteration
        return item

    def __aiter__(self) -> AsyncIterator[StreamItem]:
        return self

    async def __anext__(self) -> StreamItem:
        item = await asyncio.to_thread(self._next_item)
        if item is None:
            raise StopAsyncIteration
        return item

    def text(self) -> str:
        """The whole text, once it is complete."""
        pieces: list[str] = []
        for item in self:
            if isinstance(item, StreamReset):
                pieces.clear()
            else:
                pieces.append(item)
        return "".join(pieces)


OpenStream: TypeAlias = Callable[[str, float | None], NextItem]
"""Opens a stream by its name, with the longest wait for its beginning in seconds. Raises ValueError."""

stream_opener: Final[contextvars.ContextVar[OpenStream | None]] = contextvars.ContextVar(
    "sleipnir_streams", default=None
)
"""Opens the streams of the running node, if it reads any."""


def open_stream(name: str, timeout: float | None = None) -> NodeStream:
    """The node stream that another node writes, from its beginning.

    `timeout` is the longest wait for that node to begin, in seconds; None: 60, and less than the time limit of the
    node. Then StreamNotBegun is raised, a TimeoutError. Raises ValueError for a stream that the node does not read, and
    RuntimeError outside of a node that reads one.
    """
    opener = stream_opener.get()
    if opener is None:
        raise RuntimeError(f"open_stream({name!r}) was called outside of a node with `stream_input`")
    return NodeStream(opener(name, timeout))
