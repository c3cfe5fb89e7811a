"""`recursion_limit` of a run: what lets the run go on begins it anew, as a call in process does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sleipnir.messages import InterruptQuestion, ResultHeader
from sleipnir.runs.events import Answered, Paused, Resulted, Resumed
from tests.model_store import Driver

CHAIN = """
name: chain
version: sleipnir/1
start: a
state: {n: int}
STATE_CLASSES
nodes:
  a: {type: function, call: "f.py:a", next: b}
  b: {type: function, call: "f.py:b", BREAK next: c}
  c: {type: function, call: "f.py:c", next: d}
  d: {type: function, call: "f.py:d", next: e}
  e: {type: function, call: "f.py:e"}
"""
PYTHON = 'state_classes: ["f.py:State"]'


def chain(limit: int, classes: str = PYTHON, stops: str = "") -> Driver:
    """A run that has ended `a`."""
    driver = Driver(CHAIN.replace("STATE_CLASSES", classes).replace("BREAK", stops))
    driver.run = replace(driver.run, spec=replace(driver.run.spec, config={"recursion_limit": limit}))
    return driver.start().does("a", n=1)


@pytest.mark.parametrize(("limit", "status"), [(2, "failed"), (3, "completed")])
def test_an_answer_begins_the_limit_anew(limit: int, status: str) -> None:
    driver = chain(limit)
    visit = driver.visit("b")
    asked = ResultHeader(True, interrupt=InterruptQuestion("what?"))
    driver.send(Resulted(visit.seq, visit.attempt, asked))
    driver.send(Answered(visit.seq, '"x"', visit.attempt, "ann"))
    driver.does("b").does("c").does("d").does("e")
    assert driver.run.status == status


@pytest.mark.parametrize(("limit", "status"), [(2, "failed"), (3, "completed")])
def test_a_resume_at_a_breakpoint_begins_the_limit_anew(limit: int, status: str) -> None:
    driver = chain(limit, stops="interrupt: before,")
    driver.send(Resumed("person", "ann"))
    driver.does("b").does("c").does("d").does("e")
    assert driver.run.status == status


def test_a_pause_of_a_person_does_not_change_the_limit() -> None:
    driver = chain(3)
    driver.send(Paused("ann", None, "person"))
    driver.send(Resumed("person", "ann"))
    driver.does("b").does("c")
    assert driver.run.limited_from == 0 and driver.run.status == "failed"


def test_other_graphs_keep_the_limit_that_their_run_began_with() -> None:
    driver = chain(3, classes="", stops="interrupt: before,")
    driver.send(Resumed("person", "ann"))
    assert driver.run.limited_from == 0
