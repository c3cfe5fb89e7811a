"""Which messages join a group, and which are put back."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sleipnir.messages import VisitCall
from sleipnir.settings import Settings
from sleipnir_scheduler.dispatch import envelope
from sleipnir_workers.consumer.drain import Drain
from sleipnir_workers.consumer.unreadable import taken_message
from sleipnir_workers.visits.short_nodes import ShortNodes
from sleipnir_workers.visits.solo_groups import MOST, PAUSE, SHARE, SoloGroups

SHORT = VisitCall("run000000001", "short", 1, 1, "agent", "0" * 64)
UNKNOWN = replace(SHORT, node="unknown")


class Broker:
    """Stands for a worker and its broker's list."""

    def __init__(self, waiting: list[str]) -> None:
        self.waiting = waiting
        self.asked = 0
        self.short_nodes = ShortNodes()
        self.settings, self.drain = Settings(), Drain()
        self.store = SimpleNamespace(fleet=self)
        for _ in range(20):
            self.short_nodes.note(SHORT, 0.0)

    def take_messages(self, line: str, count: int) -> tuple[list[str], int]:
        self.asked += 1
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken, len(self.waiting)

    def put_back(self, line: str, envelopes: list[str]) -> None:
        self.waiting = [*envelopes, *self.waiting]


def groups_of(broker: Broker) -> tuple[SoloGroups, list[str]]:
    """The groups of a worker, and the ids of the tasks that have ended in them."""
    groups, ended = SoloGroups(cast(Any, lambda: broker)), list[str]()

    def run_all(calls: Any, more: Any, end: Any) -> None:
        while calls:
            for call in calls:
                end(call, {"ok": True})
                ended.append(call.task_id)
            calls = more()

    groups._groups = cast(Any, SimpleNamespace(run=run_all))
    return groups, ended


def message(call: VisitCall) -> str:
    return envelope(call, "work")


def run(groups: SoloGroups, call: VisitCall = SHORT, revoked: tuple[str, ...] = ()) -> bool | Exception:
    return groups.run(call, {}, "work", revoked, lambda task_id, _: task_id, lambda *_: None)


def short(number: int) -> VisitCall:
    return replace(SHORT, run=f"run{number:09}")


def test_at_most_a_share_of_a_queue_is_taken() -> None:
    broker = Broker([message(short(number)) for number in range(2, 2 + 3 * SHARE)])
    groups, ended = groups_of(broker)
    assert not run(groups), "it does not know the length of the queue yet"
    assert run(groups) is True
    assert ended[:4] == [SHORT.task_id, *(short(number).task_id for number in (2, 3, 4))]
    assert len(broker.waiting) >= SHARE - 1


def test_no_more_than_a_few_are_taken_at_once_from_a_very_long_queue() -> None:
    broker = Broker([message(short(number)) for number in range(2, 1000)])
    groups, _ = groups_of(broker)
    run(groups)
    assert len(groups._take(cast(Any, broker), "work", ())) == MOST


def test_the_visits_that_are_taken_at_once_are_short_together() -> None:
    broker = Broker([message(replace(short(number), node="slower")) for number in range(2, 1000)])
    for _ in range(40):
        broker.short_nodes.note(replace(SHORT, node="slower"), 0.0019)
    groups, _ = groups_of(broker)
    run(groups)
    taken = [len(groups._take(cast(Any, broker), "work", ())) for _ in range(3)]
    assert taken == [MOST, 5, 5], "the first message was of a node that takes no time"


def test_a_short_queue_is_looked_at_once_in_a_while() -> None:
    broker = Broker([message(short(2))])
    groups, _ = groups_of(broker)
    assert [run(groups) for _ in range(PAUSE + 1)] == [False] * (PAUSE + 1)
    assert broker.asked == 1


@pytest.mark.parametrize(
    "other",
    [
        message(UNKNOWN),
        message(replace(short(3), attempt=2)),
        message(short(3)).replace("utf-8", "base64"),
        json.dumps({"headers": {"task": "other"}}),
        "no JSON",
        message(SHORT),
        message(short(4)),
    ],
    ids=["unknown", "again", "encoded", "other", "damaged", "twice", "revoked"],
)
def test_a_message_that_must_not_join_is_put_back_with_those_after_it(other: str) -> None:
    waiting = [message(short(2)), other, *(message(short(number)) for number in range(10, 10 + 4 * SHARE))]
    broker = Broker([*waiting])
    groups, ended = groups_of(broker)
    revoked = (short(4).task_id,)
    run(groups, revoked=revoked)
    assert run(groups, revoked=revoked) is True
    assert ended == [SHORT.task_id, short(2).task_id]
    assert broker.waiting == waiting[1:]


@pytest.mark.parametrize("call", [UNKNOWN, replace(SHORT, attempt=2)])
def test_a_visit_that_may_be_long_or_ran_before_begins_no_group(call: VisitCall) -> None:
    broker = Broker([message(short(number)) for number in range(2, 100)])
    groups, _ = groups_of(broker)
    assert [run(groups, call) for _ in range(3)] == [False] * 3
    assert broker.asked == 0


def test_one_long_visit_makes_a_node_unknown_for_a_while() -> None:
    nodes = ShortNodes()
    durations = [0.001] * 12 + [5.0] + [0.001] * 30
    known = []
    for took_s in durations:
        nodes.note(SHORT, took_s)
        known.append(nodes.has(SHORT))
    assert (known[0], known[11], known[12], known[22], known[-1]) == (False, True, False, False, True)


def test_an_envelope_of_the_scheduler_is_read_as_celery_would() -> None:
    taken = taken_message(message(SHORT))
    assert taken is not None
    assert (taken[0], taken[1]["id"], taken[1]["shadow"]) == (SHORT, SHORT.task_id, "agent.short")
