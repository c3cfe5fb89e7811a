"""Intake: which queues a worker consumes. It stops consuming a queue whose visits fail because of the machine.

Otherwise a worker with a full disk would fail visits faster than sound workers execute theirs. Each process of the pool
reports such a failure over one pipe to the main process. That stops consuming the queue, reports it in the log and in
the worker's announcement, checks the machine every few seconds, and consumes again when it is sound. The check can pass
where a visit needs more (a bundle of 50 MB on a disk with 2 MB): so the pause between two checks doubles until the
queue has been served without such a failure for as long as the longest pause.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from sleipnir.errors import MachineFailed

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0
_LINE_BYTES = 2048  # below PIPE_BUF: the lines of several processes do not mix
_TEXT = 500  # characters of a reason

_log = structlog.get_logger().bind(part="intake")


@dataclass
class _Stopped:
    """A queue that is not consumed. `until` and `since` are times of time.monotonic()."""

    part: str
    reason: str
    since: float
    until: float


class Intake:
    """Create it before the pool forks. Any process may call `report`; only the main process calls the other methods."""

    def __init__(self, first_pause_s: float = FIRST_PAUSE_S, longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._stopped: dict[str, _Stopped] = {}
        self._pauses: dict[str, tuple[float, float]] = {}  # the next pause, and when the queue was last taken again
        self._incomplete_line = b""

    def report(self, queue: str, failure: MachineFailed) -> None:
        """Report that the machine failed a visit of `queue`. Never blocks; lost or repeated reports do no harm."""
        line = json.dumps({"queue": queue[:200], "part": failure.part, "reason": str(failure)[:_TEXT]}).encode() + b"\n"
        if len(line) > _LINE_BYTES:
            line = json.dumps({"queue": queue[:200], "part": failure.part, "reason": failure.part}).encode() + b"\n"
        try:
            os.write(self._write, line)
        except OSError:  # the pipe is full of reports
            return

    def watch_forever(
        self,
        check: Callable[[], None],
        stop: Callable[[str], None],
        take: Callable[[str], None],
    ) -> None:
        """`stop` a queue when a report arrives, and `take` it again when `check` raises no MachineFailed."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while True:
            pause_s = self._until_next_check_s(time.monotonic())
            poll.poll(None if pause_s is None else pause_s * 1000)
            try:
                self.look(check, stop, take, time.monotonic())
            except Exception:
                # The thread must outlive any single failure: without it a stopped queue would stay stopped.
                _log.exception("the machine cannot be checked; repeating")

    def look(
        self, check: Callable[[], None], stop: Callable[[str], None], take: Callable[[str], None], now: float
    ) -> None:
        """One round."""
        for report in self._reports():
            if report["queue"] not in self._stopped:
                self._stop(report["queue"], report["part"], report["reason"], now)
                stop(report["queue"])
        due = [queue for queue, stopped in self._stopped.items() if stopped.until <= now]
        if not due:
            return
        try:
            check()
        except MachineFailed as failure:
            for queue in due:
                self._put_off(queue, failure, now)
            return
        for queue in due:
            stopped = self._stopped.pop(queue)
            self._pauses[queue] = (self._pauses[queue][0], now)
            _log.info("the machine is sound again: consuming the queue", queue=queue, after_s=int(now - stopped.since))
            take(queue)

    def stopped(self) -> dict[str, str]:
        """The reasons, by queue that is not consumed. For any thread of the main process."""
        return {queue: stopped.reason for queue, stopped in list(self._stopped.items())}

    def _stop(self, queue: str, part: str, reason: str, now: float) -> None:
        pause_s, taken_at = self._pauses.get(queue, (self._first_pause_s, 0.0))
        if now - taken_at > self._longest_pause_s:
            pause_s = self._first_pause_s
        self._stopped[queue] = _Stopped(part, reason, now, now + pause_s)
        self._pauses[queue] = (min(pause_s * 2, self._longest_pause_s), now)
        _log.error("the machine cannot run visits: stopped consuming", queue=queue, reason=reason, check_in_s=pause_s)

    def _put_off(self, queue: str, failure: MachineFailed, now: float) -> None:
        pause_s, _ = self._pauses[queue]
        self._pauses[queue] = (min(pause_s * 2, self._longest_pause_s), now)
        stopped = self._stopped[queue]
        stopped.part, stopped.reason, stopped.until = failure.part, str(failure), now + pause_s
        _log.warning("the machine still cannot run visits", queue=queue, reason=str(failure), check_in_s=pause_s)

    def _until_next_check_s(self, now: float) -> float | None:
        due_times = [stopped.until for stopped in self._stopped.values()]
        return max(0.0, min(due_times) - now) if due_times else None

    def _reports(self) -> Iterable[dict[str, Any]]:
        try:
            self._incomplete_line += os.read(self._read, 1 << 16)
        except BlockingIOError:
            return []
        *lines, self._incomplete_line = self._incomplete_line.split(b"\n")
        return [json.loads(line) for line in lines]
