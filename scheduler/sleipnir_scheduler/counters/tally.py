"""The counters of this instance. Sums over the instances are correct, because each commit is counted by one instance.

Tokens and cost are those of committed results; the cost of late results is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import Metric

from sleipnir.messages import CACHE_WAIT, ResultHeader
from sleipnir.runs.events import LeaseLost, Resulted, Submitted, TurnReached
from sleipnir.runs.run import RunView
from sleipnir.runs.transitions import Transition
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.partitions.entries import Entry
from sleipnir_scheduler.counters.loads import PartitionLoads
from sleipnir_scheduler.counters.series import Counter, Histogram
from sleipnir_scheduler.counters.throughput import ThroughputCounter


class RedisTime:
    """An estimate of Redis' clock without a round trip: for figures, never for decisions. It is updated
    periodically."""

    def __init__(self) -> None:
        self._ahead_ms = 0.0

    def set(self, now_ms: int) -> None:
        self._ahead_ms = now_ms - time.time() * 1000

    def now_ms(self) -> float:
        return time.time() * 1000 + self._ahead_ms


class Tally:
    """All counters of this process, in the order of docs/metrics.md."""

    def __init__(self) -> None:
        self.clock = RedisTime()
        self.throughput = ThroughputCounter()
        self.loads = PartitionLoads()
        self.row_events = 0
        """Events of rows of batches that this instance has applied."""
        self.runs_started = Counter(
            "sleipnir_runs_started_total", "Runs that were taken in, children included.", "agent"
        )
        self.runs_changed = Counter(
            "sleipnir_run_status_changes_total",
            "Changes of a run's status, by the status that it got.",
            "agent",
            "status",
        )
        self.run_time = Histogram(
            "sleipnir_run_duration_seconds", "Seconds from a run's start to its end.", "agent", "status"
        )
        self.visits = Counter(
            "sleipnir_visits_total", "Visits that ended (ok, failed), and executions that did not end one "
            "(retried, limited, worker_lost, handed_back).", "type", "role", "outcome",
        )  # fmt: skip
        self.cache = Counter(
            "sleipnir_cache_visits_total", "Visits of nodes with a cache: answered from it (hit), executed (miss), or "
            "put off until another visit has the result (wait).", "agent", "outcome",
        )  # fmt: skip
        self.failed_visits = Counter(
            "sleipnir_visits_failed_total",
            "Failed visits: those that failed and that no fallback, retry or on_error node took over.",
            "agent",
        )
        self.hops = Histogram(
            "sleipnir_hop_seconds", "Seconds of each part of a visit's way: accept (submitted to started), "
            "queue (queued to claimed), execute (claimed to delivered), commit (delivered to committed).", "hop",
        )  # fmt: skip
        self.queue_wait = Histogram(
            "sleipnir_queue_wait_seconds", "Seconds that visits waited for a worker, first attempts only.", "queue"
        )
        self.visit_time = Histogram(
            "sleipnir_visit_duration_seconds", "Seconds that workers took for visits, all outcomes.", "type"
        )
        self.entries = Counter(
            "sleipnir_entries_total", "Inbox entries done with: applied, or dropped because they change nothing.",
            "event", "outcome",
        )  # fmt: skip
        self.leases_expired = Counter(
            "sleipnir_leases_expired_total", "Leases of visits that were lost: not renewed in time."
        )
        self.generations = Counter(
            "sleipnir_generations_total",
            "New generations that this instance has seen begin: Redis restarted, failed over, was restored, or its "
            "clock was set.",
            "why",
        )
        self.late_results = Counter(
            "sleipnir_late_results_total", "Results that came too late and were refused, by where: at their delivery, "
            "or at the commit.", "at",
        )  # fmt: skip
        for at in ("delivery", "commit"):  # an alert sees the first one only if there was a 0 before
            self.late_results.add(at, by=0)
        self.republished = Counter(
            "sleipnir_visits_republished_total",
            "Task messages that the outbox published again: no worker had claimed the visit.",
        )
        self.effects = Counter(
            "sleipnir_effects_delivered_total", "Effects of commits that were delivered to other runs."
        )
        self.fires = Counter(
            "sleipnir_schedule_fires_total", "Fires of schedules, by what became of them: started, queued, skipped by "
            "the overlap policy, or missed (a series of times that came while no scheduler fired).", "outcome",
        )  # fmt: skip
        for outcome_ in ("started", "skipped", "missed"):  # an alert sees the first one only if there was a 0 before
            self.fires.add(outcome_, by=0)
        self.fires_late = Histogram(
            "sleipnir_schedule_late_seconds",
            "Seconds from the time that a fire was due, jitter included, to its start.",
        )
        self.calls = Counter("sleipnir_model_calls_total", "Calls of models, failed ones included.", "model")
        self.tokens = Counter(
            "sleipnir_model_tokens_total", "Tokens of models' calls, by direction.", "model", "direction"
        )
        self.cost = Counter(
            "sleipnir_model_cost_usd_total", "Cost of models' calls in US dollars, where known.", "model"
        )
        self.unpriced = Counter(
            "sleipnir_model_unpriced_calls_total", "Calls of models whose price is not known.", "model"
        )

    def families(self) -> Iterator[Metric]:
        for series in vars(self).values():
            if isinstance(series, Counter | Histogram):
                yield series.family()

    def applied(self, commit: Commit) -> None:
        """Count an applied commit."""
        run, after, event = commit.run, commit.after, commit.entry.event
        now_ms = self.clock.now_ms()
        lag_ms = now_ms - commit.entry.at_ms
        self.entries.add(type(event).__name__.lower(), "applied")
        self.loads.count((commit.entry.partition,))
        ended: int | None = None
        if isinstance(event, Resulted):
            self.hops.observe(lag_ms, "commit")
            self._resulted(run, after, event, commit.entry.at_ms, now_ms)
            ended = event.seq
        elif isinstance(event, Submitted | TurnReached):
            self.hops.observe(lag_ms, "accept")
            self.runs_started.add(run.spec.agent)
            self.failed_visits.add(run.spec.agent, by=0)  # an alert sees the first one only if there was a 0 before
        elif isinstance(event, LeaseLost) and (visit := run.frontier.get(event.seq)) is not None:
            self.visits.add(visit.kind, visit.role, "handed_back" if event.handed_back else "worker_lost")
        for write in commit.transition.writes:
            step = write.step
            if step.seq is not None and step.seq != ended:
                self.visits.add(step.kind, step.role, "ok" if step.ok else "failed")
                self.throughput.visit(now_ms)
        if (failed := after.failed_visits.own - run.failed_visits.own) > 0:  # a child's are counted as its agent's
            self.failed_visits.add(run.spec.agent, by=failed)
        if after.status != run.status:
            self._changed(run, after, commit.transition, now_ms)

    def dropped(self, entry: Entry) -> None:
        """Count a dropped entry."""
        self.entries.add(type(entry.event).__name__.lower(), "dropped")
        self.loads.count((entry.partition,))
        if isinstance(entry.event, Resulted):
            self.late_results.add("commit")

    def _resulted(self, run: RunView, after: RunView, event: Resulted, delivered_ms: int, now_ms: float) -> None:
        visit, header = run.frontier.get(event.seq), event.header
        if visit is None:  # its run could not be planned, and has failed
            return
        if visit.attempt == 1:  # the queue time of later attempts is not known
            self.hops.observe(header.started_ms - visit.opened_ms, "queue")
            self.queue_wait.observe(header.started_ms - visit.opened_ms, str(visit.queue))
            waited_ms = max(0, header.started_ms - visit.opened_ms)
            self.throughput.hop(now_ms, waited_ms + max(0.0, now_ms - delivered_ms))
        self.hops.observe(delivered_ms - header.started_ms, "execute")
        self.visit_time.observe(header.took_ms, visit.kind)
        outcome_ = outcome(run, after, event)
        self.visits.add(visit.kind, visit.role, outcome_)
        if outcome_ in ("ok", "failed"):
            self.throughput.visit(now_ms)
        if found := cache_outcome(header):
            self.cache.add(run.spec.agent, found)
        if header.usage:
            self._used(header.usage)
            if cost_usd := header.usage.get("cost_usd"):
                self.throughput.cost(now_ms, run.spec.namespace, cost_usd)

    def _changed(self, run: RunView, after: RunView, transition: Transition, now_ms: float) -> None:
        self.runs_changed.add(run.spec.agent, after.status)
        if after.is_final and after.spec.parent is None:
            self.throughput.ended(now_ms, after.spec.namespace, is_failed=after.status == "failed")
        if after.is_final and after.started_ms:
            ended_ms = transition.ended_ms or now_ms
            self.run_time.observe(ended_ms - after.started_ms, after.spec.agent, after.status)

    def _used(self, usage: Mapping[str, Any]) -> None:
        model, calls, cost = str(usage.get("model") or "unknown"), usage.get("calls") or 0, usage.get("cost_usd")
        self.calls.add(model, by=calls)
        self.tokens.add(model, "input", by=usage.get("input_tokens") or 0)
        self.tokens.add(model, "output", by=usage.get("output_tokens") or 0)
        if cost is None:
            self.unpriced.add(model, by=calls)
        else:
            self.cost.add(model, by=cost)


def cache_outcome(header: ResultHeader) -> str | None:
    """How the cache of its node answered an execution; None: it has none."""
    return "wait" if header.later_ms is not None and header.error_kind == CACHE_WAIT else header.cache


def outcome(run: RunView, after: RunView, event: Resulted) -> str:
    """The outcome of an execution."""
    header = event.header
    if header.later_ms is not None:
        return "limited"
    if header.ok:
        return "ok"
    again = after.frontier.get(event.seq)
    return "retried" if again is not None and again.attempt > event.attempt else "failed"
