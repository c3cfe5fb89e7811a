"""Rows of batches: they are added, and read as they were added."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.batches.records import ROW_STATES, BatchFork, BatchInfo, BatchPlan, RowState, row_digest, row_run_id
from sleipnir.decoding import decoded_values, read_text
from sleipnir.errors import BatchNotFound, UsageError
from sleipnir.runs.run import RunSpec
from sleipnir.store.batches.connection import BatchConnection, not_found
from sleipnir.store.batches.records import FIELDS, FORK_PLAN, batch_info, plan_field, plan_of
from sleipnir.store.connect import time_ms
from sleipnir.store.record_text import dumps, record
from sleipnir.store.scripts import Arg, LuaScript

_ADD = LuaScript("batch_add")

PAGE = 500
STATES_PAGE = 50_000
"""Bytes of states that are read at once."""

BYTE_OF: Final = {state: byte for byte, state in ROW_STATES.items()}


@dataclass(frozen=True)
class AddedRows:
    """The result of adding rows: the numbers of new and of known rows, and the places (from 0) of rows whose keys
    belong to rows with other contents."""

    added: int
    known: int
    conflicts: tuple[int, ...]


class BatchRows(BatchConnection):
    """Add rows, and read batches and rows."""

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
        keys = {**self._changing(batch), "batches": self._part_of(batch).batches}
        begin = ["fork_state", dumps(fork_state)] if fork_state else []
        fields = json.dumps(["spec", record(spec), plan_field(plan), record(plan), *begin])
        args: dict[str, Arg] = {
            "id": batch, "now_ms": self.now_ms(batch), "fields": fields, "namespace": spec.namespace,
        }  # fmt: skip
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
            pipe.hmget(self._keys.of_batch(batch).batch, FIELDS)
        pipe.time()
        *replies, time = pipe.execute()
        now_ms = time_ms(time)
        return [batch_info(batch, fields, now_ms) for batch, fields in zip(batches, replies, strict=True)]

    def info(self, batch: str) -> BatchInfo:
        """Raises BatchNotFound."""
        [info] = self.infos([batch])
        if info is None:
            raise not_found(batch)
        return info

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
        fork = plan_of(plan).fork if plan else None
        if fork is None:
            return None
        return fork, decoded_values(state, "state of forks", batch) if state else {}

    def states(self, batch: str, first: int = 0, last: int = STATES_PAGE - 1) -> str:
        """The state bytes of rows from `first` to `last`. There can be millions of rows: read pages."""
        return str(self._client.getrange(self._keys.of_batch(batch).states, first, last))

    def rows_in(self, batch: str, state: RowState) -> Iterator[int]:
        """The rows in a state, in order, a page of states at a time."""
        first = 0
        while page := self.states(batch, first, first + STATES_PAGE - 1):
            yield from (first + at for at in places_of(page, BYTE_OF[state]))
            first += len(page)

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

    def names_of(self, batch: str, rows: Sequence[int]) -> dict[int, str]:
        """The keys of these rows, by row: not too many, as they are read at once."""
        pipe = self._client.pipeline(transaction=False)
        for row in rows:
            pipe.lindex(self._keys.of_batch(batch).names, row)
        return dict(zip(rows, pipe.execute(), strict=True))


def places_of(page: str, byte: str) -> Iterator[int]:
    """The places of a byte in a page of states."""
    at = page.find(byte)
    while at >= 0:
        yield at
        at = page.find(byte, at + 1)
