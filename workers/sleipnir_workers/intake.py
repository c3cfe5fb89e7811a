"""Intake: which of its queues a worker takes messages from. One whose visits fail by the machine's fault is left alone.

A worker with a full disk would otherwise be a black hole: it fails visits faster than sound workers run theirs. Each
process of the pool reports such a failure over one pipe to the main process, which stops to consume from the queue,
says so in the log and in the worker's announcement, checks the machine every few seconds, and consumes again when it is
sound. The check can pass where a visit needs more (a bundle of 50 MB on a disk with 2 MB): so the pause between two
checks doubles until the queue has been served without such a failure for as long as the longest pause.
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
    """Make it before the pool forks. `report` is for any process, the rest for the main process alone."""

    def __init__(self, first_pause_s: float = FIRST_PAUSE_S, longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._stopped: dict[str, _Stopped] = {}
        self._pauses: dict[str, tuple[float, float]] = {}  # the next pause, and when the queue was last taken again
        self._rest = b""

    def report(self, queue: str, failure: MachineFailed) -> None:
        """Say that a visit of `queue` failed by the machine's fault. Never blocks; a report more or less does not
        matter."""
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
        """`stop` and `take` a queue as reports come and as `check` passes, which raises MachineFailed otherwise."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while True:
            pause_s = self._next_check_in_s(time.monotonic())
            poll.poll(None if pause_s is None else pause_s * 1000)
            try:
                self.look(check, stop, take, time.monotonic())
            except Exception:
                # The thread must outlive any single failure: without it a queue would be left alone for good.
                _log.exception("the machine cannot be judged; repeating")

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
            _log.info("the machine is sound again: the queue is taken", queue=queue, after_s=int(now - stopped.since))
            take(queue)

    def stopped(self) -> dict[str, str]:
        """Why, by queue that is not taken. For any thread of the main process."""
        return {queue: stopped.reason for queue, stopped in list(self._stopped.items())}

    def _stop(self, queue: str, part: str, reason: str, now: float) -> None:
        pause_s, taken_at = self._pauses.get(queue, (self._first_pause_s, 0.0))
        if now - taken_at > self._longest_pause_s:
            pause_s = self._first_pause_s
        self._stopped[queue] = _Stopped(part, reason, now, now + pause_s)
        self._pauses[queue] = (min(pause_s * 2, self._longest_pause_s), now)
        _log.error(
            "the machine cannot run visits: the queue is left alone", queue=queue, reason=reason, check_in_s=pause_s
        )

    def _put_off(self, queue: str, failure: MachineFailed, now: float) -> None:
        pause_s, _ = self._pauses[queue]
        self._pauses[queue] = (min(pause_s * 2, self._longest_pause_s), now)
        stopped = self._stopped[queue]
        stopped.part, stopped.reason, stopped.until = failure.part, str(failure), now + pause_s
        _log.warning("the machine still cannot run visits", queue=queue, reason=str(failure), check_in_s=pause_s)

    def _next_check_in_s(self, now: float) -> float | None:
        checks = [stopped.until for stopped in self._stopped.values()]
        return max(0.0, min(checks) - now) if checks else None

    def _reports(self) -> Iterable[dict[str, Any]]:
        try:
            self._rest += os.read(self._read, 1 << 16)
        except BlockingIOError:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]
