"""Task events for Flower, which are made only if somebody listens.

To make and send the events of an empty visit costs as much as to execute it. So for a moment a worker keeps only what
they would say, and then asks the broker by an empty message, which receivers ignore, whether it has receivers. A broker
that does not tell gets all events.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

MOST: Final = 500
"""Events that are kept at most until they are sent or dropped."""


class TaskEvents:
    """Stands before Celery's event dispatcher."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher, self._send = dispatcher, dispatcher.send
        self._kept: deque[tuple[str, float, dict[str, Any]]] = deque()

    def send(self, type: str, **fields: Any) -> None:
        """Keep an event of a task, and send any other one at once."""
        if not type.startswith("task-"):
            self._send(type, **fields)
            return
        groups = self._dispatcher.groups
        if groups and "task" not in groups:
            return
        self._kept.append((type, time.time(), fields))
        if len(self._kept) >= MOST:
            self.flush()

    def flush(self) -> None:
        """Send what is kept, in batches; or drop it, if nobody listens."""
        if self._kept and not self._is_heard():
            self._kept.clear()
        while self._kept:
            type, at_s, fields = self._kept.popleft()
            self._send(type, **{"timestamp": at_s, **fields})
        self._dispatcher.flush()

    def _is_heard(self) -> bool:
        dispatcher = self._dispatcher
        if not dispatcher.enabled or not hasattr(dispatcher.producer.channel, "receivers"):
            return True
        dispatcher.producer.channel.receivers = None
        dispatcher._publish([], dispatcher.producer, "task.multi")
        return bool(dispatcher.producer.channel.receivers != 0)
