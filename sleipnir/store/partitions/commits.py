"""What was decided on an event is applied to its run: one atomic script for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import redis
import structlog

from sleipnir.runs.run import RunView
from sleipnir.runs.transitions import Notice, Transition
from sleipnir.store.commit import commit_keys, control, shared_keys
from sleipnir.store.connect import clock_ms, is_passing
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.partitions.entries import Entry, delta_key
from sleipnir.store.pending_replies import PendingReplies, Sending
from sleipnir.store.record_text import dumps
from sleipnir.store.scripts import SILENT, Arg, LuaScript, checked, run_batch, sending_batch

_COMMIT = LuaScript("commit")
_DISCARD = LuaScript("discard")

MOST_ARGUMENTS = 1_000_000  # Redis 6.2 closes the connection at 1,048,576
BATCH_BYTES = 8 * 2**20  # of one round trip, unless one commit is larger
SUSPECT_BYTES = 2**20  # a smaller commit cannot cause a closed connection

APPLIED, STALE, NOT_OWNER, REFUSED, CLAIMED = 1, 0, -1, -2, 2


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


class _Suspects:
    """Large commits that were being sent when the connection broke, by run and entry: how often it broke while only
    that commit was sent and Redis was reachable."""

    def __init__(self) -> None:
        self._breaks: dict[tuple[str, str], int] = {}

    def breaks_of(self, name: tuple[str, str]) -> int | None:
        """None: the commit is no suspect."""
        return self._breaks.get(name) if self._breaks else None

    def forget(self, names: Iterable[tuple[str, str]]) -> None:
        if self._breaks:
            for name in names:
                self._breaks.pop(name, None)

    def note_break(self, sizes: Mapping[tuple[str, str], int], is_reachable: Callable[[], bool]) -> None:
        """Record that the connection broke during these commits. Large ones are suspects: they are sent alone from now
        on, and a break with one alone counts if Redis is reachable."""
        suspects = [name for name, size in sizes.items() if size >= SUSPECT_BYTES]
        if len(self._breaks) > 1_000:
            self._breaks.clear()
        if len(sizes) > 1 or not suspects:
            for name in suspects:
                self._breaks.setdefault(name, 0)
        elif is_reachable():  # if Redis is unreachable, the commit is not necessarily the cause
            self._breaks[suspects[0]] = self._breaks.get(suspects[0], 0) + 1


class Commits(PartitionConnection):
    """Apply transitions, and delete entries that change nothing."""

    @cached_property
    def _suspects(self) -> _Suspects:
        return _Suspects()

    def commit(self, commits: Sequence[Commit], epochs: Mapping[int, int]) -> list[int]:
        """Apply transitions, one atomic script each, one round trip for all.

        Per commit: APPLIED, STALE (the view was old), NOT_OWNER, CLAIMED (it applies only while no worker has claimed
        the visits), or REFUSED (the script cannot apply it: a bug; or the connection broke twice because of it).
        Raises redis-py's errors if the connection breaks or the server is full or failing over: then any of them may
        have been applied. In a cluster, those for a node that does not answer are STALE: the view is uncertain.
        """
        return self.send(commits, epochs).result()

    def send(self, commits: Sequence[Commit], epochs: Mapping[int, int]) -> PendingReplies[list[int]]:
        """The same, whose outcomes are read later."""
        return PendingReplies(self._sending(commits, epochs))

    def _sending(self, commits: Sequence[Commit], epochs: Mapping[int, int]) -> Sending[list[int]]:
        vectors = [self._commit_vector(commit, epochs[commit.entry.partition]) for commit in commits]
        outcomes: list[int] = [REFUSED] * len(commits)
        for numbers in self._in_batches(commits, vectors):
            try:
                replies = yield from sending_batch(self._client, _COMMIT, [vectors[place] or [] for place in numbers])
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                self._suspects.note_break(
                    {_name(commits[place]): _bytes(vectors[place]) for place in numbers},
                    partial(self._is_reachable, commits[numbers[0]].entry.partition),
                )
                raise
            broken = [place for place, reply in zip(numbers, replies, strict=True) if isinstance(reply, SILENT)]
            if broken:  # those for a node of a cluster that does not answer
                self._suspects.note_break(
                    {_name(commits[place]): _bytes(vectors[place]) for place in broken},
                    partial(self._is_reachable, commits[broken[0]].entry.partition),
                )
            for place, reply in zip(numbers, replies, strict=True):
                outcomes[place] = STALE if isinstance(reply, SILENT) else _outcome(reply)
            self._suspects.forget([_name(commits[place]) for place in numbers if place not in broken])
        return outcomes

    def discard(self, drops: Sequence[IgnoredEntry], epochs: Mapping[int, int]) -> list[int]:
        """Delete entries that change nothing, one round trip for all. Outcomes as for `commit`."""
        vectors = []
        for drop in drops:
            entry, run = drop.entry, self._keys.of_run(drop.entry.run)
            keys = {
                "inbox": self._of(entry.partition).inbox,
                "run": run.run,
                "events": run.events,
                "delta": delta_key(run, entry.event),
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

    def _in_batches(self, commits: Sequence[Commit], vectors: Sequence[list[Any] | None]) -> Iterator[list[int]]:
        """The numbers of the commits of each round trip, in order: up to a number of bytes; a commit that may have
        broken the connection is sent alone. A commit that broke it twice is left out."""
        batch: list[int] = []
        size = 0
        for place, vector in enumerate(vectors):
            if vector is None:
                continue
            breaks = self._suspects.breaks_of(_name(commits[place]))
            if breaks is not None and breaks >= 2:
                structlog.get_logger().error("a commit breaks the connection", run=commits[place].run.id)
                self._suspects.forget([_name(commits[place])])  # the commit that ends the run instead has the same name
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

    def _is_reachable(self, partition: int) -> bool:
        """Whether the server of a partition answers: in a cluster, another one says nothing about it."""
        try:
            clock_ms(self._client, self._of(partition).inbox)
        except (redis.exceptions.RedisError, OSError):
            return False
        return True

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
            audit_ms=self._audit_ms,
        )
        session = self._keys.of_session_of(commit.run.spec)
        keys = {**commit_keys(run, delta_key(run, entry.event), session), **shared_keys(partition)}
        if len(values) > MOST_ARGUMENTS:
            raise ValueError(f"it has {len(values):,} values; Redis accepts at most {MOST_ARGUMENTS:,}")
        for value in values:
            if isinstance(value, str) and not value.isascii():
                value.encode()  # fails for half a surrogate pair, from damaged bytes, only for this run
        return _COMMIT.vector(keys, {"control": body}, values)


def _name(commit: Commit) -> tuple[str, str]:
    return commit.entry.run, commit.entry.id


def _bytes(vector: list[Any] | None) -> int:
    """The size of a commit's arguments in characters, without the names of keys, which are few and short."""
    return sum(map(len, vector[len(_COMMIT.keys) :])) if vector else 0


def _outcome(reply: Any) -> int:
    if isinstance(reply, redis.exceptions.ResponseError) and not is_passing(reply):
        structlog.get_logger().error("Redis refused a commit", error=str(reply))
        return REFUSED
    return int(checked(reply))
