"""The clocks of runs in this process: one that waits, and one for tests that jumps ahead instead."""

from __future__ import annotations

import time
from typing import Protocol

from sleipnir.memory.store import now_ms


class RunClock(Protocol):
    """The time of a store in memory, and what waiting for a timer does."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def wait_until(self, due_ms: int) -> None:
        """Return when it is that late."""


class RealClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return now_ms()

    def wait_until(self, due_ms: int) -> None:
        time.sleep(max(0, due_ms - now_ms()) / 1000)


class SkippingClock:
    """The machine's clock, ahead by all that was waited for: waiting takes no time."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return now_ms() + self._ahead_ms

    def wait_until(self, due_ms: int) -> None:
        self._ahead_ms += max(0, due_ms - self.now_ms())
