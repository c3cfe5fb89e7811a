"""The content of a scrape: the counters of this instance, and values read from Redis.

Rules. Each instance reports the partitions that it owns; the owner of partition 0 reports what exists once in a
deployment (workers, limits, the server's memory). So counts and counters are summed over the instances, and ages are
combined by their maximum. Reading costs the same regardless of the number of runs, and is cached for FRESH_S: more
frequent scrapes cost Redis nothing. If Redis is unreachable, the counters are still reported.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, GCCollector, Metric, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sleipnir.errors import StoreUnavailable
from sleipnir.models.limits import Limit, LimitUse
from sleipnir.store.gauges import FleetLoad, Gauges, PartitionLoad
from sleipnir_scheduler.counters.tally import Tally
from sleipnir_scheduler.services.loop import ServiceRounds
from sleipnir_scheduler.services.ownership import Ownership

FRESH_S: Final = 1.0
FLEET: Final = 0
"""The partition whose owner reports what exists once."""


class SchedulerCollector(Collector):
    """The collector that `registry_of` registers. Thread-safe: scrapes wait for each other."""

    def __init__(
        self, gauges: Gauges, ownership: Ownership, tally: Tally, rounds: ServiceRounds, limits: Sequence[Limit]
    ) -> None:
        self._gauges, self._ownership, self._tally, self._rounds = gauges, ownership, tally, rounds
        self._limits = limits
        self._lock = threading.Lock()
        self._until, self._kept = 0.0, list[Metric]()
        self._log = structlog.get_logger().bind(part="metrics")

    def describe(self) -> Iterator[Metric]:
        """Empty: a registry that reads the names at its creation must not read from Redis."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() >= self._until:
                self._kept = self._look()
                self._until = time.monotonic() + FRESH_S
            return iter(self._kept)

    def _look(self) -> list[Metric]:
        partitions, began = sorted(self._ownership.epochs), time.monotonic()
        metrics: list[Metric] = [
            _gauge("sleipnir_build_info", "1; the release of this instance.", {version("sleipnir"): 1}, "version"),
            _gauge(
                "sleipnir_partitions",
                "Partitions of the deployment; every instance says it.",
                self._ownership.partitions,
            ),
            _gauge("sleipnir_partitions_owned", "Partitions that this instance owns.", len(partitions)),
        ]
        try:
            work = self._gauges.work(partitions)
            fleet = self._gauges.fleet(self._limits) if FLEET in partitions else None
        except StoreUnavailable as error:
            self._log.warning("metrics of Redis are missing", error=str(error))
            metrics.append(_gauge("sleipnir_redis_up", _UP, 0))
        else:
            self._tally.late_results.add("delivery", by=work.late)
            metrics += [
                _gauge("sleipnir_redis_up", _UP, 1),
                *_work(work, fleet),
                *(() if fleet is None else _fleet(fleet)),
            ]
        metrics.append(
            _gauge("sleipnir_look_seconds", "Seconds that looking into Redis took.", time.monotonic() - began)
        )
        failures = CounterMetricFamily(
            "sleipnir_service_failures_total",
            "Rounds of the scheduler's services that ended in a bug.",
            labels=["service"],
        )
        for service, count in self._rounds.failures().items():
            failures.add_metric([service], count)
        return [*metrics, failures, *self._tally.families()]


_UP: Final = "1: Redis answered this look; 0: it did not, and everything that is read there is missing."


