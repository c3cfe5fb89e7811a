"""The nice value of a worker: its priority for the CPU.

One scheduler decides for all workers, and one Redis answers all of them. On cores that they share with busy workers,
all runs wait while one of the two waits for a core: with Redis and three workers on two cores, a scheduler waited for
0.3 of the time. So a worker takes what these leave (docs/operations.md).
"""

from __future__ import annotations

import os

import structlog


def raise_nice_value(least: int) -> None:
    """Give this thread, and so all threads and processes that it starts from now on, a nice value of at least that (0
    to 19). It needs no privileges."""
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) < least:
            os.setpriority(os.PRIO_PROCESS, 0, least)
    except OSError as error:
        structlog.get_logger().warning("cannot raise the nice value of this worker", nice=least, reason=str(error))
