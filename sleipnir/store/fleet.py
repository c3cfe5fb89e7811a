"""The members of the fleet: announcements of schedulers and workers, and the queues and server for `doctor`."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import redis

from sleipnir.decoding import decoded_object, read, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import QUEUES
from sleipnir.runs.run import Parked
from sleipnir.runs.views import ArchiveState, Health, Reason, RunInfo, VisitInfo, WorkerInfo
from sleipnir.settings import Settings
from sleipnir.store.address import is_cluster, is_redis
from sleipnir.store.amqp_queues import AmqpQueues
from sleipnir.store.connect import Client, clock_ms, connect, deployment_info, server_infos, time_ms
from sleipnir.store.fast_client import execute_all
from sleipnir.store.generations import Generations
from sleipnir.store.keys import Keys, lines_of
from sleipnir.store.queue_waits import QueueWaits
from sleipnir.store.scripts import LuaScript, checked

_PLACES = LuaScript("places")

LINE_LOOK = 1_000  # messages of a queue that are searched for the position of a visit
HEAD_LOOK = 5  # messages at the head of a list that are searched for the oldest time
REASONS = 5  # reasons of parked runs that are shown
SEEN_FOR_MS = 30_000  # after a longer silence a process is not shown as running


@dataclass(frozen=True)
class QueueBacklog:
    """The backlog of one list of a broker: the number of messages, when the oldest first attempt was published (None:
    not known), and whether messages of later attempts, which go first, are at its head."""

    length: int
    oldest_ms: int | None = None
    has_returned: bool = True


class Fleet:
    """Announcements and health. `broker` is the broker's client if the broker is a Redis, else None; `amqp` the queues
    of one that is RabbitMQ."""

    def __init__(self, client: Client, keys: Keys, broker: Client | None, amqp: AmqpQueues | None = None) -> None:
        self._client, self._keys, self._broker, self._amqp = client, keys, broker, amqp

    @classmethod
    def of(cls, settings: Settings, *, timeout_s: float) -> Fleet:
        """For one quick read of queues or workers: each call fails after about `timeout_s`, without waiting or
        repeating."""
        options: dict[str, Any] = {"retries": 0, "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        broker = settings.broker
        return cls(
            connect(str(settings.redis_url), **options),
            Keys(settings.key_prefix, None, is_cluster(str(settings.redis_url))),
            connect(broker, **options) if broker and is_redis(broker) else None,
            AmqpQueues.of(broker, timeout_s),
        )

    def broker_answers(self) -> bool:
        """Whether the broker accepts commands. True for another kind of broker, which cannot be checked here."""
        try:
            return self._broker is None or bool(self._broker.ping())
        except redis.exceptions.RedisError:
            return False

    def has_appendonly(self) -> bool:
        """Whether Redis writes acknowledged commands to its disk. True if it does not report it."""
        return all(info.get("aof_enabled", True) for info in server_infos(self._client, "persistence"))

    def announce_scheduler(self, instance: str, facts: dict[str, Any], now_ms: int) -> None:
        self._client.hset(self._keys.schedulers, instance, json.dumps(facts | {"seen_ms": now_ms}))

    def announce_worker(self, name: str, queues: Collection[str], facts: dict[str, Any]) -> None:
        seen_ms = clock_ms(self._client)
        record = json.dumps(facts | {"queues": sorted(queues), "seen_ms": seen_ms})
        self._client.hset(self._keys.workers, name, record)

    def leave(self, *, scheduler: str | None = None, worker: str | None = None) -> None:
        """Remove an announcement; the janitor removes those of processes that died."""
        if scheduler:
            self._client.hdel(self._keys.schedulers, scheduler)
        if worker:
            self._client.hdel(self._keys.workers, worker)

    def workers(self) -> tuple[list[WorkerInfo], int]:
        """All announced workers, including silent ones, and the current time."""
        pipe = self._client.pipeline(transaction=False)
        pipe.hgetall(self._keys.workers)
        pipe.time()
        announced, time = pipe.execute()
        infos = _workers({name: _facts(text) for name, text in announced.items()})
        return infos, time_ms(time)

    def forget_silent(self, before_ms: int) -> int:
        """Drop announcements older than `before_ms`. Returns how many."""
        dropped = 0
        for key in (self._keys.schedulers, self._keys.workers):
            # An unreadable announcement counts as silent: its process announces itself again if it is alive.
            silent = [n for n, text in self._client.hgetall(key).items() if _facts(text)["seen_ms"] < before_ms]
            dropped += int(self._client.hdel(key, *silent)) if silent else 0
        return dropped

    def health(self) -> Health:
        """The server's facts, queue lengths, and recently seen processes. A cluster's memory is that of its fullest
        node; what is said of its disks holds for every node that answers."""
        info = deployment_info(self._client)
        now_ms = clock_ms(self._client)
        schedulers = self._seen(self._keys.schedulers, now_ms)
        workers = self._seen(self._keys.workers, now_ms)
        queues = self.queue_lengths({queue for worker in _workers(workers) for queue in worker.queues})
        return Health(
            version=str(info["redis_version"]),
            nodes=int(info.get("nodes", 0)),
            appendonly=bool(info.get("aof_enabled")),
            maxmemory_policy=str(info.get("maxmemory_policy", "noeviction")),
            queues=queues,
            oldest_ms=QueueWaits(self._client, self._keys, self._broker).oldest_ms(queues, now_ms),
            schedulers=tuple(sorted(schedulers)),
            workers=tuple(_workers(workers)),
            now_ms=now_ms,
            persists=info.get("aof_last_write_status", "ok") == info.get("rdb_last_bgsave_status", "ok") == "ok",
            used_memory=int(info.get("used_memory", 0)),
            maxmemory=int(info.get("maxmemory", 0)),
            valkey=str(info.get("valkey_version", "")),
            settings={
                n: facts["settings"] for n, facts in schedulers.items() if isinstance(facts.get("settings"), dict)
            },
            archives={
                name: state
                for name, facts in schedulers.items()
                if facts.get("archive") and (state := _archive(facts["archive"])) is not None
            },
            generation=Generations(self._client, self._keys).current(),
            **self._set_aside(),
        )

    def _set_aside(self) -> dict[str, Any]:
        """The fields of Health for parked runs and dead letters."""
        parts = [self._keys.of_partition(partition) for partition in range(self._keys.partitions)]
        pipe = self._client.pipeline(transaction=False)
        for part in parts:
            pipe.hlen(part.parked)
            pipe.hscan(part.parked, count=REASONS)
            pipe.xlen(part.dead_letters)
        replies = pipe.execute()
        marks = {run: text for _, texts in replies[1::3] for run, text in texts.items()}
        return {
            "parked": sum(replies[::3]),
            "parked_reasons": tuple(f"{run}: {_reason(text)}" for run, text in sorted(marks.items())[:REASONS]),
            "dead_letters": sum(replies[2::3]),
        }

    def queue_lengths(self, queues: Collection[str] = ()) -> dict[str, int]:
        """Messages in the broker, per queue: only hints, the frontier is authoritative. Empty unless it is a Redis, or
        a RabbitMQ that answers."""
        names = sorted({*QUEUES, *queues})
        if self._broker is None:
            return {} if self._amqp is None else self._amqp.lengths(names)
        pipe = self._broker.pipeline(transaction=False)
        for name in names:
            for line in lines_of(name):
                pipe.llen(self._keys.broker_prefix + line)
        lengths = pipe.execute()
        return {name: sum(lengths[2 * at : 2 * at + 2]) for at, name in enumerate(names)}

    def lines(self, queues: Collection[str]) -> dict[str, QueueBacklog]:
        """The broker's lists of these queues (keys.lines_of). Empty unless it is a Redis."""
        if self._broker is None or not queues:
            return {}
        names = [line for queue in sorted(queues) for line in lines_of(queue)]
        pipe = self._broker.pipeline(transaction=False)
        for name in names:
            key = self._keys.broker_prefix + name
            pipe.llen(key)
            pipe.lrange(key, -HEAD_LOOK, -1)
        replies = pipe.execute()
        return {
            name: _line(length, head) for name, length, head in zip(names, replies[::2], replies[1::2], strict=True)
        }

    def with_places(self, infos: Sequence[RunInfo]) -> list[RunInfo]:
        """The runs with each queued visit's position in its queue, and the number of live workers of the queue."""
        ids: dict[str, list[str]] = defaultdict(list)
        for info in infos:
            for visit in info.visits:
                if visit.reason.code == "queued":
                    ids[str(visit.reason.queue)].append(_task_id(info, visit))
        if not ids:
            return list(infos)
        places = self._places(ids)
        workers, now_ms = self.workers()
        served = Counter(
            queue for worker in workers if worker.seen_ms > now_ms - SEEN_FOR_MS for queue in worker.queues
        )
        return [info.with_reasons(partial(_placed, info=info, places=places, served=served)) for info in infos]

    def has_scheduler(self) -> bool:
        """Whether a scheduler was seen recently."""
        return bool(self._seen(self._keys.schedulers, clock_ms(self._client)))

    def _places(self, ids: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """Positions by task id. Only a hint: empty if the broker is not a Redis, or does not answer."""
        if self._broker is None:
            return {}
        by_task: dict[str, int] = {}
        try:
            for queue, tasks in ids.items():
                names = [json.dumps(task)[1:-1] for task in tasks]
                ahead = 0
                for line in lines_of(queue):
                    key = self._keys.broker_prefix + line
                    places = _PLACES(self._broker, {"queue": key}, {"depth": LINE_LOOK}, names)
                    by_task |= {task: ahead + place for task, place in zip(tasks, places, strict=True) if place}
                    ahead += int(self._broker.llen(key))
        except redis.exceptions.RedisError:
            return {}
        return by_task

    def publish(
        self, messages: Mapping[str, list[str]], first_in_line: Mapping[str, list[str]] | None = None
    ) -> dict[str, int]:
        """Push complete Celery envelopes to the broker's lists (keys.line_of), one round trip for all. Returns the
        lengths of the lists of `messages`.

        Celery's Redis transport pops from the right end of a list, so the first message of a queue is pushed first.
        """
        assert self._broker is not None, "only for a broker that is a Redis"
        pipe = self._broker.pipeline(transaction=False)
        for queue, envelopes in messages.items():
            pipe.lpush(self._keys.broker_prefix + queue, *envelopes)
        for queue, envelopes in (first_in_line or {}).items():
            pipe.rpush(self._keys.broker_prefix + queue, *reversed(envelopes))
        return dict(zip(messages, map(int, pipe.execute()), strict=False))

    def take_messages(self, line: str, count: int) -> tuple[list[str], int]:
        """Take up to `count` envelopes of a list (keys.line_of), the next one first. Returns them and how many are
        left; nothing if the broker is not a Redis. A lost reply loses them: their visits are published again."""
        if self._broker is None:
            return [], 0
        key = self._keys.broker_prefix + line
        commands = [("RPOP", key, count), ("LLEN", key)] if count else [("LLEN", key)]
        *taken, left = map(checked, execute_all(self._broker, commands))
        return list(taken[0] or ()) if taken else [], int(left)

    def put_back(self, line: str, envelopes: Sequence[str]) -> None:
        """Put envelopes back that were taken, in the same order."""
        assert self._broker is not None, "only for a broker that is a Redis"
        self._broker.rpush(self._keys.broker_prefix + line, *reversed(envelopes))

    def _seen(self, key: str, now_ms: int) -> dict[str, dict[str, Any]]:
        facts = {name: _facts(text) for name, text in self._client.hgetall(key).items()}
        return {name: fact for name, fact in facts.items() if fact["seen_ms"] > now_ms - SEEN_FOR_MS}


_ATTEMPT, _PUBLISHED = re.compile(r'"id": "[^"]*:(\d+)"'), re.compile(r'"delivery_tag": "[^"]*@(\d+)"')
"""The attempt and the publication time in a message of Sleipnir."""


def _line(length: int, head: Sequence[str]) -> QueueBacklog:
    attempts = [match[1] if (match := _ATTEMPT.search(text)) else "1" for text in head]
    times = [_PUBLISHED.search(text) for text, attempt in zip(head, attempts, strict=True) if attempt == "1"]
    oldest_ms = min((int(time[1]) for time in times if time is not None), default=None)
    return QueueBacklog(length, oldest_ms, any(attempt != "1" for attempt in attempts))


def _task_id(info: RunInfo, visit: VisitInfo) -> str:
    return f"{info.id}:{visit.node}:{visit.seq}:{visit.attempt}"


def _placed(visit: VisitInfo, *, info: RunInfo, places: Mapping[str, int], served: Mapping[str, int]) -> Reason:
    reason = visit.reason
    if reason.code != "queued":
        return reason
    return replace(reason, position=places.get(_task_id(info, visit)), consumers=served.get(str(reason.queue), 0))


def _facts(text: str) -> dict[str, Any]:
    """The announcement of a process; an unreadable one counts as seen long ago."""
    try:
        facts = decoded_object(text, "announcement")
        if type(facts.get("seen_ms")) is int:
            return facts
    except RecordUnreadable:
        pass
    return {"seen_ms": 0}


def _workers(announced: Mapping[str, Mapping[str, Any]]) -> list[WorkerInfo]:
    """The workers by name, without unreadable ones. Unknown facts, from a newer worker, are ignored."""
    workers = []
    for name, facts in sorted(announced.items()):
        with contextlib.suppress(RecordUnreadable):
            workers.append(read(WorkerInfo, {**facts, "name": name}, "worker", name))
    return workers


def _archive(facts: Any) -> ArchiveState | None:
    try:
        return read(ArchiveState, facts, "archive")
    except RecordUnreadable:
        return None


def _reason(text: str) -> str:
    try:
        return read_text(Parked, text, "mark").reason
    except RecordUnreadable as error:
        return error.why
