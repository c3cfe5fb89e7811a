"""Batches in Redis: rows that wait, how those under way ended, and what people want of them.

1. A row is added once, however often it is submitted: its key says which one it is.
2. The owner of the first partition admits rows. That moves a row from those that wait to the partition's effects, in
   one step, so that no death loses or doubles it; the run that it becomes has an id that follows from batch and row.
3. A run tells its batch of each of its ends by an effect. What comes twice, or late, changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sleipnir.batches import (
    ROW_STATES,
    BatchInfo,
    BatchPlan,
    Kept,
    RowResult,
    RowState,
    failure_of,
    parse_place,
    row_digest,
    row_run_id,
    state_of,
)
from sleipnir.errors import BatchNotFound, UsageError
from sleipnir.messages import RunStatus, Usage
from sleipnir.runs import RunSpec, from_fields
from sleipnir.store.commit import record
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.records import Pinned
from sleipnir.store.scripts import Arg, Command, Script

_ADD = Script("batch_add")
_ADMIT = Script("batch_admit")
_CHANGE = Script("batch_change")
_ENDED = Script("batch_ended")

PAGE = 500

_COUNTS = ("total", "waiting", "active", "completed", "failed", "cancelled", "admitted")
_FLAGS = ("sealed", "paused", "cancelling")
_USAGE = ("tokens_in", "tokens_out", "model_calls", "cost_usd", "unpriced_calls")
_TIMES = ("created_ms", "started_ms", "ended_ms")
_LOOK: Final = ("plan", *_COUNTS, *_FLAGS, *_USAGE, *_TIMES)
_FIELDS: Final = ("spec", *_LOOK)

_ROW_STATE: Mapping[str, RowState] = {"completed": "completed", "failed": "failed", "cancelled": "cancelled"}
_BYTE_OF = {state: byte for byte, state in ROW_STATES.items()}


@dataclass(frozen=True)
class Added:
    """Of the rows of one call: how many are new, how many were there already, and the places (from 0) of those whose
    keys belong to rows with other contents."""

    added: int
    known: int
    conflicts: tuple[int, ...]


@dataclass(frozen=True)
class Open:
    """A batch that is not over, as admission sees it."""

    id: str
    created_ms: int
    kept: Kept
    plan: BatchPlan


@dataclass(frozen=True)
class Look:
    """What admission goes by: the time, the batches that are not over, the oldest first, and how much the fleet has
    begun: visits that run on workers, events that are not planned, and rows that were admitted and are no runs yet.
    With what waits in queues that is what it has before it. Of no batches nothing else is known."""

    now_ms: int
    batches: tuple[Open, ...]
    under_way: int


NOTHING_OPEN: Final = Look(0, (), 0)


class Batches:
    """What clients and the scheduler do with batches."""

    def __init__(self, client: Client, keys: Keys, *, retention_ms: int) -> None:
        self._client, self._keys, self._retention_ms = client, keys, retention_ms
        self._first = keys.of_partition(0)

    # Clients

    def add(self, batch: str, spec: RunSpec, plan: BatchPlan, rows: Sequence[tuple[str, str]]) -> Added:
        """Add rows: pairs of a key and batches.row_text. The batch begins with its first ones; later, `spec` and `plan`
        are not looked at. Safe to repeat. Raises UsageError when it was cancelled."""
        keys = {**self._keys.of_batch(batch).all(), "batches": self._first.batches, "open": self._first.open_batches}
        fields = json.dumps(["spec", record(spec), "plan", record(plan)])
        args: dict[str, Arg] = {"id": batch, "now_ms": self.now_ms(), "fields": fields}
        added: list[Arg] = [part for key, text in rows for part in (key, row_digest(text), text)]
        reply = _ADD(self._client, keys, args, added)
        if reply[0] == -1:
            raise UsageError(f"batch {batch!r} was cancelled and takes no more rows; submit them as another batch")
        return Added(int(reply[0]), int(reply[1]), tuple(map(int, reply[2:])))

    def infos(self, batches: Sequence[str]) -> list[BatchInfo | None]:
        """Several batches in one round trip; None for one that is not there."""
        pipe = self._client.pipeline(transaction=False)
        for batch in batches:
            pipe.hmget(self._keys.of_batch(batch).batch, _FIELDS)
        pipe.time()
        *replies, (seconds, micros) = pipe.execute()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return [_info(batch, fields, now_ms) for batch, fields in zip(batches, replies, strict=True)]

    def info(self, batch: str) -> BatchInfo:
        """Raises BatchNotFound."""
        [info] = self.infos([batch])
        if info is None:
            raise BatchNotFound(f"no batch {batch!r}: never submitted here, or over longer ago than the retention")
        return info

    def recent(self, limit: int) -> list[BatchInfo]:
        """Those that began last, the newest first."""
        ids = self._client.zrevrange(self._first.batches, 0, limit - 1)
        return [info for info in self.infos(ids) if info is not None]

    def ids_starting_with(self, prefix: str, limit: int = 20) -> list[str]:
        """Batch ids by prefix, for what people type."""
        found = self._client.zrevrange(self._first.batches, 0, 9_999)
        return sorted(batch for batch in found if batch.startswith(prefix))[:limit]

    def spec(self, batch: str) -> RunSpec | None:
        """What its runs are submitted with; None: there is no such batch."""
        text = self._client.hget(self._keys.of_batch(batch).batch, "spec")
        return from_fields(RunSpec, json.loads(text)) if text else None

    def seal(self, batch: str) -> None:
        """No more rows are to come."""
        self._change(batch, "seal")

    def hold(self, batch: str) -> None:
        """Admit nothing until `go_on`."""
        self._change(batch, "set", {"paused": "1"})

    def go_on(self, batch: str, plan: BatchPlan) -> None:
        """Admit again, by this plan from now on."""
        self._change(batch, "set", {"paused": "", "plan": record(plan)})

    def replan(self, batch: str, plan: BatchPlan) -> None:
        """Admit by this plan from now on."""
        self._change(batch, "set", {"plan": record(plan)})

    def cancel(self, batch: str) -> int:
        """Admit nothing any more, and let the scheduler cancel what is under way. How many rows had not begun."""
        return self._change(batch, "cancel")

    def retry(self, batch: str) -> int:
        """Let all rows that failed wait again. How many."""
        return self._change(batch, "retry")

    def _change(
        self, batch: str, wish: Literal["seal", "set", "cancel", "retry"], fields: Mapping[str, str] | None = None
    ) -> int:
        keys = {**self._keys.of_batch(batch).all(), "open": self._first.open_batches}
        args: dict[str, Arg] = {"id": batch, "wish": wish, "now_ms": self.now_ms(), "retention_ms": self._retention_ms}
        reply = int(_CHANGE(self._client, keys, args, [part for pair in (fields or {}).items() for part in pair]))
        if reply == -1:
            raise BatchNotFound(f"no batch {batch!r}: never submitted here, or over longer ago than the retention")
        if reply == -2:
            raise UsageError(f"batch {batch!r} was cancelled; its rows can be submitted again as another batch")
        return reply

    # Results

    def states(self, batch: str, first: int = 0, last: int = -1) -> str:
        """The bytes of rows from `first` to `last`."""
        return str(self._client.getrange(self._keys.of_batch(batch).states, first, last))

    def rows_in(self, batch: str, state: str) -> list[int]:
        """The rows in a state."""
        byte = _BYTE_OF[state]  # type: ignore[index]
        return [row for row, found in enumerate(self.states(batch)) if found == byte]

    def results(self, batch: str, first: int) -> list[RowResult | None]:
        """A page of rows from `first`; None for one that is not over. Empty: there are no more."""
        names = self._client.lrange(self._keys.of_batch(batch).names, first, first + PAGE - 1)
        rows = list(range(first, first + len(names)))
        return self._results(batch, [(row, row + 1) for row in rows], dict(zip(rows, names, strict=True)))

    def results_by_end(self, batch: str, first: int) -> tuple[list[RowResult], int]:
        """A page of rows as they ended, from this place, and the place of the next page, the same one if there is none
        yet. A row that was retried since is left out; it comes again."""
        keys = self._keys.of_batch(batch)
        rows = list(map(int, self._client.lrange(keys.ends, first, first + PAGE - 1)))
        pipe = self._client.pipeline(transaction=False)
        for row in rows:
            pipe.lindex(keys.names, row)
        names = dict(zip(rows, pipe.execute(), strict=True))
        found = self._results(batch, [(row, first + at + 1) for at, row in enumerate(rows)], names)
        return [result for result in found if result is not None], first + len(rows)

    def _results(self, batch: str, rows: Sequence[tuple[int, int]], names: Mapping[int, str]) -> list[RowResult | None]:
        keys = self._keys.of_batch(batch)
        pipe = self._client.pipeline(transaction=False)
        for row, _ in rows:
            run = self._keys.of_run(row_run_id(batch, row))
            pipe.getrange(keys.states, row, row)
            pipe.hmget(run.run, "status", "error")
            pipe.get(run.output)
            pipe.hget(keys.failures, str(row))
        replies = pipe.execute()
        return [
            _result(batch, row, position, names[row], *replies[at : at + 4])
            for (row, position), at in zip(rows, range(0, len(replies), 4), strict=True)
        ]

    def failed(self, batch: str) -> Iterator[RowResult]:
        """The rows that failed, in order."""
        names = self._keys.of_batch(batch).names
        rows = self.rows_in(batch, "failed")
        for at in range(0, len(rows), PAGE):
            page = rows[at : at + PAGE]
            pipe = self._client.pipeline(transaction=False)
            for row in page:
                pipe.lindex(names, row)
            found = self._results(batch, [(row, row + 1) for row in page], dict(zip(page, pipe.execute(), strict=True)))
            yield from (result for result in found if result is not None)

    # The scheduler

    def ended(self, place: str, status: RunStatus, version: int, usage: Usage) -> Command:
        """Note how the run of a row has ended, as a command; batch_ended.lua says how it replies. `usage` is what the
        run has cost in all."""
        calls = {"model_calls": usage.calls, "tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens}
        cost = {"unpriced_calls": usage.calls} if usage.cost_usd is None else {"cost_usd": usage.cost_usd}
        return self._ended(place, _BYTE_OF[_ROW_STATE[status]], version, calls | cost)

    def refused(self, place: str, error: str, text: str = "") -> Command:
        """Note that a row cannot become a run (`text` is what it says), or that its run cannot go on: a later end of
        it counts all the same."""
        return self._ended(place, _BYTE_OF["failed"], 0, {}, error, text)

    def _ended(
        self, place: str, byte: str, version: int, used: Mapping[str, float], error: str = "", text: str = ""
    ) -> Command:
        batch, row = parse_place(place)
        args: dict[str, Arg] = {
            "id": batch,
            "row": row,
            "status": byte,
            "version": version,
            "usage": json.dumps({name: amount for name, amount in used.items() if amount}),
            "error": error,
            "text": text,
            "retention_ms": self._retention_ms,
        }
        return Command(
            _ENDED, _ENDED.vector({**self._keys.of_batch(batch).all(), "open": self._first.open_batches}, args)
        )

    def look(self, known: Collection[str]) -> Look:
        """What there is to admit. `known` are the batches of the last look: with them it is one round trip, unless
        another batch has come."""
        ids = list(known) or sorted(self._client.smembers(self._first.open_batches))
        if not ids:
            return NOTHING_OPEN
        pipe = self._client.pipeline(transaction=False)
        pipe.time()
        pipe.smembers(self._first.open_batches)
        pipe.xlen(self._first.effects)
        for partition in map(self._keys.of_partition, range(self._keys.partitions)):
            pipe.xlen(partition.inbox)
            pipe.zcard(partition.leases)
        for batch in ids:
            pipe.hmget(self._keys.of_batch(batch).batch, _LOOK)
        (seconds, micros), members, *replies = pipe.execute()
        counts, fields = replies[: -len(ids)], dict(zip(ids, replies[-len(ids) :], strict=True))
        if new := sorted(set(members) - fields.keys()):
            pipe = self._client.pipeline(transaction=False)
            for batch in new:
                pipe.hmget(self._keys.of_batch(batch).batch, _LOOK)
            fields |= zip(new, pipe.execute(), strict=True)
        found = [_open(batch, texts) for batch, texts in fields.items() if batch in members]
        in_order = sorted((each for each in found if each is not None), key=lambda each: (each.created_ms, each.id))
        return Look(int(seconds) * 1000 + int(micros) // 1000, tuple(in_order), sum(map(int, counts)))

    def admit(self, batch: str, epoch: int, most: int, now_ms: int) -> int:
        """Let up to `most` rows become runs. How many; -1: the first partition is another's."""
        keys = self._keys.of_batch(batch)
        slots = {
            "batch": keys.batch,
            "rows": keys.rows,
            "states": keys.states,
            "owner": self._first.owner,
            "effects": self._first.effects,
            "failures": keys.failures,
        }
        return int(_ADMIT(self._client, slots, {"id": batch, "epoch": epoch, "most": most, "now_ms": now_ms}))

    def unclaimed(self) -> int:
        """How many visits no worker has taken, also those that are held or that nobody serves: where the broker cannot
        be asked how long its queues are."""
        pipe = self._client.pipeline(transaction=False)
        for partition in map(self._keys.of_partition, range(self._keys.partitions)):
            pipe.zcard(partition.outbox)
        return sum(map(int, pipe.execute()))

    def forget_expired(self, before_ms: int, limit: int) -> int:
        """Drop index entries of batches that began before this and have expired. How many."""
        ids = self._client.zrangebyscore(self._first.batches, "-inf", before_ms, start=0, num=limit)
        pipe = self._client.pipeline(transaction=False)
        for batch in ids:
            pipe.exists(self._keys.of_batch(batch).batch)
        gone = [batch for batch, exists in zip(ids, pipe.execute(), strict=True) if not exists]
        return int(self._client.zrem(self._first.batches, *gone)) if gone else 0

    def pinned(self) -> Pinned:
        """Of rows that are no runs yet."""
        found = [self.spec(batch) for batch in self._client.smembers(self._first.open_batches)]
        specs = [spec for spec in found if spec is not None]
        return Pinned(
            frozenset(digest for spec in specs for digest in (spec.bundle, *spec.agents.values())),
            frozenset(digest for spec in specs for digest in spec.knowledge.values()),
        )

    def now_ms(self) -> int:
        seconds, micros = self._client.time()
        return int(seconds) * 1000 + int(micros) // 1000


