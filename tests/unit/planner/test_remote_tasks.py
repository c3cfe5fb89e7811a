"""Tasks of remote agents, as the planner sees them: waits, questions, cancels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.graph.load import load_graph
from sleipnir.graph.model import graph_below
from sleipnir.messages import InterruptQuestion, ResultHeader, WaitRequest
from sleipnir.runs.events import Answered, Cancelled, LeaseLost, Paused, Resulted, TimerFired
from sleipnir.runs.visits import Delay, Question, Work
from tests.model_store import Driver

TEXT = """
name: g
version: sleipnir/1
start: ask
agents:
  risk: {a2a: "https://example.com"}
nodes:
  ask: {type: agent, agent: risk, prompt: hello}
"""
MEMO = json.dumps({"task": "t"})


def begun() -> Driver:
    graph = graph_below(load_graph(TEXT, "graph.yaml", "g"), "risk")
    return Driver(graph, {"initial_prompt": "hello"}).start()


def asks(driver: Driver, attempt: int, wait: WaitRequest | None = None, memo: str = MEMO) -> None:
    asked = InterruptQuestion("answer", "Which?", memo, wait=wait)
    driver.send(Resulted(1, attempt, ResultHeader(False, interrupt=asked)))


def given(driver: Driver) -> list[dict[str, Any]]:
    work = driver.run.frontier[1].body
    assert isinstance(work, Work) and work.given is not None
    return list(json.loads(driver.memory.items[work.given]))


def test_only_the_newest_memo_is_kept_however_often_it_waits() -> None:
    driver = begun()
    for attempt in range(1, 4):
        asks(driver, attempt, WaitRequest(for_ms=500), json.dumps({"looks": attempt}))
        assert isinstance(driver.run.frontier[1].body, Delay)
        driver.send(TimerFired(f"visit/1/{attempt}"), after_ms=500)
        assert given(driver) == [{"key": json.dumps({"looks": attempt}), "at": 0, "value": None}]


def test_an_answer_stays_until_it_has_been_sent() -> None:
    driver = begun()
    asks(driver, 1)
    driver.send(Answered(1, '"big"', 1, "ada"))
    assert given(driver)[0]["value"] == "big"
    asks(driver, 2, WaitRequest(for_ms=500))
    driver.send(TimerFired("visit/1/2"), after_ms=500)
    assert given(driver)[0]["value"] == "big"


@pytest.mark.parametrize("state", ["waits", "asks", "works", "held"])
def test_a_cancelled_run_ends_once_its_task_is_cancelled(state: str) -> None:
    driver = begun()
    asks(driver, 1, None if state == "asks" else WaitRequest(for_ms=500))
    if state == "works":
        driver.send(TimerFired("visit/1/1"), after_ms=500)
    if state == "held":
        driver.send(Paused("ada"))
    driver.send(Cancelled(by="ada"))
    visit = driver.run.frontier[1]
    assert isinstance(visit.body, Work) and not driver.run.is_final and not driver.run.is_held
    assert given(driver) == [{"key": MEMO, "at": 1, "value": None}]
    asks(driver, visit.attempt, WaitRequest(for_ms=500), json.dumps({"task": "t", "cancels": True}))
    driver.send(TimerFired(f"visit/1/{visit.attempt}"), after_ms=500)
    driver.send(Resulted(1, visit.attempt + 1, ResultHeader(True)))
    assert (driver.run.status, dict(driver.run.frontier), driver.memory.items) == ("cancelled", {}, {})


def test_a_second_cancel_and_a_task_that_is_not_known_end_the_run_at_once() -> None:
    driver = begun()
    driver.send(Cancelled(by="ada"))
    assert driver.run.status == "cancelled"
    driver = begun()
    asks(driver, 1)
    assert isinstance(driver.run.frontier[1].body, Question)
    driver.send(Cancelled(by="ada"))
    assert not driver.run.is_final
    driver.send(Cancelled(by="ada"))
    assert driver.run.status == "cancelled"


def test_a_run_whose_workers_all_die_while_they_cancel_is_cancelled() -> None:
    driver = begun()
    asks(driver, 1, WaitRequest(for_ms=500))
    driver.send(Cancelled(by="ada"))
    for attempt in range(2, 6):
        assert not driver.run.is_final
        driver.send(LeaseLost(1, attempt, "w"))
    assert driver.run.status == "cancelled"
    assert driver.last is not None and "may still run" in str(driver.last.error)
