"""The lengths of queues of RabbitMQ, which are asked by declaring them passively: that changes nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection
from typing import Any, Final

from sleipnir.store.address import celery_broker
from sleipnir.waiting import in_thread

AMQP: Final = frozenset({"amqp", "amqps", "pyamqp"})


def is_amqp(url: str) -> bool:
    return url.partition(":")[0].lower() in AMQP


def lengths_of(connection: Any, queues: Collection[str]) -> dict[str, int]:
    """Messages by queue, of a kombu connection; 0 for a queue that does not exist: its first message declares it. A
    refusal closes the channel, so the others are asked on a new one. Raises what the transport raises."""
    lengths: dict[str, int] = {}
    channel = None
    try:
        for queue in queues:
            channel = channel or connection.channel()
            try:
                lengths[queue] = int(channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:
                lengths[queue], channel = 0, None
    finally:
        if channel is not None:
            with contextlib.suppress(Exception):
                channel.close()
    return lengths


def drop(connection: Any) -> None:
    """Close the socket of a kombu connection that is broken, without asking the broker; the next use connects anew."""
    with contextlib.suppress(Exception):  # each kind of broken connection has its own error
        if (link := connection._connection) is not None:
            link.collect()
        connection.collect()


class AmqpQueues:
    """Asks RabbitMQ on a connection of its own, from any thread. Each call ends after some multiples of `timeout_s`."""

    def __init__(self, url: str, timeout_s: float = 5.0) -> None:
        self._url, self._timeout_s = url, timeout_s
        self._lock = threading.Lock()
        self._connection: Any = None

    @classmethod
    def of(cls, broker: str | None, timeout_s: float = 5.0) -> AmqpQueues | None:
        """None for another kind of broker."""
        return cls(broker, timeout_s) if broker and is_amqp(broker) else None

    def lengths(self, queues: Collection[str]) -> dict[str, int]:
        """Empty if the broker does not answer."""
        return in_thread(self._ask, queues)

    def _ask(self, queues: Collection[str]) -> dict[str, int]:
        with self._lock:
            try:
                return lengths_of(self._connection or self._open(), queues)
            except Exception:  # each kind of broken connection has its own error
                self._drop()
                return {}

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _open(self) -> Any:
        from kombu import Connection

        timeouts = {"read_timeout": self._timeout_s, "write_timeout": self._timeout_s}
        broker = celery_broker(self._url)
        self._connection = Connection(broker.url, connect_timeout=self._timeout_s, transport_options=timeouts)
        self._connection.ensure_connection(max_retries=1, timeout=self._timeout_s)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            drop(connection)
