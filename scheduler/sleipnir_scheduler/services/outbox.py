"""Publishes visits that no worker has claimed. Without it a lost Celery message would be a lost visit.

Every queued visit is in its partition's outbox. `advance` publishes immediately after the commit; this service
publishes visits again if that failed (a crash in between, a message lost by Celery, an unreachable broker). Rules:

1. A visit is not published while its message is still in its list: without workers a queue would only grow. Messages
   are taken in order, so the message is gone if the oldest one in its list was published later, or if the list is
   empty; a message of a later attempt, which goes first, is gone if none such is at the head.
2. If a list is empty in two checks, visits published a while ago have lost their messages: they are published at once.
   Other visits are checked when they are due: `redispatch_after` after their publication, then after twice that, and
   so on.
3. If the broker does not report its backlog (or its age), a visit is published again after an hour, then after eight,
   and so on.

A claim removes the visit from the outbox. A redundant publication costs a refused claim. Visits of a paused run keep
their place and are not published; those of a paused deployment are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sleipnir.store.fleet import QueueBacklog
from sleipnir.store.keys import line_of
from sleipnir.store.partitions.outbox import DueVisit, QueuedVisits
from sleipnir_scheduler.dispatch import Dispatcher

BLIND_MS = 60 * 60_000
"""The least time between publications to a list with unknown backlog; the greatest time for other lists."""
BLIND_GROWS = 8
LOOK_MS = 5 * 60_000
"""The greatest time until a visit whose message is still in its list is checked again."""
DUE_AT_ONCE = 1000
LOST_AT_ONCE = 100


class Outbox:
    """Remembers between checks the known queues and the empty lists. Any number may run at once.

    `patience_ms` is the longest expected time from the broker to a claim."""

    def __init__(self, store: QueuedVisits, dispatcher: Dispatcher, *, patience_ms: int) -> None:
        self._store, self._dispatcher, self._patience_ms = store, dispatcher, patience_ms
        self._queues: set[str] = set()
        self._empty: set[str] = set()

    def run_once(self, clocks_ms: Mapping[int, int]) -> int:
        """Publish due visits of these partitions and those whose messages were lost. Each partition has the time by its
        clock. Returns how many messages."""
        lines = dict(self._dispatcher.look(self._queues))
        lost_from = self._empty_twice(lines)
        count = 0
        for partition, check_ms in self._store.next_checks_ms(clocks_ms).items():
            if check_ms == math.inf:
                continue
            now_ms = clocks_ms[partition]
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
        """Whether the message of a due visit has left its list."""
        if line is not None and line.length == 0:
            return True
        if line is not None and due.call.attempt > 1 and not line.has_returned:
            return True
        if line is not None and line.oldest_ms is not None:
            # A visit is published after its commit; half of the patience is for the time in between.
            return line.oldest_ms > due.published_ms + self._patience_ms // 2
        waited_ms = max(due.published_ms - due.opened_ms, 0)
        return now_ms - due.published_ms >= max(BLIND_MS, BLIND_GROWS * waited_ms)

    def _is_lost(self, due: DueVisit, lost_from: set[str], now_ms: int) -> bool:
        """Whether its list is empty, and its first message had enough time to be claimed (or has a future time, from
        before the clock was set back)."""
        is_young = due.is_new and abs(now_ms - due.published_ms) <= self._patience_ms
        return not is_young and not lost_from.isdisjoint((due.queue, line_of(due.queue, due.call.batch)))

    def _empty_twice(self, lines: Mapping[str, QueueBacklog]) -> set[str]:
        """Lists that were empty in this check and in the last one, so that messages in transit have been claimed."""
        before, self._empty = self._empty, {name for name, line in lines.items() if line.length == 0}
        return before & self._empty


def _line(due: DueVisit, lines: Mapping[str, QueueBacklog]) -> QueueBacklog | None:
    """The list of a visit; brokers without priorities have one per queue."""
    return lines.get(line_of(due.queue, due.call.batch)) or lines.get(due.queue)
