"""Ends the planning of an entry that takes too long, so that its partition goes on.

Planning is pure, so it may be given up anywhere. A timer of the process interrupts it: code in Python at the next
bytecode, code in C when it returns. Signals reach the main thread alone, where `advance` runs; elsewhere (tests)
nothing is interrupted. One timer serves all entries of a round: it costs two system calls a round, not two an entry.
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
    """The entry was planned for too long. No Exception: nothing but its catcher may stop it."""


class PlanningWatchdog:
    """Watches one thing at a time. `most_s` is what each may take."""

    def __init__(self, most_s: float = MOST_S) -> None:
        self.most_s = most_s
        self._began_s: float | None = None

    @contextmanager
    def awake(self) -> Iterator[None]:
        """While this lasts, what is `watched` is interrupted when its time is up."""
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
            if due_s:  # somebody else's timer was running, as that of a test
                signal.setitimer(signal.ITIMER_REAL, max(0.001, due_s - time.monotonic() + began_s), every_s)

    def begin(self) -> None:
        """From now on `end` is waited for."""
        self._began_s = time.monotonic()

    def end(self) -> None:
        self._began_s = None

    def _look(self, *_: Any) -> None:
        began_s = self._began_s
        left_s = self.most_s if began_s is None else began_s + self.most_s - time.monotonic()
        if left_s > 0:
            signal.setitimer(signal.ITIMER_REAL, left_s)
            return
        self._began_s = None
        signal.setitimer(signal.ITIMER_REAL, self.most_s)
        raise PlanningTooLong
