"""Publish visits that nobody has claimed. Without it a lost Celery message would be a lost visit.

Every queued visit is in its partition's outbox with the time of its next publication. `advance` publishes at once
after the commit; this service finds what that missed (a death in between, a message that Celery lost, no worker up)
and publishes again, waiting about twice as long each time: a long queue is no reason to make it longer. A visit whose
queue is empty is not waiting in line, though; its message is gone, and it is published at the second look. A claim
takes the visit out of the outbox. Publishing one too often costs a refused claim. Visits of a run that is paused keep
their place and are not published; those of a paused deployment are not even looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from sleipnir.store.fleet import Fleet
from sleipnir.store.partitions import Due, Partitions
from sleipnir_scheduler.dispatch import Dispatcher

MOST_MS = 5 * 60_000
DUE_AT_ONCE = 1000
LOST_AT_ONCE = 100


class Outbox:
    """Remembers one thing from look to look: which queues were empty. Any number may run at once."""

    def __init__(self, store: Partitions, fleet: Fleet, dispatcher: Dispatcher, *, patience_ms: int) -> None:
        self._store, self._fleet, self._dispatcher, self._patience_ms = store, fleet, dispatcher, patience_ms
        self._queues: set[str] = set()
        self._empty: set[str] = set()

    def run_once(self, partitions: Iterable[int], now_ms: int) -> int:
        """Publish what is due, and what an empty queue has lost. Returns how many messages."""
        lost_from = self._empty_twice()
        count = 0
        for partition in partitions:
            dues = self._store.due(partition, now_ms, DUE_AT_ONCE)
            if lost_from and not dues:
                dues = [
                    due
                    for due in self._store.unclaimed(partition, LOST_AT_ONCE)
                    if not due.held and self._is_lost(due, lost_from, now_ms)
                ]
            if dues:
                self._queues |= {due.queue for due in dues}
                count += self._dispatcher.publish((due.call, due.queue) for due in dues if not due.held).messages
                self._store.published(partition, dues, now_ms, MOST_MS)
        return count

    def _is_lost(self, due: Due, lost_from: set[str], now_ms: int) -> bool:
        self._queues.add(due.queue)
        return due.queue in lost_from and due.opened_ms < now_ms - self._patience_ms

    def _empty_twice(self) -> set[str]:
        """Queues that were empty at this look and at the last: what was on its way to a worker has been claimed."""
        lengths = self._fleet.queue_lengths(self._queues)
        before, self._empty = self._empty, {queue for queue, length in lengths.items() if length == 0}
        return before & self._empty
