"""Admits rows of batches as runs, a few at a time. Without it a batch would wait forever.

Rows are admitted while the outstanding work of the fleet is below a window: so queues stay short regardless of the
number of rows, single submissions do not wait behind them, and a later batch gets its share at once. The owner of the
first partition does this for all batches of the deployment, because their shares depend on each other.

Batches are cached and read again only when they have changed, so unchanged batches cost nothing. All are read again
periodically, because processes of earlier releases do not record their changes, and after every error, because the
next Redis may be an older copy. A decision names the revision of the batch that it is based on, so that a decision on
an old copy, or a repeated one, changes nothing: also one of a scheduler that does not know yet that another one has
taken its place. Batches of a cluster's node that does not answer wait; the others go on.

It also continues cancels and retries of many rows whose client has died, and repeatedly cancels the runs of cancelled
batches until they are over, because a run may have just been created. Both in pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice

import structlog

from sleipnir.batches.records import may_admit, row_run_id
from sleipnir.runs.deployment_holds import NO_HOLDS, DeploymentHolds
from sleipnir.store.batches.admission import CHANGED
from sleipnir.store.batches.records import OpenBatch
from sleipnir.store.fleet import SEEN_FOR_MS
from sleipnir.store.store import Store
from sleipnir_scheduler.fair_shares import BatchDemand, one_each, share
from sleipnir_scheduler.services.outstanding import OutstandingTotal

FIRST_PARTITION = 0
PER_SLOT, LEAST_WINDOW = 4, 16
WORK_MS = 30  # of short visits as many are admitted as the fleet ends in this time
RATE_MS = 1_000  # how often their rate is measured
LOOK_MS = 5_000  # how often the workers are counted
LOOK_AT_ALL_MS = 5_000  # how often all batches are read
CANCEL_MS = 1_000  # between two passes over the runs of a cancelled batch
CANCELLED_AT_ONCE = 200  # runs
WORKED_AT_ONCE = 5  # pieces of cancels and retries in a round, of as many batches


class Admission:
    """`window` 0: derived from the slots of the live workers, and from `row_events`, which counts events of rows that
    this instance has applied."""

    def __init__(self, store: Store, *, window: int, row_events: Callable[[], int] = lambda: 0) -> None:
        self._store, self._fixed = store, window
        self._outstanding = OutstandingTotal(
            store.outstanding, partitions=store.keys.partitions, published=store.keys.of_cluster
        )
        self._least, self._looked_ms = 0, 0
        """The window without regard to the rate."""
        self._row_events, self._rated, self._at_rate = row_events, (0, 0), 0
        self._served: Collection[str] = ()
        self._unreadable: dict[str, str] = {}
        """The logged reasons why batches cannot be read."""
        self._log = structlog.get_logger().bind(service="admission")
        self._reset(None)

    def _reset(self, epoch: int | None) -> None:
        """Forget all batches and shares. `epoch` None: another scheduler owns the first partition."""
        self._epoch = epoch
        self._seen: Mapping[int, float] = {}
        self._stale: set[str] = set()
        self._looked_at_all_ms = 0
        self._batches: dict[str, OpenBatch] = {}
        self._claims: dict[str, BatchDemand] = {}
        self._times: dict[str, float] = {}
        self._with_work: set[str] = set()
        self._owners: dict[str, tuple[str, str]] = {}
        """The namespace and the agent of batches, read only while something is held."""
        self._cancelling: dict[str, Iterator[int] | None] = {}
        self._cancelled_ms: dict[str, int] = {}

    @property
    def is_idle(self) -> bool:
        """Whether there are no unfinished batches: the next check can only find a new one."""
        return not self._batches

    def run_once(self, epochs: Mapping[int, int], holds: DeploymentHolds = NO_HOLDS) -> int:
        """Admit rows of batches that are not held with others. Returns how many."""
        epoch = epochs.get(FIRST_PARTITION)
        if epoch is None or epoch != self._epoch:
            self._reset(epoch)
        if epoch is None:
            return 0
        try:
            now_ms = self._look()
            self._work()
            self._cancel(now_ms)
            claims = self._not_held(holds)
            return self._admit(claims, now_ms, epochs.keys()) if claims else 0
        except BaseException:
            self._reset(None)
            raise

    def _look(self) -> int:
        """Read changed batches. Returns the time."""
        view = self._store.batches.look(self._seen, self._stale)
        self._stale.clear()
        if not self._seen or abs(view.now_ms - self._looked_at_all_ms) >= LOOK_AT_ALL_MS:
            if self._seen:
                view = self._store.batches.look({})
            self._looked_at_all_ms = view.now_ms
            for batch in self._batches.keys() - view.batches.keys():
                self._see(batch, None)
        self._seen = view.seen
        for batch, current in view.batches.items():
            self._see(batch, current)
        return view.now_ms

    def _see(self, id_: str, batch: OpenBatch | None) -> None:
        """Record the current state of a batch. None: it is over."""
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

    def _not_held(self, holds: DeploymentHolds) -> Mapping[str, BatchDemand]:
        """What batches may admit whose runs could begin."""
        if not holds.scopes or not self._claims:
            return self._claims
        if holds.holds_everything:
            return {}
        new = self._claims.keys() - self._owners.keys()
        self._owners = {id_: self._owners[id_] for id_ in self._claims.keys() & self._owners.keys()}
        self._owners |= self._store.batches.owners(sorted(new))
        return {
            id_: claim
            for id_, claim in self._claims.items()
            if id_ in self._owners and not holds.holds_back(*self._owners[id_])
        }

    def _admit(self, claims: Mapping[str, BatchDemand], now_ms: int, owned: Collection[int]) -> int:
        capacity = self._capacity(now_ms, owned)
        if capacity > 0:
            in_order = sorted(claims, key=lambda id_: (self._batches[id_].created_ms, id_))
            shares = share([claims[id_] for id_ in in_order], capacity, self._times)
        else:
            shares = one_each((claim for claim in claims.values() if claim.idle), self._times)
        self._times = dict(shares.times)
        wanted = [(self._batches[id_], rows) for id_, rows in shares.rows.items() if rows]
        admitted = 0
        for (batch, _), count in zip(wanted, self._store.batches.admit(wanted, now_ms), strict=True):
            if count == CHANGED:
                self._stale.add(batch.id)
            admitted += max(count, 0)
        self._outstanding.admitted(admitted, now_ms)
        return admitted

    def _capacity(self, now_ms: int, owned: Collection[int]) -> int:
        if abs(now_ms - self._looked_ms) >= LOOK_MS:
            self._look_at_workers()
            self._looked_ms = now_ms
        window = self._fixed or max(self._least, self._ended_soon(now_ms, owned))
        return window - self._outstanding.look(owned) - self._queued()

    def _queued(self) -> int:
        """Visits that wait in queues with workers: visits in other queues must not block admission."""
        lengths = self._store.fleet.queue_lengths(self._served)
        if not lengths:
            return self._store.outstanding.unclaimed()
        return sum(lengths[queue] for queue in self._served or lengths)

    def _look_at_workers(self) -> None:
        announced, now_ms = self._store.fleet.workers()
        workers = [worker for worker in announced if worker.seen_ms > now_ms - SEEN_FOR_MS]
        self._served = {queue for worker in workers for queue in worker.queues}
        self._least = max(LEAST_WINDOW, PER_SLOT * sum(worker.slots for worker in workers))

    def _ended_soon(self, now_ms: int, owned: Collection[int]) -> int:
        """How many visits of rows the fleet ends within WORK_MS, by what has ended in the partitions of this instance:
        the fewer milliseconds a visit takes, the more of them must wait so that no worker waits for the scheduler."""
        events, (before, rated_ms) = self._row_events(), self._rated
        if abs(took_ms := now_ms - rated_ms) >= RATE_MS:
            parts = self._store.keys.partitions / len(owned)
            self._at_rate = int((events - before) * WORK_MS / took_ms * parts) if took_ms > 0 else 0
            self._rated = (events, now_ms)
        return self._at_rate

    def _work(self) -> None:
        """Continue cancels and retries. The next read shows whether there is more to do."""
        for batch in list(islice(self._with_work, WORKED_AT_ONCE)):
            self._with_work.discard(batch)
            self._store.batches.work(batch)
            self._stale.add(batch)

    def _cancel(self, now_ms: int) -> None:
        """Cancel some runs of cancelled batches; a pass over the rows of one takes as many rounds as it needs."""
        remaining = CANCELLED_AT_ONCE
        for batch, rows in self._cancelling.items():
            if rows is None:
                if abs(now_ms - self._cancelled_ms.get(batch, 0)) < CANCEL_MS:
                    continue
                rows = self._cancelling[batch] = self._store.batches.rows_in(batch, "active")
            page = list(islice(rows, remaining))
            self._store.runs.cancel_all([row_run_id(batch, row) for row in page], by=f"batch {batch}")
            if len(page) < remaining:
                self._cancelling[batch], self._cancelled_ms[batch] = None, now_ms
            remaining -= len(page)
            if remaining <= 0:
                return
