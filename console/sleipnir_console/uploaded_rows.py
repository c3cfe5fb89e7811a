"""The body of a request as a file of rows, of which one piece is in memory at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sleipnir.waiting import awaited


class UploadedRows:
    """What `sleipnir.batches.rows.read_from` uses of a file. Its methods wait in the event loop: they are called by
    code that AsyncClient runs."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces, self._buffer, self._is_over = pieces, bytearray(), False

    def peek(self, size: int) -> bytes:
        """The next bytes, without taking them; fewer at the end."""
        while len(self._buffer) < size and self._more():
            pass
        return bytes(self._buffer[:size])

    def read(self, size: int) -> bytes:
        """Take the next bytes; fewer at the end."""
        self.peek(size)
        return self._taken(size)

    def readline(self, size: int) -> bytes:
        """Take a line with its end, or `size` bytes of a longer one; nothing at the end."""
        searched = 0
        while True:
            end = self._buffer.find(b"\n", searched)
            if end >= 0 or len(self._buffer) >= size:
                return self._taken(min(size, end + 1 if end >= 0 else size))
            searched = len(self._buffer)
            if not self._more():
                return self._taken(size)

    def _more(self) -> bool:
        """Read the next piece. False: there is none."""
        if not self._is_over:
            piece = awaited(_next(self._pieces))
            if piece is None:
                self._is_over = True
            else:
                self._buffer += piece
        return not self._is_over

    def _taken(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)
