"""The one way services repeat: call, wait, survive a Redis that is away, stop when told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.store.store import Store

RETRY_S = (0.2, 0.5, 1.0, 2.0)  # then every 2 s: a restarted Redis is found again within seconds
STUCK_S = 90.0  # beyond the pause between two rounds; three dead connections in a row are given up in half of that


class ServiceRounds:
    """When each service began its last round, whether Redis answered in it, and how many rounds ended in a bug. Written
    by the services, each its own; read by whoever judges them."""

    def __init__(self) -> None:
        self._turned: dict[str, tuple[float, float]] = {}
        self._answered: dict[str, bool] = {}
        self._failures: Counter[str] = Counter()

    def turned(self, name: str, every_s: float) -> None:
        self._turned[name] = (time.monotonic(), every_s)
        self._failures.setdefault(name, 0)

    def answered(self, name: str, yes: bool) -> None:
        self._answered[name] = yes

    def failed(self, name: str) -> None:
        self._failures[name] += 1

    def failures(self) -> Mapping[str, int]:
        return dict(self._failures)

    @property
    def redis(self) -> bool:
        """Whether Redis answered every service that has asked it."""
        return all(dict(self._answered).values())

    def stuck(self) -> list[str]:
        """The services that stand still."""
        now = time.monotonic()
        return sorted(name for name, (at, every_s) in dict(self._turned).items() if now - at > every_s + STUCK_S)


def run_forever(
    name: str, once: Callable[[], object], *, every_s: float, stop: threading.Event, store: Store, turns: ServiceRounds
) -> None:
    """Call `once` every `every_s` seconds until `stop`; while Redis is away, back off and say so once."""
    log = structlog.get_logger().bind(service=name)
    failures = 0
    while not stop.is_set():
        turns.turned(name, every_s)
        try:
            with store.errors():
                once()
        except StoreUnavailable as error:
            turns.answered(name, False)
            if failures == 0:
                log.warning("the store does not answer; retrying", error=str(error))
            stop.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1
            continue
        except Exception:
            # A bug in one round must not end the service for all runs; the next round starts from Redis again.
            turns.failed(name)
            log.exception("service failed; retrying")
            stop.wait(RETRY_S[-1])
            continue
        turns.answered(name, True)
        if failures:
            log.info("the store answers again", failures=failures)
            failures = 0
        if every_s:
            stop.wait(every_s)
