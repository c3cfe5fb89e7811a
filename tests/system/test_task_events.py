"""What Celery's own tools see of a visit is the same, whichever way a worker takes its message."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.events.state import State

from sleipnir.messages import VisitCall
from sleipnir.settings import Settings
from sleipnir_scheduler.dispatch import RedisDispatcher
from sleipnir_workers.celeryconfig import SteadyAMQP, celery_config
from sleipnir_workers.consumer.task_events import TaskEvents
from tests.processes import CALM, RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: seen
start: a
nodes:
  a: {type: function, call: "f.py:f", queue: work, next: done}
  done: {type: end, output: "{{word}}"}
"""
F_PY = "def f(state):\n    return {'word': 'hello'}\n"
VARYING = {"hostname", "pid", "clock", "timestamp", "local_received", "uuid", "root_id", "args", "runtime"}


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_flower_gets_events_when_a_visit_is_received_started_and_done(
    redis_server: RedisServer, tmp_path: Path, pool: str
) -> None:
    agent = write_agent(tmp_path / "seen", GRAPH, f_py=F_PY)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"events-{pool}", **CALM) as stack:
        stack.start_scheduler()
        stack.start_worker("one", "work", pool=pool)
        with events_of(celery_app(redis_server, tmp_path, f"events-{pool}")) as events, stack.client() as client:
            run = client.submit(agent)
            assert run.wait(60).status == "completed"
            wait_until(lambda: any(e["type"] == "task-succeeded" for e in events), "the events arrive")
            told = {event["type"]: event for event in events if event["type"].startswith("task-")}
            assert list(told) == ["task-received", "task-started", "task-succeeded"]
            assert {event["uuid"] for event in told.values()} == {f"{run.id}:a:1:1"}
            assert told["task-received"]["args"] == f"run={run.id} node=a visit=1 attempt=1 agent=seen"
            assert told["task-received"]["root_id"] == run.id
            assert all(event["hostname"].startswith("one") and event["pid"] for event in told.values())
            assert [{k: v for k, v in event.items() if k not in VARYING} for event in told.values()] == [
                {
                    "type": "task-received", "name": "seen.a", "kwargs": "{}", "parent_id": None, "retries": 0,
                    "eta": None, "expires": None, "utcoffset": told["task-received"]["utcoffset"],
                },
                {"type": "task-started", "routing_key": "work", "utcoffset": told["task-started"]["utcoffset"]},
                {
                    "type": "task-succeeded", "result": "{'keys': ['word'], 'next': 'done'}",
                    "utcoffset": told["task-succeeded"]["utcoffset"],
                },
            ]  # fmt: skip


