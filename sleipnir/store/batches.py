"""Batches in Redis: waiting rows, results of rows, and requests of people.

1. A row is added once, even if it is submitted repeatedly: its key identifies it.
2. The owner of the first partition admits rows: it moves a waiting row to the partition's effects atomically, so that a
   crash neither loses nor duplicates it. The id of the row's run is derived from batch and row.
3. A run reports each of its ends to its batch by an effect. Repeated and late reports change nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal

from sleipnir.access.audit import KEEP_MS, audit_text
from sleipnir.batches.records import (
    ROW_STATES,
    BatchCounts,
    BatchFork,
    BatchInfo,
    BatchPlan,
    RowResult,
    RowState,
    parse_place,
    row_digest,
    row_run_id,
    state_of,
)
from sleipnir.decoding import decoded_object, decoded_values, number, read_text
from sleipnir.errors import BatchNotFound, RecordUnreadable, UsageError
from sleipnir.messages import RunStatus, Usage
from sleipnir.runs.actor import Change, change_text, changes_of
from sleipnir.runs.failure_text import failure_of
from sleipnir.runs.run import RunSpec
from sleipnir.store.connect import Client, clock_ms, time_ms
from sleipnir.store.keys import Keys
from sleipnir.store.namespaced import is_complete, of_namespace
from sleipnir.store.record_text import dumps, record
from sleipnir.store.records import PinnedDigests
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand, checked, run_batch, run_in_order

_ADD = LuaScript("batch_add")
_ADMIT = LuaScript("batch_admit")
_CHANGE = LuaScript("batch_change")
_COUNT = LuaScript("count_entries")
_ENDED = LuaScript("batch_ended")
_FORGET = LuaScript("batch_forget")
_WORK = LuaScript("batch_work")

CHANGED: Final = -2  # the reply of batch_admit.lua to a decision based on an old copy

PAGE = 500
STATES_PAGE = 50_000
"""Bytes of states that are read at once."""
LOOK_PAGE = 100
"""Batches that are read in one round trip: reading a thousand must not block Redis or this process."""
PIPED = 20
"""Batches that admit rows in one round trip."""
OUTPUT_BYTES = 8 * 2**20
"""The total size of outputs that are read in one round trip, unless a single one is larger."""

FORK_PLAN: Final = "fork_plan"
"""The field of the plan of a batch of forks: earlier schedulers, which could not start its rows, find no plan."""

_COUNTS = ("total", "waiting", "active", "completed", "failed", "cancelled", "admitted")
_WITH_ROWS: Final = "rows"
"""The mark of a batch that is held with its active rows; that of one that only admits none is 1."""

_FLAGS = ("sealed", "paused", "cancelling", "cancel_at", "retry")
_USAGE = ("tokens_in", "tokens_out", "model_calls", "cost_usd", "unpriced_calls")
_TIMES = ("created_ms", "started_ms", "ended_ms")
_LOOK: Final = ("plan", FORK_PLAN, "rev", *_COUNTS, *_FLAGS, *_USAGE, *_TIMES)
_CHANGES: Final = ("paused", "resumed", "replanned", "retried", "cancelled")
_FIELDS: Final = ("spec", "failed_visits", *_LOOK, *(f"by:{what}" for what in _CHANGES))

_ROW_STATE: Mapping[str, RowState] = {"completed": "completed", "failed": "failed", "cancelled": "cancelled"}
_BYTE_OF = {state: byte for byte, state in ROW_STATES.items()}


@dataclass(frozen=True)
class AddedRows:
    """The result of adding rows: the numbers of new and of known rows, and the places (from 0) of rows whose keys
    belong to rows with other contents."""

    added: int
    known: int
    conflicts: tuple[int, ...]


@dataclass(frozen=True)
class OpenBatch:
    """An unfinished batch, as admission sees it. `rev` is its revision, which a decision must match. `unreadable`: why
    its record cannot be read; none of its rows are admitted then."""

    id: str
    created_ms: int = 0
    kept: BatchCounts = field(default_factory=BatchCounts)
    plan: BatchPlan = field(default_factory=BatchPlan)
    rev: int = 0
    unreadable: str | None = None


@dataclass(frozen=True)
class AdmissionView:
    """The input of admission: the time, and the current batches; None: it is over or has expired. `seen` is the number
    of the last change that it includes."""

    now_ms: int
    seen: float
    batches: Mapping[str, OpenBatch | None]


class Batches:
    """The operations of clients and the scheduler on batches."""

    def __init__(self, client: Client, keys: Keys, *, retention_ms: int, by: str = "", audit_ms: int = KEEP_MS) -> None:
        """`by` is who acts through this client (by.By, as text), and the audit keeps an entry for `audit_ms`."""
        self._client, self._keys, self._retention_ms, self._by = client, keys, retention_ms, by
        self._audit_ms = audit_ms
        self._first = keys.of_partition(0)
        self._looked_at = 0

    # Clients

    def add(
        self,
        batch: str,
        spec: RunSpec,
        plan: BatchPlan,
        rows: Sequence[tuple[str, str]],
        contents: Mapping[str, str] | None = None,
        fork_state: Mapping[str, Any] | None = None,
    ) -> AddedRows:
        """Add rows: pairs of a key and batches.row_text. `contents` has, by key, what is compared of a row that is
        added again; else its text is. `fork_state` are the values that forks begin with. The first call creates the
        batch; later calls ignore `spec`, `plan` and `fork_state`. Safe to repeat. Raises UsageError if it was
        cancelled, and BatchNotFound if it is a batch of another namespace than that of the spec."""
        keys = {**self._changing(batch), "batches": self._first.batches}
        begin = ["fork_state", dumps(fork_state)] if fork_state else []
        fields = json.dumps(["spec", record(spec), _plan_field(plan), record(plan), *begin])
        args: dict[str, Arg] = {"id": batch, "now_ms": self.now_ms(), "fields": fields, "namespace": spec.namespace}
        compared = contents or {}
        added: list[Arg] = [part for key, text in rows for part in (key, row_digest(compared.get(key, text)), text)]
        reply = _ADD(self._client, keys, args, added)
        if reply[0] == -2:
            raise BatchNotFound(
                f"no batch {batch!r} in the namespace {spec.namespace!r}; another namespace has this id"
            )
        if reply[0] == -1:
            raise UsageError(f"batch {batch!r} was cancelled and takes no more rows; submit them as another batch")
        return AddedRows(int(reply[0]), int(reply[1]), tuple(map(int, reply[2:])))

    def infos(self, batches: Sequence[str]) -> list[BatchInfo | None]:
        """Several batches in one round trip; None for a missing batch."""
        pipe = self._client.pipeline(transaction=False)
        for batch in batches:
            pipe.hmget(self._keys.of_batch(batch).batch, _FIELDS)
        pipe.time()
        *replies, time = pipe.execute()
        now_ms = time_ms(time)
        return [_info(batch, fields, now_ms) for batch, fields in zip(batches, replies, strict=True)]

    def info(self, batch: str) -> BatchInfo:
        """Raises BatchNotFound."""
        [info] = self.infos([batch])
        if info is None:
            raise _not_found(batch)
        return info

    def recent(self, limit: int, namespace: str | None = None, after: str | None = None) -> list[BatchInfo]:
        """The batches that began last, of one namespace or (None) of all, the newest first: after the batch `after`, if
        it is given. Raises BatchNotFound if that one is not among them any more."""
        index = self._first.batches
        if namespace is None:
            return self._newest(index, limit, after)
        if all(is_complete(self._client, [index])):
            return self._newest(of_namespace(index, namespace), limit, after)
        infos = self._existing(self._client.zrevrange(index, self._place_after(index, after), -1))
        return [info for info in infos if info.namespace == namespace][:limit]

    def _newest(self, index: str, limit: int, after: str | None) -> list[BatchInfo]:
        """Those that exist. The indexes also have some that have expired."""
        found: list[BatchInfo] = []
        place = self._place_after(index, after)
        while (wanted := limit - len(found)) > 0:
            ids = self._client.zrevrange(index, place, place + wanted - 1)
            found += self._existing(ids)
            if len(ids) < wanted:
                break
            place += wanted
        return found

    def _place_after(self, index: str, batch: str | None) -> int:
        if batch is None:
            return 0
        place = self._client.zrevrank(index, batch)
        if place is None:
            raise _not_found(batch)
        return int(place) + 1

    def _existing(self, ids: Sequence[str]) -> list[BatchInfo]:
        infos = [info for at in range(0, len(ids), LOOK_PAGE) for info in self.infos(ids[at : at + LOOK_PAGE])]
        return [info for info in infos if info is not None]

    def ids_starting_with(self, prefix: str, limit: int = 20, namespace: str | None = None) -> list[str]:
        """Ids of batches of a namespace (None: of any) by prefix, among the newest 10,000, to complete user input."""
        index = self._first.batches
        ids = self._client.zrevrange(index if namespace is None else of_namespace(index, namespace), 0, 9_999)
        return sorted(batch for batch in ids if batch.startswith(prefix))[:limit]

    def accepts_rows(self, batch: str) -> bool:
        """Whether it is there, and more rows are awaited."""
        created, sealed = self._client.hmget(self._keys.of_batch(batch).batch, ["created_ms", "sealed"])
        return created is not None and sealed is None

    def spec(self, batch: str) -> RunSpec | None:
        """The spec of its runs; None: there is no such batch. Raises RecordUnreadable."""
        text = self._client.hget(self._keys.of_batch(batch).batch, "spec")
        return read_text(RunSpec, text, "spec", f"batch {batch!r}") if text else None

    def fork_of(self, batch: str) -> tuple[BatchFork, dict[str, Any]] | None:
        """Where the rows of a batch of forks begin, and the values that these begin with. None: it is no such batch, or
        it has expired. Raises RecordUnreadable."""
        plan, state = self._client.hmget(self._keys.of_batch(batch).batch, [FORK_PLAN, "fork_state"])
        fork = _plan(plan).fork if plan else None
        if fork is None:
            return None
        return fork, decoded_values(state, "state of forks", batch) if state else {}

    def seal(self, batch: str) -> None:
        """Mark the batch as complete: no more rows will be added."""
        self._change(batch, "seal")

    def hold(self, batch: str, *, rows: bool = False) -> None:
        """Admit no rows until `go_on`. `rows`: active rows are to be paused too."""
        held = rows or self.holds_rows(batch)
        self._change(batch, "set", {"paused": _WITH_ROWS if held else "1", **self._signed("paused")})

    def holds_rows(self, batch: str) -> bool:
        """Whether it is held with its active rows."""
        return bool(self._client.hget(self._keys.of_batch(batch).batch, "paused") == _WITH_ROWS)

    def go_on(self, batch: str, plan: BatchPlan) -> None:
        """Admit rows again, with this plan from now on."""
        self._change(batch, "set", {"paused": "", _plan_field(plan): record(plan), **self._signed("resumed")})

    def replan(self, batch: str, plan: BatchPlan) -> None:
        """Admit rows with this plan from now on."""
        self._change(batch, "set", {_plan_field(plan): record(plan), **self._signed("replanned")})

    def cancel(self, batch: str, *, by: str | None = None) -> bool:
        """Admit no more rows, cancel the waiting ones, and let the scheduler cancel the active ones. The scheduler
        continues if this process dies. `by` is who does it, if it is not who acts through this client. False: all rows
        were over, and nothing was changed."""
        if self._change(batch, "cancel", self._signed("cancelled", by)) == -3:
            return False
        while self.work(batch):
            pass
        return True

    def retry(self, batch: str) -> int:
        """Let all failed rows wait again; returns how many. The scheduler continues if this process dies."""
        self._change(batch, "set", self._signed("retried"))
        request = secrets.token_hex(8)
        state, rows = 1, 0
        while state == 1:
            state, rows = self._work(batch, request)
        if state == -1:
            raise _not_found(batch)
        if state == -2:
            raise _was_cancelled(batch)
        return rows

    def work(self, batch: str) -> bool:
        """Do the next piece of a cancel or a retry in progress. Returns whether there is more to do."""
        state, _ = self._work(batch, "")
        return state == 1

    def _work(self, batch: str, request: str) -> tuple[int, int]:
        args: dict[str, Arg] = {"id": batch, "request": request, **self._ending()}
        state, rows = _WORK(self._client, self._changing(batch), args)
        return int(state), int(rows)

    def _signed(self, what: str, by: str | None = None) -> dict[str, str]:
        """The field that records who did this last, and when."""
        return {f"by:{what}": change_text(Change(what, self._by if by is None else by, self.now_ms()))}

    def _change(
        self, batch: str, wish: Literal["seal", "set", "cancel"], fields: Mapping[str, str] | None = None
    ) -> int:
        entry = _audit_entry(batch, fields, self._by) if fields and self._by else ""
        args: dict[str, Arg] = {
            "id": batch, "wish": wish, **self._ending(), "entry": entry, "keep_ms": self._audit_ms,
        }  # fmt: skip
        rest = [part for pair in (fields or {}).items() for part in pair]
        keys = {**self._changing(batch), "audit": self._first.audit}
        reply = int(_CHANGE(self._client, keys, args, rest))
        if reply == -1:
            raise _not_found(batch)
        if reply == -2:
            raise _was_cancelled(batch)
        return reply

    def _changing(self, batch: str) -> dict[str, str]:
        """The keys of scripts that change a batch."""
        indexes = {"open": self._first.open_batches, "changed": self._first.changed_batches}
        return {**self._keys.of_batch(batch).all(), **indexes}

    def _ending(self) -> dict[str, Arg]:
        return {"now_ms": self.now_ms(), "retention_ms": self._retention_ms}

    # Results

    def states(self, batch: str, first: int = 0, last: int = STATES_PAGE - 1) -> str:
        """The state bytes of rows from `first` to `last`. There can be millions of rows: read pages."""
        return str(self._client.getrange(self._keys.of_batch(batch).states, first, last))

    def rows_in(self, batch: str, state: RowState) -> Iterator[int]:
        """The rows in a state, in order, a page of states at a time."""
        first = 0
        while page := self.states(batch, first, first + STATES_PAGE - 1):
            yield from (first + at for at in places_of(page, _BYTE_OF[state]))
            first += len(page)

    def results(self, batch: str, first: int) -> list[RowResult | None]:
        """A page of rows from `first`; None for an unfinished row. Empty: there are no more."""
        names = self._client.lrange(self._keys.of_batch(batch).names, first, first + PAGE - 1)
        rows = list(range(first, first + len(names)))
        return self._results(batch, [(row, row + 1) for row in rows], dict(zip(rows, names, strict=True)))

    def results_by_end(self, batch: str, first: int) -> tuple[list[RowResult], int]:
        """A page of rows in the order in which they ended, from this place, and the place of the next page, the same
        one if there is none yet. A row that was retried since is left out; it is listed again later."""
        rows = list(map(int, self._client.lrange(self._keys.of_batch(batch).ends, first, first + PAGE - 1)))
        places = [(row, first + at + 1) for at, row in enumerate(rows)]
        results = self._results(batch, places, self.names_of(batch, rows))
        return [result for result in results if result is not None], first + len(rows)

    def failed(self, batch: str) -> Iterator[RowResult]:
        """The rows that failed, in order."""
        rows = self.rows_in(batch, "failed")
        while page := list(islice(rows, PAGE)):
            results = self._results(batch, [(row, row + 1) for row in page], self.names_of(batch, page))
            yield from (result for result in results if result is not None)

    def results_of(self, batch: str, names: Mapping[int, str]) -> list[RowResult]:
        """The ended ones of these rows, whose keys are known: not too many, as they are read at once."""
        results = self._results(batch, [(row, row + 1) for row in names], names)
        return [result for result in results if result is not None]

    def names(self, batch: str, first: int) -> list[str]:
        """A page of the keys of rows, from the row `first` on."""
        keys: list[str] = self._client.lrange(self._keys.of_batch(batch).names, first, first + PAGE - 1)
        return keys

    def rows_of(self, batch: str, keys: Sequence[str]) -> list[int | None]:
        """The rows with these keys; None for a key that no row has."""
        texts = self._client.hmget(self._keys.of_batch(batch).numbers, list(keys))
        return [None if text is None else int(text.partition(" ")[0]) for text in texts]

    def started(self, batch: str, rows: Sequence[int]) -> list[bool]:
        """Whether the runs of rows exist."""
        pipe = self._client.pipeline(transaction=False)
        for row in rows:
            pipe.exists(self._keys.of_run(row_run_id(batch, row)).run)
        return [bool(found) for found in pipe.execute()]

    def without_run(self, rows: Sequence[tuple[str, int]]) -> list[tuple[str, str | None]]:
        """The status of rows of batches that have no run, and why they failed."""
        if not rows:
            return []
        pipe = self._client.pipeline(transaction=False)
        for batch, row in rows:
            keys = self._keys.of_batch(batch)
            pipe.getrange(keys.states, row, row)
            pipe.hget(keys.failures, str(row))
        replies = iter(pipe.execute())
        return [_without_run(next(replies), next(replies)) for _ in rows]

    def names_of(self, batch: str, rows: Sequence[int]) -> dict[int, str]:
        """The keys of these rows, by row: not too many, as they are read at once."""
        pipe = self._client.pipeline(transaction=False)
        for row in rows:
            pipe.lindex(self._keys.of_batch(batch).names, row)
        return dict(zip(rows, pipe.execute(), strict=True))

    def _results(self, batch: str, rows: Sequence[tuple[int, int]], names: Mapping[int, str]) -> list[RowResult | None]:
        keys = self._keys.of_batch(batch)
        pipe = self._client.pipeline(transaction=False)
        for row, _ in rows:
            run = self._keys.of_run(row_run_id(batch, row))
            pipe.getrange(keys.states, row, row)
            pipe.hmget(run.run, "status", "error")
            pipe.strlen(run.output)
            pipe.hget(keys.failures, str(row))
        replies = iter(pipe.execute())
        rows_read = [(row, position, *islice(replies, 4)) for row, position in rows]
        outputs = self._outputs(batch, {row: size for row, _, byte, _, size, _ in rows_read if byte == "c" and size})
        return [
            _result(batch, row, position, names[row], byte, status, outputs.get(row), failure)
            for row, position, byte, status, _, failure in rows_read
        ]

    def _outputs(self, batch: str, sizes: Mapping[int, int]) -> dict[int, str | None]:
        """Outputs of rows whose sizes are known, read in parts, because a page of large ones may not fit into
        memory."""
        outputs: dict[int, str | None] = {}
        remaining = list(sizes)
        while remaining:
            count, bytes_ = 0, 0
            while count < len(remaining) and (not count or bytes_ + sizes[remaining[count]] <= OUTPUT_BYTES):
                bytes_ += sizes[remaining[count]]
                count += 1
            names = [self._keys.of_run(row_run_id(batch, row)).output for row in remaining[:count]]
            pipe = self._client.pipeline(transaction=False)
            for name in names:
                pipe.get(name)
            outputs |= zip(remaining, pipe.execute(), strict=False)
            remaining = remaining[count:]
        return outputs

    # The scheduler

    def ended(self, place: str, status: RunStatus, version: int, usage: Usage, failed_visits: int = 0) -> RedisCommand:
        """The command that records the end of a row's run; batch_ended.lua has the replies. `usage` is the total usage
        of the run."""
        calls = {"model_calls": usage.calls, "tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens}
        cost = {"unpriced_calls": usage.calls} if usage.cost_usd is None else {"cost_usd": usage.cost_usd}
        return self._ended(
            place, _BYTE_OF[_ROW_STATE[status]], version, calls | cost | {"failed_visits": failed_visits}
        )

    def refused(self, place: str, error: str, text: str = "") -> RedisCommand:
        """The command that records that a row cannot become a run (`text` is the row), or that its run cannot continue;
        a later end of the run still counts."""
        return self._ended(place, _BYTE_OF["failed"], 0, {}, error, text)

    def _ended(
        self, place: str, byte: str, version: int, used: Mapping[str, float], error: str = "", text: str = ""
    ) -> RedisCommand:
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
        return RedisCommand(_ENDED, _ENDED.vector(self._changing(batch), args))

    def look(self, seen: float | None, also: Collection[str] = ()) -> AdmissionView:
        """Batches that have changed since change `seen`, up to a page, and the batches `also`. `seen` None: all
        unfinished batches. Without changes it costs one short round trip."""
        pipe = self._client.pipeline(transaction=False)
        pipe.time()
        pipe.zscore(self._first.changed_batches, "")
        if seen is None:
            pipe.smembers(self._first.open_batches)
        else:
            after = f"({seen:.0f}"
            pipe.zrangebyscore(self._first.changed_batches, after, "+inf", start=0, num=LOOK_PAGE, withscores=True)
        time, last, listed = pipe.execute()
        now_ms = time_ms(time)
        if seen is None:
            ids, seen = sorted(listed), last or 0.0
        else:
            changes = [(batch, number) for batch, number in listed if batch]
            ids, seen = [batch for batch, _ in changes], max((number for _, number in changes), default=seen)
        return AdmissionView(now_ms, seen, self._opened([*ids, *(batch for batch in also if batch not in ids)]))

    def _opened(self, batches: Sequence[str]) -> dict[str, OpenBatch | None]:
        opened: dict[str, OpenBatch | None] = {}
        for at in range(0, len(batches), LOOK_PAGE):
            page = batches[at : at + LOOK_PAGE]
            pipe = self._client.pipeline(transaction=False)
            for batch in page:
                pipe.hmget(self._keys.of_batch(batch).batch, _LOOK)
            opened |= {batch: _open(batch, texts) for batch, texts in zip(page, pipe.execute(), strict=True)}
        return opened

    def owners(self, batches: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The namespace and the agent of each of these batches whose spec can be read."""
        pipe = self._client.pipeline(transaction=False)
        for batch in batches:
            pipe.hget(self._keys.of_batch(batch).batch, "spec")
        owners = {}
        for batch, text in zip(batches, pipe.execute(), strict=True):
            try:
                spec = read_text(RunSpec, text or "", "spec", batch)
            except RecordUnreadable:
                continue
            owners[batch] = (spec.namespace, spec.agent)
        return owners

    def under_way(self) -> int:
        """The work in progress of the fleet: visits on workers, unplanned events, and admitted rows that are not runs
        yet. Together with the queues it is the total outstanding work."""
        parts = [self._keys.of_partition(number) for number in range(self._keys.partitions)]
        streams = [[part.inbox] for part in parts]
        streams[0].append(self._first.effects)
        return self._count(streams, [[part.leases] for part in parts])

    def _count(self, streams: Sequence[Sequence[str]], sets: Sequence[Sequence[str]]) -> int:
        """The entries of streams and sorted sets, which are given by partition. One call; in a cluster one for each
        partition: admission asks up to a hundred times a second."""
        if not self._keys.of_cluster:
            streams, sets = [[key for keys in streams for key in keys]], [[key for keys in sets for key in keys]]
        commands = []
        for of_streams, of_sets in zip(streams, sets, strict=True):
            keys = [*of_streams, *of_sets]
            commands.append(RedisCommand(_COUNT, _COUNT.vector(keys, {"streams": len(of_streams)}), len(keys)))
        return sum(map(int, map(checked, run_in_order(self._client, commands))))

    def admit(self, wanted: Sequence[tuple[OpenBatch, int]], epoch: int, now_ms: int) -> list[int]:
        """Admit up to so many rows of each batch. Returns how many; -1: another scheduler owns the first partition; -2:
        the batch has admitted rows since it was read, or its plan has changed."""
        vectors = []
        for batch, most in wanted:
            keys = self._keys.of_batch(batch.id)
            slots = {
                "batch": keys.batch,
                "rows": keys.rows,
                "states": keys.states,
                "owner": self._first.owner,
                "effects": self._first.effects,
                "failures": keys.failures,
                "changed": self._first.changed_batches,
            }
            args: dict[str, Arg] = {
                "id": batch.id, "epoch": epoch, "rev": batch.rev, "most": most, "now_ms": now_ms,
                "do_": "start_row" if batch.plan.fork is None else "fork_row",
            }  # fmt: skip
            vectors.append(_ADMIT.vector(slots, args))
        admitted: list[int] = []
        for at in range(0, len(vectors), PIPED):
            for reply in run_batch(self._client, _ADMIT, vectors[at : at + PIPED]):
                if isinstance(reply, Exception):
                    raise reply
                admitted.append(int(reply))
        return admitted

    def unclaimed(self) -> int:
        """The number of visits that no worker has claimed, including held ones and those in queues without workers.
        Used if the broker cannot report its queue lengths."""
        outboxes = [[self._keys.of_partition(number).outbox] for number in range(self._keys.partitions)]
        return self._count([[] for _ in outboxes], outboxes)

    def forget_expired(self, before_ms: int, limit: int) -> int:
        """Drop index entries of expired batches that began before this; returns how many. Each call checks the next
        `limit` entries, so that batches that are kept do not block the others."""
        ids = self._client.zrangebyscore(self._first.batches, "-inf", before_ms, start=self._looked_at, num=limit)
        dropped = 0
        for at in range(0, len(ids), LOOK_PAGE):
            page = ids[at : at + LOOK_PAGE]
            indexes = (self._first.batches, self._first.open_batches, self._first.changed_batches)
            keys = [*indexes, *(self._keys.of_batch(batch).batch for batch in page)]
            dropped += int(_FORGET(self._client, keys, {"count": len(page)}, page))
        self._looked_at = self._looked_at + len(ids) - dropped if len(ids) == limit else 0
        return dropped

    def pinned(self) -> PinnedDigests:
        """The digests pinned by rows that are not runs yet. Raises RecordUnreadable: if the needs of a batch are
        unknown, nothing may be dropped."""
        bundles, knowledge = set[str](), set[str]()
        batches = self._client.sscan_iter(self._first.open_batches, count=LOOK_PAGE)
        while page := list(islice(batches, LOOK_PAGE)):
            pipe = self._client.pipeline(transaction=False)
            for batch in page:
                pipe.hget(self._keys.of_batch(batch).batch, "spec")
            specs = [
                read_text(RunSpec, text, "spec", f"batch {batch!r}")
                for batch, text in zip(page, pipe.execute(), strict=True)
                if text
            ]
            bundles |= {digest for spec in specs for digest in (spec.bundle, *spec.agents.values())}
            knowledge |= {digest for spec in specs for digest in spec.knowledge.values()}
        return PinnedDigests(frozenset(bundles), frozenset(knowledge))

    def now_ms(self) -> int:
        return clock_ms(self._client)


