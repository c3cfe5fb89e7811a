"""The schedulers' operations: own partitions, read the inbox, commit transitions, and process leases, timers and the
outbox."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import redis
import structlog

from sleipnir.decoding import check_version, decoded, decoded_object, number, read, read_text, whole
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL, OVERLAY_END, OVERLAYS, STATUSES, ResultHeader, Usage, VisitCall
from sleipnir.runs.budgets import NOTHING_SPENT, Budget, BudgetUse
from sleipnir.runs.events import (
    Answered,
    Cancelled,
    ChildEnded,
    ChildGone,
    Continued,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Submitted,
    TimerFired,
    Told,
    Unreadable,
)
from sleipnir.runs.run import NO_FAILED_VISITS, FailedVisits, HoldOwner, RunSpec, RunView, Slot, Timing
from sleipnir.runs.transitions import Notice, Transition
from sleipnir.runs.values import KnownValues, WantedValues
from sleipnir.runs.visits import Rank, Visit, Work
from sleipnir.store.commit import commit_keys, control, shared_keys
from sleipnir.store.connect import BLOCK_MS_MAX, Client, clock_ms, is_passing
from sleipnir.store.holds import holds_of
from sleipnir.store.keys import Keys, PartitionKeys, cost_field, is_member, member, parse_member
from sleipnir.store.record_text import dumps
from sleipnir.store.scripts import Arg, LuaScript, run_batch
from sleipnir.store.visit_records import read_visit

_ARCHIVED = LuaScript("archived")
_COMMIT = LuaScript("commit")
_DISCARD = LuaScript("discard")
_FIRE_TIMERS = LuaScript("fire_timers")
_FORGET = LuaScript("forget")
_OWN = LuaScript("own")
_PARK = LuaScript("park")
_PUT_BACK = LuaScript("put_back")
_TAKE_BACK = LuaScript("take_back")


@dataclass(frozen=True)
class Entry:
    """One inbox entry. `at_ms` is the time when Redis received it: the planner's only clock."""

    id: str
    partition: int
    run: str
    event: Event

    @property
    def at_ms(self) -> int:
        return int(self.id.split("-", 1)[0])


@dataclass(frozen=True)
class Commit:
    """A transition to apply for `entry`, planned on `run`."""

    entry: Entry
    run: RunView
    transition: Transition

    @cached_property
    def after(self) -> RunView:
        """The run after this commit."""
        return self.transition.apply(self.run, self.entry.id)


@dataclass(frozen=True)
class IgnoredEntry:
    """An entry that changes nothing, as decided on `run` (None: no such run), and a notice for watchers."""

    entry: Entry
    run: RunView | None
    notice: Notice | None = None


NO_RUN = "?"
"""The run of an inbox entry that names no run. No run has this id."""

UNREADABLE_LATER_MS = 60_000
"""The time until an unreadable queued visit is checked again."""

P = TypeVar("P")

STRETCH = 500  # journal steps that one command reads
READ_AHEAD = 2_000  # entries after those of a run that has hundreds: more than its workers deliver at once
MOST_ARGUMENTS = 1_000_000  # Redis 6.2 closes the connection at 1,048,576
BATCH_BYTES = 8 * 2**20  # of one round trip, unless one commit is larger
SUSPECT_BYTES = 2**20  # a smaller commit cannot cause a closed connection

APPLIED, STALE, NOT_OWNER, REFUSED, CLAIMED = 1, 0, -1, -2, 2


@dataclass(frozen=True)
class OwnedPartition:
    """A partition that this scheduler owns: the epoch that fences its commits, and whether the deployment is paused."""

    epoch: int
    held: bool


@dataclass(frozen=True)
class DueVisit:
    """A queued visit to publish (again), unless its run is `held`. `published_ms` is the latest possible time of its
    last publication; 0 after a pause of the deployment. `is_new`: the outbox has not checked it yet."""

    call: VisitCall
    queue: str
    member: str
    opened_ms: int
    held: bool = False
    published_ms: int = 0
    is_new: bool = False


