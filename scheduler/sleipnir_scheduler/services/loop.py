"""The one way services repeat: call, wait, survive a Redis that is away, stop when told."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.store.store import Store

RETRY_S = (0.2, 0.5, 1.0, 2.0)  # then every 2 s: a restarted Redis is found again within seconds


def run_forever(name: str, once: Callable[[], object], *, every_s: float, stop: threading.Event, store: Store) -> None:
    """Call `once` every `every_s` seconds until `stop`; while Redis is away, back off and say so once."""
    log = structlog.get_logger().bind(service=name)
    failures = 0
    while not stop.is_set():
        try:
            with store.errors():
                once()
        except StoreUnavailable as error:
            if failures == 0:
                log.warning("the store does not answer; retrying", error=str(error))
            stop.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1
            continue
        except Exception:
            # A bug in one round must not end the service for all runs; the next round starts from Redis again.
            log.exception("service failed; retrying")
            stop.wait(RETRY_S[-1])
            continue
        if failures:
            log.info("the store answers again", failures=failures)
            failures = 0
        if every_s:
            stop.wait(every_s)
