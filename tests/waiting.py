"""Waiting for a condition, which tests do instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], description: str, timeout_s: float = 60.0, *, every_s: float = 0.02) -> T:
    """The first true value of `condition`; fails the test, naming what it waited for, after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {description}"
        pause.wait(every_s)
