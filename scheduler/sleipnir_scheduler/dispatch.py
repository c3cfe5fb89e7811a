"""Publishes visits as Celery task messages that stock workers accept. The only module that knows the broker.

A message is a hint: a duplicate costs a refused claim, a lost message costs `redispatch_after_s`. On a Redis
broker the envelopes are built here and pushed in one round trip per batch (20 times cheaper than
`apply_async`); to RabbitMQ the messages of a batch are written at once; other brokers are used through kombu.
tests/system compares the envelope with `app.amqp`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import structlog

from sleipnir import failpoints, tracing
from sleipnir.messages import BATCH_PRIORITY, TASK_NAME, Role, VisitCall
from sleipnir.settings import Settings
from sleipnir.store.address import celery_broker, is_redis
from sleipnir.store.amqp_queues import drop, is_amqp, lengths_of
from sleipnir.store.fleet import QueueBacklog
from sleipnir.store.keys import line_of
from sleipnir.store.store import Store

CONNECT_S = 5.0
WRITE_S = 5.0
"""How long a write may take to a broker that reads nothing, as RabbitMQ does while it lacks memory or disk."""


class Published(NamedTuple):
    """The number of published `messages`, and of messages `ahead` of them in the shortest queue.

    0 ahead: a worker may have waited for one of these, or the broker does not report it.
    """

    messages: int
    ahead: int = 0


class Dispatcher(Protocol):
    """Publishes visits at least once; raises if the broker does not answer."""

    def publish(self, visits: Iterable[tuple[VisitCall, str]]) -> Published:
        """Publish (call, queue) pairs."""
        ...

    def look(self, queues: Collection[str]) -> Mapping[str, QueueBacklog]:
        """The backlogs of these queues, by the name of the list (keys.line_of) or of the queue. Unknown ones are left
        out."""
        ...


def headers(call: VisitCall) -> dict[str, Any]:
    """The task headers of Celery's protocol 2. Flower shows them: no state, no secrets.

    Celery's defaults are left out (no eta, no group, no stamps, ...): this saves a third of the message on the wire, in
    the append-only file and in two JSON parsers.
    """
    fields = {
        "task": TASK_NAME,
        "id": call.task_id,
        "shadow": call.shown_name,
        "root_id": call.run,
        "argsrepr": call.shown_args,
        "kwargsrepr": "{}",
        "ignore_result": True,
    }
    if tracing.is_on():
        fields["traceparent"] = tracing.traceparent(call.run, call.seq, call.attempt)
    return fields


def body(call: VisitCall) -> list[Any]:
    """Positional arguments, keyword arguments, and canvas, which is never used."""
    return [[call.to_json()], {}, {}]


def envelope(call: VisitCall, queue: str, at_ms: int = 0) -> str:
    """One message in the form of kombu's Redis transport, published `at_ms` (fleet.py reads that).

    Messages of one node differ only in a few ids and numbers, so a JSON template is made once and filled in: 1 instead
    of 13 microseconds. Ids are letters, digits and signs that JSON does not escape.
    """
    template = _template(call.node, call.role, call.agent, call.bundle, queue, bool(call.batch), tracing.is_on())
    tag = f"{_PROCESS}-{next(_count)}@{at_ms}"
    holes = {"run": call.run, "seq": call.seq, "attempt": call.attempt, "tag": tag, "batch": call.batch}
    if tracing.is_on():
        holes["traceparent"] = tracing.traceparent(call.run, call.seq, call.attempt)
    return template % holes


def message(call: VisitCall, queue: str, tag: str) -> dict[str, Any]:
    """The content of an envelope. `tag` must be unique among the messages of a broker."""
    return {
        "body": json.dumps(body(call)),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers(call),
        "properties": {
            "correlation_id": call.task_id,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": BATCH_PRIORITY if call.batch else 0,
            "body_encoding": "utf-8",
            "delivery_tag": tag,
        },
    }


_PROCESS, _count = secrets.token_hex(8), itertools.count()
_HOLES = {name: 10**18 + secrets.randbelow(10**18) for name in ("run", "seq", "attempt", "tag", "batch")}
"""Random numbers that occur in no name, as markers in the template."""


@functools.lru_cache(maxsize=4096)
def _template(node: str, role: Role, agent: str, bundle: str, queue: str, of_batch: bool, traced: bool) -> str:
    batch = str(_HOLES["batch"]) if of_batch else ""
    sample = VisitCall(str(_HOLES["run"]), node, _HOLES["seq"], _HOLES["attempt"], agent, bundle, role, batch=batch)
    text = json.dumps(message(sample, queue, str(_HOLES["tag"]))).replace("%", "%%")
    if traced:
        text = text.replace(tracing.traceparent(sample.run, sample.seq, sample.attempt), "%(traceparent)s")
    for name, hole in _HOLES.items():
        text = text.replace(str(hole), f"%({name})s")
    return text


class RedisDispatcher:
    """Builds envelopes itself, one LPUSH per queue. Visits with a later attempt go first; visits of batches are in a
    separate list with lower priority."""

    def __init__(self, store: Store, now_ms: Callable[[], float] = lambda: time.time() * 1000) -> None:
        """`now_ms` is an approximation of Redis' clock."""
        self._store, self._now_ms = store, now_ms

    def look(self, queues: Collection[str]) -> Mapping[str, QueueBacklog]:
        return self._store.fleet.lines(queues)

    def publish(self, visits: Iterable[tuple[VisitCall, str]]) -> Published:
        at_ms = int(self._now_ms())
        messages: dict[str, list[str]] = defaultdict(list)
        again: dict[str, list[str]] = defaultdict(list)
        for call, queue in visits:
            line = line_of(queue, call.batch)
            (messages if call.attempt == 1 else again)[line].append(envelope(call, queue, at_ms))
        if not messages and not again:
            return Published(0)
        lengths = self._push(messages, again)
        ahead = min((lengths[line] - len(envelopes) for line, envelopes in messages.items()), default=0)
        return Published(sum(map(len, [*messages.values(), *again.values()])), max(ahead, 0))

    @failpoints.around("publish")
    def _push(self, messages: dict[str, list[str]], again: dict[str, list[str]]) -> dict[str, int]:
        return self._store.fleet.publish(messages, again)


