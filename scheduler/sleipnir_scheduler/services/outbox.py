"""Publish visits that nobody has claimed. Without it a lost Celery message would be a lost visit.

Every queued visit is in its partition's outbox with the time of its next publication. `advance` publishes at once
after the commit; this service finds what that missed (a death in between, a message that Celery lost, no worker up)
and publishes again, waiting about twice as long each time. A claim takes the visit out.
"""

from __future__ import annotations

from collections.abc import Iterable

from sleipnir.store.partitions import Partitions
from sleipnir_scheduler.dispatch import Dispatcher

MOST_MS = 5 * 60_000


def run_once(
    store: Partitions, dispatcher: Dispatcher, partitions: Iterable[int], now_ms: int, limit: int = 1000
) -> int:
    """Publish what is due. Returns how many messages. Twice at once publishes twice, which costs refused claims."""
    count = 0
    for partition in partitions:
        dues = store.due(partition, now_ms, limit)
        if dues:
            count += dispatcher.publish((due.call, due.queue) for due in dues)
            store.published(partition, dues, now_ms, MOST_MS)
    return count
