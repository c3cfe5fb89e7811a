"""Interrupts: the code of a node asks, and runs again with the answer (spec/graph-package.md F27)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.messages import DEFINITION, ResultHeader
from sleipnir.runs.events import (
    Answered,
    Cancelled,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Submitted,
    TimerFired,
)
from sleipnir.runs.interrupts import UsedAnswer, answer_of, answers_of
from sleipnir.runs.run import RUN_AGAIN
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Doubt, Question, Visit, Work
from sleipnir.store.visit_records import read_visit, visit_text
from sleipnir_scheduler.planner.plan import IgnoredEvent, plan
from tests.model_store import Driver, asking, bad, work_of

ONE = """
name: one
version: sleipnir/1
engine: ENGINE
start: ask
state: {got: {type: list, reducer: append}}
nodes:
  ask: {type: function, call: "f.py:ask", next: done, retry: {max_attempts: 3, initial_interval: 1s, on: [any]}}
  done: {type: end, output: "{{got}}"}
"""

TWO = """
name: two
version: sleipnir/1
engine: ENGINE
start: split
state: {got: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [left, right]}
  left: {type: function, call: "f.py:ask", next: join}
  right: {type: function, call: "f.py:ask", next: join}
  join: {type: script, script: j.sh, wait_for: [left, right], next: done}
  done: {type: end, output: "{{got}}"}
"""

MAP = """
name: map
version: sleipnir/1
engine: ENGINE
start: each
state: {items: list, found: list}
nodes:
  each: {type: map, over: "{{items}}", as: item, branch: ask, output_key: v, collect_into: found, next: done}
  ask: {type: function, call: "f.py:ask"}
  done: {type: end, output: "{{found}}"}
