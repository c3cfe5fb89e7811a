"""Waiting for a condition, which tests do instead of sleeping; and whether a process runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PAUSE_SHARE, MOST_PAUSE_S = 0.05, 0.1
"""A wait takes at most so much longer than what it waits for."""


def wait_until(condition: Callable[[], T], description: str, timeout_s: float = 60.0, *, every_s: float = 0.02) -> T:
    """The first true value of `condition`; fails the test, naming what it waited for, after `timeout_s`. The longer it
    has waited, the less often it looks, so that tests which wait leave the machine to those which work."""
    began, pause = time.monotonic(), threading.Event()
    deadline = began + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {description}"
        pause.wait(max(every_s, min(MOST_PAUSE_S, (time.monotonic() - began) * PAUSE_SHARE)))


def is_running(pid: int | str) -> bool:
    """Whether a process runs. One that has ended, and waits to be reaped, does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (
        FileNotFoundError,
        ProcessLookupError,
    ):  # the latter if it is reaped between open and read
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
