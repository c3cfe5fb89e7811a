"""Fast commands: a worker's claim and delivery, the output of models, a scheduler's commits.

redis-py wraps a command in a lock, a retry loop, two closures, metrics, type checks of arguments and a look-up of reply
callbacks, which doubles its cost. A FastClient only sends and reads; if that fails, it passes the command to its
client, which reconnects, waits and repeats according to its `retries`. So the caller sees the same replies and errors,
and a command may have been executed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import redis
from hiredis import pack_command

from sleipnir.store.connect import Client
from sleipnir.store.pending_replies import PendingReplies, Sending

if TYPE_CHECKING:
    from sleipnir.store.cluster import ClusterLine

FastLine: TypeAlias = "FastClient | ClusterLine"


def fast_client(client: Client) -> FastLine:
    """For a client that was opened with `single_connection_client=True`, or a cluster's."""
    if isinstance(client, redis.RedisCluster):
        from sleipnir.store.cluster import ClusterLine

        return ClusterLine(client)  # type: ignore[arg-type]  # there is no other kind of them
    return FastClient(client)


class FastClient:
    """`client` must have been opened with `single_connection_client=True`; its one connection becomes its own."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._connection = client.connection

    def execute_command(self, *command: Any) -> Any:
        """Send one command and return its reply. Raises what a redis-py client raises."""
        connection = self._connection
        try:
            connection.send_packed_command((pack_command(command),))
            return connection.read_response()
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            return self.client.execute_command(*command)

    def execute_commands(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send several at once and return their replies in order, an error reply as an exception.

        Raises a redis-py error if the connection fails; nothing is repeated then, and some may have been executed.
        """
        _send(self._connection, commands)
        return [_reply(self._connection) for _ in commands]


def execute_all(client: Client, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send several commands at once over a connection of the client's pool, and return their replies in order, an error
    reply as an exception. If the connection fails, all are sent again, according to the client's `retries`. Of a
    cluster's nodes, the commands for one that does not answer have the error as their reply."""
    return PendingReplies(sending_all(client, commands)).result()


def sending_all(client: Client, commands: Sequence[Sequence[Any]]) -> Sending[list[Any]]:
    """The same, for PendingReplies."""
    if isinstance(client, redis.RedisCluster):
        replies: list[Any] = yield from client.sending_all(commands)  # type: ignore[attr-defined]  # a ClusterClient
        return replies
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        _send(connection, commands)
        yield
        return [_reply(connection) for _ in commands]
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
        pass
    except BaseException:
        connection.disconnect()  # replies may be left in it
        raise
    finally:
        pool.release(connection)
    pipe = client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    return list(pipe.execute(raise_on_error=False))


def execute_packed(client: Client, packed: bytes, command: Sequence[Any]) -> Any:
    """The reply to one command of which the bytes are known, over a connection of the client's pool, as redis-py's
    callers expect it. If the connection fails, the command is sent again, according to the client's `retries`."""
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command((packed,))
        reply = connection.read_response()
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
        return client.execute_command(*command)
    except BaseException:
        connection.disconnect()  # the reply may be left in it
        raise
    finally:
        pool.release(connection)
    return client.response_callbacks[command[0]](reply)


def _send(connection: Any, commands: Sequence[Sequence[Any]]) -> None:
    connection.send_packed_command((b"".join(pack_command(tuple(command)) for command in commands),))


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.exceptions.ResponseError as error:
        return error
