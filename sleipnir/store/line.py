"""A connection for one thread whose commands must cost little: a worker's claim and delivery, and what models say.

redis-py surrounds a command with a lock, a retry loop, two closures, metrics and a look-up of reply callbacks, as much
work again as the command itself. A line sends and reads; only when that fails does it hand the command to its client,
which reconnects, waits and repeats as the client's `retries` say. So what a caller may see is the same: the same
replies, the same errors, and a command that may have been carried out twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from sleipnir.store.connect import Client


class Line:
    """`client` must have been opened with `single_connection_client=True`; its one connection becomes the line's."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._connection = client.connection

    def execute_command(self, *command: Any) -> Any:
        """Send one command and return its reply. Raises what a redis-py client raises."""
        connection = self._connection
        try:
            connection.send_packed_command(connection.pack_command(*command))
            return connection.read_response()
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            return self.client.execute_command(*command)

    def execute_commands(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send several at once and return their replies in order, an error reply as an exception.

        Raises a redis-py error when the connection fails; nothing is repeated then, and some may have been carried out.
        """
        connection = self._connection
        connection.send_packed_command(connection.pack_commands(commands))
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except redis.exceptions.ResponseError as error:
            return error