def _open(batch: str, texts: Sequence[str | None]) -> Open | None:
    """None: it is gone."""
    fields = dict(zip(_LOOK, texts, strict=True))
    if fields["plan"] is None:
        return None
    return Open(batch, _number(fields["created_ms"]), _kept(fields), _plan(fields["plan"]))


def _plan(text: str) -> BatchPlan:
    return from_fields(BatchPlan, json.loads(text))


def _number(text: str | None) -> int:
    return int(float(text or 0))


def _kept(fields: Mapping[str, str | None]) -> Kept:
    return Kept(
        waiting=_number(fields["waiting"]),
        active=_number(fields["active"]),
        admitted=_number(fields["admitted"]),
        sealed=fields["sealed"] is not None,
        paused=fields["paused"] is not None,
        cancelling=fields["cancelling"] is not None,
        tokens=_number(fields["tokens_in"]) + _number(fields["tokens_out"]),
        cost_usd=float(fields["cost_usd"] or 0),
    )


def _info(batch: str, texts: Sequence[str | None], now_ms: int) -> BatchInfo | None:
    fields = dict(zip(_FIELDS, texts, strict=True))
    if fields["spec"] is None:
        return None
    plan = _plan(str(fields["plan"]))
    calls = _number(fields["model_calls"])
    priced = calls > 0 and not _number(fields["unpriced_calls"])
    usage = Usage(
        input_tokens=_number(fields["tokens_in"]),
        output_tokens=_number(fields["tokens_out"]),
        calls=calls,
        cost_usd=round(float(fields["cost_usd"] or 0), 8) if priced else None,
    )
    return BatchInfo(
        id=batch,
        agent=json.loads(fields["spec"])["agent"],
        state=state_of(_kept(fields), plan),
        now_ms=now_ms,
        plan=plan,
        usage=usage,
        created_ms=_number(fields["created_ms"]),
        started_ms=_number(fields["started_ms"]) or None,
        ended_ms=_number(fields["ended_ms"]) or None,
        **{name: _number(fields[name]) for name in _COUNTS if name != "admitted"},
    )


def _result(
    batch: str,
    row: int,
    position: int,
    key: str,
    byte: str,
    record_: Sequence[str | None],
    output: str | None,
    failure: str | None,
) -> RowResult | None:
    status = ROW_STATES[byte]
    if status in ("waiting", "active"):
        return None
    run_status, error = record_
    unborn: dict[str, Any] = json.loads(failure) if failure else {}
    if status == "failed" and run_status is None:
        error = unborn.get("error", "its run is not kept any more")
    return RowResult(
        row=row,
        key=key,
        run=row_run_id(batch, row),
        status=status,
        position=position,
        output=output if status == "completed" else None,
        error=error if status == "failed" else None,
        node=failure_of(error or "")[0] if status == "failed" else None,
    )
