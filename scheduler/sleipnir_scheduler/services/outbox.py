"""Publish visits that no worker has claimed. Without it a lost Celery message would be a lost visit.

Every queued visit is in its partition's outbox. `advance` publishes at once after the commit; this service finds what
that missed (a death in between, a message that Celery lost, a broker that was away) and publishes again. Rules:

1. Nothing is published into a line that still holds the visit's message: without workers a queue would only grow.
   Messages are taken in order, so the message is gone when the oldest one in its line was published later, or when the
   line is empty; that of a later attempt, which goes first, when none such is at the head.
2. A line that is empty at two looks has lost what was published a while ago: that is published at once. Other visits
   are looked at when they are due, `redispatch_after` after their publication, then after twice that, and so on.
3. Where the broker does not say what waits (or not since when), a visit is published again after an hour, then after
   eight, and so on.

A claim takes the visit out of the outbox. Publishing one too often costs a refused claim. Visits of a run that is
paused keep their place and are not published; those of a paused deployment are not even looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sleipnir.store.fleet import QueueBacklog
from sleipnir.store.keys import line_of
from sleipnir.store.partitions import DueVisit, Partitions
from sleipnir_scheduler.dispatch import Dispatcher

BLIND_MS = 60 * 60_000
"""Between publications into a line of which nothing is known, at the least; and at the most elsewhere."""
BLIND_GROWS = 8
LOOK_MS = 5 * 60_000
"""At the most until a visit whose message is still in line is looked at again."""
DUE_AT_ONCE = 1000
LOST_AT_ONCE = 100


class Outbox:
    """Remembers from look to look which queues there are and which lines were empty. Any number may run at once.

    `patience_ms` is how long a message may be on its way from the broker to a claim."""

    def __init__(self, store: Partitions, dispatcher: Dispatcher, *, patience_ms: int) -> None:
        self._store, self._dispatcher, self._patience_ms = store, dispatcher, patience_ms
        self._queues: set[str] = set()
        self._empty: set[str] = set()

    def run_once(self, partitions: Iterable[int], now_ms: int) -> int:
        """Publish what is due and what an empty line has lost. Returns how many messages."""
        lines = dict(self._dispatcher.look(self._queues))
        lost_from = self._empty_twice(lines)
        count = 0
        for partition in partitions:
            dues = self._store.due(partition, now_ms, DUE_AT_ONCE)
            if new := {due.queue for due in dues} - self._queues:
                self._queues |= new
                lines |= self._dispatcher.look(new)
            if lost_from and not dues:
                lost = [due for due in self._store.unclaimed(partition, LOST_AT_ONCE) if not due.held]
                self._queues |= {due.queue for due in lost}
                again, waiting = [due for due in lost if self._is_lost(due, lost_from, now_ms)], []
            else:
                again = [due for due in dues if not due.held and self._is_gone(due, _line(due, lines), now_ms)]
                published = {due.member for due in again}
                waiting = [due for due in dues if due.member not in published]
            if again:
                count += self._dispatcher.publish((due.call, due.queue) for due in again).messages
                self._store.published(partition, again, now_ms, BLIND_MS)
            if waiting:
                self._store.not_published(partition, waiting, now_ms, LOOK_MS)
        return count

    def _is_gone(self, due: DueVisit, line: QueueBacklog | None, now_ms: int) -> bool:
        """Whether the message of a visit that is due has left its line."""
        if line is not None and line.length == 0:
            return True
        if line is not None and due.call.attempt > 1 and not line.has_returned:
            return True
        if line is not None and line.oldest_ms is not None:
            # A visit's publication follows its commit; half of the patience is for the time in between.
            return line.oldest_ms > due.published_ms + self._patience_ms // 2
        waited_ms = max(due.published_ms - due.opened_ms, 0)
        return now_ms - due.published_ms >= max(BLIND_MS, BLIND_GROWS * waited_ms)

    def _is_lost(self, due: DueVisit, lost_from: set[str], now_ms: int) -> bool:
        """Whether its line is empty, and its first message had the time to be claimed (or is of the future, from before
        the clock was set back)."""
        is_young = due.is_new and abs(now_ms - due.published_ms) <= self._patience_ms
        return not is_young and not lost_from.isdisjoint((due.queue, line_of(due.queue, due.call.batch)))

    def _empty_twice(self, lines: Mapping[str, QueueBacklog]) -> set[str]:
        """Lines that were empty at this look and at the last: what was on its way to a worker has been claimed."""
        before, self._empty = self._empty, {name for name, line in lines.items() if line.length == 0}
        return before & self._empty


def _line(due: DueVisit, lines: Mapping[str, QueueBacklog]) -> QueueBacklog | None:
    """The line of a visit; brokers without priorities have one for each queue."""
    return lines.get(line_of(due.queue, due.call.batch)) or lines.get(due.queue)
