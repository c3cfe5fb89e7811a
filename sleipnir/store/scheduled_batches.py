"""Batches of schedules: their rows are stored beside the schedule, and each fire copies them to a batch.

1. Rows are staged, and become those of the schedule in the script that adds it: a schedule has all of its rows.
2. The id of a fire's batch follows from the schedule and the time, and a batch has a row of a key once: a fire that is
   repeated, or made by two schedulers, makes one batch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sleipnir.batches.records import BatchPlan
from sleipnir.decoding import decoded
from sleipnir.errors import BatchNotFound, RecordUnreadable, ScheduleNotFound, UsageError
from sleipnir.schedules.records import ScheduledBatch
from sleipnir.store.batches import Batches
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.schedules import Schedules

STAGED_MS: Final = 3_600_000
"""How long the rows of a schedule that is being added are kept."""

PAGE, PAGE_BYTES = 500, 2**20
"""Rows that are copied at once, and about how many bytes of them."""


class ScheduledBatches:
    """Stores the rows of schedules, and makes batches of them."""

    def __init__(self, client: Client, keys: Keys, batches: Batches, schedules: Schedules) -> None:
        self._client, self._keys, self._batches, self._schedules = client, keys, batches, schedules

    def stage(self, name: str, token: str, rows: Sequence[tuple[str, str]]) -> None:
        """Add rows (pairs of a key and batches.row_text) to those of a schedule with this token, which will be
        added."""
        staged = self._keys.of_schedule(name).staged_rows(token)
        pipe = self._client.pipeline(transaction=False)
        pipe.rpush(staged, *(json.dumps(row) for row in rows))
        pipe.pexpire(staged, STAGED_MS)
        pipe.execute()

    def drop_staged(self, name: str, token: str) -> None:
        """Forget the rows of a schedule that is not added."""
        self._client.delete(self._keys.of_schedule(name).staged_rows(token))

    def start(self, name: str, token: str, batch: str, at_ms: int) -> None:
        """Make the batch of a fire, with all rows. Safe to repeat. If the schedule was removed meanwhile, a batch that
        does not have all of them yet is cancelled. Raises RecordUnreadable."""
        try:
            plan = self._plan(name, token)
            if plan is not None and self._copied(name, plan, batch, at_ms):
                return
            if plan is None or self._plan(name, token) is None:
                self._cancel_unfinished(name, batch)
                return
        except UsageError:
            return  # a person has cancelled it
        raise RecordUnreadable("rows", f"schedule {name!r}", "damaged: some are missing")

    def cancel(self, name: str, batch: str) -> None:
        """Cancel a batch for the schedule, unless it is over or has expired."""
        try:
            self._batches.cancel(batch, by=f"schedule {name}")
        except BatchNotFound:
            return

    def _plan(self, name: str, token: str) -> ScheduledBatch | None:
        try:
            stored = self._schedules.get(name)
        except ScheduleNotFound:
            return None
        return stored.plan.batch if stored.origin.token == token else None

    def _copied(self, name: str, plan: ScheduledBatch, batch: str, at_ms: int) -> bool:
        """False: some rows are not there."""
        spec = self._schedules.definition(name).spec
        spec, batch_plan, at = replace(spec, schedule=name, fired_ms=at_ms), _batch_plan(plan), 0
        while at < plan.rows:
            rows = self._rows(name, at)
            if not rows:
                return False
            self._batches.add(batch, spec, batch_plan, rows)
            at += len(rows)
        self._batches.seal(batch)
        return True

    def _rows(self, name: str, first: int) -> list[tuple[str, str]]:
        texts = self._client.lrange(self._keys.of_schedule(name).rows, first, first + PAGE - 1)
        rows, size = list[tuple[str, str]](), 0
        for text in texts:
            if rows and size + len(text) > PAGE_BYTES:
                break
            key, row = decoded(text, "row", f"schedule {name!r}")
            rows.append((key, row))
            size += len(text)
        return rows

    def _cancel_unfinished(self, name: str, batch: str) -> None:
        if self._batches.accepts_rows(batch):
            self.cancel(name, batch)


def _batch_plan(plan: ScheduledBatch) -> BatchPlan:
    return BatchPlan(plan.name, plan.priority, plan.parallel, plan.canary, plan.max_cost_usd, plan.max_tokens)