def test_a_worker_makes_events_of_tasks_only_while_somebody_receives_them(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    app = celery_app(redis_server, tmp_path, "heard")
    with app.connection_for_write() as connection:
        dispatcher = app.events.Dispatcher(connection)
        made: list[str] = []
        dispatcher.send = lambda type, **fields: made.append(type)
        events = TaskEvents(dispatcher)
        events.send("task-received", uuid="unheard")
        events.flush()
        assert made == []
        with events_of(app):
            events.send("task-received", uuid="heard")
            events.flush()
        assert made == ["task-received"]


def test_task_events_can_be_left_out(redis_server: RedisServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "seen", GRAPH, f_py=F_PY)
    with Stack(redis_server, tmp_path / "home", key_prefix="no-events", task_events=False) as stack:
        stack.start_scheduler()
        stack.start_worker("one", "work", pool="solo")
        with events_of(celery_app(redis_server, tmp_path, "no-events")) as events, stack.client() as client:
            assert client.submit(agent).wait(60).status == "completed"
            wait_until(lambda: any(e["type"] == "worker-heartbeat" for e in events), "Flower sees the worker")
            assert not [event for event in events if event["type"].startswith("task-")]


FAILING = """
name: failing
start: a
nodes:
  a: {type: function, call: "f.py:f", queue: work, next: done, fallback: done}
  done: {type: end}
"""


@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_a_failed_node_is_a_failed_task_and_what_another_message_had_done_already_a_revoked_one(
    redis_server: RedisServer, tmp_path: Path, pool: str
) -> None:
    agent = write_agent(tmp_path / "failing", FAILING, f_py="def f(state):\n    raise ValueError('no\\nsuch word')\n")
    with Stack(redis_server, tmp_path / "home", key_prefix=f"failing-{pool}", **CALM) as stack:
        stack.start_scheduler()
        stack.start_worker("one", "work", pool=pool)
        with events_of(celery_app(redis_server, tmp_path, f"failing-{pool}")) as events, stack.client() as client:
            run = client.submit(agent)
            assert run.wait(60).status == "completed"
            call = VisitCall(run.id, "a", 1, 1, "failing", "0" * 64)
            RedisDispatcher(client.store).publish([(call, "work")])
            wait_until(lambda: any(e["type"] == "task-revoked" for e in events), "the events arrive")
            state = State()
            for event in events:
                state.event(event)
            assert state.tasks[f"{run.id}:a:1:1"].state == "FAILURE", "as Flower shows it in the end"
        told = {event["type"]: event for event in events if event["type"].startswith("task-")}
        assert list(told) == ["task-received", "task-started", "task-failed", "task-revoked"]
        failed = told["task-failed"]
        assert failed["exception"].startswith("exception: Function 'f.py:f' raised ValueError: no such word (f.py:2: ")
        assert failed["result"] == "{'keys': ['_error', 'last_error'], 'next': None}"
        assert failed["traceback"] is None


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_inspect_counts_visits_by_their_name_in_flower(redis_server: RedisServer, tmp_path: Path, pool: str) -> None:
    agent = write_agent(tmp_path / "seen", GRAPH, f_py=F_PY)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"stats-{pool}", **CALM) as stack:
        stack.start_scheduler()
        stack.start_worker("one", "work", pool=pool)
        app = celery_app(redis_server, tmp_path, f"stats-{pool}")
        with stack.client() as client:
            for _ in range(3):
                assert client.submit(agent).wait(60).status == "completed"
        (stats,) = app.control.inspect(timeout=60, limit=1).stats().values()
        ((name, received),) = stats["total"].items()
        assert (name, received >= 3) == ("seen.a", True), "a visit that is published twice is received twice"


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_revoked_task_is_not_executed(redis_server: RedisServer, tmp_path: Path, pool: str) -> None:
    """Celery's own revoke is a hint like the message: the visit is published again. But the task must not run."""
    agent = write_agent(tmp_path / "seen", GRAPH, f_py=F_PY)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"revoke-{pool}") as stack:
        stack.start_worker("one", "work", pool=pool)
        app = celery_app(redis_server, tmp_path, f"revoke-{pool}")
        with stack.client() as client, events_of(app) as events:
            run = client.submit(agent)
            app.control.revoke(f"{run.id}:a:1:1", reply=True, timeout=60, limit=1)
            stack.start_scheduler()
            wait_until(lambda: any(e["type"] == "task-revoked" for e in events), "the task is revoked")
            assert run.info().status == "running"


def celery_app(redis: RedisServer, folder: Path, prefix: str) -> Celery:
    app = Celery("watcher", amqp=SteadyAMQP)
    app.config_from_object(celery_config(Settings(**redis.addresses, home=folder, key_prefix=prefix)))
    return app


@contextmanager
def events_of(app: Celery) -> Iterator[list[dict[str, Any]]]:
    """The events that Celery's receiver hands to Flower, while the block runs."""
    events: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": events.append})
        ready = threading.Event()
        thread = threading.Thread(target=_capture, args=(receiver, ready))
        thread.start()
        ready.wait(60)
        try:
            yield events
        finally:
            receiver.should_stop = True
            thread.join(60)


def _capture(receiver: Any, ready: threading.Event) -> None:
    consumer = receiver.itercapture(limit=None, timeout=None, wakeup=True)
    next(consumer)
    ready.set()
    for _ in consumer:
        pass
