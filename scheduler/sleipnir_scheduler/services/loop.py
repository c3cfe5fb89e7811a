"""The loop of all services: call, wait, survive an unreachable Redis, stop on request."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.store.store import Store

RETRY_S = (0.2, 0.5, 1.0, 2.0)  # then every 2 s: reconnects to a restarted Redis within seconds
STUCK_S = 90.0  # beyond the pause between two rounds; three dead connections in a row time out in half of that


class ServiceRounds:
    """When each service began its last round, whether Redis answered in it, and how many rounds ended in a bug. Each
    service writes its own entries; metrics and health read them."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[float, float]] = {}
        self._answered: dict[str, bool] = {}
        self._failures: Counter[str] = Counter()

    def began(self, name: str, every_s: float) -> None:
        self._begun[name] = (time.monotonic(), every_s)
        self._failures.setdefault(name, 0)

    def answered(self, name: str, yes: bool) -> None:
        self._answered[name] = yes

    def failed(self, name: str) -> None:
        self._failures[name] += 1

    def failures(self) -> Mapping[str, int]:
        return dict(self._failures)

    @property
    def redis(self) -> bool:
        """Whether Redis answered every service in its last round."""
        return all(dict(self._answered).values())

    def stuck(self) -> list[str]:
        """The services whose round does not end."""
        now = time.monotonic()
        return sorted(name for name, (at, every_s) in dict(self._begun).items() if now - at > every_s + STUCK_S)


def run_forever(
    name: str, once: Callable[[], object], *, every_s: float, stop: threading.Event, store: Store, rounds: ServiceRounds
) -> None:
    """Call `once` every `every_s` seconds until `stop`; while Redis is unreachable, back off and log it once."""
    log = structlog.get_logger().bind(service=name)
    failures = 0
    while not stop.is_set():
        rounds.began(name, every_s)
        try:
            with store.errors():
                once()
        except StoreUnavailable as error:
            rounds.answered(name, False)
            if failures == 0:
                log.warning("the store does not answer; retrying", error=str(error))
            stop.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1
            continue
        except Exception:
            # A bug in one round must not end the service for all runs; the next round starts from Redis again.
            rounds.failed(name)
            log.exception("service failed; retrying")
            stop.wait(RETRY_S[-1])
            continue
        rounds.answered(name, True)
        if failures:
            log.info("the store answers again", failures=failures)
            failures = 0
        if every_s:
            stop.wait(every_s)
