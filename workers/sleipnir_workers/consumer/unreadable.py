"""Broker messages that are not a readable call of a visit: dropped, counted, logged once per reason.

1. A message is a hint. If a visit waits for a dropped message, it is published again, so nothing is lost. A message is
   never requeued: it would arrive again at once, for ever.
2. A message of a newer version makes its visit be published again soon, so that a worker that can read it gets it.
3. No message ends a worker process. Celery's own ways to refuse one requeue it, look for a result backend, or raise in
   the loop that receives messages.
"""

from __future__ import annotations

import base64
import functools
import json
import threading
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any, Final

import structlog
from celery.worker.consumer import Consumer
from kombu.utils.json import dumps

from sleipnir.agents.bundle import DIGEST
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import TASK_NAME, VisitCall

MOST_REASONS: Final = 100
"""Reasons that are logged, once each; messages with further reasons are only counted."""

_ENCODINGS = (None, "utf-8", "base64")


class DroppedMessages:
    """How many messages this process has dropped."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()
        self._lock = threading.Lock()
        self.newer: Callable[[str, int, int], None] = lambda run, seq, attempt: None
        """Called for the visit that a message of a newer release names."""

    def add(self, why: str) -> None:
        with self._lock:
            self.count += 1
            is_new = why not in self._logged and len(self._logged) < MOST_REASONS
            if is_new:
                self._logged.add(why)
        if is_new:
            structlog.get_logger().warning("a message was dropped; others like it are only counted", reason=why)


dropped = DroppedMessages()


def call_of(message: Any) -> VisitCall:
    """The call that a message carries. Raises RecordUnreadable."""
    return _call_of(message.headers, message.delivery_info, lambda: message.payload)


def taken_message(text: str) -> tuple[VisitCall, dict[str, Any]] | None:
    """The call and the headers of an envelope that was taken from a list of a Redis broker. None unless it is in the
    form of Sleipnir's own: then Celery reads it."""
    try:
        message = json.loads(text)
        if _problem(message) is not None or message["content-type"] != "application/json":
            return None
        properties = message["properties"]
        if properties["body_encoding"] != "utf-8":
            return None
        call = _call_of(message["headers"], properties["delivery_info"], lambda: json.loads(message["body"]))
        return call, message["headers"]
    except (RecordUnreadable, ValueError, KeyError, RecursionError):
        return None


def _call_of(headers: Any, delivery_info: Any, decode: Callable[[], Any]) -> VisitCall:
    if type(headers) is not dict or headers.get("task") != TASK_NAME:
        raise _damaged("it is not a task of Sleipnir")
    if type(headers.get("id")) is not str or not headers["id"]:
        raise _damaged("it has no id")
    if headers.get("eta") or headers.get("expires"):
        raise _damaged("it has an eta or an expiry")
    if type(delivery_info) is not dict:
        raise _damaged("it does not name its queue")
    try:
        payload = decode()
    except Exception as error:  # each serializer and codec has its own errors
        raise _damaged(f"its body cannot be decoded: {type(error).__name__}") from None
    if type(payload) is not list or [type(part) for part in payload] != [list, dict, dict]:
        raise _damaged("its body is not a task's arguments")
    args, options, canvas = payload
    if len(args) != 1 or options or any(value is not None for value in canvas.values()):
        raise _damaged("its body is not the arguments of a visit")
    call = VisitCall.from_json(args[0])
    if headers["id"] != call.task_id:
        raise _damaged("its id belongs to another visit")
    if not DIGEST.fullmatch(call.bundle):
        raise _damaged("its bundle is not named by a digest")
    try:
        f"{call.run}{call.node}{call.agent}".encode()
    except UnicodeError:
        raise _damaged("a name in it contains half a surrogate pair") from None
    return call


def _damaged(why: str) -> RecordUnreadable:
    return RecordUnreadable("message", "", f"damaged: {why}")


class VisitConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Passes on messages that carry a call of a visit, and drops all others."""

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle: Callable[[Any], Any] = super().create_task_handler(*args, **kwargs)
        is_alone = self.pool.__class__.__module__.endswith(".solo")

        def on_task_received(message: Any) -> Any:
            try:
                call = call_of(message)
            except RecordUnreadable as error:
                self._drop(message, str(error))
                if error.newer:
                    _publish_again(message.payload[0][0])
                return None
            if is_alone:  # the message is executed in this process, which need not read it again
                message.payload[0][0] = call
            return handle(message)

        return on_task_received

    def _drop(self, message: Any, why: str) -> None:
        dropped.add(why)
        message.ack_log_error(structlog.get_logger(), self.connection_errors)

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        self._drop(message, f"its body cannot be decoded: {type(exc).__name__}")

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self._drop(message, "it is not a task of Sleipnir")

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self._drop(message, "it is not a task of Sleipnir")

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self._drop(message, f"it is not a task: {type(exc).__name__}")


def _publish_again(data: Mapping[str, Any]) -> None:
    """Have the visit published again, if the message of a newer release names it."""
    run, seq, attempt = data.get("run"), data.get("seq"), data.get("attempt")
    if isinstance(run, str) and isinstance(seq, int) and isinstance(attempt, int):
        dropped.newer(run, seq, attempt)


@functools.cache
def tolerant(transport: type[Any]) -> type[Any]:
    """The same transport, but for a Redis broker one whose loop survives any element of a queue's list."""
    if getattr(transport, "driver_type", "") != "redis":
        return transport

    channel: Any = transport.Channel

    class Channel(channel):  # type: ignore[misc]
        receivers: int | None = None
        """How many receivers the last message of a fanout exchange had; None: not known."""

        def _put_fanout(self, exchange: str, message: Any, routing_key: str, **options: Any) -> None:
            # kombu passes the options of AMQP too, which have no effect here.
            if options.get("_publish_batch") is not None or not hasattr(channel, "_get_publish_topics"):
                super()._put_fanout(exchange, message, routing_key, **options)
                return
            payload = dumps(message)
            with self.conn_or_acquire() as client:
                topics = self._get_publish_topics(exchange, routing_key)
                self.receivers = sum(client.publish(topic, payload) for topic in topics)

        def _brpop_read(self, **options: Any) -> Any:
            self.connection.is_taking = True
            try:
                return super()._brpop_read(**options)
            except (Empty, *self.connection_errors, *self.connection.channel_errors):
                raise
            except Exception as error:
                if not self.connection.is_taking:
                    raise
                dropped.add(f"message cannot be read: damaged: {type(error).__name__}")
                return True

    class Transport(transport):  # type: ignore[misc]
        is_taking = False
        """Whether an element was taken from a list and has not become a message yet."""

        def _deliver(self, message: Any, queue: str) -> None:
            if (why := _problem(message)) is not None:
                dropped.add(f"message cannot be read: damaged: {why}")
                return
            self.is_taking = False
            super()._deliver(message, queue)

    Transport.Channel = Channel
    return Transport


def _problem(message: Any) -> str | None:
    """Why an element of a list cannot become a message of kombu."""
    if type(message) is not dict or type(message.get("properties")) is not dict:
        return "it has no properties"
    properties, headers = message["properties"], message.get("headers")
    if type(properties.get("delivery_tag")) is not str or type(properties.get("delivery_info")) is not dict:
        return "it has no delivery tag"
    if type(headers) is not dict or "compression" in headers:
        return "its headers are not those of a task"
    encoding, body = properties.get("body_encoding"), message.get("body")
    if encoding not in _ENCODINGS or not isinstance(body, str | bytes):  # kombu makes bytes of a body that it requeues
        return "its body is not text"
    if encoding == "base64":
        try:
            base64.b64decode(body)
        except ValueError:
            return "its body is not base64"
    return None
