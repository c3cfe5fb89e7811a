"""What the scheduler that admits rows reads and writes (services/admission.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.runs.run import RunSpec
from sleipnir.store.batches.connection import LOOK_PAGE, BatchConnection
from sleipnir.store.batches.records import OPEN_FIELDS, OpenBatch, open_batch
from sleipnir.store.connect import time_ms
from sleipnir.store.fast_client import execute_all
from sleipnir.store.scripts import Arg, LuaScript, answers, checked, run_batch

_ADMIT = LuaScript("batch_admit")

CHANGED: Final = -2  # the reply of batch_admit.lua to a decision based on an old copy

PIPED = 20
"""Batches that admit rows in one round trip."""


@dataclass(frozen=True)
class AdmissionView:
    """The input of admission: the time, and the current batches; None: it is over or has expired, or the node of a
    cluster that has it does not answer. `seen` has the number of the last change that it includes, by partition: of
    those that have batches and answer."""

    now_ms: int
    seen: Mapping[int, float]
    batches: Mapping[str, OpenBatch | None]


class BatchAdmission(BatchConnection):
    """Look at unfinished batches, and admit their rows."""

    def look(self, seen: Mapping[int, float], also: Collection[str] = ()) -> AdmissionView:
        """Batches that have changed since these changes, up to a page of each partition, and the batches `also`; of
        partitions that are not in `seen` all unfinished batches. Without changes it costs one short round trip."""
        parts = {number: self._keys.of_partition(number) for number in self._keys.batch_partitions}
        known, unknown = [part for part in parts if part in seen], [part for part in parts if part not in seen]
        since = {part: (f"({seen[part]:.0f}", "+inf", "WITHSCORES", "LIMIT", 0, LOOK_PAGE) for part in known}
        commands: list[tuple[Any, ...]] = [
            ("ZRANGEBYSCORE", parts[part].changed_batches, *since[part]) for part in known
        ]
        for part in unknown:
            commands += [("ZSCORE", parts[part].changed_batches, ""), ("SMEMBERS", parts[part].open_batches)]
        time, *replies = execute_all(self._client, [("TIME",), *commands])
        found = iter(answers(replies, None))
        ids, seen_now = list[str](), dict[int, float]()
        for part in known:
            if (changes := next(found)) is not None:
                ids += [batch for batch, _ in _scored(changes) if batch]
                seen_now[part] = max((number for _, number in _scored(changes)), default=seen[part])
        for part in unknown:
            last, opened = next(found), next(found)
            if opened is not None:
                ids += sorted(opened)
                seen_now[part] = float(last or 0)
        batches = self._opened(list(dict.fromkeys([*ids, *also])))
        return AdmissionView(time_ms(checked(time)), seen_now, batches)

    def owners(self, batches: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The namespace and the agent of each of these batches whose spec can be read."""
        owners = {}
        for batch, text in zip(batches, self._read(batches, "HGET", "spec"), strict=True):
            try:
                spec = read_text(RunSpec, text or "", "spec", batch)
            except RecordUnreadable:
                continue
            owners[batch] = (spec.namespace, spec.agent)
        return owners

    def admit(self, wanted: Sequence[tuple[OpenBatch, int]], now_ms: int) -> list[int]:
        """Admit up to so many rows of each batch. Returns how many; -2: the batch has admitted rows since it was read,
        or its plan has changed, or the node of a cluster that has it does not answer."""
        vectors = []
        for batch, most in wanted:
            keys, part = self._keys.of_batch(batch.id), self._part_of(batch.id)
            slots = {
                "batch": keys.batch,
                "rows": keys.rows,
                "states": keys.states,
                "effects": part.effects,
                "failures": keys.failures,
                "changed": part.changed_batches,
            }
            args: dict[str, Arg] = {
                "id": batch.id, "rev": batch.rev, "most": most, "now_ms": now_ms,
                "do_": "start_row" if batch.plan.fork is None else "fork_row",
            }  # fmt: skip
            vectors.append(_ADMIT.vector(slots, args))
        admitted: list[int] = []
        for at in range(0, len(vectors), PIPED):
            admitted += map(int, answers(run_batch(self._client, _ADMIT, vectors[at : at + PIPED]), CHANGED))
        return admitted

    def _opened(self, batches: Sequence[str]) -> dict[str, OpenBatch | None]:
        texts = self._read(batches, "HMGET", *OPEN_FIELDS)
        return {
            batch: None if fields is None else open_batch(batch, fields)
            for batch, fields in zip(batches, texts, strict=True)
        }

    def _read(self, batches: Sequence[str], command: str, *fields: str) -> list[Any]:
        """Fields of records; None for one of a node that does not answer."""
        read: list[Any] = []
        for at in range(0, len(batches), LOOK_PAGE):
            page = [(command, self._keys.of_batch(batch).batch, *fields) for batch in batches[at : at + LOOK_PAGE]]
            read += answers(execute_all(self._client, page), None)
        return read


def _scored(reply: Sequence[Any]) -> list[tuple[str, float]]:
    """Members with their scores. RESP3 nests them, RESP2 does not."""
    if reply and isinstance(reply[0], str):
        return [(member, float(score)) for member, score in zip(reply[::2], reply[1::2], strict=True)]
    return [(member, score) for member, score in reply]
