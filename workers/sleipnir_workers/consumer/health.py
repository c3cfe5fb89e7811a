"""Evidence that this worker really consumes. `sleipnir worker --health` judges it (cli/fleet/health.py).

A worker that answers `celery inspect ping` may consume nothing: its loop may wait for a connection for ever, its slots
may be held by tasks that have no visit any more. So the consumer's own loop notes the time of each turn and of each
answer of the broker, and the worker announces the age of both every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from celery.worker import state as celery_state

TICK_S = 1.0


class ConsumerHealth:
    """Written by the consumer's loop, read by the thread that announces. Ages are milliseconds. `has_stopped_queues`
    says whether the worker has stopped consuming queues because of its machine (intake.py)."""

    def __init__(self, has_stopped_queues: Callable[[], bool] = lambda: False) -> None:
        self._has_stopped_queues = has_stopped_queues
        self._turned = self._heard = self._connected = time.monotonic()
        self._lost_at: float | None = time.monotonic()
        self._full_since: float | None = None
        self._done = 0
        self._consumer: Any = None
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        """Watch a consumer that has (again) a connection to the broker."""
        self._consumer, self._lost_at = consumer, None
        self._listen()
        self._turn()
        # The timer of a broker without an event loop has a thread of its own; call_soon runs in the loop in any case.
        self._timer = consumer.timer.call_repeatedly(TICK_S, consumer.call_soon, (self._turn,))

    def stop(self) -> None:
        """The connection is lost, or the worker stops."""
        if self._timer is not None:
            self._timer.cancel()
        if self._lost_at is None:
            self._lost_at = time.monotonic()

    def facts(self, leased: Callable[[Sequence[str]], int]) -> dict[str, Any]:
        """The fields of an announcement. `leased` counts those tasks, given by id, whose visits are leased to us."""
        now = time.monotonic()
        if self._consumer is None:
            return {}
        tasks = _reserved()
        held = leased(tasks) if tasks else 0
        full = self._is_full(len(tasks))
        if not full or held or self._done != celery_state.all_total_count[0]:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        self._done = celery_state.all_total_count[0]
        return {
            "pool": type(self._consumer.pool).__module__.rpartition(".")[2],
            "slots": self._slots,
            "busy": self._slots if full else len(tasks),
            "leased": held,
            "loop_age_ms": _ms(now - self._turned),
            "broker_age_ms": None if full or not self._polls else _ms(now - self._heard),
            "broker_lost_for_ms": None if self._lost_at is None else _ms(now - self._lost_at),
            "wedged_for_ms": None if self._full_since is None else _ms(now - self._full_since),
        }

    def _turn(self) -> None:
        self._turned = time.monotonic()
        has_no_queue = self._has_stopped_queues() and not self._consumer.task_consumer.queues
        if has_no_queue or self._is_full(len(celery_state.reserved_requests)):
            self._heard = self._turned  # it does not poll, and should not

    def _listen(self) -> None:
        """Note each answer of the broker, a message or "nothing": on Redis, the end of a BRPOP."""
        handlers = getattr(self._channel, "handlers", {})
        read = handlers.get("BRPOP")
        self._polls = read is not None
        self._heard = time.monotonic()
        if read is None:
            return

        def read_and_note() -> Any:
            try:
                return read()
            finally:
                self._heard = time.monotonic()

        handlers["BRPOP"] = read_and_note

    def _is_full(self, reserved: int) -> bool:
        """No slot is free: as many tasks as slots, or as many messages that Celery has not seen acknowledged."""
        if reserved >= self._slots:
            return True
        qos = getattr(self._channel, "qos", None)
        return qos is not None and hasattr(qos, "can_consume") and not qos.can_consume()

    @property
    def _slots(self) -> int:
        return int(self._consumer.pool.num_processes)

    @property
    def _channel(self) -> Any:
        return getattr(self._consumer.task_consumer, "channel", None)


def _reserved() -> list[str]:
    """The ids of the tasks that were taken from the broker and are not done."""
    while True:
        try:
            return [request.id for request in list(celery_state.reserved_requests)]
        except RuntimeError:  # the loop has added one during the iteration
            continue


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
