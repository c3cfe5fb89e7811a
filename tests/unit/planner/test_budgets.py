"""Budgets: when a run is held and asked about, and what the answers come to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sleipnir.errors import UsageError
from sleipnir.messages import ANSWER, MESSAGES, RESULT, ResultHeader, ToolCall
from sleipnir.runs.budgets import (
    BUDGET,
    Budget,
    BudgetUse,
    check_budget,
    in_words,
    question,
    raised,
    read_budget_answer,
)
from sleipnir.runs.events import (
    Answered,
    Cancelled,
    ChildEnded,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    TimerFired,
)
from sleipnir.runs.run import RunSpec, child_id
from sleipnir.runs.transitions import TellChild, Transition
from sleipnir.runs.visits import Visit
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver

TWO = """
name: two
start: a
settings: {timeout: 10}
nodes:
  a: {type: llm, prompt: hi, next: b}
  b: {type: llm, prompt: hi, next: e}
  e: {type: end, output: done}
"""
WIDE = """
name: wide
version: sleipnir/1
start: s
engine: bsp
nodes:
  s: {type: script, script: s.py, next: [a, b]}
  a: {type: llm, prompt: hi, next: e}
  b: {type: llm, prompt: hi, next: e}
  e: {type: end, output: done}
"""
LOOP = """
name: loop
start: ask
nodes:
  ask: {type: llm, prompt: hi, tools: [t], timeout: 60, next: e}
  e: {type: end, output: done}
"""
CHILDREN = """
name: g
start: s
nodes:
  s: {type: script, script: s.py, next: [one, two]}
  one: {type: agent, agent: helper, prompt: p, timeout: 100, next: e}
  two: {type: agent, agent: helper, prompt: p, timeout: 100, next: e}
  e: {type: end, output: done}