def _open(batch: str, texts: Sequence[str | None]) -> OpenBatch | None:
    """The batch from its record; None: it is over or has expired."""
    fields = dict(zip(_LOOK, texts, strict=True))
    plan = fields[FORK_PLAN] or fields["plan"]
    if plan is None or fields["ended_ms"] is not None:
        return None
    try:
        return OpenBatch(batch, _number(fields["created_ms"]), _kept(fields), _plan(plan), _number(fields["rev"]))
    except RecordUnreadable as error:
        return OpenBatch(batch, unreadable=error.why)


def places_of(page: str, byte: str) -> Iterator[int]:
    """The places of a byte in a page of states."""
    at = page.find(byte)
    while at >= 0:
        yield at
        at = page.find(byte, at + 1)


def _audit_entry(batch: str, fields: Mapping[str, str], by: str) -> str:
    """What is said of a change: the field `by:` names it, the others are what is set."""
    what = next(name.removeprefix("by:") for name in fields if name.startswith("by:"))
    after = {name: text for name, text in fields.items() if not name.startswith("by:")}
    return audit_text(f"batch {what}", f"batch {batch}", by, after=after or None)


def _not_found(batch: str) -> BatchNotFound:
    return BatchNotFound(f"no batch {batch!r}: never submitted here, or finished longer ago than the retention")


