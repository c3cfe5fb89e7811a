"""Counts for metrics, read from indices, so that the cost does not grow with the number of runs.

Reading partitions takes two round trips, the fleet three. The indices of the outbox and of leases do not hold the
queues of visits: SAMPLE visits of each partition are read. If there are more, the counts by queue are estimates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import redis

from sleipnir.messages import QUEUES
from sleipnir.models.limits import Limit, LimitUse
from sleipnir.runs.deployment_holds import HOLD_PREFIX
from sleipnir.runs.views import WorkerInfo
from sleipnir.settings import Settings
from sleipnir.store.address import is_redis
from sleipnir.store.amqp_queues import AmqpQueues
from sleipnir.store.connect import Client, connect, deployment_info, store_errors, time_ms
from sleipnir.store.fleet import SEEN_FOR_MS, Fleet
from sleipnir.store.keys import Keys, is_member
from sleipnir.store.limits import Limiter
from sleipnir.store.partitions.entries import NO_RUN
from sleipnir.store.queue_waits import QueueWaits, age_of
from sleipnir.store.streams import ms_of

SAMPLE = 100
"""Visits of one partition that are read, of queued and of leased ones each: at most 3,200 reads for 16 partitions."""

PARKED_LOOK = 500
"""Inbox entries that are searched for one of a run that is not parked."""


@dataclass(frozen=True)
class PartitionLoad:
    """The total contents of some partitions. Ages are in ms, of the oldest; 0 if there is none, or none is late.

    `queued` (waiting for a worker) and `leased` (claimed) count visits by queue, `waits` those that wait for an
    event; `wait_ms` is the time for which visits have waited for the event that is awaited longest, not all of them
    the same. `publishing_ms`, `reaping_ms` and `firing_ms` are the times for which the first visit, lease and timer
    have been due; `inbox_ms` and `effects_ms` are the ages of the first entries, without those of `parked` runs.
    `late` results were refused since the last read.
    `complete`: the counts by queue are not estimates.
    """

    unfinished: int
    finished: int
    queued: Mapping[str, int]
    leased: Mapping[str, int]
    gates: int
    gate_ms: int
    timers: int
    firing_ms: int
    inbox: int
    inbox_ms: int
    effects: int
    effects_ms: int
    publishing_ms: int
    reaping_ms: int
    late: int
    paused: bool
    complete: bool
    paused_namespaces: int = 0
    parked: int = 0
    dead_letters: int = 0
    waits: int = 0
    wait_ms: int = 0


@dataclass(frozen=True)
class FleetLoad:
    """The load of the whole deployment. `messages` by queue are empty unless the broker is a Redis or RabbitMQ,
    `oldest_ms` unless it is a Redis."""

    info: Mapping[str, Any]
    workers: tuple[WorkerInfo, ...]
    messages: Mapping[str, int]
    oldest_ms: Mapping[str, int]
    limits: tuple[LimitUse, ...]

    def queues(self) -> set[str]:
        """The queues with workers or messages, and the default ones."""
        return {*QUEUES, *self.messages, *(queue for worker in self.workers for queue in worker.queues)}


class Gauges:
    """Reads with separate connections that fail after `timeout_s`, so that a request for metrics does not wait long."""

    def __init__(self, settings: Settings, keys: Keys, *, timeout_s: float) -> None:
        self._url, self._keys = str(settings.redis_url), keys
        options: dict[str, Any] = {"retries": 0, "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        options["client_name"] = "sleipnir-metrics"
        self._client = connect(self._url, **options)
        broker = settings.broker
        self._broker: Client | None = connect(broker, **options) if broker and is_redis(broker) else None
        self._amqp = AmqpQueues.of(broker, timeout_s)
        self._fleet = Fleet(self._client, self._keys, self._broker, self._amqp)
        self._waits = QueueWaits(self._client, self._keys, self._broker)
        self._limiter = Limiter(self._client, self._keys, lease_ms=int(settings.lease_s * 1000))

    def close(self) -> None:
        for client in (self._client, self._broker):
            if client is not None:
                client.close()
        if self._amqp is not None:
            self._amqp.close()

    def work(self, partitions: Collection[int]) -> PartitionLoad:
        """The load of these partitions. Reading resets their count of late results. Raises StoreUnavailable."""
        with store_errors(self._url):
            pipe = self._client.pipeline(transaction=False)
            pipe.time()
            for partition in partitions:
                _ask(pipe, self._keys, partition)
            now, *replies = pipe.execute()
            loads = [_Partition(*replies[at : at + _ASKED]) for at in range(0, len(replies), _ASKED)]
            loads = [self._without_parked(each, number) for each, number in zip(loads, partitions, strict=True)]
            queued = self._by_queue([(each.some_queued, each.queued) for each in loads])
            leased = self._by_queue([(each.some_leased, each.leased) for each in loads])
        now_ms = time_ms(now)
        return PartitionLoad(
            unfinished=sum(each.runs - each.expiring for each in loads),
            finished=sum(each.expiring for each in loads),
            queued=queued,
            leased=leased,
            gates=sum(each.gates for each in loads),
            gate_ms=age_of(now_ms, (_score(each.first_gate) for each in loads)),
            timers=sum(each.timers for each in loads),
            firing_ms=age_of(now_ms, (_score(each.first_timer) for each in loads)),
            inbox=sum(each.inbox for each in loads),
            inbox_ms=age_of(now_ms, (_entry_ms(each.first_entry) for each in loads)),
            effects=sum(each.effects for each in loads),
            effects_ms=age_of(now_ms, (_entry_ms(each.first_effect) for each in loads)),
            publishing_ms=age_of(now_ms, (_score(each.first_queued) for each in loads)),
            reaping_ms=age_of(now_ms, (_score(each.first_leased) for each in loads)),
            late=sum(int(each.late or 0) for each in loads),
            paused=any(each.paused for each in loads),
            paused_namespaces=len({name for each in loads for name in each.holds if name.startswith(HOLD_PREFIX)}),
            parked=sum(each.parked for each in loads),
            dead_letters=sum(each.dead_letters for each in loads),
            waits=sum(int(each.waits or 0) for each in loads),
            wait_ms=age_of(now_ms, (_score(each.first_wait) for each in loads)),
            complete=all(max(each.queued, each.leased) <= SAMPLE for each in loads),
        )

    def _without_parked(self, load: _Partition, number: int) -> _Partition:
        """The load with a first entry that a scheduler could apply: entries of parked runs are skipped, up to
        PARKED_LOOK of them."""
        if not load.parked or not load.first_entry:
            return load
        part = self._keys.of_partition(number)
        pipe = self._client.pipeline(transaction=False)
        pipe.xrange(part.inbox, count=PARKED_LOOK)
        pipe.hkeys(part.parked)
        entries, parked = pipe.execute()
        live = [entry for entry in entries if entry[1].get("run", NO_RUN) not in parked]
        return replace(load, first_entry=live[:1])

    def fleet(self, limits: Iterable[Limit] = ()) -> FleetLoad:
        """Raises StoreUnavailable."""
        with store_errors(self._url):
            info = deployment_info(self._client)
            workers, now_ms = self._fleet.workers()
            seen = tuple(worker for worker in workers if worker.seen_ms > now_ms - SEEN_FOR_MS)
            messages, oldest_ms = self._line({queue for worker in seen for queue in worker.queues}, now_ms)
            return FleetLoad(info, seen, messages, oldest_ms, tuple(map(self._limiter.in_use, limits)))

    def _by_queue(self, samples: Sequence[tuple[Sequence[str], int]]) -> dict[str, int]:
        """Visits by queue, from the samples of partitions, each with the total number of its kind."""
        counts: Counter[str] = Counter()
        samples = [([name for name in names if is_member(name)], count) for names, count in samples]
        visits = self._waits.visits([name for names, _ in samples for name in names])
        queues = iter([visit.get("queue") if visit else None for visit in visits])
        for names, count in samples:
            seen = Counter(queue for queue in islice(queues, len(names)) if queue is not None)
            scale = max(1.0, count / len(names)) if names else 1.0
            for queue, number in seen.items():
                counts[queue] += round(number * scale)
        return dict(counts)

    def _line(self, served: Collection[str], now_ms: int) -> tuple[dict[str, int], dict[str, int]]:
        """Messages by queue, and how long the next visit has waited, which is approximately the oldest."""
        try:
            messages = self._fleet.queue_lengths(served)
            return messages, self._waits.oldest_ms(messages, now_ms)
        except redis.exceptions.RedisError:
            return {}, {}  # a separate broker that is unreachable does not concern the store


@dataclass(frozen=True)
class _Partition:
    """The replies to `_ask`, in its order."""

    runs: int
    expiring: int
    queued: int
    first_queued: Any
    some_queued: Sequence[str]
    leased: int
    first_leased: Any
    some_leased: Sequence[str]
    gates: int
    first_gate: Any
    timers: int
    first_timer: Any
    inbox: int
    first_entry: Any
    effects: int
    first_effect: Any
    late: str | None
    paused: int
    holds: Sequence[str]
    parked: int
    dead_letters: int
    waits: str | None
    first_wait: Any


_ASKED = 23


def _ask(pipe: Any, keys: Keys, partition: int) -> None:
    part = keys.of_partition(partition)
    pipe.zcard(part.runs)
    pipe.zcard(part.expiring)
    for visits in (part.outbox, part.leases):
        pipe.zcard(visits)
        pipe.zrange(visits, 0, 0, withscores=True)
        pipe.zrandmember(visits, SAMPLE)
    for index in (part.gates, part.timers):
        pipe.zcard(index)
        pipe.zrange(index, 0, 0, withscores=True)
    for stream in (part.inbox, part.effects):
        pipe.xlen(stream)
        pipe.xrange(stream, count=1)
    pipe.getdel(part.late)
    pipe.exists(part.paused)
    pipe.hkeys(part.holds)
    pipe.hlen(part.parked)
    pipe.xlen(part.dead_letters)
    pipe.get(part.waiting)
    pipe.zrange(part.awaited, 0, 0, withscores=True)


def _score(first: Any) -> int | None:
    return int(first[0][1]) if first else None


def _entry_ms(first: Any) -> int | None:
    return ms_of(first[0][0]) if first else None
