"""Retries after transient errors, up to the node's max_attempts (spec 2.7.1)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from sleipnir.errors import NodeFailed
from sleipnir_workers.llm.failures import CallFailed

FIRST_PAUSE_S = 0.25  # before the second attempt; doubles, with jitter
LONGEST_PAUSE_S = 8.0
LONGEST_RETRY_AFTER_S = 60.0  # a limit on Retry-After, because a worker waits during the pause

T = TypeVar("T")


class Attempts:
    """Repeats a call up to `most` times while it fails with transient errors. `pause` waits, and may raise."""

    def __init__(self, most: int, pause: Callable[[float], None]) -> None:
        self._most = most
        self._pause = pause

    def run(self, call: Callable[[], T]) -> T:
        """What `call` returns. Raises NodeFailed after the last attempt, and after a permanent error."""
        for attempt in range(1, self._most + 1):
            try:
                return call()
            except CallFailed as error:
                if not error.transient or attempt == self._most:
                    raise NodeFailed(str(error), error.kind, transient=error.transient) from error
                self._pause(pause_s(attempt, error.retry_after_s))
        raise NodeFailed("llm node exhausted retries")


def pause_s(attempt: int, retry_after_s: float | None = None) -> float:
    """Seconds between `attempt` (from 1) and the next one, at least the provider's Retry-After up to its limit."""
    backoff_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt - 1, 16)) * random.uniform(0.5, 1.0)
    return float(max(backoff_s, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S)))
