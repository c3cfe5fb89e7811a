"""Sockets that wait in an event loop (sleipnir/store/loop_sockets.py)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from sleipnir.store.loop_sockets import _LoopSocket
from sleipnir.waiting import in_loop


@pytest.fixture
def peer_and_socket() -> Iterator[tuple[socket.socket, _LoopSocket]]:
    peer, own = socket.socketpair()
    with peer, own:
        yield peer, _LoopSocket(own)


@pytest.mark.parametrize("turns", range(5))
def test_a_cancellation_that_comes_with_the_data_is_not_forgotten(
    peer_and_socket: tuple[socket.socket, _LoopSocket], turns: int
) -> None:
    """Else a program that cancels `run.wait()` and awaits its end waits as long as the run does."""
    peer, sock = peer_and_socket
    sock.settimeout(60)

    async def cancel() -> bool:
        reads = asyncio.create_task(in_loop(sock.recv, 1))
        await asyncio.sleep(0)
        peer.send(b"x")
        for _ in range(turns):
            await asyncio.sleep(0)
        if not reads.cancel():
            return await reads == b"x"
        with pytest.raises(asyncio.CancelledError):
            await reads
        return True

    assert asyncio.run(cancel())


def test_data_that_came_while_the_loop_was_busy_are_not_late(
    peer_and_socket: tuple[socket.socket, _LoopSocket],
) -> None:
    peer, sock = peer_and_socket
    sock.settimeout(0.01)

    async def read() -> bytes:
        reads = asyncio.create_task(in_loop(sock.recv, 1))
        await asyncio.sleep(0)
        peer.send(b"x")
        time.sleep(0.05)  # a task that keeps the loop busy
        return await reads

    assert asyncio.run(read()) == b"x"


def test_data_that_do_not_come_are_a_timeout(peer_and_socket: tuple[socket.socket, _LoopSocket]) -> None:
    _, sock = peer_and_socket
    sock.settimeout(0.01)
    with pytest.raises(TimeoutError):
        asyncio.run(in_loop(sock.recv, 1))
