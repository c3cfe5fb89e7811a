"""From visits to Celery: publish task messages that stock workers accept. The only part that knows the broker.

A message is a hint: publishing one twice costs a refused claim, losing one costs `redispatch_after_s`. On a Redis
broker the envelopes are written by hand and pushed in one round trip per batch (20 times cheaper than
`apply_async`); any other broker goes through kombu. tests/system compares the envelope with `app.amqp`.
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
    """How many `messages` were published, and how many were `ahead` of them in the queue that had the fewest.

    0 ahead: a worker may have waited for one of these, or the broker does not tell.
    """

    messages: int
    ahead: int = 0


class Dispatcher(Protocol):
    """Publishes visits. At least once; raises when the broker does not answer."""

    def publish(self, visits: Iterable[tuple[VisitCall, str]]) -> Published:
        """Publish (call, queue) pairs."""
        ...

    def look(self, queues: Collection[str]) -> Mapping[str, QueueBacklog]:
        """What waits in the lines of these queues, by the name of the line (keys.line_of) or of the queue. What cannot
        be known is left out."""
        ...


def headers(call: VisitCall) -> dict[str, Any]:
    """The task headers of Celery's protocol 2. What Flower shows is here: no state, no secrets.

    What Celery assumes anyway is left out (no eta, no group, no stamps, ...): a third of the message, which would cross
    the wire, the append-only file and two JSON parsers.
    """
    found = {
        "task": TASK_NAME,
        "id": call.task_id,
        "shadow": call.shown_name,
        "root_id": call.run,
        "argsrepr": call.shown_args,
        "kwargsrepr": "{}",
        "ignore_result": True,
    }
    if tracing.is_on():
        found["traceparent"] = tracing.traceparent(call.run, call.seq, call.attempt)
    return found


def body(call: VisitCall) -> list[Any]:
    """Positional arguments, keyword arguments, and canvas, which we never use."""
    return [[call.to_json()], {}, {}]


def envelope(call: VisitCall, queue: str, at_ms: int = 0) -> str:
    """One message as kombu's Redis transport stores it in a list, published `at_ms` (fleet.py reads that).

    Messages of one node differ in a few ids and numbers only, so the JSON is made once and filled in: 1 instead of
    13 microseconds. Ids are letters, digits and signs that JSON does not escape.
    """
    template = _template(call.node, call.role, call.agent, call.bundle, queue, bool(call.batch), tracing.is_on())
    tag = f"{_PROCESS}-{next(_count)}@{at_ms}"
    holes = {"run": call.run, "seq": call.seq, "attempt": call.attempt, "tag": tag, "batch": call.batch}
    if tracing.is_on():
        holes["traceparent"] = tracing.traceparent(call.run, call.seq, call.attempt)
    return template % holes


def message(call: VisitCall, queue: str, tag: str) -> dict[str, Any]:
    """What an envelope says. `tag` must be unique among the messages of a broker."""
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
"""Numbers that occur in no name, to be found again in the text."""


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
    """Hand-made envelopes, one LPUSH per queue. A visit that has had its turn before is first in line; those of batches
    have a line of their own behind the others."""

    def __init__(self, store: Store, now_ms: Callable[[], float] = lambda: time.time() * 1000) -> None:
        """`now_ms` is about Redis' clock."""
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
    """Any broker that kombu reaches, from any thread. `transport_options` are kombu's own.

    A queue is declared before its first message, as a worker would: RabbitMQ drops what is sent to a queue that is not
    there, and the visit would wait for `redispatch_after_s`.
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
        """Lengths only, and these where the broker tells them without taking a message (AMQP does)."""
        found: dict[str, QueueBacklog] = {}
        with self._lock:
            for queue in queues:
                try:
                    found[queue] = QueueBacklog(self._length(queue))
                except Exception as error:  # each transport has its own errors
                    structlog.get_logger().debug("the broker does not say how long a queue is", error=str(error))
        return found

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
