"""How much there is of what, for metrics: a look at indices, whose cost does not grow with the number of runs.

A look at partitions is two round trips, at the fleet three. Of visits in the outbox and under leases no index says the
queue: SAMPLE of each partition are looked up. If there are more, the counts of queues are estimates from these.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import redis

from sleipnir.messages import QUEUES
from sleipnir.models.limits import Limit, LimitUse
from sleipnir.runs.views import WorkerInfo
from sleipnir.settings import Settings
from sleipnir.store.address import is_redis
from sleipnir.store.connect import Client, connect, store_errors
from sleipnir.store.fleet import SEEN_FOR_MS, Fleet
from sleipnir.store.keys import Keys, is_member, lines_of, member_of, parse_member
from sleipnir.store.limits import Limiter
from sleipnir.store.partitions import NO_RUN
from sleipnir.store.streams import ms_of

SAMPLE = 100
"""Visits of one partition that are looked up, queued ones and leased ones: at most 3,200 reads for 16 partitions."""

PARKED_LOOK = 500
"""Inbox entries that are looked at for one of a run that is not parked."""

LINE_LOOK = 5
"""Messages at the head of a queue that are looked at for the oldest visit: some are of visits that somebody has."""


@dataclass(frozen=True)
class PartitionLoad:
    """What some partitions hold together. Ages are in ms, of the oldest; 0 where there is none, or none is late.

    `queued` (waiting for a worker) and `leased` (claimed) count visits by queue. `publishing_ms`, `reaping_ms` and
    `firing_ms` say for how long the first visit, lease and timer have been due, `inbox_ms` and `effects_ms` how old the
    first entry is, those of `parked` runs apart. `late` results were refused since the last look. `complete`: the
    counts by queue are no estimates.
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
    parked: int = 0
    dead_letters: int = 0


@dataclass(frozen=True)
class FleetLoad:
    """What the deployment has once. `messages` and `oldest_ms`, by queue, are empty unless the broker is a Redis."""

    info: Mapping[str, Any]
    workers: tuple[WorkerInfo, ...]
    messages: Mapping[str, int]
    oldest_ms: Mapping[str, int]
    limits: tuple[LimitUse, ...]

    def queues(self) -> set[str]:
        """Those that have workers or messages, and the usual ones."""
        return {*QUEUES, *self.messages, *(queue for worker in self.workers for queue in worker.queues)}