"""

ENGINES = pytest.mark.parametrize("engine", ["bsp", "dag"])


def started(text: str, engine: str = "bsp", **state: Any) -> Driver:
    return Driver(text.replace("ENGINE", engine), state).start()


def given(driver: Driver, visit: Visit) -> list[UsedAnswer]:
    """The answers that a worker gets that claims the visit now."""
    return answers_of(driver.memory.values.talk(visit).told)


@ENGINES
@pytest.mark.conformance("IN-01", "EX-38")
def test_a_visit_that_asks_holds_no_worker_and_goes_on_with_the_answer(engine: str) -> None:
    driver = started(ONE, engine)
    driver.asks("ask", "approve", key="approve", value={"counter": 10})
    assert driver.last is not None
    (gate,) = driver.last.gates
    assert (gate.kind, gate.key, gate.payload, gate.question) == (
        "interrupt",
        "approve",
        {"counter": 10},
        '{"counter":10}',
    )
    assert (driver.on_workers(), driver.run.status) == ([], "waiting")
    (opened,) = [notice for notice in driver.last.notices if notice.type == "gate_opened"]
    assert (opened.data["node"], opened.data["key"]) == ("ask", "approve")
    assert [step.kind for step, _ in driver.memory.values.journal] == ["submitted"]
    driver.answers("ask", '"yes"')
    visit = driver.visit("ask")
    assert (visit.attempt, visit.state, driver.run.status) == (2, "queued", "running")
    assert given(driver, visit) == [UsedAnswer("approve", 0, "yes")]
    driver.does("ask", got=["yes"])
    assert (driver.run.status, driver.output) == ("completed", '["yes"]')
    assert driver.run.counts["ask"] == 1
    assert driver.memory.items == {}


def test_answers_are_replayed_in_their_order_and_dropped_with_the_visit() -> None:
    driver = started(ONE)
    driver.asks("ask", "ask#0", at=0).answers("ask", "41")
    driver.asks("ask", "k", key="k", at=1).answers("ask", "not JSON")
    driver.asks("ask", "ask#1", at=2).answers("ask", "null")
    assert given(driver, driver.visit("ask")) == [
        UsedAnswer(None, 0, 41),
        UsedAnswer("k", 1, "not JSON"),
        UsedAnswer(None, 2, None),
    ]
    driver.does("ask", got=[1])
    assert driver.memory.items == {}


def test_the_journal_names_the_question_the_answer_and_who_gave_it() -> None:
    driver = started(ONE).asks("ask", "colour", key="colour")
    visit = driver.visit("ask")
    driver.send(Answered(visit.seq, '"red"', visit.attempt, "ann"))
    (step,) = [step for step, _ in driver.memory.values.journal if step.kind == "answered"]
    assert (step.gate, step.key, step.answer, step.by) == (visit.seq, "colour", '"red"', "ann")


def test_an_answer_to_a_secret_is_in_no_journal() -> None:
    driver = started(ONE).asks("ask", "api_password", key="api_password").answers("ask", '"hunter2"')
    assert "hunter2" not in "".join(driver.memory.entries)
    assert given(driver, driver.visit("ask"))[0].value == "hunter2"


@ENGINES
@pytest.mark.conformance("IN-13")
def test_two_branches_ask_at_once_and_are_answered_in_any_order(engine: str) -> None:
    driver = started(TWO, engine)
    driver.asks("left", "left#0").asks("right", "right#0")
    assert sorted(driver.live()) == ["left", "right"]
    driver.answers("right", "2").does("right", got=[2])
    assert "join" not in driver.live()
    driver.answers("left", "1").does("left", got=[1]).does("join")
    assert json.loads(driver.output or "") == [1, 2]


@ENGINES
def test_an_item_of_a_map_asks_and_keeps_its_own_values(engine: str) -> None:
    driver = started(MAP, engine, items=["x", "y"])
    driver.asks("ask", "ask#0", item=1).does("ask", item=0, v="a")
    visit = driver.visit("ask", item=1)
    assert driver.sees(visit)["item"] == "y"
    driver.answers("ask", '"b"')
    assert driver.sees(driver.visit("ask", item=1))["item"] == "y"
    driver.does("ask", item=1, v="b")
    assert (driver.state["found"], driver.run.status) == (["a", "b"], "completed")
    assert driver.memory.items == {}


def test_an_answer_that_is_delivered_again_changes_nothing() -> None:
    driver = started(ONE).asks("ask", "k", key="k")
    visit = driver.visit("ask")
    answer = Answered(visit.seq, "1", visit.attempt)
    driver.send(answer)
    assert isinstance(driver.try_(answer), IgnoredEvent)
    assert isinstance(driver.try_(asking(visit.seq, "k", visit.attempt, key="k")), IgnoredEvent)


def test_asking_counts_neither_as_a_failure_nor_as_a_loss() -> None:
    driver = started(ONE)
    driver.fails("ask")
    driver.send(TimerFired(driver.visit("ask").timer), after_ms=2_000)
    visit = driver.visit("ask")
    driver.send(LeaseLost(visit.seq, visit.attempt, "w"))
    driver.asks("ask", "ask#0").answers("ask", "1").asks("ask", "ask#1", at=1).answers("ask", "2")
    work = work_of(driver.visit("ask"))
    assert (work.failures, work.losses) == (1, 1)


def test_a_failure_that_is_tried_again_keeps_the_answers() -> None:
    driver = started(ONE).asks("ask", "k", key="k").answers("ask", "1").fails("ask")
    driver.send(TimerFired(driver.visit("ask").timer), after_ms=2_000)
    assert given(driver, driver.visit("ask")) == [UsedAnswer("k", 0, 1)]
    visit = driver.visit("ask")
    driver.send(LeaseLost(visit.seq, visit.attempt, "w"))
    assert given(driver, driver.visit("ask")) == [UsedAnswer("k", 0, 1)]


def test_a_visit_that_no_worker_could_finish_drops_its_answers() -> None:
    driver = started(ONE).asks("ask", "k", key="k").answers("ask", "1")
    for _ in range(4):
        visit = driver.visit("ask")
        driver.send(LeaseLost(visit.seq, visit.attempt, "w"))
    assert (driver.run.status, driver.memory.items) == ("failed", {})


def test_an_answer_that_does_not_match_its_schema_is_asked_for_again() -> None:
    driver = started(ONE).asks("ask", "age", key="age", value="how old?", schema={"type": "integer"})
    driver.answers("ask", '"old"')
    assert driver.last is not None
    (gate,) = driver.last.gates
    assert gate.question == "The answer is not accepted: $: 'old' is not of type 'integer'\nhow old?"
    assert (gate.payload, gate.schema) == ("how old?", {"type": "integer"})
    driver.answers("ask", "41")
    assert given(driver, driver.visit("ask")) == [UsedAnswer("age", 0, 41)]


def test_a_question_that_expires_fails_its_visit() -> None:
    driver = started(ONE).asks("ask", "k", key="k", timeout_ms=5_000)
    visit = driver.visit("ask")
    assert visit.due_ms == driver.now_ms + 5_000
    driver.send(TimerFired(visit.timer), after_ms=5_000)
    assert driver.error is not None
    assert "question 'k' of node 'ask' was not answered within 5s" in driver.error


def test_a_question_that_expires_drops_the_answers_before_it() -> None:
    driver = started(ONE).asks("ask", "a", key="a").answers("ask", "1").asks("ask", "b", key="b", at=1, timeout_ms=5)
    assert driver.memory.items != {}
    driver.send(TimerFired(driver.visit("ask").timer), after_ms=5)
    assert (driver.run.status, driver.memory.items) == ("failed", {})


def test_an_effect_that_comes_after_the_answer_belongs_to_the_data_set_of_its_time() -> None:
    """What Redis may lose while a person is asked is no reason for doubt."""
    driver = Driver(ONE.replace("ENGINE", "bsp").replace("ask: {", "ask: {effect: once, "))
    for generation, event in (("old", Submitted()), ("old", asking(1, "k")), ("new", Answered(1, "1", 1))):
        outcome = plan(driver.graph, driver.run, event, 1_000, generation=generation)
        assert isinstance(outcome, Transition)
        driver.run = outcome.apply(driver.run)
    assert work_of(driver.run.frontier[1]).generation == "new"


def test_the_time_of_an_earlier_question_does_not_end_a_later_one() -> None:
    driver = started(ONE).asks("ask", "a", key="a", timeout_ms=5_000)
    first = driver.visit("ask").timer
    driver.answers("ask", "1").asks("ask", "b", key="b", at=1)
    assert isinstance(driver.try_(TimerFired(first), after_ms=9_000), IgnoredEvent)
    assert driver.run.status == "waiting"


def test_a_retry_asks_again_only_what_was_not_answered() -> None:
    driver = started(TWO)
    driver.asks("left", "a", key="a").answers("left", "1").asks("left", "b", key="b", at=1)
    driver.fails("right")
    assert driver.run.status == "failed"
    driver.send(Retried())
    again = driver.visit("left")
    assert given(driver, again) == [UsedAnswer("a", 0, 1)]
    driver.does("left", got=[1]).does("right", got=[2]).does("join")
    assert (driver.run.status, driver.memory.items) == ("completed", {})


def test_a_held_run_takes_an_answer_and_goes_on_when_it_is_resumed() -> None:
    driver = started(ONE).asks("ask", "k", key="k")
    visit = driver.visit("ask")
    driver.send(Paused("ann", owner="person"))
    driver.answers("ask", "1")
    assert (driver.run.status, driver.run.frontier[visit.seq].state) == ("paused", "ready")
    driver.send(Resumed(owner="person", by="ann"))
    assert given(driver, driver.visit("ask")) == [UsedAnswer("k", 0, 1)]


def test_a_cancelled_run_asks_nothing_any_more() -> None:
    driver = started(ONE).asks("ask", "k", key="k")
    driver.send(Cancelled())
    assert (driver.run.status, driver.live()) == ("cancelled", [])
    assert isinstance(driver.try_(Answered(1, "1", 1)), IgnoredEvent)


@pytest.mark.conformance("IN-14")
def test_a_loop_that_comes_back_asks_anew() -> None:
    text = ONE.replace("next: done, retry", 'branch: {by: "{{again}}", to: {"yes": ask}, default: done}, retry')
    driver = started(text)
    for entry in range(1, 4):
        assert (given(driver, driver.visit("ask")), driver.run.counts["ask"]) == ([], entry)
        driver.asks("ask", "k", key="k").answers("ask", "1").does("ask", got=[1], again="yes")


@pytest.mark.parametrize("place", ["branch", "item"])
def test_the_record_of_a_visit_that_asks_is_read_as_it_was_written(place: str) -> None:
    driver = started(ONE if place == "branch" else MAP, items=["x"])
    driver.asks("ask", "k", key="k", value={"a": [1]}, schema={"type": "string"}, timeout_ms=5, at=2)
    visit = driver.visit("ask")
    assert read_visit(visit_text(visit)) == visit
    assert isinstance(visit.body, Question) and visit.body.work == Work("functions")
    stored = json.loads(visit_text(visit))
    assert (stored["kind"], "queue" in stored) == ("interrupt", False)


def test_a_visit_in_doubt_keeps_its_answers() -> None:
    driver = Driver(ONE.replace("ENGINE", "bsp").replace("ask: {", "ask: {effect: once, ")).start()
    driver.asks("ask", "k", key="k").answers("ask", "1")
    visit = driver.visit("ask")
    driver.send(LeaseLost(visit.seq, visit.attempt, "w"))
    visit = driver.visit("ask")
    assert isinstance(visit.body, Doubt)
    again = read_visit(visit_text(visit)).body
    assert isinstance(again, Doubt) and again.work.given == "1.answers"
    driver.answers("ask", RUN_AGAIN)
    assert given(driver, driver.visit("ask")) == [UsedAnswer("k", 0, 1)]
    visit = driver.visit("ask")
    driver.send(LeaseLost(visit.seq, visit.attempt, "w"))
    driver.answers("ask", '{"got": [2]}')
    assert (driver.run.status, driver.memory.items) == ("completed", {})


def test_a_scheduler_that_does_not_know_interrupts_fails_the_run() -> None:
    header = asking(1, "k").header.to_json()
    del header["interrupt"]
    driver = started(ONE)
    driver.send(Resulted(1, 1, ResultHeader.from_json(header)))
    assert header["error_kind"] == DEFINITION
    assert driver.run.status == "failed"
    assert "upgrade the schedulers" in (driver.error or "")


def test_a_header_with_a_question_is_read_as_it_was_written() -> None:
    header = asking(1, "k", key="k", value=None, at=3, schema={"type": "null"}, timeout_ms=1).header
    assert ResultHeader.from_json(json.loads(json.dumps(header.to_json()))) == header
    assert "interrupt" not in bad(1).header.to_json()


@pytest.mark.parametrize(
    ("text", "value"),
    [("41", 41), ('"41"', "41"), ("yes", "yes"), ("", ""), ("NaN", "NaN"), ('"\\ud800"', '"\\ud800"'), ("{}", {})],
)
def test_an_answer_is_json_or_else_text(text: str, value: Any) -> None:
    assert answer_of(text) == value
