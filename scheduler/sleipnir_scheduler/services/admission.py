"""Let rows of batches become runs, a few at a time. Without it a batch would wait for ever.

Rows are admitted while the fleet has less before it than a window: so queues stay short however many rows there are,
what is submitted by itself need not wait behind them, and a batch that comes later gets its share at once. All batches
are in the first partition, whose owner does this for the deployment; the store refuses anybody else.

It also cancels the runs of batches that were cancelled, again and again until they are over: one may only just have
been created. What is remembered here from round to round are the shares, and which batches there were, so that a look
is one round trip; a new owner begins with equal shares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import structlog

from sleipnir.batches import may_admit, row_run_id
from sleipnir.store.batches import Look, Open
from sleipnir.store.fleet import SEEN_FOR_MS
from sleipnir.store.store import Store
from sleipnir_scheduler.fair import Claim, share

FIRST_PARTITION = 0
PER_SLOT, LEAST_WINDOW = 4, 16
LOOK_MS = 5_000  # how often the workers are counted
CANCEL_MS = 1_000  # how often runs of cancelled batches are told


class Admission:
    """`window` 0: by the slots of the workers that are there."""

    def __init__(self, store: Store, *, window: int) -> None:
        self._store, self._fixed = store, window
        self._known: Sequence[str] = ()
        self._times: Mapping[str, float] = {}
        self._window, self._looked_ms, self._cancelled_ms = 0, 0, 0
        self._served: Collection[str] = ()
        self._log = structlog.get_logger().bind(service="admission")

    def run_once(self, epochs: Mapping[int, int], held: Collection[int]) -> int:
        """Admit what may be now. How many rows."""
        if FIRST_PARTITION not in epochs:
            self._known, self._times = (), {}
            return 0
        look = self._store.batches.look(self._known)
        self._known = tuple(batch.id for batch in look.batches)
        if not look.batches:
            self._times = {}
            return 0
        self._cancel([batch.id for batch in look.batches if batch.kept.cancelling], look.now_ms)
        claims = [] if FIRST_PARTITION in held else _claims(look.batches)
        if not claims:
            return 0
        shares = share(claims, self._capacity(look), self._times)
        self._times = shares.times
        admitted = 0
        for batch, rows in shares.rows.items():
            if rows:
                count = self._store.batches.admit(batch, epochs[FIRST_PARTITION], rows, look.now_ms)
                if count < 0:
                    return admitted
                admitted += count
        return admitted

    def _capacity(self, look: Look) -> int:
        if look.now_ms - self._looked_ms >= LOOK_MS:
            self._look_at_workers()
            self._looked_ms = look.now_ms
        return self._window - look.under_way - self._queued()

    def _queued(self) -> int:
        """Visits that wait in queues which somebody serves: what waits in others must not hold up all."""
        lengths = self._store.fleet.queue_lengths(self._served)
        if not lengths:
            return self._store.batches.unclaimed()
        return sum(lengths[queue] for queue in self._served or lengths)

    def _look_at_workers(self) -> None:
        announced, now_ms = self._store.fleet.workers()
        workers = [worker for worker in announced if worker.seen_ms > now_ms - SEEN_FOR_MS]
        self._served = {queue for worker in workers for queue in worker.queues}
        self._window = self._fixed or max(LEAST_WINDOW, PER_SLOT * sum(worker.slots for worker in workers))

    def _cancel(self, batches: Sequence[str], at_ms: int) -> None:
        if not batches or at_ms - self._cancelled_ms < CANCEL_MS:
            return
        self._cancelled_ms = at_ms
        for batch in batches:
            runs = [row_run_id(batch, row) for row in self._store.batches.rows_in(batch, "active")]
            self._store.runs.cancel_all(runs)


def _claims(batches: Sequence[Open]) -> list[Claim]:
    found = [
        Claim(batch.id, batch.plan.priority, may_admit(batch.kept, batch.plan), idle=not batch.kept.active)
        for batch in batches
    ]
    return [claim for claim in found if claim.most > 0]
