"""Connections to Redis that wait in an event loop: redis-py's own, with sockets that suspend instead of block.

A connection is made in a thread of the loop's executor, as asyncio resolves names; after that no thread is used.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import select
import ssl
from collections.abc import Callable
from typing import Any

from sleipnir.waiting import awaited, is_in_loop


@functools.cache
def in_loop(connection_class: type[Any]) -> type[Any]:
    """A class of redis-py's connections whose sockets wait in the event loop."""
    return type(f"Loop{connection_class.__name__}", (_LoopConnection, connection_class), {})


class _LoopConnection:
    def _connect(self) -> Any:
        connect: Callable[[], Any] = super()._connect  # type: ignore[misc]
        sock = awaited(asyncio.get_running_loop().run_in_executor(None, connect)) if is_in_loop() else connect()
        return _LoopSocket(sock)


class _LoopSocket:
    """A connected socket. Reads and writes wait in the event loop, or outside of one in their thread; both for as long
    as the timeout allows, and raise TimeoutError then."""

    def __init__(self, sock: Any) -> None:
        self._socket = sock
        self._timeout_s: float | None = sock.gettimeout()
        sock.setblocking(False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout_s = seconds

    def gettimeout(self) -> float | None:
        return self._timeout_s

    def recv(self, size: int, flags: int = 0) -> bytes:
        if flags:  # a look at what is there, which does not wait
            return bytes(self._socket.recv(size, flags))
        return bytes(self._repeated(self._socket.recv, size, writes=False))

    def recv_into(self, buffer: Any) -> int:
        return int(self._repeated(self._socket.recv_into, buffer, writes=False))

    def sendall(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._repeated(self._socket.send, rest, writes=True) :]

    def _repeated(self, call: Callable[[Any], Any], argument: Any, *, writes: bool) -> Any:
        """The result of a call that does not block, repeated when the socket is ready for it."""
        while True:
            try:
                return call(argument)
            except ssl.SSLWantReadError:
                self._wait(writes=False)
            except ssl.SSLWantWriteError:
                self._wait(writes=True)
            except BlockingIOError:
                self._wait(writes=writes)

    def _wait(self, *, writes: bool) -> None:
        """Wait until the socket can be read or written. Raises TimeoutError; BlockingIOError if the timeout is 0."""
        if self._timeout_s == 0:
            raise BlockingIOError(errno.EAGAIN, "the socket is not ready")
        if is_in_loop():
            awaited(self._ready(writes))
            return
        events = select.POLLOUT if writes else select.POLLIN
        poll = select.poll()
        poll.register(self._socket, events)
        if not poll.poll(None if self._timeout_s is None else self._timeout_s * 1000):
            raise TimeoutError("timed out")

    async def _ready(self, writes: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if writes else (loop.add_reader, loop.remove_reader)
        number = self._socket.fileno()
        add(number, lambda: None if ready.done() else ready.set_result(None))
        try:
            async with asyncio.timeout(self._timeout_s):  # wait_for forgets a cancellation that comes with the data
                await ready
        except TimeoutError:
            if ready.cancelled():  # else the data came too, while other tasks kept the loop busy
                raise
        finally:
            remove(number)
