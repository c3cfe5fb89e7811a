"""Ends the planning of an entry that takes too long, so that its partition continues.

Planning is pure, so it can be interrupted anywhere. A timer of the process interrupts it: Python code at the next
bytecode, C code when it returns. Signals reach only the main thread, where `advance` runs; elsewhere (tests)
nothing is interrupted. One timer serves all entries of a round: two system calls per round, not per entry.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MOST_S = 5.0


class PlanningTooLong(BaseException):
    """The entry was planned for too long. Not an Exception, so that only its own handler catches it."""


class PlanningWatchdog:
    """Watches one entry at a time. `most_s` is the time limit of each."""

    def __init__(self, most_s: float = MOST_S) -> None:
        self.most_s = most_s
        self._began_s: float | None = None

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Within this context, code between `begin` and `end` is interrupted after its time limit."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, began_s = signal.signal(signal.SIGALRM, self._look), time.monotonic()
        due_s, every_s = signal.setitimer(signal.ITIMER_REAL, self.most_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if due_s:  # another timer was running, such as a test's
                signal.setitimer(signal.ITIMER_REAL, max(0.001, due_s - time.monotonic() + began_s), every_s)

    def begin(self) -> None:
        """Start the time of an entry."""
        self._began_s = time.monotonic()

    def end(self) -> None:
        self._began_s = None

    def _look(self, *_: Any) -> None:
        began_s = self._began_s
        remaining_s = self.most_s if began_s is None else began_s + self.most_s - time.monotonic()
        if remaining_s > 0:
            signal.setitimer(signal.ITIMER_REAL, remaining_s)
            return
        self._began_s = None
        signal.setitimer(signal.ITIMER_REAL, self.most_s)
        raise PlanningTooLong
