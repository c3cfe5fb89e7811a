"""Publishes visits as Celery task messages that stock workers accept. The only module that knows the broker.

A message is a hint: a duplicate costs a refused claim, a lost message costs `redispatch_after_s`. On a Redis
broker the envelopes are built here and pushed in one round trip per batch (20 times cheaper than
`apply_async`); other brokers are used through kombu. tests/system compares the envelope with `app.amqp`.
"""

from __future__ import annotations

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
from sleipnir.store.fleet import QueueBacklog
from sleipnir.store.keys import line_of
from sleipnir.store.store import Store


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

        self._connection = Connection(url, connect_timeout=5, transport_options=dict(transport_options or {}))
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
        backlogs: dict[str, QueueBacklog] = {}
        with self._lock:
            for queue in queues:
                try:
                    backlogs[queue] = QueueBacklog(self._length(queue))
                except Exception as error:  # each transport has its own errors
                    structlog.get_logger().debug("the broker does not report a queue's length", error=str(error))
        return backlogs

    def _length(self, queue: str) -> int:
        from kombu import Queue

        with self._connection.channel() as channel:
            try:
                return int(Queue(queue)(channel).queue_declare(passive=True).message_count)
            except self._connection.channel_errors:
                return 0  # there is no such queue; the next message declares it

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


def dispatcher(
    settings: Settings, store: Store, now_ms: Callable[[], float] = lambda: time.time() * 1000
) -> Dispatcher:
    """The fastest dispatcher for the configured broker."""
    broker = settings.broker
    if broker is None or is_redis(broker):
        return RedisDispatcher(store, now_ms)
    return KombuDispatcher(celery_broker(broker).url)
