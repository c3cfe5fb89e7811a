"""Messages that come twice and late: old task messages pushed again, old inbox entries added again."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from sleipnir.store.connect import connect
from sleipnir.store.keys import Keys, lines_of

OF_RUNS = {"submitted", "result", "answered", "timer", "lease_lost"}
"""Events that may be repeated because a repetition is not a new request, as a second cancel or retry would be."""
EVERY_S = 0.05
AT_ONCE = 5


class Replays:
    """Watches queues and inboxes, keeps what it sees, and sends it again a moment or minutes later."""

    def __init__(
        self, url: str, broker_url: str, keys: Keys, chance: random.Random, wanted: int, queues: Sequence[str]
    ) -> None:
        self._queues = [keys.broker_prefix + line for queue in queues for line in lines_of(queue)]
        self._client, self._broker = connect(url, retries=0), connect(broker_url, retries=0)
        self._keys, self._chance, self._wanted = keys, chance, wanted
        self._envelopes: deque[tuple[str, str]] = deque(maxlen=2000)
        self._entries: deque[tuple[str, dict[str, Any]]] = deque(maxlen=2000)
        self.sent = 0

    def run(self, stop: threading.Event) -> None:
        rounds = 0
        while not stop.wait(EVERY_S):
            rounds += 1
            try:
                self._watch()
                if rounds % 10 == 0 and self.sent < self._wanted:
                    self._send()
            except Exception:  # Redis is away
                continue

    def _watch(self) -> None:
        for queue in self._queues:
            self._envelopes += [(queue, envelope) for envelope in self._broker.lrange(queue, 0, 2)]
        pipe = self._client.pipeline(transaction=False)
        inboxes = [self._keys.of_partition(number).inbox for number in range(self._keys.partitions)]
        for inbox in inboxes:
            pipe.xrange(inbox, count=3)
        for inbox, entries in zip(inboxes, pipe.execute(), strict=True):
            self._entries += [(inbox, fields) for _, fields in entries if fields["t"] in OF_RUNS]

    def _send(self) -> None:
        for _ in range(min(AT_ONCE, self._wanted - self.sent)):
            if self._envelopes and (not self._entries or self._chance.random() < 0.5):
                self._broker.lpush(*self._chance.choice(self._envelopes))
            elif self._entries:
                inbox, fields = self._chance.choice(self._entries)
                self._client.xadd(inbox, fields)
            else:
                return
            self.sent += 1
