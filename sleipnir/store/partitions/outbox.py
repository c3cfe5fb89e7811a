"""Queued visits that wait to be published: services/outbox.py; those in no index: services/unindexed.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL, VisitCall
from sleipnir.runs.deployment_holds import MARK_OF_DEPLOYMENT, MARK_OF_NAMESPACE, HeldRun, holds_in
from sleipnir.runs.run import RunSpec
from sleipnir.runs.visits import Visit, Work
from sleipnir.store.connect import clock_ms
from sleipnir.store.keys import member, parse_member
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import Arg, LuaScript, checked, run_batch
from sleipnir.store.visit_records import read_visit

_PUT_BACK = LuaScript("put_back")

UNREADABLE_LATER_MS = 60_000
"""The time until an unreadable queued visit is checked again."""


@dataclass(frozen=True)
class DueVisit:
    """A queued visit to publish (again), unless its run is `held`, by itself or with others. `published_ms` is the
    latest possible time of its last publication; 0 after a pause of the deployment. `is_new`: the outbox has not
    checked it yet."""

    call: VisitCall
    queue: str
    member: str
    opened_ms: int
    held: bool = False
    published_ms: int = 0
    is_new: bool = False


def call_of(run_id: str, spec: RunSpec, visit: Visit, place: str | None) -> VisitCall:
    """The message that assigns a visit to a worker. `place` is RunView.batch."""
    batch = place.partition("/")[0] if place else ""
    return VisitCall(run_id, visit.node, visit.seq, visit.attempt, spec.agent, spec.bundle, visit.role, batch=batch)


class QueuedVisits(PartitionConnection):
    """Find the visits to publish, and record their publications."""

    def next_checks_ms(self, partitions: Iterable[int]) -> dict[int, float]:
        """When the outbox of each partition has its next check; infinity: it is empty."""
        numbers = list(partitions)
        return dict(zip(numbers, self._first_ms([self._of(number).outbox for number in numbers]), strict=True))

    def due(self, partition: int, now_ms: int, limit: int) -> list[DueVisit]:
        """Visits in the outbox that are due for a check. Entries of finished visits are removed."""
        key = self._of(partition).outbox
        return self._unclaimed(
            partition, self._client.zrangebyscore(key, "-inf", now_ms + 1, start=0, num=limit, withscores=True)
        )

    def unclaimed(self, partition: int, limit: int) -> list[DueVisit]:
        """Visits in the outbox, due or not, in the order of their next check."""
        return self._unclaimed(
            partition, self._client.zrange(self._of(partition).outbox, 0, limit - 1, withscores=True)
        )

    def _unclaimed(self, partition: int, members: Sequence[tuple[str, float]]) -> list[DueVisit]:
        part = self._of(partition)
        readable = set(self._members(part.outbox, [name for name, _ in members]))
        members = [(name, score) for name, score in members if name in readable]
        if not members:
            return []
        names = [name for name, _ in members]
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            run_id, seq, _ = parse_member(name)
            run = self._keys.of_run(run_id)
            pipe.hget(run.frontier, str(seq))
            pipe.hmget(run.run, "status", "batch", "created_ms", MARK_OF_DEPLOYMENT, MARK_OF_NAMESPACE)
            pipe.get(run.spec)
        pipe.get(part.paused)
        pipe.hgetall(part.holds)
        *replies, paused, fields = pipe.execute()
        holds = holds_in(paused, fields)
        due_visits: list[DueVisit] = []
        gone: list[str] = []
        unreadable: list[str] = []
        for (name, score), text, (status, batch, created_ms, *marks), spec_text in zip(
            members, replies[::3], replies[1::3], replies[2::3], strict=True
        ):
            run_id, seq, attempt = parse_member(name)
            try:
                visit = read_visit(text, name) if text else None
                spec = read_text(RunSpec, spec_text, "spec", run_id) if spec_text else None
            except RecordUnreadable as error:
                structlog.get_logger().warning("a queued visit is not published", visit=name, error=str(error))
                unreadable.append(name)
                continue
            if visit is None or visit.attempt != attempt or not isinstance(visit.body, Work) or spec is None:
                gone.append(name)
                continue
            call = call_of(run_id, spec, visit, batch)
            about = HeldRun(
                spec.namespace, spec.agent, int(created_ms or 0), spec.parent is not None, (marks[0], marks[1])
            )
            held = status == "paused" or bool(holds.over(about))
            due = DueVisit(call, str(visit.queue), name, visit.opened_ms, held=held)
            due_visits.append(replace(due, published_ms=self._published_ms(score), is_new=score.is_integer()))
        if gone:
            self._client.zrem(part.outbox, *gone)
        if unreadable:  # checked again later, so that they do not block other visits
            later_ms = clock_ms(self._client, part.outbox) + UNREADABLE_LATER_MS
            self._client.zadd(part.outbox, dict.fromkeys(unreadable, later_ms), xx=True)
        return due_visits

    def published(self, partition: int, dues: Sequence[DueVisit], now_ms: int, most_ms: int) -> None:
        """Record publications. The next check is after a wait equal to the visit's age (so the wait doubles), within
        bounds.

        XX: a visit that was claimed meanwhile is not added again.
        """
        waits = {due.member: max(self._unit_ms, min(now_ms - due.opened_ms, most_ms)) for due in dues}
        scores = {name: self._look_at(now_ms, now_ms + wait) for name, wait in waits.items()}
        self._client.zadd(self._of(partition).outbox, scores, xx=True)

    def not_published(self, partition: int, dues: Sequence[DueVisit], now_ms: int, most_ms: int) -> None:
        """Check again after a wait equal to the time since the last publication, within bounds. Safe to repeat."""
        waits = {due.member: max(self._unit_ms, min(now_ms - due.published_ms, most_ms)) for due in dues}
        scores = {due.member: self._look_at(due.published_ms, now_ms + waits[due.member]) for due in dues}
        self._client.zadd(self._of(partition).outbox, scores, xx=True)

    # The score of a visit in the outbox is the time of its next check; its fraction, in 1/4096, is the number of units
    # of `redispatch_after` between its last publication and that time. None (a commit, an earlier release) means one
    # unit. A double holds both exactly until 2039.

    @property
    def _unit_ms(self) -> int:
        return max(1, self._redispatch_after_ms)

    def _look_at(self, published_ms: int, next_ms: int) -> float:
        """The score. Beyond the largest number of units, the publication seems later than it was: it is repeated later,
        never earlier."""
        units = min(max(-(-(next_ms - published_ms) // self._unit_ms), 1), 4095)
        next_ms = next_ms if units == 4095 else published_ms + units * self._unit_ms
        return next_ms + units / 4096

    def _published_ms(self, score: float) -> int:
        next_ms = int(score)
        return max(0, next_ms - (round((score - next_ms) * 4096) or 1) * self._unit_ms)

    def some_runs(self, partition: int, cursor: int, count: int) -> tuple[int, list[str]]:
        """About `count` runs of the index, and the next cursor: 0 at the end. A pass returns each run at least once."""
        following, listed = self._client.zscan(self._of(partition).runs, cursor, count=count)
        return int(following), [run_id for run_id, _ in listed]

    def put_back(self, partition: int, run_ids: Sequence[str], lease_ms: int) -> list[str]:
        """Add queued visits of these runs that are in no index to one (put_back.lua). Returns `run/seq/attempt`."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hget(self._keys.of_run(run_id).run, "status")
        live = [run_id for run_id, status in zip(run_ids, pipe.execute(), strict=True) if status not in (None, *FINAL)]
        part, names = self._of(partition), [name for run_id in live for name in self._queued(run_id)]
        for name in names:
            pipe.zscore(part.outbox, name)
            pipe.zscore(part.leases, name)
        scores = pipe.execute()
        suspects = [
            name for name, *indexed in zip(names, scores[::2], scores[1::2], strict=True) if indexed == [None, None]
        ]
        vectors = []
        for name in suspects:
            run_id, seq, attempt = parse_member(name)
            run = self._keys.of_run(run_id)
            keys = {"frontier": run.frontier, "claims": run.claims, "outbox": part.outbox, "leases": part.leases}
            args: dict[str, Arg] = {"member": name, "seq": seq, "attempt": attempt, "lease_ms": lease_ms}
            vectors.append(_PUT_BACK.vector(keys, args))
        replies = map(checked, run_batch(self._client, _PUT_BACK, vectors))
        return [name for name, reply in zip(suspects, replies, strict=True) if reply]

    def _queued(self, run_id: str) -> Iterator[str]:
        """The queued visits of a run, by their names in the indexes. Unreadable records are skipped: their run is
        parked."""
        for seq, text in self._client.hscan_iter(self._keys.of_run(run_id).frontier, count=500):
            try:
                visit = read_visit(text, f"{run_id}/{seq}")
            except RecordUnreadable:
                continue
            if visit.state == "queued":
                yield member(run_id, visit.seq, visit.attempt)
