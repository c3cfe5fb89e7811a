"""Task events: kept for a moment, and dropped if nobody listens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sleipnir_workers.consumer.task_events import MOST, TaskEvents


class Dispatcher:
    """Stands for Celery's, on a broker that tells `receivers`, or does not (None)."""

    def __init__(self, receivers: int | None, groups: tuple[str, ...] = ()) -> None:
        self.receivers, self.groups, self.enabled = receivers, groups, True
        channel = SimpleNamespace() if receivers is None else SimpleNamespace(receivers=None)
        self.producer = SimpleNamespace(channel=channel)
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.asked = self.flushed = 0

    def send(self, type: str, **fields: Any) -> None:
        self.sent.append((type, fields))

    def _publish(self, events: list[Any], producer: Any, routing_key: str) -> None:
        assert (events, routing_key) == ([], "task.multi")
        self.asked += 1
        producer.channel.receivers = self.receivers

    def flush(self) -> None:
        self.flushed += 1


@pytest.mark.parametrize(("receivers", "is_heard"), [(0, False), (1, True), (None, True)])
def test_events_of_tasks_are_sent_with_their_time_if_somebody_listens(receivers: int | None, is_heard: bool) -> None:
    dispatcher = Dispatcher(receivers)
    events = TaskEvents(dispatcher)
    for number in range(3):
        events.send("task-received", uuid=number)
    assert dispatcher.sent == []
    events.flush()
    assert [(type, fields["uuid"]) for type, fields in dispatcher.sent] == [
        ("task-received", number) for number in range(3 * is_heard)
    ]
    assert all(fields["timestamp"] > 0 for _, fields in dispatcher.sent)
    assert dispatcher.flushed == 1
    events.flush()
    assert dispatcher.asked == (receivers is not None), "without events nobody is asked"


def test_an_event_of_the_worker_is_sent_at_once() -> None:
    dispatcher = Dispatcher(0)
    TaskEvents(dispatcher).send("worker-heartbeat", freq=2)
    assert dispatcher.sent == [("worker-heartbeat", {"freq": 2})]


def test_no_more_than_a_number_of_events_are_kept() -> None:
    dispatcher = Dispatcher(1)
    events = TaskEvents(dispatcher)
    for _ in range(MOST + 1):
        events.send("task-received")
    assert len(dispatcher.sent) == MOST


def test_events_of_tasks_that_are_switched_off_are_not_kept() -> None:
    dispatcher = Dispatcher(1, groups=("worker",))
    events = TaskEvents(dispatcher)
    events.send("task-received")
    events.flush()
    assert (dispatcher.sent, dispatcher.asked) == ([], 0)