"""
SPEC = RunSpec("agent", "digest", max_cost_usd=0.5)
HOLDER = "the budget of run run1"


def driver_of(text: str, spec: RunSpec = SPEC) -> Driver:
    driver = Driver(text)
    driver.run = replace(driver.run, spec=spec)
    return driver.start()


def cost(usd: float | None, tokens: int = 1_000) -> dict[str, Any]:
    return {"input_tokens": tokens - 100, "output_tokens": 100, "calls": 1, "model": "m", "cost_usd": usd}


def costs(driver: Driver, node: str, usd: float | None, tokens: int = 1_000, **header: Any) -> Transition:
    """The visit of a node ends, and has cost so much."""
    visit = driver.visit(node)
    return driver.send(Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, usage=cost(usd, tokens), **header)))


def asked(driver: Driver) -> Visit:
    return driver.visit(BUDGET)


def says(driver: Driver, text: str, after_ms: int = 1) -> Transition:
    visit = asked(driver)
    return driver.send(Answered(visit.seq, text, visit.attempt), after_ms)


def over_at_a(spec: RunSpec = SPEC, usd: float = 0.5312, tokens: int = 12_400) -> Driver:
    driver = driver_of(TWO, spec)
    costs(driver, "a", usd, tokens)
    return driver


def test_a_run_that_has_used_its_budget_is_held_and_asks() -> None:
    driver = driver_of(TWO)
    held = costs(driver, "a", 0.5312, 12_400)
    assert (held.status, held.dispatches, driver.live()) == ("paused", (), ["b", BUDGET])
    [gate] = held.gates
    assert (gate.kind, gate.node, gate.options) == ("budget", "budget", ("yes", "no"))
    assert gate.question == (
        "The run has cost 0.5312 USD of 0.50 (12,400 tokens). Continue?\n"
        "'yes' allows 0.50 USD more, 'no' ends the run; a number is what it may cost in all, in USD."
    )
    assert [notice.type for notice in held.notices][-1] == "gate_opened"
    assert driver.run.budget == Budget(0.5, asked=asked(driver).seq, asked_ms=driver.now_ms)
    assert driver.run.spent == BudgetUse(12_400, 0.5312)


@pytest.mark.parametrize(
    "spec",
    [RunSpec("agent", "digest"), RunSpec("agent", "digest", max_cost_usd=0.54), RunSpec("a", "d", max_tokens=12_401)],
)
def test_a_run_within_its_budget_is_not_asked_about(spec: RunSpec) -> None:
    assert over_at_a(spec).live() == ["b"]


def test_a_call_without_a_known_price_costs_nothing_but_tokens() -> None:
    driver = driver_of(TWO)
    assert costs(driver, "a", None).status == "running"
    assert driver.run.spent == BudgetUse(1_000, 0.0)
    driver = driver_of(TWO, replace(SPEC, max_tokens=900))
    assert costs(driver, "a", None).gates[0].question.startswith("The run has used 1,000 tokens of 900. Continue?\n")


def test_yes_allows_as_much_again_as_the_budget_was() -> None:
    driver = over_at_a()
    visit = asked(driver)
    going = says(driver, "Yes")
    assert [each.node for each in going.dispatches] == ["b"]
    assert (going.status, going.close, going.gates) == ("running", (visit,), ())
    assert driver.run.budget == Budget(1.0312)
    driver.now_ms += 1
    assert costs(driver, "b", 0.6).status == "completed"


def test_a_person_is_asked_again_about_a_second_used_up_budget() -> None:
    three = TWO.replace("prompt: hi, next: e", "prompt: hi, next: c").replace(
        "  e:", "  c: {type: llm, prompt: hi, next: e}\n  e:"
    )
    driver = driver_of(three)
    costs(driver, "a", 0.6)
    first = asked(driver)
    says(driver, "yes")
    costs(driver, "b", 0.6)
    assert asked(driver).seq > first.seq
    assert isinstance(driver.try_(Answered(first.seq, "yes", 1)), IgnoredEvent)
    says(driver, "y")
    assert driver.run.budget == Budget(1.7)


@pytest.mark.parametrize(
    ("spec", "text", "budget"),
    [
        (SPEC, "2.50", Budget(2.5)),
        (SPEC, "$2", Budget(2.0)),
        (RunSpec("a", "d", max_tokens=10_000), "20000", Budget(None, 20_000)),
        (RunSpec("a", "d", max_cost_usd=9.0, max_tokens=10_000), "20000", Budget(9.0, 20_000)),
        (RunSpec("a", "d", max_cost_usd=0.5, max_tokens=99_000), "2", Budget(2.0, 99_000)),
        (RunSpec("a", "d", max_cost_usd=0.5, max_tokens=10_000), "yes", Budget(1.0312, 22_400)),
    ],
)
def test_a_number_is_what_it_may_use_in_all(spec: RunSpec, text: str, budget: Budget) -> None:
    driver = over_at_a(spec)
    assert says(driver, text).status == "running"
    assert driver.run.budget == budget


def test_where_both_limits_are_used_up_a_number_raises_one_and_the_other_is_asked_about() -> None:
    driver = over_at_a(replace(SPEC, max_tokens=10_000))
    again = says(driver, "3")
    assert (again.status, driver.run.budget and driver.run.budget.max_cost_usd) == ("paused", 3.0)
    assert again.gates[0].question.startswith("The run has used 12,400 tokens of 10,000 (0.5312 USD). Continue?\n")
    assert says(driver, "13000").status == "running"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("maybe", "the answer must be 'yes', 'no' or a number of more than 0, not 'maybe'"),
        ("0.53", "0.53 USD is not more than it has cost already."),
        ("-1", "the answer must be 'yes', 'no' or a number of more than 0, not '-1'"),
    ],
)
def test_an_answer_that_allows_nothing_is_asked_again(text: str, why: str) -> None:
    driver = over_at_a()
    again = says(driver, text)
    assert (again.status, again.close) == ("paused", (driver.run.frontier[asked(driver).seq],)) or again.close
    assert again.gates[0].question.startswith(
        f"{why}\nThe run has cost 0.5312 USD of 0.50 (12,400 tokens). Continue?\n"
    )
    assert driver.run.budget and driver.run.budget.asked == asked(driver).seq
    assert says(driver, "yes").status == "running"


def test_no_ends_the_run_and_a_retry_asks_only_when_more_is_spent() -> None:
    driver = over_at_a()
    ended = says(driver, "no")
    assert ended.status == "failed"
    assert ended.error == (
        "Graph execution failed for agent 'agent': over budget: it has cost 0.5312 USD of 0.50 (12,400 tokens)"
    )
    assert [visit.node for visit in ended.open] == driver.failed() == ["b"]
    assert driver.run.budget == Budget(0.5)
    again = driver.send(Retried())
    assert ([visit.node for visit in again.dispatches], again.gates) == (["b"], ())
    assert costs(driver, "b", 0.1).status == "completed"


def test_a_run_that_was_retried_asks_when_it_has_used_more() -> None:
    driver = driver_of(LOOP)
    turn(driver, 0.6)
    says(driver, "no")
    assert driver.failed() == ["ask"]
    driver.send(Retried())
    turn(driver, 0.1)
    assert driver.last is not None and driver.last.gates[0].question.startswith("The run has cost 0.70 USD of 0.50")


def test_what_workers_have_ends_while_a_person_is_asked() -> None:
    driver = driver_of(WIDE).does("s", ("a", "b"))
    assert costs(driver, "a", 0.6).status == "paused"
    done = costs(driver, "b", 0.2)
    assert (done.status, driver.live()) == ("paused", ["budget", "e"])
    assert (says(driver, "yes").status, driver.output) == ("completed", "done")


def test_a_lost_visit_waits_for_the_answer() -> None:
    driver = driver_of(WIDE).does("s", ("a", "b"))
    costs(driver, "a", 0.6)
    assert driver.send(LeaseLost(driver.visit("b").seq, 1, "w")).dispatches == ()
    assert [(visit.node, visit.attempt) for visit in says(driver, "yes").dispatches] == [("b", 2)]


def test_the_event_that_ends_the_run_asks_nothing() -> None:
    driver = driver_of(TWO.replace("next: b", "next: e"))
    assert costs(driver, "a", 99.0).status == "completed"


CALL = ToolCall("c1", "t", "scripts")


def turn(driver: Driver, usd: float) -> None:
    """The model asks for a call, and the reply has cost so much."""
    [visit] = [visit for visit in driver.run.frontier.values() if visit.role == "turn"]
    message = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "t", "arguments": "{}"}}]}
    header = ResultHeader(ok=True, calls=(CALL,), usage=cost(usd))
    outcome = driver.try_(Resulted(visit.seq, 1, header), {ANSWER: message, MESSAGES: []})
    assert isinstance(outcome, Transition)


def test_the_calls_of_a_turn_that_used_the_budget_up_are_held() -> None:
    driver = driver_of(LOOP)
    turn(driver, 0.6)
    assert driver.last is not None
    assert (driver.last.status, driver.last.dispatches) == ("paused", ())
    assert [visit.role for visit in says(driver, "yes").dispatches] == ["tool"]


def test_the_clocks_stop_while_a_question_is_open() -> None:
    driver = driver_of(TWO)
    driver.now_ms += 4_000
    costs(driver, "a", 0.6)
    assert isinstance(driver.try_(TimerFired("deadline"), after_ms=60_000), IgnoredEvent)
    going = says(driver, "yes", after_ms=40_000)
    assert driver.run.idle_ms == 100_000
    assert going.timers == {"deadline": driver.run.started_ms + 110_001}
    loop = driver_of(LOOP)
    before_ms = loop.visit("ask").due_ms
    turn(loop, 0.6)
    assert isinstance(loop.try_(TimerFired("visit/1/1"), after_ms=60_000), IgnoredEvent)
    says(loop, "yes", after_ms=40_000)
    assert loop.run.frontier[1].due_ms == (before_ms or 0) + 100_000


def test_a_pause_and_the_budget_do_not_undo_one_another() -> None:
    driver = over_at_a()
    assert isinstance(driver.try_(Resumed()), IgnoredEvent)
    assert driver.send(Paused("ann"), after_ms=1_000).status == "paused"
    allowed = says(driver, "yes", after_ms=2_000)
    assert (allowed.status, allowed.dispatches, allowed.timers) == ("paused", (), {})
    resumed = driver.send(Resumed(), after_ms=4_000)
    assert [visit.node for visit in resumed.dispatches] == ["b"]
    assert driver.run.idle_ms == 7_001
    paused = driver_of(TWO)
    paused.send(Paused("ann"))
    costs(paused, "a", 0.6)
    resumed = paused.send(Resumed(), after_ms=1_000)
    assert (resumed.status, resumed.dispatches) == ("paused", ())
    assert [visit.node for visit in says(paused, "yes", after_ms=2_000).dispatches] == ["b"]
    assert paused.run.idle_ms == 3_001


def test_a_run_can_be_cancelled_while_a_person_is_asked() -> None:
    driver = over_at_a()
    ended = driver.send(Cancelled())
    assert (ended.status, ended.open, driver.live()) == ("cancelled", (), [])
    assert driver.run.budget == Budget(0.5)


def children() -> tuple[Driver, str, str]:
    driver = driver_of(CHILDREN).does("s", ("one", "two"))
    return driver, child_id("run1", driver.visit("one").seq), child_id("run1", driver.visit("two").seq)


def ended(driver: Driver, node: str, usd: float, *, calls: int = 1, child: str = "") -> Transition:
    visit = driver.visit(node)
    usage = {**cost(usd), "calls": calls}
    event = ChildEnded(visit.seq, 1, child or child_id("run1", visit.seq), "completed", usage=usage)
    outcome = driver.try_(event, {RESULT: "said"})
    assert isinstance(outcome, Transition)
    return outcome


def test_child_runs_count_when_they_end_and_are_held_with_the_run() -> None:
    driver, one, two = children()
    assert ended(driver, "one", 0.6).effects == (TellChild(two, "paused", HOLDER),)
    assert driver.send(Paused("ann")).effects == ()
    assert says(driver, "yes").effects == ()
    assert driver.send(Resumed()).effects == (TellChild(two, "resumed"),)
    assert driver.memory.costs == {one: {"tokens_in": 900, "tokens_out": 100, "model_calls": 1, "cost_usd": 0.6}}


def test_what_a_child_has_cost_counts_once() -> None:
    driver, one, _ = children()
    driver.memory.costs[one] = {"tokens_in": 800, "tokens_out": 100, "model_calls": 2, "cost_usd": 0.35}
    ended(driver, "one", 0.4, calls=3)
    assert driver.run.spent == BudgetUse(100, pytest.approx(0.05))
    assert driver.run.status != "paused"
    two = driver.visit("two")
    told = ChildEnded(99, 1, one, "completed", usage={**cost(0.4), "calls": 3})
    driver.send(told)
    assert (driver.run.spent.tokens, two in driver.run.frontier.values()) == (100, True)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_a_budget_that_makes_no_sense_is_refused(bad: float) -> None:
    with pytest.raises(UsageError, match=f"max_cost_usd must be a finite number of more than 0, not {bad}"):
        check_budget(bad, None)


@pytest.mark.parametrize("bad", [0, -1, 1.5])
def test_a_budget_of_tokens_that_makes_no_sense_is_refused(bad: Any) -> None:
    with pytest.raises(UsageError, match=f"max_tokens must be a whole number of more than 0, not {bad}"):
        check_budget(None, bad)


@pytest.mark.parametrize("text", ["", "nan", "inf", "0", "-2", "1,5", "sure", "1e999"])
def test_what_is_no_answer_about_a_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the answer must be 'yes', 'no' or a number"):
        read_budget_answer(text)


def test_small_amounts_keep_their_digits() -> None:
    assert in_words(Budget(0.0001), BudgetUse(12, 0.00012)) == "cost 0.00012 USD of 0.0001 (12 tokens)"
    assert in_words(Budget(20), BudgetUse(12, 21.5)) == "cost 21.50 USD of 20.00 (12 tokens)"
    both = question(Budget(1, 5), Budget(1, 5), BudgetUse(6, 0.5))
    assert both.endswith(
        "'yes' allows 1.00 USD and 5 tokens more, 'no' ends the run; a number is what it may use in all, in tokens."
    )
    with pytest.raises(ValueError, match=r"tokens are whole, and 7\.5 is not"):
        raised(Budget(None, 5), Budget(None, 5), BudgetUse(6, 0.5), 7.5)