def _was_cancelled(batch: str) -> UsageError:
    return UsageError(f"batch {batch!r} was cancelled; its rows can be submitted again as another batch")


def _plan_field(plan: BatchPlan) -> str:
    return "plan" if plan.fork is None else FORK_PLAN


def _plan(text: str) -> BatchPlan:
    return read_text(BatchPlan, text, "plan")


def _number(text: str | None) -> int:
    return int(number(text or "0", "count"))


def _kept(fields: Mapping[str, str | None]) -> BatchCounts:
    return BatchCounts(
        waiting=_number(fields["waiting"]),
        active=_number(fields["active"]),
        admitted=_number(fields["admitted"]),
        sealed=fields["sealed"] is not None,
        paused=fields["paused"] is not None,
        cancelling=fields["cancelling"] is not None,
        tokens=_number(fields["tokens_in"]) + _number(fields["tokens_out"]),
        cost_usd=number(fields["cost_usd"] or "0", "cost"),
        has_work=fields["cancel_at"] is not None or fields["retry"] is not None,
    )


def _info(batch: str, texts: Sequence[str | None], now_ms: int) -> BatchInfo | None:
    fields = dict(zip(_FIELDS, texts, strict=True))
    if fields["spec"] is None:
        return None
    try:
        return _readable_info(batch, fields, now_ms)
    except RecordUnreadable as error:
        return BatchInfo(batch, "", "unreadable", created_ms=0, now_ms=now_ms, unreadable=str(error))


