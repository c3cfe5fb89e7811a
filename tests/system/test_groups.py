"""Groups: a solo worker takes several short visits of a long queue at once. None of them waits for a long one, and none
is lost when the worker stops or dies."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.store.connect import connect
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: grouped
start: a
nodes:
  a: {type: function, call: "f.py:f", queue: work, next: done, timeout: 600}
  done: {type: end, output: "{{n}}"}
"""
F_PY = """
import os, pathlib, signal, threading
here = pathlib.Path({folder!r})
def f(state):
    with open(here / "calls", "a") as calls:
        calls.write(f"{{state['n']}}\\n")
    if state["n"] == {long} and not (here / "mark").exists():
        (here / "mark").touch()
        if (here / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        while not (here / "go").exists():
            threading.Event().wait(0.02)
    return {{}}
"""
LONG, AFTER = 100, 40
"""The number of runs before and after the long one: so many that it is known to be short, and that it is in a group."""


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """Leases and patience that outlast every test: only a hand-back moves a visit on."""
    settings = {"lease_s": 120.0, "heartbeat_s": 0.5, "redispatch_after_s": 300.0, "drain_s": 300.0}
    with Stack(redis_server, tmp_path / "home", key_prefix=f"groups-{tmp_path.name}", **settings) as running:
        running.start_scheduler()
        yield running


def is_queued(client: Client, count: int) -> bool:
    return queued(client) == count


def queued(client: Client) -> int:
    broker: Any = connect(str(client.settings.broker))
    with contextlib.closing(broker):
        return int(broker.llen(client.store.keys.broker_prefix + "work"))


def submitted(client: Client, folder: Path) -> list[Run]:
    """The runs, in the order of their messages in the queue, except within the first and the last ones."""
    agent = write_agent(folder / "grouped", GRAPH, f_py=F_PY.format(folder=str(folder), long=LONG))
    runs: list[Run] = []
    for total in (LONG, LONG + 1, LONG + 1 + AFTER):
        runs += [client.submit(agent, state={"n": number}) for number in range(len(runs), total)]
        wait_until(partial(is_queued, client, total), "all are queued")
    return runs


def calls_of(folder: Path) -> Counter[int]:
    return Counter(map(int, (folder / "calls").read_text().split()))


def test_a_long_visit_holds_up_no_others_of_its_group(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        runs = submitted(client, tmp_path)
        stack.start_worker("one", "work", pool="solo")
        wait_until((tmp_path / "mark").exists, "the long visit runs")
        stack.start_worker("other", "work", pool="solo")
        for run in runs[:LONG] + runs[LONG + 1 :]:
            assert run.wait(60).status == "completed"
        assert not runs[LONG].info().is_final
        (tmp_path / "go").touch()
        assert runs[LONG].wait(60).status == "completed"
        assert "visit handed back" in stack.log("one"), "the long visit was in a group"
        assert set(calls_of(tmp_path).values()) == {1}, "a visit is handed back before it begins"
        assert {run.history()[1].attempt for run in runs} == {1, 2}


def test_a_worker_that_is_stopped_within_a_group_finishes_the_current_visit_only(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        runs = submitted(client, tmp_path)
        stack.start_worker("one", "work", pool="solo")
        wait_until((tmp_path / "mark").exists, "the long visit runs")
        stack.signal("one", signal.SIGTERM)
        (tmp_path / "go").touch()
        assert stack.processes["one"].wait(60) == 0, stack.log("one")
        stack.start_worker("other", "work", pool="solo")
        for run in runs:
            assert run.wait(60).status == "completed"
        assert set(calls_of(tmp_path).values()) == {1}
        assert runs[LONG].history()[1].worker.startswith("one@")


def test_the_visits_of_a_worker_that_dies_within_a_group_run_again(redis_server: RedisServer, tmp_path: Path) -> None:
    """Its leases lapse. Messages that it had taken without claiming them would be published again."""
    (tmp_path / "deadly").touch()
    with (
        Stack(redis_server, tmp_path / "home", key_prefix="groups-kill", lease_s=5.0) as stack,
        stack.client() as client,
    ):
        stack.start_scheduler()
        runs = submitted(client, tmp_path)
        stack.start_worker("one", "work", pool="solo", ready=False)
        wait_until(lambda: stack.processes["one"].poll() is not None, "the long visit has killed its worker")
        stack.start_worker("other", "work", pool="solo")
        for run in runs:
            assert run.wait(60).status == "completed"
        again = {number for number, run in enumerate(runs) if run.history()[1].attempt > 1}
        assert len(again) > 1, "it died within a group"
        assert LONG in again
        assert {number for number, count in calls_of(tmp_path).items() if count > 1} <= again
