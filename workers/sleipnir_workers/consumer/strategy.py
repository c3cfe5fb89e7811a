"""How a worker handles a visit's message: Celery's `Task.Strategy`, with a short path for solo pools.

A solo pool executes a message where it is received. Celery's own path from here to the task is made for every pool and
feature: a Request, a Context, a second decoding of the body, a tracer with result backends and callbacks, a generic
repr. A visit needs none of them. Calling the task directly saves a quarter of a worker's time for a visit without work;
what people see stays: events for Flower, `inspect stats`, revokes, acknowledgement after execution.

Any other pool, and any process that listens to Celery's task signals (tracing libraries do), uses Celery's own path.
There VisitRequest and Shown (task_summary.py) save a tenth of a worker's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import structlog
from celery import signals
from celery.concurrency import solo
from celery.exceptions import Reject
from celery.worker import state
from celery.worker.request import Request
from celery.worker.strategy import default
from kombu.utils.encoding import safe_repr

from sleipnir.store.keys import line_of
from sleipnir_workers.consumer.task_summary import event_of

Take = Callable[..., None]

group_runner: Callable[..., bool | Exception] | None = None
"""SoloGroups.run (visits/solo_groups.py) of this process."""

taken_from: str | None = None
"""The queue of the message that a solo pool executes now; on Celery's own path the task's request has it."""


class TakenRequest:
    """Stands in Celery's `reserved_requests` for a task while it is executed: draining and health checks read that."""

    __slots__ = ("__weakref__", "id")

    def __init__(self, task_id: str) -> None:
        self.id = task_id


_TASK_SIGNALS = (
    signals.task_received, signals.task_prerun, signals.task_postrun, signals.task_success, signals.task_failure,
)  # fmt: skip


class VisitRequest(Request):  # type: ignore[misc]
    """For Celery's own path: passes on the decoded body, which the tracer would decode again, and sends Flower the same
    events as the short path."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **{**options, "body": message.payload, "decoded": True})

    def send_event(self, type: str, **fields: Any) -> None:
        if type == "task-started":
            fields["routing_key"] = self.delivery_info.get("routing_key")
        elif type == "task-succeeded":
            type, end_fields = event_of(fields.pop("result") or "")
            fields |= end_fields
        super().send_event(type, **fields)


def strategy(task: Any, app: Any, consumer: Any) -> Take:
    """The function that is called with each message of `task`. Celery asks for it at start and after a reconnection."""
    stock: Take = default(task, app, consumer)
    if not isinstance(consumer.pool, solo.TaskPool) or any(signal.receivers for signal in _TASK_SIGNALS):
        return stock
    send, run, errors = _sender(consumer), task.run, consumer.connection_errors
    revoked = consumer.controller.state.revoked
    log = structlog.get_logger()

    def begin(queue: str | None, task_id: str, headers: dict[str, Any]) -> _Task:
        request = TakenRequest(task_id)
        state.reserved_requests.add(request)
        _announce(send, task_id, headers, queue)
        return _Task(request, monotonic())

    def end(task: _Task, outcome: Any) -> None:
        """`outcome` is the result of the task, or why it has none."""
        task_id = task.request.id
        state.reserved_requests.discard(task.request)
        if isinstance(outcome, Reject):
            send("task-rejected", uuid=task_id, requeue=outcome.requeue)
        elif isinstance(outcome, Exception):
            log.error("task failed outside of its visit, which will be published again", task=task_id, exc_info=outcome)
            send("task-failed", uuid=task_id, exception=safe_repr(outcome), traceback="")
        else:
            event, fields = event_of(repr(outcome))
            send(event, uuid=task_id, runtime=monotonic() - task.started, **fields)

    def take(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        global taken_from
        headers = message.headers
        task_id = headers["id"]
        if callbacks or task_id in revoked:
            stock(message, body, ack, reject, callbacks)
            return
        args, _, _ = message.payload
        queue = taken_from = message.delivery_info.get("routing_key")
        outcome: Any = False
        if group_runner is not None and queue:
            line = line_of(queue, "any" if message.properties.get("priority") else "")
            outcome = group_runner(args[0], headers, line, revoked, partial(begin, queue), end)
        if outcome is False:
            task = begin(queue, task_id, headers)
            try:
                outcome = run(*args)
            except Exception as error:
                outcome = error
            end(task, outcome)
        if isinstance(outcome, Reject):
            reject(log, errors, outcome.requeue)
        else:
            ack(log, errors)

    return take


@dataclass(slots=True)
class _Task:
    request: TakenRequest
    started: float


def _announce(send: Callable[..., None], task_id: str, headers: dict[str, Any], queue: str | None) -> None:
    """Received and started are the same moment here. The counts are those of `inspect stats` and of the heartbeat.

    The second event has the queue, because the first has no field for it on Celery's own path.
    """
    name = headers.get("shadow") or headers["task"]
    send(
        "task-received",
        uuid=task_id,
        name=name,
        args=headers.get("argsrepr", ""),
        kwargs=headers.get("kwargsrepr", ""),
        root_id=headers.get("root_id"),
        parent_id=headers.get("parent_id"),
        retries=0,
        eta=None,
        expires=None,
    )
    send("task-started", uuid=task_id, routing_key=queue)
    state.total_count[name] += 1
    state.all_total_count[0] += 1


def _sender(consumer: Any) -> Callable[..., None]:
    dispatcher = consumer.event_dispatcher
    if dispatcher is None or not dispatcher.enabled:
        return lambda *_, **__: None
    return lambda type, **fields: dispatcher.send(type, **fields)  # which is replaced later (task_events.py)