def _readable_info(batch: str, fields: Mapping[str, str | None], now_ms: int) -> BatchInfo:
    """Raises RecordUnreadable."""
    spec, plan = read_text(RunSpec, str(fields["spec"]), "spec"), _plan(str(fields[FORK_PLAN] or fields["plan"]))
    calls = _number(fields["model_calls"])
    priced = calls > 0 and not _number(fields["unpriced_calls"])
    usage = Usage(
        input_tokens=_number(fields["tokens_in"]),
        output_tokens=_number(fields["tokens_out"]),
        calls=calls,
        cost_usd=round(number(fields["cost_usd"] or "0", "cost"), 8) if priced else None,
    )
    return BatchInfo(
        id=batch,
        agent=spec.agent,
        state=state_of(_kept(fields), plan),
        now_ms=now_ms,
        plan=plan,
        usage=usage,
        created_ms=_number(fields["created_ms"]),
        started_ms=_number(fields["started_ms"]) or None,
        ended_ms=_number(fields["ended_ms"]) or None,
        unreadable=None,
        failed_visits=_number(fields["failed_visits"]),
        changes=changes_of(fields),
        namespace=spec.namespace,
        tags=spec.tags or {},
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
    not_started = _failure(failure)
    if status == "failed" and run_status is None:
        error = not_started.get("error", "its run has expired")
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


def _without_run(byte: str, failure: str | None) -> tuple[str, str | None]:
    status = ROW_STATES.get(byte, "waiting")
    error = _failure(failure).get("error") if status == "failed" else None
    has_expired = status == "completed" or (status == "failed" and error is None)
    return ("expired", None) if has_expired else (status, error)


def _failure(text: str | None) -> dict[str, Any]:
    """The record of a failed row; for a damaged record, its error."""
    if not text:
        return {}
    try:
        return decoded_object(text, "failure")
    except RecordUnreadable as error:
        return {"error": str(error)}
