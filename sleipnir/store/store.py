"""The store: one connection, divided into parts by role.

runs        clients: create, read, answer, cancel
visits      workers: claim, heartbeat, deliver
partitions  schedulers: own, read, commit; leases, timers, outbox
effects     schedulers: deliver what commits owe to other runs and to batches
records     complete stored runs, for export and archive
batches     clients: submit many runs at once; schedulers: admit rows
schedules   clients: add and change schedules; schedulers: fire them
jobs        clients: submit and stop jobs; schedulers: carry them out
dead_letters  schedulers: move undeliverable effects aside; clients: read them
slots       schedulers: slots of agents with a limit of concurrent runs
signals     clients: send and list signals; schedulers: tell the visits that wait for them
shared_values  clients: values of users and agents; schedulers: write back what runs have written
bundles     packed agent folders
live        workers: publish the output of models; clients: follow a run
streams     workers: pass text from one node of a run to another
limiter     workers: permits to call a model
sessions    clients: read and remove sessions of agents
threads     clients: read and remove threads of agents, and begin their turns
cache       workers: results of nodes for later visits; clients: list and clear them
knowledge   builders: build a knowledge base, one at a time; clients: shared indexes
access      users, access tokens, logins and webhooks; the audit
hooks       what other programs tell us
webhooks    commits: what webhooks are about; senders: deliver it; clients: the log
garbage     `gc`: remains of missing runs
generations restarts, restores and fail-overs of Redis, and steps of its clock
outstanding schedulers: how much work the fleet has, which bounds the admission of rows
throughput  schedulers: what was committed in each minute; clients: the figures of an overview
fleet       announced processes, and the broker's queues if it is a Redis

The first four move runs from their submission to their end. `runs` and `partitions` are packages, with a module for
each subject. Each part is imported and created at its first use: most commands need one or two of them.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sleipnir.errors import ConfigError
from sleipnir.runs.actor import NOBODY, Person
from sleipnir.settings import Settings
from sleipnir.store.address import is_cluster, is_redis
from sleipnir.store.amqp_queues import AmqpQueues
from sleipnir.store.connect import check_server, clock_ms, close, connect, store_errors
from sleipnir.store.fleet import Fleet
from sleipnir.store.generations import Generations
from sleipnir.store.keys import Keys
from sleipnir.store.layout import agreed_partitions
from sleipnir.store.runs import Runs

if TYPE_CHECKING:
    from sleipnir.runs.views import Health, RunInfo
    from sleipnir.store.access import AccessRecords
    from sleipnir.store.batches import Batches
    from sleipnir.store.batches.rollups import BatchRollups
    from sleipnir.store.bundles import Bundles
    from sleipnir.store.cache import CacheStore
    from sleipnir.store.dead_letters import DeadLetters
    from sleipnir.store.effects import Effects
    from sleipnir.store.garbage import Garbage
    from sleipnir.store.hooks import HookRecords
    from sleipnir.store.jobs import JobRecords
    from sleipnir.store.knowledge import Knowledge
    from sleipnir.store.limits import Limiter
    from sleipnir.store.live import Live
    from sleipnir.store.node_streams import RedisStreams
    from sleipnir.store.outstanding import OutstandingWork
    from sleipnir.store.partitions import Partitions
    from sleipnir.store.records import PinnedDigests, Records
    from sleipnir.store.replicas import Replicas
    from sleipnir.store.scheduled_batches import ScheduledBatches
    from sleipnir.store.schedules import Schedules
    from sleipnir.store.sessions import Sessions
    from sleipnir.store.shared_values import SharedValues
    from sleipnir.store.signals import Signals
    from sleipnir.store.slots import Slots
    from sleipnir.store.threads import Threads
    from sleipnir.store.throughput import ThroughputHistory
    from sleipnir.store.visits import Visits
    from sleipnir.store.webhooks import WebhookQueues

T = TypeVar("T")


class _Part(Generic[T]):
    """A part of the store, created once, at its first use: cached_property may create two in concurrent threads. A
    store that acts for another actor uses the parts of the first one, except those that know their `actor`."""

    knows_actor = False

    def __init__(self, make: Callable[[Store], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type[Store], name: str) -> None:
        self._name = name

    def __get__(self, store: Store | None, owner: type[Store]) -> T:
        if store is None:
            return self  # type: ignore[return-value]  # access through the class, as by help()
        if store._first is not None and not self.knows_actor:
            return getattr(store._first, self._name)  # type: ignore[no-any-return]
        with store._making:
            if self._name not in store.__dict__:  # later accesses read it there directly
                store.__dict__[self._name] = self._make(store)
            return store.__dict__[self._name]  # type: ignore[no-any-return]


class _ActorPart(_Part[T]):
    """A part that writes the actor into what it stores."""

    knows_actor = True


class Store:
    """Use `Store.open(settings)`: one that is not opened knows no partitions. A context manager; thread-safe, as
    redis-py's pool is."""

    def __init__(
        self,
        settings: Settings,
        *,
        client_name: str = "sleipnir",
        by: str = "",
        in_loop: bool = False,
        person: Person = NOBODY,
    ) -> None:
        """`in_loop`: its calls are made by waiting.in_loop. `by` is the actor as text, `person` who that is."""
        if settings.redis_url is None:
            raise ConfigError(
                "SLEIPNIR_REDIS_URL is not set: name the Redis of the deployment, e.g. redis://localhost:6379/0"
            )
        self.url = settings.redis_url
        self._client = connect(self.url, client_name=client_name, in_loop=in_loop)
        self._bytes = connect(self.url, decode=False, client_name=client_name, in_loop=in_loop)
        broker = settings.broker
        self._broker = None
        if broker and is_redis(broker):
            self._broker = connect(broker, client_name=client_name, in_loop=in_loop)
        self._amqp = AmqpQueues.of(broker)
        self._settings, self._client_name, self._by = settings, client_name, by
        self._retention_ms = int(settings.retention_s * 1000)
        self._making = threading.RLock()  # reentrant: some parts use others
        self._first: Store | None = None
        self._audit_ms = int(settings.audit_retention_s * 1000)
        self.person = person
        self._use(Keys(settings.key_prefix, of_cluster=is_cluster(self.url)))

    def _use(self, keys: Keys) -> None:
        """The parts that do not wait for their first use."""
        self.keys = keys
        self.runs = Runs(self._client, keys, self._by, self._retention_ms, self._audit_ms, self.person)
        self.generations = Generations(self._client, keys)
        self.fleet = Fleet(self._client, keys, self._broker, self._amqp)

    @_Part
    def records(self) -> Records:
        from sleipnir.store.records import Records

        return Records(self._client, self.keys)

    @_Part
    def sessions(self) -> Sessions:
        from sleipnir.store.sessions import Sessions

        return Sessions(self._client, self.keys)

    @_ActorPart
    def threads(self) -> Threads:
        from sleipnir.store.threads import Threads

        return Threads(self._client, self.keys, self.runs, retention_ms=self._retention_ms, by=self._by)

    @_Part
    def visits(self) -> Visits:
        from sleipnir.store.visits import Visits

        return Visits(self._single_connection, self.keys)

    @_Part
    def live(self) -> Live:
        from sleipnir.store.live import Live

        # A separate connection with short timeouts: while pieces wait for a Redis that hangs, more arrive.
        impatient: dict[str, Any] = {"retries": 0, "socket_timeout": 1.0, "socket_connect_timeout": 1.0}
        return Live(self._client, self.keys, lambda: self._single_connection(**impatient))

    @_Part
    def streams(self) -> RedisStreams:
        from sleipnir.store.node_streams import RedisStreams

        retention_ms = int(self._settings.retention_s * 1000)
        return RedisStreams(self._client, self.keys, self.runs, self.errors, retention_ms=retention_ms)

    @_ActorPart
    def batches(self) -> Batches:
        from sleipnir.store.batches import Batches

        return Batches(self._client, self.keys, retention_ms=self._retention_ms, by=self._by, audit_ms=self._audit_ms)

    @_Part
    def replicas(self) -> Replicas:
        from sleipnir.store.replicas import Replicas

        return Replicas(self._client, self.keys)

    @_Part
    def outstanding(self) -> OutstandingWork:
        from sleipnir.store.outstanding import OutstandingWork

        return OutstandingWork(self._client, self.keys)

    @_Part
    def batch_rollups(self) -> BatchRollups:
        from sleipnir.store.batches.rollups import BatchRollups

        return BatchRollups(self._client, self.keys)

    @_Part
    def schedules(self) -> Schedules:
        from sleipnir.store.schedules import Schedules

        return Schedules(self._client, self.keys, self.shared_values, audit_ms=self._audit_ms)

    @_ActorPart
    def scheduled_batches(self) -> ScheduledBatches:
        from sleipnir.store.scheduled_batches import ScheduledBatches

        return ScheduledBatches(self._client, self.keys, self.batches, self.schedules)

    @_Part
    def jobs(self) -> JobRecords:
        from sleipnir.store.jobs import JobRecords

        return JobRecords(self._client, self.keys, expire_ms=self._retention_ms, audit_ms=self._audit_ms)

    @_Part
    def bundles(self) -> Bundles:
        from sleipnir.store.bundles import Bundles

        return Bundles(self._bytes, self.keys)

    @_Part
    def slots(self) -> Slots:
        from sleipnir.store.slots import Slots

        return Slots(self._client, self.keys, self.runs)

    @_Part
    def signals(self) -> Signals:
        from sleipnir.store.signals import Signals

        return Signals(self._client, self.keys)

    @_Part
    def shared_values(self) -> SharedValues:
        from sleipnir.store.shared_values import SharedValues

        return SharedValues(self._client, self.keys)

    @_Part
    def effects(self) -> Effects:
        from sleipnir.store.effects import Effects

        parts = (self.runs, self.batches, self.slots, self.signals, self.shared_values, self.schedules)
        return Effects(self._client, self.keys, *parts, self.scheduled_batches)

    @_Part
    def dead_letters(self) -> DeadLetters:
        return self.effects.dead_letters

    @_Part
    def limiter(self) -> Limiter:
        from sleipnir.store.limits import Limiter

        return Limiter(self._client, self.keys, lease_ms=int(self._settings.lease_s * 1000))

    @_Part
    def knowledge(self) -> Knowledge:
        from sleipnir.store.knowledge import Knowledge

        return Knowledge(self._client, self.keys, lease_ms=int(self._settings.lease_s * 1000))

    @_Part
    def cache(self) -> CacheStore:
        from sleipnir.store.cache import CacheStore

        return CacheStore.of(self._client, self.keys, self._settings)

    @_Part
    def access(self) -> AccessRecords:
        from sleipnir.store.access import AccessRecords

        return AccessRecords(self._client, self.keys, keep_ms=self._audit_ms)

    @_Part
    def webhooks(self) -> WebhookQueues:
        from sleipnir.store.webhooks import WebhookQueues

        return WebhookQueues(self._client, self.keys, keep_ms=int(self._settings.webhook_retention_s * 1000))

    @_Part
    def hooks(self) -> HookRecords:
        from sleipnir.store.hooks import HookRecords

        return HookRecords(self._client, self.keys, self.access)

    @_Part
    def throughput(self) -> ThroughputHistory:
        from sleipnir.store.throughput import ThroughputHistory

        return ThroughputHistory(self._client, self.keys)

    @_Part
    def garbage(self) -> Garbage:
        from sleipnir.store.garbage import Garbage

        return Garbage(self._client, self.keys)

    @_Part
    def partitions(self) -> Partitions:
        """Its parts, one for each service of a scheduler: store/partitions/__init__.py."""
        from sleipnir.store.partitions import Partitions

        return Partitions(
            self._client,
            self.keys,
            redispatch_after_ms=int(self._settings.redispatch_after_s * 1000),
            retention_ms=self._retention_ms,
            session_messages=self._settings.max_session_messages,
            audit_ms=self._audit_ms,
        )

    def _single_connection(self, **options: Any) -> Any:
        """A client for one thread. Of a cluster without `options` this store's: each of a worker's threads would have a
        connection to each node otherwise."""
        if is_cluster(self.url) and not options:
            return self._client
        return connect(self.url, client_name=self._client_name, single_connection_client=True, **options)

    @classmethod
    def open(
        cls,
        settings: Settings,
        *,
        client_name: str = "sleipnir",
        by: str = "",
        in_loop: bool = False,
        person: Person = NOBODY,
        may_create: bool = True,
    ) -> Store:
        """Connect, check the server, and use the deployment's number of partitions; a new deployment gets one, unless
        it may not be created.

        Raises StoreUnavailable, StoreUnsuitable (too old, or evicts keys), ConfigError (no URL, another number of
        partitions).
        """
        store = cls(settings, client_name=client_name, by=by, in_loop=in_loop, person=person)
        with store.errors():
            check_server(store._client, store.url, allow_eviction=settings.allow_eviction)
            prefix, owner = settings.key_prefix, store.keys.of_partition(0).owner
            number = agreed_partitions(store._client, prefix, owner, settings.partitions, may_create=may_create)
        store._use(Keys(prefix, number, is_cluster(store.url)))
        return store

    def acting_as(self, by: str, person: Person = NOBODY) -> Store:
        """This store, for requests of another actor. It has the same connections: close this one only."""
        other = copy.copy(self)
        first = other._first = self._first or self
        for name in ("threads", "batches"):
            other.__dict__.pop(name, None)
        other._by, other.person = by, person
        other.runs = Runs(first._client, first.keys, by, first._retention_ms, first._audit_ms, person)
        return other

    def errors(self) -> Any:
        """A context that turns redis-py's connection errors into StoreUnavailable."""
        return store_errors(self.url)

    def bundle(self, digest: str) -> bytes | None:
        """A packed agent folder. Raises StoreUnavailable, so that an unreachable Redis does not look like a missing
        bundle."""
        with self.errors():
            return self.bundles.get(digest)

    def pinned(self) -> PinnedDigests:
        """The digests that runs, batches and schedules need. Reads every spec: some seconds for a million."""
        return self.records.pinned() | self.batches.pinned() | self.schedules.pinned()

    def now_ms(self) -> int:
        """Redis' clock."""
        return clock_ms(self._client)

    def explained(self, infos: Sequence[RunInfo]) -> list[RunInfo]:
        """The runs with the full reasons of their visits: leases, positions in queues.

        It costs up to three round trips, so it is for people and for single runs.
        """
        return self.fleet.with_places(self.runs.with_leases(infos))

    def health(self) -> Health:
        return replace(self.fleet.health(), holds=tuple(self.runs.all_holds()))

    def close(self) -> None:
        """Close all connections, those of all threads too."""
        for part in ("visits", "live"):
            if part in self.__dict__:  # it was used
                getattr(self, part).close()
        for client in (self._client, self._bytes, self._broker):
            if client is not None:
                close(client)
        if self._amqp is not None:
            self._amqp.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
