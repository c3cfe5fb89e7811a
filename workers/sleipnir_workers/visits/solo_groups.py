"""Groups of short visits in a solo pool: the message that Celery received, and more of the same list.

While a queue is long, taking several messages, claiming their visits and delivering their results at once saves most of
a visit's round trips and of Celery's work. A group has only visits of nodes that are known to be short, so that none
waits here while another worker is idle; visits/group.py relieves it of those that wait because this was wrong. The
other messages are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from statistics import fmean
from typing import Any, Final

import structlog
from celery.exceptions import Reject

from sleipnir import failpoints
from sleipnir.errors import MachineFailed
from sleipnir.messages import VisitCall
from sleipnir_workers.consumer.task_summary import TaskSummary
from sleipnir_workers.consumer.unreadable import taken_message
from sleipnir_workers.visits.claim import Worker
from sleipnir_workers.visits.group import Groups, Outcome

MOST: Final = 32
"""Messages that are taken at once: more save little."""
TAKES_S: Final = 0.01
"""The visits of messages that are taken at once are to take no longer than this together: the last of them waits so
long, perhaps while another worker is idle."""
SHARE: Final = 4
"""Of the messages of a queue, one of so many is taken: the others are for other workers."""
PAUSE: Final = 16
"""So many messages are executed singly after the queue was short, or had visits that may be long."""

Begin = Callable[[str, dict[str, Any]], Any]
"""Called with the id and the headers of a task that is taken. Returns the task."""
End = Callable[[Any, Any], None]
"""Called with a task and its result, or why it has none."""


class SoloGroups:
    """The groups of a process. `worker` is made with the first visit."""

    def __init__(self, worker: Callable[[], Worker]) -> None:
        self._open = worker
        self._groups: Groups | None = None
        self._single = 0
        self._left: dict[str, int] = {}
        """The last known lengths of the lists."""
        self._mean_s: dict[str, float] = {}
        """The mean durations of the visits that were last taken from them."""

    def run(
        self, call: VisitCall, headers: dict[str, Any], line: str, revoked: Collection[str], begin: Begin, end: End
    ) -> bool | Exception:
        """Execute a visit together with others of its list (keys.line_of). False: there are none, or it may be long,
        and it was not begun. A Reject: this machine cannot execute it, so its message should be requeued."""
        if self._single:
            self._single -= 1
            return False
        worker = self._open()
        # A worker that dies takes its whole group with it, and without redeliveries that would fail them all.
        has_redeliveries = worker.settings.max_redeliveries > 0
        if not has_redeliveries or not worker.short_nodes.has(call) or worker.drain.begun.is_set():
            return False
        self._mean_s[line] = max(self._mean_s.get(line, 0.0), worker.short_nodes.mean_s(call))
        more = self._take(worker, line, [*revoked, call.task_id])
        if not more:
            if self._left.get(line, 0) < SHARE:
                self._single = PAUSE
            return False
        tasks, texts = {call.task_id: begin(call.task_id, headers)}, dict[str, str]()
        requeue: list[Exception] = []

        def begun(taken: list[tuple[VisitCall, dict[str, Any], str]]) -> list[VisitCall]:
            for other, other_headers, text in taken:
                tasks[other.task_id], texts[other.task_id] = begin(other.task_id, other_headers), text
            return [other for other, _, _ in taken]

        def ended(visit: VisitCall, outcome: Outcome) -> None:
            result: Any = TaskSummary(outcome) if isinstance(outcome, dict) else outcome
            if isinstance(outcome, MachineFailed):
                result = Reject(f"this machine cannot run visits: {outcome}", requeue=True)
                if visit is call:
                    requeue.append(result)
                else:
                    self._put_back(worker, line, [texts[visit.task_id]])
            failpoints.hit("ack.before")
            end(tasks.pop(visit.task_id), result)

        if self._groups is None:
            self._groups = Groups(worker)
        self._groups.run([call, *begun(more)], lambda: begun(self._take(worker, line, [*revoked, *tasks])), ended)
        return requeue[0] if requeue else True

    def _take(
        self, worker: Worker, line: str, left_out: Collection[str]
    ) -> list[tuple[VisitCall, dict[str, Any], str]]:
        """Take more messages: call, headers and text of those that may join a group."""
        if self._single:  # the last ones may be long
            return []
        try:
            fit = int(TAKES_S / max(self._mean_s[line], TAKES_S / MOST))
            count = min(fit, self._left.get(line, 0) // SHARE)
            texts, self._left[line] = worker.store.fleet.take_messages(line, count)
        except Exception as error:  # Celery's own connection meets the same trouble, and deals with it
            self._left.pop(line, None)
            structlog.get_logger().debug("no more messages can be taken", error=str(error))
            return []
        taken, left_out = [], {*left_out}
        for at, text in enumerate(texts):
            message = taken_message(text)
            if message is None or message[0].task_id in left_out or not worker.short_nodes.has(message[0]):
                self._single = PAUSE
                self._put_back(worker, line, texts[at:])
                break
            left_out.add(message[0].task_id)
            taken.append((*message, text))
        if taken:
            self._mean_s[line] = fmean(worker.short_nodes.mean_s(call) for call, _, _ in taken)
        return taken

    def _put_back(self, worker: Worker, line: str, texts: list[str]) -> None:
        try:
            worker.store.fleet.put_back(line, texts)
        except Exception as error:
            structlog.get_logger().warning(
                "messages cannot be put back; their visits are published again", count=len(texts), error=str(error)
            )