class Gauges:
    """Looks with connections of its own that give up after `timeout_s`: who asks for metrics does not wait long."""

    def __init__(self, settings: Settings, *, timeout_s: float) -> None:
        self._url = str(settings.redis_url)
        self._keys = Keys(settings.key_prefix, settings.partitions)
        options: dict[str, Any] = {"retries": 0, "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        options["client_name"] = "sleipnir-metrics"
        self._client = connect(self._url, **options)
        broker = settings.broker
        self._broker: Client | None = connect(broker, **options) if broker and is_redis(broker) else None
        self._fleet = Fleet(self._client, self._keys, self._broker)
        self._limiter = Limiter(self._client, self._keys, lease_ms=int(settings.lease_s * 1000))

    def close(self) -> None:
        for client in (self._client, self._broker):
            if client is not None:
                client.close()

    def work(self, partitions: Collection[int]) -> PartitionLoad:
        """What these partitions hold. Their late results are counted by who looks: nobody sees them again. Raises
        StoreUnavailable."""
        with store_errors(self._url):
            pipe = self._client.pipeline(transaction=False)
            pipe.time()
            for partition in partitions:
                _ask(pipe, self._keys, partition)
            now, *replies = pipe.execute()
            found = [_Partition(*replies[at : at + _ASKED]) for at in range(0, len(replies), _ASKED)]
            found = [self._without_parked(each, number) for each, number in zip(found, partitions, strict=True)]
            queued = self._by_queue([(each.some_queued, each.queued) for each in found])
            leased = self._by_queue([(each.some_leased, each.leased) for each in found])
        now_ms = _ms(now)
        return PartitionLoad(
            unfinished=sum(each.runs - each.expiring for each in found),
            finished=sum(each.expiring for each in found),
            queued=queued,
            leased=leased,
            gates=sum(each.gates for each in found),
            gate_ms=_age(now_ms, (_score(each.first_gate) for each in found)),
            timers=sum(each.timers for each in found),
            firing_ms=_age(now_ms, (_score(each.first_timer) for each in found)),
            inbox=sum(each.inbox for each in found),
            inbox_ms=_age(now_ms, (_entry_ms(each.first_entry) for each in found)),
            effects=sum(each.effects for each in found),
            effects_ms=_age(now_ms, (_entry_ms(each.first_effect) for each in found)),
            publishing_ms=_age(now_ms, (_score(each.first_queued) for each in found)),
            reaping_ms=_age(now_ms, (_score(each.first_leased) for each in found)),
            late=sum(int(each.late or 0) for each in found),
            paused=any(each.paused for each in found),
            parked=sum(each.parked for each in found),
            dead_letters=sum(each.dead_letters for each in found),
            complete=all(max(each.queued, each.leased) <= SAMPLE for each in found),
        )

    def _without_parked(self, found: _Partition, number: int) -> _Partition:
        """The first entry is one that a scheduler could apply; of the next PARKED_LOOK, if those of parked runs stand
        before it."""
        if not found.parked or not found.first_entry:
            return found
        part = self._keys.of_partition(number)
        pipe = self._client.pipeline(transaction=False)
        pipe.xrange(part.inbox, count=PARKED_LOOK)
        pipe.hkeys(part.parked)
        entries, parked = pipe.execute()
        live = [entry for entry in entries if entry[1].get("run", NO_RUN) not in parked]
        return replace(found, first_entry=live[:1])

    def fleet(self, limits: Iterable[Limit] = ()) -> FleetLoad:
        """Raises StoreUnavailable."""
        with store_errors(self._url):
            info: dict[str, Any] = self._client.info()
            workers, now_ms = self._fleet.workers()
            seen = tuple(worker for worker in workers if worker.seen_ms > now_ms - SEEN_FOR_MS)
            messages, oldest_ms = self._line({queue for worker in seen for queue in worker.queues}, now_ms)
            return FleetLoad(info, seen, messages, oldest_ms, tuple(map(self._limiter.in_use, limits)))

    def _by_queue(self, samples: Sequence[tuple[Sequence[str], int]]) -> dict[str, int]:
        """How many visits are in which queue: samples of partitions, each with how many there are of its kind."""
        found: Counter[str] = Counter()
        samples = [([name for name in names if is_member(name)], count) for names, count in samples]
        queues = iter(self._queues([name for names, _ in samples for name in names]))
        for names, count in samples:
            seen = Counter(queue for queue in islice(queues, len(names)) if queue is not None)
            scale = max(1.0, count / len(names)) if names else 1.0
            for queue, number in seen.items():
                found[queue] += round(number * scale)
        return dict(found)

    def _queues(self, names: Sequence[str]) -> list[str | None]:
        """The queue of each of these visits; None of one that is over."""
        return [visit.get("queue") if visit else None for visit in self._visits(names)]

    def _visits(self, names: Sequence[str]) -> Iterator[Any]:
        pipe = self._client.pipeline(transaction=False)
        for run_id, seq, _ in map(parse_member, names):
            pipe.hget(self._keys.of_run(run_id).frontier, str(seq))
        return (_json_object(text) for text in pipe.execute())

    def _line(self, served: Collection[str], now_ms: int) -> tuple[dict[str, int], dict[str, int]]:
        """Messages by queue, and how long the visit has waited that is next in line: the oldest, or nearly so."""
        if self._broker is None:
            return {}, {}
        try:
            messages = self._fleet.queue_lengths(served)
            pipe = self._broker.pipeline(transaction=False)
            for queue in messages:
                for line in lines_of(queue):
                    pipe.lrange(self._keys.broker_prefix + line, -LINE_LOOK, -1)
            ends = iter(pipe.execute())
            heads = [[_member(text) for text in (*first, *last)] for first, last in zip(ends, ends, strict=True)]
        except redis.exceptions.RedisError:
            return {}, {}  # a broker of its own that is away says nothing of the store
        names = [name for head in heads for name in head if name is not None]
        unclaimed = iter(self._unclaimed(names))
        oldest_ms = {}
        for queue, head in zip(messages, heads, strict=True):
            opened = [since for since in islice(unclaimed, sum(name is not None for name in head)) if since is not None]
            oldest_ms[queue] = _age(now_ms, opened)
        return messages, oldest_ms

    def _unclaimed(self, names: Sequence[str]) -> list[int | None]:
        """Since when each of these visits waits; None of one that waits no more."""
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            partition = self._keys.partition_of(parse_member(name)[0])
            pipe.zscore(self._keys.of_partition(partition).outbox, name)
        waits = pipe.execute()
        visits = zip(waits, self._visits(names), strict=True)
        opened = ((wait, visit.get("opened_ms") if visit else None) for wait, visit in visits)
        return [at_ms if wait is not None and type(at_ms) is int else None for wait, at_ms in opened]


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
    parked: int
    dead_letters: int


_ASKED = 20


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
    pipe.hlen(part.parked)
    pipe.xlen(part.dead_letters)


def _json_object(text: str | None) -> dict[str, Any] | None:
    """None of what cannot be read: it is not counted."""
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _score(first: Any) -> int | None:
    return int(first[0][1]) if first else None


def _entry_ms(first: Any) -> int | None:
    return ms_of(first[0][0]) if first else None


def _age(now_ms: int, since: Iterable[int | None]) -> int:
    oldest = min((each for each in since if each is not None), default=now_ms)
    return max(0, now_ms - oldest)


def _member(envelope: str) -> str | None:
    """The visit that a message is of; None of what is no message of Sleipnir."""
    try:
        name = member_of(json.loads(envelope)["headers"]["id"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return name if is_member(name) else None


def _ms(time: Any) -> int:
    seconds, micros = time
    return int(seconds) * 1000 + int(micros) // 1000
