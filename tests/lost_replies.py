"""Lose the reply of a Lua script as a network does: the server has carried it out, the client does not know, and
redis-py sends it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.connection import AbstractConnection
from redis.exceptions import TimeoutError

from sleipnir.store.connect import Client
from sleipnir.store.scripts import LuaScript


@contextmanager
def lost_reply(client: Client, script: str, nth: int = 1) -> Iterator[list[int]]:
    """While the block runs, the reply to the `nth` call of a script by this process is lost, also one in a pipeline.
    Yields the numbers of the calls that were sent; repeats count."""
    LuaScript(script).load(client)
    sha, calls = LuaScript(script).sha.encode(), list[int]()
    send, read = AbstractConnection.send_packed_command, AbstractConnection.read_response

    def sending(self: Any, command: Any, check_health: bool = True) -> Any:
        packed = command if isinstance(command, bytes) else b"".join(command)
        if sha in packed:
            calls.append(len(calls) + 1)
            self.loses_reply = calls[-1] == nth
        return send(self, command, check_health)

    def reading(self: Any, *args: Any, **options: Any) -> Any:
        reply = read(self, *args, **options)
        if getattr(self, "loses_reply", False):
            self.loses_reply = False
            self.disconnect()
            raise TimeoutError("the reply is lost")
        return reply

    AbstractConnection.send_packed_command = sending  # type: ignore[method-assign]
    AbstractConnection.read_response = reading  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
        AbstractConnection.read_response = read  # type: ignore[method-assign]