class Partitions:
    """The store, for schedulers."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        *,
        redispatch_after_ms: int,
        retention_ms: int,
        session_messages: int = 10_000,
    ) -> None:
        self._client, self._keys = client, keys
        self._redispatch_after_ms, self._retention_ms = redispatch_after_ms, retention_ms
        self._session_messages = session_messages
        self._breaks: dict[tuple[str, str], int] = {}
        """Large commits that were being sent when the connection broke, by run and entry: how often it broke while only
        that commit was sent and Redis was reachable."""

    # Ownership

    def own(
        self, partitions: Iterable[int], instance: str, ttl_ms: int, generation: str = ""
    ) -> dict[int, OwnedPartition]:
        """Take or keep partitions; returns those that the instance owns now. `ttl_ms` 0 releases them. A new
        `generation` gives them a new epoch."""
        wanted = list(partitions)
        vectors = []
        for partition in map(self._of, wanted):
            keys = {"owner": partition.owner, "paused": partition.paused}
            vectors.append(_OWN.vector(keys, {"instance": instance, "ttl_ms": ttl_ms, "generation": generation}))
        replies = map(_checked, run_batch(self._client, _OWN, vectors))
        return {
            partition: OwnedPartition(int(epoch), bool(held))
            for partition, (epoch, held) in zip(wanted, replies, strict=True)
            if epoch
        }

    def owners(self, partitions: Iterable[int] | None = None, ttl_ms: int = 60_000) -> dict[int, str]:
        """The current owners of these partitions (None: all). An ownership that lasts much longer than `ttl_ms` was
        granted before the clock was set back and is ignored, as in own.lua."""
        numbers = range(self._keys.partitions) if partitions is None else list(partitions)
        if not numbers:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for partition in numbers:
            pipe.hmget(self._of(partition).owner, "instance", "until_ms")
        now_ms = self.now_ms()
        owners = zip(numbers, pipe.execute(), strict=True)
        last_ms = now_ms + 10 * max(ttl_ms, 1_000)
        return {n: instance for n, (instance, until_ms) in owners if until_ms and now_ms < int(until_ms) <= last_ms}

    def join(self, instance: str, ttl_ms: int) -> set[str]:
        """Register an instance as alive for `ttl_ms`; 0 removes it. Returns the instances that are alive."""
        now_ms, key = self.now_ms(), self._keys.instances
        pipe = self._client.pipeline(transaction=False)
        if ttl_ms:
            pipe.zadd(key, {instance: now_ms + ttl_ms})
        else:
            pipe.zrem(key, instance)
        pipe.zremrangebyscore(key, "-inf", now_ms - 60_000)
        # An instance that counts as alive for much longer was registered before the clock was set back.
        pipe.zrangebyscore(key, f"({now_ms}", now_ms + 10 * max(ttl_ms, 1_000))
        return set(pipe.execute()[-1])

    def count_parked(self, partitions: Collection[int]) -> dict[int, int]:
        """The number of parked runs in each of these partitions."""
        pipe = self._client.pipeline(transaction=False)
        for partition in partitions:
            pipe.hlen(self._of(partition).parked)
        return dict(zip(partitions, pipe.execute(), strict=True))

    def partition_of(self, run_id: str) -> int:
        return self._keys.partition_of(run_id)

    # Inbox

    def read(
        self,
        partitions: Collection[int],
        *,
        limit: int,
        block_ms: int | None,
        after: Mapping[int, str] | None = None,
        share: int | None = None,
    ) -> list[Entry]:
        """The oldest unapplied entries, up to `limit` per partition; waits up to `block_ms` (None: not) for the first.

        If there are more and one run has more than `share` of them, entries beyond its share are replaced by entries of
        other runs among the next READ_AHEAD.

        An entry stays until a commit or a discard deletes it. `after` maps partitions to the last entry of parked runs
        to skip. An unreadable entry has the event Unreadable, and the run NO_RUN if it does not name a run of its
        partition.
        """
        streams = {self._of(partition).inbox: partition for partition in partitions}
        if not streams:
            return []
        block = None if block_ms is None else min(block_ms, BLOCK_MS_MAX)
        start: dict[Any, Any] = dict.fromkeys(streams, "0-0")
        if after:
            start = {name: after.get(partition, "0-0") for name, partition in streams.items()}
        reply: Any = self._client.xread(start, count=limit, block=block)
        inbox: list[Entry] = []
        for stream, batches in dict(reply or {}).items():
            raw = list(_flat(batches))
            if share is not None and len(raw) == limit:
                raw = self._shared(stream, raw, limit, share)
            inbox += (self._entry(id_, streams[stream], fields) for id_, fields in raw)
        return inbox

    def _shared(
        self, stream: str, raw: list[tuple[str, dict[str, str]]], limit: int, share: int
    ) -> list[tuple[str, dict[str, str]]]:
        """Up to `limit` entries; at most `share` of each run as long as there are others."""
        counts: Counter[str] = Counter(fields.get("run", "") for _, fields in raw)
        if max(counts.values()) <= share:
            return raw
        more: Any = self._client.xread({stream: raw[-1][0]}, count=READ_AHEAD)
        ahead = [entry for batches in dict(more or {}).values() for entry in _flat(batches)]
        kept: list[tuple[str, dict[str, str]]] = []
        beyond: list[tuple[str, dict[str, str]]] = []
        counts.clear()
        for entry in (*raw, *ahead):
            run = entry[1].get("run", "")
            counts[run] += 1
            (kept if counts[run] <= share else beyond).append(entry)
        # As many as were read first: a smaller batch would indicate the end of the inbox.
        return kept[:limit] + beyond[: max(0, limit - len(kept))]

    def _entry(self, id_: str, partition: int, fields: Mapping[str, str]) -> Entry:
        run_id = fields.get("run", "")
        try:
            if not run_id or self._keys.partition_of(run_id) != partition:
                return Entry(id_, partition, NO_RUN, Unreadable(fields.get("t", ""), "damaged: its run is missing"))
            _check_text(fields.values())
            return Entry(id_, partition, run_id, _event(fields))
        except UnicodeError:  # the id: of a value RecordUnreadable is raised
            return Entry(id_, partition, NO_RUN, Unreadable("", "damaged: its run's id is not UTF-8"))
        except RecordUnreadable as error:
            unreadable = Unreadable(fields.get("t", ""), error.why, newer=error.newer)
        except KeyError as missing:
            unreadable = Unreadable(fields.get("t", ""), f"damaged: it lacks {missing.args[0]}")
        return Entry(id_, partition, run_id, unreadable)

    def discard(self, drops: Sequence[IgnoredEntry], epochs: Mapping[int, int]) -> list[int]:
        """Delete entries that change nothing, one round trip for all. Outcomes as for `commit`."""
        vectors = []
        for drop in drops:
            entry, run = drop.entry, self._keys.of_run(drop.entry.run)
            keys = {
                "inbox": self._of(entry.partition).inbox,
                "run": run.run,
                "events": run.events,
                "delta": _delta_of(run, entry.event),
                "owner": self._of(entry.partition).owner,
            }
            args: dict[str, Arg] = {
                "entry": entry.id,
                "notices": dumps([[drop.notice.type, drop.notice.data]]) if drop.notice else "",
                "epoch": epochs[entry.partition],
                "version": drop.run.version if drop.run else -1,
                "last": drop.run.last_event if drop.run else "",
            }
            vectors.append(_DISCARD.vector(keys, args))
        return [_outcome(reply) for reply in run_batch(self._client, _DISCARD, vectors)]

    # Parked runs

    def parked(self, partition: int) -> dict[str, str]:
        """The parked runs of a partition with the reasons stored by `park`."""
        return dict(self._client.hscan_iter(self._of(partition).parked, count=1000))

    def park(self, partition: int, runs: Mapping[str, str], epoch: int) -> bool:
        """Mark runs as parked, with the reason (`parked_text`); an empty text removes the mark. Safe to repeat. False:
        another scheduler owns the partition."""
        part = self._of(partition)
        flat: list[Arg] = [each for pair in runs.items() for each in pair]
        return bool(_PARK(self._client, {"parked": part.parked, "owner": part.owner}, {"epoch": epoch}, flat) == 1)

    # Runs

    def load(
        self, run_ids: Collection[str], unreadable: dict[str, RecordUnreadable] | None = None
    ) -> dict[str, RunView]:
        """Run views by id; missing (expired) runs are left out. The errors of unreadable records are put into
        `unreadable`, or raised without it."""
        ids = list(run_ids)
        if not ids:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for run_id in ids:
            run = self._keys.of_run(run_id)
            pipe.get(run.spec)
            pipe.hgetall(run.run)
            pipe.hgetall(run.frontier)
        replies = pipe.execute(raise_on_error=False)
        views: dict[str, RunView] = {}
        for run_id, *stored in zip(ids, replies[::3], replies[1::3], replies[2::3], strict=True):
            try:
                view = _view_if_any(run_id, *stored)
            except RecordUnreadable as error:
                if unreadable is None:
                    raise
                unreadable[run_id] = error
            else:
                if view is not None:
                    views[run_id] = view
        return views

    def read_values(self, wanted: Sequence[tuple[Entry, WantedValues]]) -> list[KnownValues | RecordUnreadable]:
        """Values for planning, per entry; one round trip for all. For a run with a damaged value, the error."""
        pipe = self._client.pipeline(transaction=False)
        for entry, want in wanted:
            run = self._keys.of_run(entry.run)
            if want.whole:
                pipe.hgetall(run.state)
            else:
                _hmget(pipe, run.state, want.state)
            _hmget(pipe, _delta_of(run, entry.event), want.delta)
            _hmget(pipe, run.items, want.items)
            _hmget(pipe, run.windows, want.windows)
            _hmget(pipe, run.children, {cost_field(child) for child in want.costs})
            if want.updates:
                pipe.hget(_delta_of(run, entry.event), OVERLAYS)
            for first, last in _ranges(want.steps):
                pipe.lrange(run.journal, first, last)
        replies = iter(pipe.execute(raise_on_error=False))
        return [_known_if_readable(entry.run, want, replies) for entry, want in wanted]

    def commit(self, commits: Sequence[Commit], epochs: Mapping[int, int]) -> list[int]:
        """Apply transitions, one atomic script each, one round trip for all.

        Per commit: APPLIED, STALE (the view was old), NOT_OWNER, CLAIMED (it applies only while no worker has claimed
        the visits), or REFUSED (the script cannot apply it: a bug; or the connection broke twice because of it).
        Raises redis-py's errors if the connection breaks or the server is full or failing over: then any of them may
        have been applied.
        """
        vectors = [self._commit_vector(commit, epochs[commit.entry.partition]) for commit in commits]
        outcomes: list[int] = [REFUSED] * len(commits)
        for numbers in self._in_batches(commits, vectors):
            names = [_name(commits[place]) for place in numbers]
            try:
                replies = run_batch(self._client, _COMMIT, [vectors[place] or [] for place in numbers])
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                self._note_break([(_name(commits[place]), _bytes(vectors[place])) for place in numbers])
                raise
            for place, reply in zip(numbers, replies, strict=True):
                outcomes[place] = _outcome(reply)
            if self._breaks:
                for name in names:
                    self._breaks.pop(name, None)
        return outcomes

    def _in_batches(self, commits: Sequence[Commit], vectors: Sequence[list[Any] | None]) -> Iterator[list[int]]:
        """The numbers of the commits of each round trip, in order: up to a number of bytes; a commit that may have
        broken the connection is sent alone. A commit that broke it twice is left out."""
        batch: list[int] = []
        size = 0
        for place, vector in enumerate(vectors):
            if vector is None:
                continue
            breaks = self._breaks.get(_name(commits[place])) if self._breaks else None
            if breaks is not None and breaks >= 2:
                structlog.get_logger().error("a commit breaks the connection", run=commits[place].run.id)
                del self._breaks[_name(commits[place])]  # the commit that ends the run instead has the same name
                continue
            added = _bytes(vector)
            if batch and (breaks is not None or size + added > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(place)
            size += added
            if breaks is not None:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _note_break(self, names: Sequence[tuple[tuple[str, str], int]]) -> None:
        """Record that the connection broke during these commits. Large ones are suspects: they are sent alone from now
        on, and a break with one alone counts if Redis is reachable."""
        suspects = [name for name, size in names if size >= SUSPECT_BYTES]
        if len(self._breaks) > 1_000:
            self._breaks.clear()
        if len(names) > 1 or not suspects:
            for name in suspects:
                self._breaks.setdefault(name, 0)
            return
        try:
            self._client.ping()
        except (redis.exceptions.RedisError, OSError):
            return  # Redis is unreachable: the commit is not necessarily the cause
        self._breaks[suspects[0]] = self._breaks.get(suspects[0], 0) + 1

    def _commit_vector(self, commit: Commit, epoch: int) -> list[Any] | None:
        """The arguments; None for a transition that cannot be stored, such as an infinite sum or a bug in Sleipnir."""
        try:
            return self._arguments(commit, epoch)
        except (TypeError, ValueError) as error:
            structlog.get_logger().exception("a transition cannot be stored", run=commit.run.id, error=str(error))
            return None

    def _arguments(self, commit: Commit, epoch: int) -> list[Any]:
        entry, partition, run = commit.entry, self._of(commit.entry.partition), self._keys.of_run(commit.entry.run)
        body, values = control(
            commit.run,
            commit.after,
            commit.transition,
            event_id=entry.id,
            epoch=epoch,
            now_ms=entry.at_ms,
            publish_after_ms=self._redispatch_after_ms,
            retention_ms=self._retention_ms,
            session_messages=self._session_messages,
        )
        session = self._keys.of_session_of(commit.run.spec)
        keys = {**commit_keys(run, _delta_of(run, entry.event), session), **shared_keys(partition)}
        if len(values) > MOST_ARGUMENTS:
            raise ValueError(f"it has {len(values):,} values; Redis accepts at most {MOST_ARGUMENTS:,}")
        for value in values:
            if isinstance(value, str) and not value.isascii():
                value.encode()  # fails for half a surrogate pair, from damaged bytes, only for this run
        return _COMMIT.vector(keys, {"control": body}, values)

    # Leases, timers, outbox

    def take_back(self, partition: int, now_ms: int, until_ms: int, limit: int) -> int:
        """End the leases that lapsed before `now_ms` and report each to the inbox; does nothing after `until_ms`.
        Returns how many. Both times are by Redis' clock."""
        part = self._of(partition)
        vectors = []
        lapsed = self._client.zrangebyscore(part.leases, "-inf", now_ms, start=0, num=limit)
        for name in self._members(part.leases, lapsed):
            run_id, seq, attempt = parse_member(name)
            keys = {"claims": self._keys.of_run(run_id).claims, "leases": part.leases, "inbox": part.inbox}
            args: dict[str, Arg] = {"run_id": run_id, "member": name, "seq": seq, "attempt": attempt}
            args["until_ms"] = until_ms
            vectors.append(_TAKE_BACK.vector(keys, args))
        return sum(int(_checked(reply)) for reply in run_batch(self._client, _TAKE_BACK, vectors))

    def _members(self, index: str, names: Sequence[str]) -> list[str]:
        """The members that name a visit's attempt; others are removed, because they would stay at the head of the
        index."""
        members = [name for name in names if is_member(name)]
        if len(members) < len(names):
            others = [name for name in names if not is_member(name)]
            structlog.get_logger().warning(
                "members of an index that name no visit are removed", names=ascii(others[:5])
            )
            self._client.zrem(index, *(name.encode(errors="surrogateescape") for name in others))
        return members

    def shorten_leases(self, partition: int, most_ms: int, limit: int) -> int:
        """Let no lease end after `most_ms`: after Redis' clock was set back, a dead worker's lease would last until the
        old time is reached again. Living workers renew their leases. Returns how many were shortened."""
        leases = self._of(partition).leases
        names = self._client.zrangebyscore(leases, f"({most_ms}", "+inf", start=0, num=limit)
        if names:
            self._client.zadd(leases, dict.fromkeys(names, most_ms), xx=True, lt=True)
        return len(names)

    def fire_timers(self, partition: int, limit: int) -> int:
        """Move due timers into the inbox. Returns how many."""
        part = self._of(partition)
        fired = _FIRE_TIMERS(self._client, {"timers": part.timers, "inbox": part.inbox}, {"limit": limit})
        return int(fired)

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
            pipe.hmget(run.run, "status", "batch")
            pipe.get(run.spec)
        replies = pipe.execute()
        due_visits: list[DueVisit] = []
        gone: list[str] = []
        unreadable: list[str] = []
        for (name, score), text, (status, batch), spec_text in zip(
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
            due = DueVisit(call, str(visit.queue), name, visit.opened_ms, held=status == "paused")
            due_visits.append(replace(due, published_ms=self._published_ms(score), is_new=score.is_integer()))
        if gone:
            self._client.zrem(part.outbox, *gone)
        if unreadable:  # checked again later, so that they do not block other visits
            later_ms = self.now_ms() + UNREADABLE_LATER_MS
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

    # Cleaning up

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
        replies = map(_checked, run_batch(self._client, _PUT_BACK, vectors))
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

    def forget_expired(self, partition: int, now_ms: int, limit: int) -> int:
        """Drop the index entries of runs whose keys have expired. Returns how many."""
        return self._forget(partition, self._of(partition).expiring, "later", now_ms, limit)

    def unarchived(self, partition: int, before_ms: int, limit: int) -> list[tuple[str, int]]:
        """Finished runs that expire before then and are not marked as archived, with the expiry of each; soonest
        first."""
        expiring = self._client.zrangebyscore(
            self._of(partition).expiring, "-inf", before_ms, start=0, num=limit, withscores=True
        )
        return [(run_id, int(expires_ms)) for run_id, expires_ms in expiring]

    def archived(self, partition: int, runs: Sequence[tuple[str, int]]) -> int:
        """Mark these entries of `unarchived` as archived. Returns how many were marked."""
        part = self._of(partition)
        flat: list[Arg] = [each for run in runs for each in run]
        return int(_ARCHIVED(self._client, {"expiring": part.expiring, "archived": part.archived}, {}, flat))

    def forget_archived(self, partition: int, now_ms: int, limit: int) -> int:
        """Like `forget_expired`, for archived runs. A run that still exists was revived: it stays in the index of
        runs."""
        return self._forget(partition, self._of(partition).archived, "drop", now_ms, limit)

    def _forget(self, partition: int, index: str, revived: str, now_ms: int, limit: int) -> int:
        due = self._client.zrangebyscore(index, "-inf", now_ms, start=0, num=limit, withscores=True)
        if not due:
            return 0
        keys = [self._of(partition).runs, index, *(self._keys.of_run(run_id).run for run_id, _ in due)]
        flat: list[Arg] = [each for run_id, expires_ms in due for each in (run_id, int(expires_ms))]
        return int(_FORGET(self._client, keys, {"revived": revived}, flat))

    def now_ms(self) -> int:
        return clock_ms(self._client)

    def _of(self, partition: int) -> PartitionKeys:
        return self._keys.of_partition(partition)


def call_of(run_id: str, spec: RunSpec, visit: Visit, place: str | None) -> VisitCall:
    """The message that assigns a visit to a worker. `place` is RunView.batch."""
    batch = place.partition("/")[0] if place else ""
    return VisitCall(run_id, visit.node, visit.seq, visit.attempt, spec.agent, spec.bundle, visit.role, batch=batch)


def _view_if_any(run_id: str, spec: Any, record: Any, frontier: Any) -> RunView | None:
    """A run view from the replies of Redis; None: the run does not exist (any more). Raises RecordUnreadable."""
    for reply in (spec, record, frontier):
        _checked_record(reply, "record", run_id)
    if not record or (not spec and record.get("status") in FINAL):  # keys with the same expiry may disappear one by one
        return None
    if not spec:
        raise RecordUnreadable("record", run_id, "damaged: its spec is missing")
    return view_of(run_id, spec, record, frontier)


def _checked_record(reply: Any, what: str, run_id: str) -> None:
    """Raise RecordUnreadable for a key of an unexpected type, and other errors of Redis unchanged."""
    if isinstance(reply, redis.exceptions.ResponseError) and not is_passing(reply):
        raise RecordUnreadable(what, run_id, f"damaged: {ascii(str(reply))[1:200]}")
    _checked(reply)


def _check_text(texts: Iterable[str]) -> None:
    """Raise RecordUnreadable for bytes that are not UTF-8: they could not be sent back to Redis."""
    whole_text = "".join(texts)
    if not whole_text.isascii():
        try:
            whole_text.encode()
        except UnicodeError:
            raise RecordUnreadable("record", "", "damaged: it is not UTF-8") from None


def view_of(run_id: str, spec: str, record: Mapping[str, str], frontier: Mapping[str, str]) -> RunView:
    """A run view from the stored texts. Raises RecordUnreadable."""
    try:
        _check_text((*record, *record.values()))
        return _view_of(run_id, spec, record, frontier)
    except KeyError as missing:
        raise RecordUnreadable("record", run_id, f"damaged: it lacks {missing.args[0]}") from None


def _view_of(run_id: str, spec: str, record: Mapping[str, str], frontier: Mapping[str, str]) -> RunView:
    visits = [read_visit(text, f"{run_id}/{seq}") for seq, text in frontier.items()]
    submitted = read_text(RunSpec, spec, "spec", run_id)
    if (status := record["status"]) not in STATUSES:
        raise RecordUnreadable("record", run_id, f"its status {ascii(status)[:40]} is not known here", newer=True)

    def count(name: str, text: str | None = None) -> int:
        return whole(record[name] if text is None else text, f"{name} of the record", run_id)

    def part(kind: type[P], name: str) -> P | None:
        return read_text(kind, record[name], name, run_id) if name in record else None

    return RunView(
        id=run_id,
        spec=submitted,
        status=status,  # type: ignore[arg-type]
        version=count("version"),
        last_event=record.get("last_event", ""),
        seq=count("seq"),
        step=count("step"),
        started_ms=count("started_ms") if "started_ms" in record else 0,
        failed_at=record.get("failed_at"),
        holds=holds_of(record.get("paused"), record.get("holds"), run_id),
        idle_ms=count("idle_ms") if "idle_ms" in record else 0,
        counts={name[2:]: count(name) for name in record if name.startswith("n:")},
        timings={name[2:]: _timing(run_id, text) for name, text in record.items() if name.startswith("t:")},
        frontier={visit.seq: visit for visit in visits},
        steps=count("steps") if "steps" in record else 0,
        arrived=_table("arrived", record, run_id, dict),
        tops={key: _rank(rank, run_id) for key, rank in _table("tops", record, run_id, list).items()},
        batch=record.get("batch"),
        slot=part(Slot, "slot"),
        budget=part(Budget, "budget"),
        spent=_spent(run_id, record) if submitted.budget else NOTHING_SPENT,
        failed_visits=part(FailedVisits, "failed_visits") or NO_FAILED_VISITS,
    )


def _timing(run_id: str, text: str) -> Timing:
    parts = text.split()
    if len(parts) < 3:
        raise RecordUnreadable("record", run_id, f"damaged: a timing is {ascii(text)[:40]}")
    return Timing(*(whole(part, "timing", run_id) for part in parts[:3]))


def _table(name: str, record: Mapping[str, str], run_id: str, kind: type) -> dict[str, Any]:
    """A JSON object of the run's hash whose values are all of a kind; empty if it has none."""
    if name not in record:
        return {}
    table = decoded(record[name], name, run_id)
    if type(table) is not dict or any(type(value) is not kind for value in table.values()):
        raise RecordUnreadable(name, run_id, f"damaged: it must be an object of values of type {kind.__name__}")
    return table


def _rank(parts: list[Any], run_id: str) -> Rank:
    if [type(part) for part in parts] != [int, str, str, int]:
        raise RecordUnreadable("tops", run_id, f"damaged: {ascii(parts)[:60]} is not a place in the visit order")
    return parts[0], parts[1], parts[2], parts[3]


def _spent(run_id: str, record: Mapping[str, str]) -> BudgetUse:
    tokens = sum(int(number(record.get(name, "0"), name, run_id)) for name in ("tokens_in", "tokens_out"))
    return BudgetUse(tokens, number(record.get("cost_usd", "0"), "cost", run_id))


def _event(fields: Mapping[str, str]) -> Event:
    """The event of an entry. Raises RecordUnreadable, and KeyError for a missing field."""
    if "v" in fields:
        check_version({"v": whole(fields["v"], "inbox entry")}, "inbox entry")
    match fields["t"]:
        case "result":
            header = ResultHeader.from_json(decoded(fields["h"], "result"))
            return Resulted(*_visit(fields), header)
        case "submitted":
            return Submitted()
        case "answered":
            text, attempt = decoded(fields["text"], "answer"), whole(fields.get("attempt", "1"), "attempt")
            return Answered(whole(fields["seq"], "visit"), str(text), attempt, fields.get("by", ""))
        case "cancelled":
            return Cancelled(keeps=fields.get("keeps") == "1", by=fields.get("by", ""))
        case "retried":
            return Retried(fresh_children=fields.get("fresh_children") == "1", by=fields.get("by", ""))
        case "paused":
            return Paused(fields["by"], fields.get("reason") or None, _owner(fields))
        case "resumed":
            return Resumed(_owner(fields), fields.get("by", ""))
        case "lease_lost":
            reason = fields.get("reason")
            return LeaseLost(
                *_visit(fields),
                fields["worker"],
                handed_back=reason in ("drain", "machine", "directory"),
                begun=reason not in ("machine", "directory"),
                restored=reason == "restored",
                lacks_directory=reason == "directory",
            )
        case "timer":
            return TimerFired(fields["name"])
        case "child_ended":
            return _child_ended(fields)
        case "child_gone":
            return ChildGone(*_visit(fields), fields["child"])
        case "continued":
            return Continued()
        case "told":
            return Told(fields["what"], decoded_object(fields["data"], "news"))
        case other:
            return Unreadable(other, f"written by a newer release: this one knows no entries {ascii(other)[:40]}")


def _child_ended(fields: Mapping[str, str]) -> ChildEnded:
    usage = decoded_object(fields["usage"], "usage") if fields.get("usage") else None
    if usage is not None:
        read(Usage, usage, "usage")
    status: Any = fields["status"]
    if status not in FINAL and status != "refused":
        raise RecordUnreadable("end of a child", "", f"its status {ascii(status)[:40]} is not known here", newer=True)
    text = fields.get("failed_visits")
    failed = read_text(FailedVisits, text, "failed visits") if text else NO_FAILED_VISITS
    return ChildEnded(*_visit(fields), fields["child"], status, fields.get("error") or None, usage, failed)


def _visit(fields: Mapping[str, str]) -> tuple[int, int]:
    """Number and attempt."""
    return whole(fields["seq"], "visit"), whole(fields["attempt"], "attempt")


def _owner(fields: Mapping[str, str]) -> HoldOwner:
    """The owner of the hold that an entry begins or ends; "" for older releases and for unknown owners of newer
    ones."""
    match fields.get("owner"):
        case "person":
            return "person"
        case "parent":
            return "parent"
        case _:
            return ""


def _hmget(pipe: Any, key: str, fields: Collection[str]) -> None:
    if fields:
        pipe.hmget(key, sorted(fields))


def _known_if_readable(run_id: str, wanted: WantedValues, replies: Iterator[Any]) -> KnownValues | RecordUnreadable:
    """The values, or why they are unreadable. Always consumes its replies, because the next ones belong to others."""
    own = list(islice(replies, _replies_to(wanted)))
    try:
        for reply in own:
            _checked_record(reply, "state", run_id)
        return _known(wanted, iter(own))
    except RecordUnreadable as error:
        return error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return RecordUnreadable("state", run_id, f"damaged: {ascii(str(error))[1:200]}")


def _replies_to(wanted: WantedValues) -> int:
    """The number of commands that `read_values` sends for one entry."""
    fields = (wanted.delta, wanted.items, wanted.windows, wanted.costs)
    state = 1 if wanted.whole or wanted.state else 0
    return state + sum(map(bool, fields)) + bool(wanted.updates) + len(_ranges(wanted.steps))


def _known(wanted: WantedValues, replies: Iterator[Any]) -> KnownValues:
    """The values from the replies to the commands of `read_values` for one entry."""

    def texts(fields: Collection[str]) -> dict[str, str]:
        pairs = zip(sorted(fields), next(replies), strict=True) if fields else ()
        return {field: text for field, text in pairs if text is not None}

    def values(texts_by_key: Mapping[str, str]) -> dict[str, Any]:
        return {key: json.loads(text) for key, text in texts_by_key.items()}

    state = values(next(replies) if wanted.whole else texts(wanted.state))
    delta, items, windows = values(texts(wanted.delta)), texts(wanted.items), values(texts(wanted.windows))
    counted = values(texts({cost_field(child) for child in wanted.costs}))
    costs = {child: counted[field] for child in wanted.costs if (field := cost_field(child)) in counted}
    updates = (next(replies) or "").split(OVERLAY_END) if wanted.updates else ()
    elements = [element for _ in _ranges(wanted.steps) for element in next(replies)]
    steps = {step: journaled(element) for step, element in zip(sorted(wanted.steps), elements, strict=True)}
    return KnownValues(wanted, state, delta, steps, items, windows, tuple(updates), costs)


def _ranges(steps: Collection[int]) -> list[tuple[int, int]]:
    """The first and last steps of ranges without a gap, at most STRETCH long."""
    ranges: list[tuple[int, int]] = []
    for step in sorted(steps):
        if ranges and step == ranges[-1][1] + 1 and step - ranges[-1][0] < STRETCH:
            ranges[-1] = (ranges[-1][0], step)
        else:
            ranges.append((step, step))
    return ranges


def journaled(element: str) -> dict[str, Any]:
    """The values written by a journal element."""
    _, *written = element.split("\n")
    return {json.loads(key): json.loads(text) for key, text in zip(written[::2], written[1::2], strict=True)}


def _name(commit: Commit) -> tuple[str, str]:
    return commit.entry.run, commit.entry.id


def _bytes(vector: list[Any] | None) -> int:
    """The size of a commit's arguments in characters, without the names of keys, which are few and short."""
    return sum(map(len, vector[len(_COMMIT.keys) :])) if vector else 0


def _delta_of(run: Any, event: Event) -> str:
    """The delta key of an event; for events without one, a key that never exists."""
    if isinstance(event, Resulted | ChildEnded):
        return str(run.delta(event.seq, event.attempt))
    return str(run.delta(0, 0))


def _flat(batches: Any) -> Iterable[tuple[str, dict[str, str]]]:
    """RESP3 nests the entries of a stream once more than RESP2."""
    for batch in batches:
        if batch and isinstance(batch[0], tuple | list):
            yield from batch
        else:
            yield batch


def _outcome(reply: Any) -> int:
    if isinstance(reply, redis.exceptions.ResponseError) and not is_passing(reply):
        structlog.get_logger().error("Redis refused a commit", error=str(reply))
        return REFUSED
    return int(_checked(reply))


def _checked(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