def registry_of(collector: SchedulerCollector) -> CollectorRegistry:
    """A registry with the collector and Python's process metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _work(work: PartitionLoad, fleet: FleetLoad | None) -> Iterator[Metric]:
    queues = set() if fleet is None else fleet.queues()
    queued = {**dict.fromkeys(queues, 0), **work.queued}
    if fleet is not None and not work.complete:
        # A queue may be too short to be among the samples, but must be visible to scale workers from zero.
        queued |= {queue: 1 for queue, count in fleet.messages.items() if count and not queued.get(queue)}
    leased = {**dict.fromkeys(queues, 0), **work.leased}
    yield _gauge(
        "sleipnir_runs", "Runs that are kept, by whether they are over.",
        {"unfinished": work.unfinished, "finished": work.finished}, "state",
    )  # fmt: skip
    yield _gauge("sleipnir_visits_queued", "Visits that wait for a worker, by queue.", queued, "queue")
    yield _gauge("sleipnir_visits_leased", "Visits that workers have claimed, by queue.", leased, "queue")
    yield _gauge("sleipnir_gates_open", "Questions to people that are not answered.", work.gates)
    yield _gauge("sleipnir_gate_oldest_seconds", "Age of the oldest open question, in seconds.", work.gate_ms / 1000)
    yield _gauge("sleipnir_waits_open", "Visits that wait for an event.", work.waits)
    yield _gauge(
        "sleipnir_wait_oldest_seconds",
        "Seconds for which visits have waited for the event that is awaited longest.",
        work.wait_ms / 1000,
    )
    yield _gauge("sleipnir_timers", "Retries, expiries and deadlines that are to come.", work.timers)
    yield _gauge("sleipnir_timer_lag_seconds", "Seconds since the first timer was due.", work.firing_ms / 1000)
    yield _gauge("sleipnir_inbox_entries", "Events that are not yet applied.", work.inbox)
    yield _gauge(
        "sleipnir_inbox_lag_seconds", "Age of the oldest event not yet applied, in seconds.", work.inbox_ms / 1000
    )
    yield _gauge("sleipnir_runs_parked", "Runs that are set aside: they cannot be read or planned here.", work.parked)
    yield _gauge("sleipnir_dead_letters", "Effects that cannot be delivered.", work.dead_letters)
    yield _gauge("sleipnir_effects_owed", "Effects of commits that are not yet delivered to other runs.", work.effects)
    yield _gauge(
        "sleipnir_effects_lag_seconds",
        "Age of the oldest effect not yet delivered, in seconds.",
        work.effects_ms / 1000,
    )
    yield _gauge(
        "sleipnir_outbox_lag_seconds",
        "Seconds since the first visit was due to be published.",
        work.publishing_ms / 1000,
    )
    yield _gauge("sleipnir_lease_lag_seconds", "Seconds since the first lease lapsed.", work.reaping_ms / 1000)
    yield _gauge("sleipnir_paused", "1: the deployment is held (`sleipnir pause --all`).", int(work.paused))
    yield _gauge(
        "sleipnir_paused_namespaces",
        "Namespaces that are held (`sleipnir incident`).",
        work.paused_namespaces,
    )


def _fleet(fleet: FleetLoad) -> Iterator[Metric]:
    workers = {queue: [each for each in fleet.workers if queue in each.queues] for queue in sorted(fleet.queues())}
    yield _gauge("sleipnir_workers", "Workers that serve a queue.", {q: len(w) for q, w in workers.items()}, "queue")
    yield _gauge(
        "sleipnir_worker_slots", "Visits that the workers of a queue can run at once.",
        {queue: sum(each.slots for each in served) for queue, served in workers.items()}, "queue",
    )  # fmt: skip
    yield _gauge(
        "sleipnir_worker_slots_busy", "Slots of the workers of a queue that are taken.",
        {queue: sum(each.busy for each in served) for queue, served in workers.items()}, "queue",
    )  # fmt: skip
    stopped = Counter(queue for each in fleet.workers for queue in each.stopped)
    yield _gauge(
        "sleipnir_workers_stopped", "Workers that do not take a queue now: their machine cannot run visits.",
        {queue: stopped[queue] for queue in {*workers, *stopped}}, "queue",
    )  # fmt: skip
    wedged = sum(each.wedged_for_ms is not None for each in fleet.workers)
    yield _gauge("sleipnir_workers_wedged", "Workers whose slots are all taken, none of them by a visit.", wedged)
    dropped = sum(each.dropped for each in fleet.workers)
    yield _gauge(
        "sleipnir_worker_messages_dropped",
        "Messages that the live workers have dropped: no calls they can read.",
        dropped,
    )
    if fleet.messages:
        yield _gauge(
            "sleipnir_broker_messages", "Messages in a queue of the broker: hints, also twice.", fleet.messages, "queue"
        )
    if fleet.oldest_ms:
        yield _gauge(
            "sleipnir_queue_oldest_seconds", "Seconds that the visit has waited that is next in line.",
            {queue: ms / 1000 for queue, ms in fleet.oldest_ms.items()}, "queue",
        )  # fmt: skip
    yield from _limits(fleet.limits)
    info = fleet.info
    yield _gauge(
        "sleipnir_redis_memory_used_bytes", "Memory that Redis uses, in bytes; of a cluster its fullest node.",
        info.get("used_memory", 0),
    )  # fmt: skip
    yield _gauge(
        "sleipnir_redis_memory_max_bytes", "Redis' maxmemory, in bytes; 0: unlimited.", info.get("maxmemory", 0)
    )
    yield _gauge("sleipnir_redis_clients", "Connections that Redis has.", info.get("connected_clients", 0))
    yield _gauge(
        "sleipnir_redis_evicted_keys", "Keys that Redis has evicted since its start.", info.get("evicted_keys", 0)
    )
    kept = bool(info.get("aof_enabled")) and info.get("aof_last_write_status", "ok") == "ok"
    yield _gauge("sleipnir_redis_aof_ok", "1: Redis appends to its file and the last write was good.", int(kept))


def _limits(uses: Sequence[LimitUse]) -> Iterator[Metric]:
    if not uses:
        return
    used = GaugeMetricFamily(
        "sleipnir_limit_used", "What is used of a limit: requests and tokens of the last minute, calls at once.",
        labels=["limit", "kind"],
    )  # fmt: skip
    bound = GaugeMetricFamily(
        "sleipnir_limit_bound", "What a limit allows; bounds that are set.", labels=["limit", "kind"]
    )
    waiting = GaugeMetricFamily("sleipnir_limit_waiting", "Callers that wait for a limit.", labels=["limit"])
    cooling = GaugeMetricFamily(
        "sleipnir_limit_cooling_seconds", "Seconds that the provider has asked to wait from now on.", labels=["limit"]
    )
    for use in uses:
        limit = use.limit
        for kind, now, most in (
            ("requests", use.requests, limit.requests_per_minute),
            ("tokens", use.tokens, limit.tokens_per_minute),
            ("parallel", len(use.slots), limit.max_parallel),
        ):
            used.add_metric([limit.pattern, kind], now)
            if most is not None:
                bound.add_metric([limit.pattern, kind], most)
        waiting.add_metric([limit.pattern], use.waiting)
        cooling.add_metric([limit.pattern], max(0, (use.cooling_until_ms or 0) - use.at_ms) / 1000)
    yield from (used, bound, waiting, cooling)


def _gauge(name: str, help: str, value: float | Mapping[str, float], label: str | None = None) -> GaugeMetricFamily:
    """One value, or several by a label."""
    if label is None:
        assert not isinstance(value, Mapping)
        return GaugeMetricFamily(name, help, value=value)
    family = GaugeMetricFamily(name, help, labels=[label])
    assert isinstance(value, Mapping)
    for key, number in value.items():
        family.add_metric([key], number)
    return family
