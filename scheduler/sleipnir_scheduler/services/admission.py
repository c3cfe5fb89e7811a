"""Let rows of batches become runs, a few at a time. Without it a batch would wait for ever.

Rows are admitted while the fleet has less before it than a window: so queues stay short however many rows there are,
what is submitted by itself need not wait behind them, and a batch that comes later gets its share at once. All batches
are in the first partition, whose owner does this for the deployment; the store refuses anybody else.

What is read of a batch is kept, and read again when the batch has changed: a batch in which nothing happens costs
nothing, however many there are. All are read again now and then, as a process of an earlier release does not say what
it changes, and after every error, as the Redis that answers next may be an older copy. A decision names the revision of
the batch that it was made on, so that one that is made on an old copy, or sent twice, changes nothing.

It also goes on with cancels and retries of many rows whose client has died, and cancels the runs of batches that were
cancelled, again and again until they are over: one may only just have been created. Both in pieces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

import structlog

from sleipnir.batches.records import may_admit, row_run_id
from sleipnir.store.batches import CHANGED, OpenBatch
from sleipnir.store.fleet import SEEN_FOR_MS
from sleipnir.store.store import Store
from sleipnir_scheduler.fair_shares import BatchDemand, one_each, share

FIRST_PARTITION = 0
PER_SLOT, LEAST_WINDOW = 4, 16
LOOK_MS = 5_000  # how often the workers are counted
LOOK_AT_ALL_MS = 5_000  # how often all batches are read
CANCEL_MS = 1_000  # between two passes over the runs of a cancelled batch
CANCELLED_AT_ONCE = 200  # runs
WORKED_AT_ONCE = 5  # pieces of cancels and retries in a round, of as many batches


class Admission:
    """`window` 0: by the slots of the workers that are there."""

    def __init__(self, store: Store, *, window: int) -> None:
        self._store, self._fixed = store, window
        self._window, self._looked_ms = 0, 0
        self._served: Collection[str] = ()
        self._unreadable: dict[str, str] = {}
        """Why batches cannot be read, as the log says."""
        self._log = structlog.get_logger().bind(service="admission")
        self._begin_anew(None)

    def _begin_anew(self, epoch: int | None) -> None:
        """Know nothing of batches, and give all equal shares. `epoch` None: the first partition is another's."""
        self._epoch = epoch
        self._seen: float | None = None
        self._stale: set[str] = set()
        self._looked_at_all_ms = 0
        self._batches: dict[str, OpenBatch] = {}
        self._claims: dict[str, BatchDemand] = {}
        self._times: dict[str, float] = {}
        self._with_work: set[str] = set()
        self._cancelling: dict[str, Iterator[int] | None] = {}
        self._cancelled_ms: dict[str, int] = {}

    def run_once(self, epochs: Mapping[int, int], held: Collection[int]) -> int:
        """Admit what may be now. How many rows."""
        epoch = epochs.get(FIRST_PARTITION)
        if epoch is None or epoch != self._epoch:
            self._begin_anew(epoch)
        if epoch is None:
            return 0
        try:
            now_ms = self._look()
            self._work()
            self._cancel(now_ms)
            if FIRST_PARTITION in held or not self._claims:
                return 0
            return self._admit(epoch, now_ms)
        except BaseException:
            self._begin_anew(None)
            raise

    def _look(self) -> int:
        """Read what has changed. The time."""
        look = self._store.batches.look(self._seen, self._stale)
        self._stale.clear()
        if self._seen is None or abs(look.now_ms - self._looked_at_all_ms) >= LOOK_AT_ALL_MS:
            if self._seen is not None:
                look = self._store.batches.look(None)
            self._looked_at_all_ms = look.now_ms
            for batch in self._batches.keys() - look.batches.keys():
                self._see(batch, None)
        self._seen = look.seen
        for batch, found in look.batches.items():
            self._see(batch, found)
        return look.now_ms

    def _see(self, id_: str, batch: OpenBatch | None) -> None:
        """Note how a batch is now. None: it is over."""
        self._claims.pop(id_, None)
        self._with_work.discard(id_)
        if batch is None:
            self._batches.pop(id_, None)
        else:
            if batch.unreadable is not None and self._unreadable.get(id_) != batch.unreadable:
                self._log.warning("a batch cannot be read, and waits", batch=id_, reason=batch.unreadable)
            self._batches[id_] = batch
            most = may_admit(batch.kept, batch.plan)
            if most > 0:
                self._claims[id_] = BatchDemand(id_, batch.plan.priority, most, idle=not batch.kept.active)
            if batch.kept.has_work:
                self._with_work.add(id_)
        if batch is not None and batch.unreadable is not None:
            self._unreadable[id_] = batch.unreadable
        else:
            self._unreadable.pop(id_, None)
        if id_ not in self._claims:
            self._times.pop(id_, None)
        if batch is not None and batch.kept.cancelling:
            self._cancelling.setdefault(id_, None)
        else:
            self._cancelling.pop(id_, None)
            self._cancelled_ms.pop(id_, None)

    def _admit(self, epoch: int, now_ms: int) -> int:
        capacity = self._capacity(now_ms)
        if capacity > 0:
            in_order = sorted(self._claims, key=lambda id_: (self._batches[id_].created_ms, id_))
            shares = share([self._claims[id_] for id_ in in_order], capacity, self._times)
        else:
            shares = one_each((claim for claim in self._claims.values() if claim.idle), self._times)
        self._times = dict(shares.times)
        wanted = [(self._batches[id_], rows) for id_, rows in shares.rows.items() if rows]
        admitted = 0
        for (batch, _), count in zip(wanted, self._store.batches.admit(wanted, epoch, now_ms), strict=True):
            if count == CHANGED:
                self._stale.add(batch.id)
            admitted += max(count, 0)
        return admitted

    def _capacity(self, now_ms: int) -> int:
        if abs(now_ms - self._looked_ms) >= LOOK_MS:
            self._look_at_workers()
            self._looked_ms = now_ms
        return self._window - self._store.batches.under_way() - self._queued()

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

    def _work(self) -> None:
        """Go on with cancels and retries. The next look sees whether there is more."""
        for batch in list(islice(self._with_work, WORKED_AT_ONCE)):
            self._with_work.discard(batch)
            self._store.batches.work(batch)
            self._stale.add(batch)

    def _cancel(self, now_ms: int) -> None:
        """Cancel some runs of cancelled batches; a pass over the rows of one takes as many rounds as it needs."""
        left = CANCELLED_AT_ONCE
        for batch, rows in self._cancelling.items():
            if rows is None:
                if abs(now_ms - self._cancelled_ms.get(batch, 0)) < CANCEL_MS:
                    continue
                rows = self._cancelling[batch] = self._store.batches.rows_in(batch, "active")
            found = list(islice(rows, left))
            self._store.runs.cancel_all([row_run_id(batch, row) for row in found], by=f"batch {batch}")
            if len(found) < left:
                self._cancelling[batch], self._cancelled_ms[batch] = None, now_ms
            left -= len(found)
            if left <= 0:
                return