class KombuDispatcher:
    """Any broker that kombu supports, from any thread. `transport_options` are kombu's.

    A queue is declared before its first message, as by a worker: RabbitMQ drops messages to a missing queue, and the
    visit would wait for `redispatch_after_s`.
    """

    def __init__(self, url: str, transport_options: Mapping[str, Any] | None = None) -> None:
        from kombu import Connection

        self._connection = Connection(url, connect_timeout=CONNECT_S, transport_options=dict(transport_options or {}))
        self._producer = self._connection.Producer(serializer="json", auto_declare=False)
        self._lock = threading.Lock()  # a connection of AMQP is for one thread at a time

    def publish(self, visits: Iterable[tuple[VisitCall, str]]) -> Published:
        count = 0
        with self._lock:
            for call, queue in visits:
                self._send(call, queue)
                count += 1
        return Published(count)

    def look(self, queues: Collection[str]) -> Mapping[str, QueueBacklog]:
        """Only lengths, if the broker reports them without consuming a message (as AMQP does)."""
        with self._lock:
            try:
                lengths = lengths_of(self._connection, queues)
            except Exception as error:  # each transport has its own errors
                structlog.get_logger().debug("the broker does not report the lengths of queues", error=str(error))
                return {}
        return {queue: QueueBacklog(length) for queue, length in lengths.items()}

    @failpoints.around("publish")
    def _send(self, call: VisitCall, queue: str) -> None:
        from kombu import Queue

        self._producer.publish(
            body(call),
            exchange="",
            routing_key=queue,
            declare=[Queue(queue)],
            headers=headers(call),
            correlation_id=call.task_id,
            delivery_mode=2,
            retry=True,
            retry_policy={"max_retries": 3},
        )


class AmqpDispatcher(KombuDispatcher):
    """RabbitMQ. The messages of a batch are one write on one channel: a quarter of the CPU of kombu's, which writes
    each. Nothing waits for a confirmation, which comes after the broker's disk: the outbox publishes again what was
    lost."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._line: _AmqpLine | None = None

    def publish(self, visits: Iterable[tuple[VisitCall, str]]) -> Published:
        messages = list(visits)
        if not messages:
            return Published(0)
        with self._lock:
            try:
                self._write(messages)
            except (*self._connection.connection_errors, *self._connection.channel_errors) as error:
                drop(self._connection)
                if isinstance(error, TimeoutError):
                    raise  # it has cost enough of the planner's time
                self._write(messages)
        return Published(len(messages))

    @failpoints.around("publish")
    def _write(self, messages: Collection[tuple[VisitCall, str]]) -> None:
        self._connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
        channel = self._connection.default_channel
        if self._line is None or self._line.channel is not channel:
            self._line = _AmqpLine(channel)
        self._line.write(messages)


class _AmqpLine:
    """A channel, and the queues that were declared on it."""

    def __init__(self, channel: Any) -> None:
        from amqp.method_framing import frame_writer

        self.channel = channel
        self._declared: set[str] = set()
        self._frames = _Frames()
        self._add = frame_writer(channel.connection, self._frames)

    def write(self, messages: Collection[tuple[VisitCall, str]]) -> None:
        from amqp import spec
        from amqp.serialization import dumps
        from kombu import Queue

        connection = self.channel.connection
        self._frames.taken()  # of a message that could not be written as a whole
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0)  # what the broker has said meanwhile; an end of the connection raises
        for queue in {queue for _, queue in messages} - self._declared:
            Queue(queue)(self.channel).declare()
            self._declared.add(queue)
        for call, queue in messages:
            publish = dumps("Bssbb", (0, "", queue, False, False))
            self._add(1, self.channel.channel_id, spec.Basic.Publish, publish, self._message(call))
        with connection.transport.having_timeout(WRITE_S):
            connection.transport.write(self._frames.taken())

    def _message(self, call: VisitCall) -> Any:
        properties = {"correlation_id": call.task_id, "delivery_mode": 2}
        text = json.dumps(body(call)).encode()
        return self.channel.prepare_message(text, 0, "application/json", "utf-8", headers(call), properties)


class _Frames:
    """Takes what py-amqp would write to a socket."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []

    def write(self, frame: bytes | memoryview) -> None:
        self._kept.append(bytes(frame))  # of a buffer that the next one uses

    def taken(self) -> bytes:
        frames, self._kept = self._kept, []
        return b"".join(frames)


def dispatcher(
    settings: Settings, store: Store, now_ms: Callable[[], float] = lambda: time.time() * 1000
) -> Dispatcher:
    """The fastest dispatcher for the configured broker."""
    broker = settings.broker
    if broker is None or is_redis(broker):
        return RedisDispatcher(store, now_ms)
    url = celery_broker(broker).url
    return AmqpDispatcher(url) if is_amqp(broker) else KombuDispatcher(url)
