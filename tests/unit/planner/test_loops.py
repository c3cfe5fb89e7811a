"""Llm nodes with tools: turns, their calls, and how a node ends, without workers (spec/graph-agents.md 2.7.1, 4.5)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.messages import ANSWER, FOLLOW_UP, MESSAGES, PERSON, RESULT, ResultHeader, ToolCall
from sleipnir.runs.events import Answered, Cancelled, LeaseLost, Paused, Resulted, Resumed, Retried, TimerFired
from sleipnir.runs.interrupts import UsedAnswer, answers_of
from sleipnir.runs.visits import Loop, Visit
from sleipnir.store.visit_records import read_visit, visit_text
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, asking, work_of

LOOP = """
name: loop
start: ask
nodes:
  ask: {type: llm, prompt: hi, tools: [a, b], max_iterations: 3, timeout: 60, state_updates: {said: "{{output}}"},
        next: e}
  e: {type: end, output: "{{said}}"}
"""


def message(*calls: ToolCall, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    function = {"arguments": json.dumps(arguments or {})}
    return {"role": "assistant", "tool_calls": [{"id": c.id, "function": function | {"name": c.name}} for c in calls]}


def parts(driver: Driver, role: str) -> list[Visit]:
    return [visit for visit in driver.run.frontier.values() if visit.role == role]


def turn(driver: Driver, *calls: ToolCall, arguments: dict[str, Any] | None = None, **delta: Any) -> Driver:
    """The model replies."""
    [visit] = parts(driver, "turn")
    assert visit.part is not None
    if calls:
        delta |= {ANSWER: message(*calls, arguments=arguments)}
        if visit.part.turn == 0:
            delta |= {MESSAGES: [{"role": "user", "content": "hi"}]}
    header = ResultHeader(ok=True, keys=tuple(delta), calls=calls)
    driver.try_(Resulted(visit.seq, visit.attempt, header), delta)
    return driver


def answer(driver: Driver, call: int, result: Any = "done") -> Driver:
    """A tool answers."""
    visit = next(v for v in parts(driver, "tool") if v.part and v.part.call == call)
    header = ResultHeader(ok=True, keys=(RESULT,))
    driver.try_(Resulted(visit.seq, visit.attempt, header), {RESULT: result})
    return driver


FURTHER = {"role": "user", "content": "Go on."}
NOTE = "📋 Auto-continuing (1/10): 1 incomplete todo(s) remain"


def going_on(driver: Driver) -> tuple[Resulted, dict[str, Any]]:
    """The model replies without a call, and its worker says that it goes on."""
    [visit] = parts(driver, "turn")
    assert visit.part is not None
    delta: dict[str, Any] = {ANSWER: {"role": "assistant", "content": "so far"}, FOLLOW_UP: FURTHER}
    if visit.part.turn == 0:
        delta |= {MESSAGES: [{"role": "user", "content": "hi"}]}
    header = ResultHeader(ok=True, keys=tuple(delta), goes_on=True, notes=(NOTE,))
    return Resulted(visit.seq, visit.attempt, header), delta


def items(driver: Driver) -> dict[str, Any]:
    return {field: json.loads(text) for field, text in driver.memory.items.items()}


A, B = ToolCall("c1", "a", "scripts"), ToolCall("c2", "b", "llm")


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_the_calls_of_a_turn_run_at_once_and_the_next_turn_follows_the_last(engine: str) -> None:
    driver = Driver(f"engine: {engine}\n{LOOP}").start()
    turn(driver, A, B)
    assert [(v.queue, v.part and (v.part.tool, v.part.id)) for v in parts(driver, "tool")] == [
        ("scripts", ("a", "c1")), ("llm", ("b", "c2")),
    ]  # fmt: skip
    answer(driver, 1, {"x": 2})
    assert not parts(driver, "turn")
    answer(driver, 0, "one")
    [second] = parts(driver, "turn")
    assert second.part is not None
    assert second.part.turn == 1
    assert {field: value for field, value in items(driver).items() if field != "1.0"} == {
        "1.first": [{"role": "user", "content": "hi"}], "1.0.0": "one", "1.0.1": {"x": 2},
    }  # fmt: skip
    turn(driver, said="all is well")
    assert (driver.run.status, driver.output, driver.memory.items) == ("completed", "all is well", {})
    assert driver.run.counts == {"ask": 1, "e": 1}
    assert driver.run.timings["ask"].visits == 1, "turns and calls are no visits of the node"


def test_results_that_the_worker_of_the_turn_has_are_taken_from_it() -> None:
    driver = Driver(LOOP).start()
    turn(driver, ToolCall("c1", "nope"), A, **{f"{RESULT}.0": {"tool_call_error": "unknown"}})
    assert items(driver)["1.0.0"] == {"tool_call_error": "unknown"}
    assert [v.part and v.part.call for v in parts(driver, "tool")] == [1]
    answer(driver, 1)
    turn(driver, ToolCall("c2", "nope"), **{f"{RESULT}.0": "x"})
    assert [v.part and v.part.turn for v in parts(driver, "turn")] == [2], "nothing was left to wait for"


@pytest.mark.conformance("M07")
def test_a_model_that_asks_for_tools_in_its_last_turn_fails_the_node_once_they_have_run() -> None:
    driver = Driver(LOOP).start()
    for _ in range(3):
        answer(turn(driver, A), 0)
    assert driver.run.status == "completed", "a failure without fallback goes to next"
    assert driver.output == "LLM node failed: llm node hit max_iterations (3) before LLM concluded"
    assert driver.memory.items == {}


def test_a_continued_turn_is_followed_immediately_by_the_next_with_the_continuation_message() -> None:
    driver = Driver(LOOP).start()
    driver.try_(*going_on(driver))
    assert items(driver) == {
        "1.first": [{"role": "user", "content": "hi"}],
        "1.0": {"role": "assistant", "content": "so far"},
        "1.0.user": FURTHER,
    }
    assert [v.part and v.part.turn for v in parts(driver, "turn")] == [1]
    [notice] = [notice.data for notice in driver.last.notices if notice.type == "turn_ended"] if driver.last else []
    assert {name: notice[name] for name in ("turn", "calls", "goes_on", "notes")} == {
        "turn": 0, "calls": [], "goes_on": True, "notes": [NOTE],
    }  # fmt: skip
    answer(turn(driver, A), 0)
    [third] = parts(driver, "turn")
    assert third.part is not None
    assert driver.memory.talk(third)[2] == json.dumps(FURTHER)
    turn(driver, said="all is well")
    assert (driver.run.status, driver.output, driver.memory.items) == ("completed", "all is well", {})
    assert [json.loads(entry.split("\n")[0]).get("goes_on") for entry in driver.memory.entries][1:3] == [True, None]


def test_a_turn_that_continues_counts_among_the_turns_that_a_node_may_have() -> None:
    driver = Driver(LOOP).start()
    for _ in range(3):
        driver.try_(*going_on(driver))
    assert driver.output == "LLM node failed: llm node hit max_iterations (3) before LLM concluded"
    assert driver.memory.items == {}


def test_a_continued_reply_counts_once_despite_repetitions_and_deaths() -> None:
    driver = Driver(LOOP).start()
    [first] = parts(driver, "turn")
    driver.send(LeaseLost(first.seq, 1, "w"))
    late = Resulted(first.seq, 1, ResultHeader(ok=True, keys=(ANSWER, FOLLOW_UP), goes_on=True))
    assert isinstance(driver.try_(late, {ANSWER: {}, FOLLOW_UP: {}}), IgnoredEvent)
    event, delta = going_on(driver)
    driver.try_(event, delta)
    before = dict(driver.memory.items)
    assert isinstance(driver.try_(event, delta | {FOLLOW_UP: {"content": "again"}}), IgnoredEvent)
    [second] = parts(driver, "turn")
    driver.send(LeaseLost(second.seq, 1, "w"))
    assert [(v.seq, v.attempt, v.part) for v in parts(driver, "turn")] == [(second.seq, 2, second.part)]
    assert driver.memory.items == before


def test_a_run_that_was_cancelled_does_not_continue() -> None:
    driver = Driver(LOOP).start()
    event, delta = going_on(driver)
    driver.send(Cancelled())
    assert isinstance(driver.try_(event, delta), IgnoredEvent)
    assert (driver.run.status, driver.run.frontier) == ("cancelled", {})


def test_a_loop_does_not_continue_when_the_time_of_its_run_is_up() -> None:
    driver = Driver(LOOP.replace("start: ask", "start: ask\nsettings: {timeout: 5}")).start()
    driver.now_ms += 6_000  # the timer came while a worker had the turn, and let it finish
    driver.try_(*going_on(driver))
    assert (driver.run.status, parts(driver, "turn")) == ("failed", [])


def test_the_time_of_the_node_is_over_all_turns_and_calls() -> None:
    driver = Driver(LOOP).start()
    turn(driver, A, B)
    loop = next(v for v in driver.run.frontier.values() if isinstance(v.body, Loop))
    late = parts(driver, "tool")[0]
    driver.send(TimerFired(loop.timer), after_ms=60_000)
    assert driver.output == "LLM node failed: llm node timed out after 60s"
    assert driver.memory.items == {}
    assert isinstance(driver.try_(Resulted(late.seq, 1, ResultHeader(ok=True, keys=(RESULT,)))), IgnoredEvent)


def test_a_turn_whose_worker_died_is_repeated_alone_and_a_result_that_comes_twice_counts_once() -> None:
    driver = Driver(LOOP).start()
    [first] = parts(driver, "turn")
    driver.send(LeaseLost(first.seq, 1, "w"))
    assert [v.attempt for v in parts(driver, "turn")] == [2]
    turn(driver, A, B)
    [call, other] = parts(driver, "tool")
    header = ResultHeader(ok=True, keys=(RESULT,))
    driver.try_(Resulted(call.seq, 1, header), {RESULT: 1})
    assert isinstance(driver.try_(Resulted(call.seq, 1, header), {RESULT: 2}), IgnoredEvent)
    assert (items(driver)["1.0.0"], parts(driver, "tool")) == (1, [other])


def test_a_tool_that_no_worker_can_run_is_an_error_that_the_model_reads() -> None:
    driver = turn(Driver(LOOP).start(), A)
    for attempt in range(1, 5):
        driver.send(LeaseLost(parts(driver, "tool")[0].seq, attempt, "w"))
    assert "WorkerLost: 4 workers died" in items(driver)["1.0.0"]["tool_call_error"]
    assert len(parts(driver, "turn")) == 1


def test_a_turn_that_no_worker_can_run_fails_the_node() -> None:
    driver = Driver(LOOP).start()
    for attempt in range(1, 5):
        driver.send(LeaseLost(parts(driver, "turn")[0].seq, attempt, "w"))
    assert (driver.run.status, str(driver.output)[:32]) == ("completed", "LLM node failed: WorkerLost: 4 w")


@pytest.mark.conformance("M11")
def test_a_turn_that_fails_fails_the_node_with_what_its_worker_wrote() -> None:
    driver = Driver(
        LOOP.replace("next: e}", "next: e, fallback: f}") + "  f: {type: end, output: 'fell: {{said}}'}\n"
    ).start()
    [visit] = parts(driver, "turn")
    driver.try_(Resulted(visit.seq, 1, ResultHeader(ok=False, error="no", keys=("said",))), {"said": "no"})
    assert (driver.run.status, driver.output) == ("completed", "fell: no")


def test_a_retry_policy_of_the_node_repeats_the_turn_and_not_the_loop() -> None:
    policy = "retry: {on: [transient], max_attempts: 2, initial_interval: 1s}, next: e}"
    driver = Driver(LOOP.replace("next: e}", policy)).start()
    answer(turn(driver, A), 0)
    [visit] = parts(driver, "turn")
    driver.send(Resulted(visit.seq, 1, ResultHeader(ok=False, error="429", transient=True)))
    [again] = parts(driver, "turn")
    assert (again.state, again.attempt, again.part) == ("waiting", 2, visit.part)
    driver.send(TimerFired(again.timer), after_ms=5_000)
    assert [(v.state, v.queue) for v in parts(driver, "turn")] == [("queued", "llm")]


def test_a_turn_that_meets_a_limit_is_put_off_and_has_not_failed() -> None:
    driver = Driver(LOOP).start()
    [visit] = parts(driver, "turn")
    driver.send(Resulted(visit.seq, 1, ResultHeader(ok=False, error="limit m until T", later_ms=90_000)))
    [later] = parts(driver, "turn")
    assert (later.state, later.due_ms, work_of(later).failures, work_of(later).error) == (
        "waiting",
        90_000,
        0,
        "limit m until T",
    )
    driver.send(TimerFired(later.timer), after_ms=89_000)
    assert [v.state for v in parts(driver, "turn")] == ["queued"]


@pytest.mark.conformance("Q01", "CY79")
@pytest.mark.parametrize(
    ("tool", "said", "result"),
    [
        ("user__select", "my own words", {"answer": "my own words"}),
        ("user__ask", "my own words", {"answer": "my own words"}),
        ("user__confirm", "Y", {"answer": "yes"}),
        ("user__confirm", "no", {"answer": "no"}),
        ("user__input", "", {"answer": ""}),
        ("user__checkbox", "red, blue", {"answers": ["red", "blue"]}),
        ("user__checkbox", '["blue"]', {"answers": ["blue"]}),
        ("user__checkbox", "", {"answers": []}),
    ],
)
def test_a_person_answers_a_call_and_no_worker_waits(tool: str, said: str, result: Any) -> None:
    driver = Driver(LOOP).start()
    arguments = {"question": "Which?", "options": ["red", "blue"]}
    turn(driver, ToolCall("c1", tool, PERSON), arguments=arguments)
    [gate] = driver.last.gates if driver.last else ()
    assert gate.question.startswith("Which?")
    assert (driver.run.status, driver.on_workers()) == ("waiting", [])
    driver.send(Answered(gate.seq, said, gate.attempt))
    assert items(driver)["1.0.0"] == result
    assert (driver.run.status, len(parts(driver, "turn"))) == ("running", 1)


def test_an_answer_that_cannot_be_understood_is_asked_again() -> None:
    driver = Driver(LOOP).start()
    turn(driver, ToolCall("c1", "user__checkbox", PERSON), arguments={"question": "Which?", "options": '["red"]'})
    [gate] = driver.last.gates if driver.last else ()
    driver.send(Answered(gate.seq, "green", gate.attempt))
    [again] = driver.last.gates if driver.last else ()
    assert (
        again.question
        == "'green' is none of the options.\nWhich?\nAny of: red. Separate several by commas, or answer a JSON array."
    )
    driver.send(Answered(again.seq, "red", again.attempt))
    assert items(driver)["1.0.0"] == {"answers": ["red"]}


def test_a_loop_ends_at_the_deadline_of_its_run_and_asks_no_question_afterwards() -> None:
    driver = Driver(LOOP.replace("start: ask", "start: ask\nsettings: {timeout: 5}")).start()
    driver.now_ms += 6_000  # the timer came while a worker had the turn, and let it finish
    turn(driver, ToolCall("c1", "user__input", PERSON), arguments={"question": "?"})
    assert (driver.run.status, parts(driver, "tool")) == ("failed", [])
    assert "timed out after 5s at 'ask'" in str(driver.error)


def test_a_cancelled_run_leaves_nothing_of_a_loop() -> None:
    driver = turn(Driver(LOOP).start(), A, B)
    driver.send(Cancelled())
    assert (driver.run.status, driver.run.frontier) == ("cancelled", {})


def test_a_loop_is_one_branch_of_its_run_and_holds_one_slot() -> None:
    driver = Driver("""
name: two
version: sleipnir/1
start: s
settings: {max_concurrency: 1}
nodes:
  s: {type: router, next: [ask, work]}
  ask: {type: llm, prompt: hi, tools: [a], next: e}
  work: {type: function, call: "x.py:f", next: e}
  e: {type: end}
""").start()
    assert [v.state for v in driver.run.frontier.values() if v.node == "work"] == ["ready"]
    turn(driver, A, B)
    assert len(parts(driver, "tool")) == 2
    assert [v.state for v in driver.run.frontier.values() if v.node == "work"] == ["ready"]
    answer(answer(driver, 0), 1)
    turn(driver, output=1)
    assert driver.on_workers() == ["work"]
    driver.does("work", x=1)
    assert driver.run.status == "completed"


def test_loops_are_bodies_of_maps() -> None:
    driver = Driver(
        """
name: each
start: m
initial_state: {xs: [1, 2]}
nodes:
  m: {type: map, over: "{{xs}}", as: x, branch: ask, output_key: said, collect_into: all, next: e}
  ask: {type: llm, prompt: "{{x}}", tools: [a], state_updates: {said: "{{output}}"}}
  e: {type: end}
""",
        {"xs": [1, 2]},
    ).start()
    for index in (1, 0):
        [visit] = [v for v in parts(driver, "turn") if v.item and v.item.index == index]
        header = ResultHeader(ok=True, keys=("said",))
        driver.try_(Resulted(visit.seq, 1, header), {"said": f"item {index}"})
    assert (driver.state["all"], driver.run.status) == (["item 0", "item 1"], "completed")
    assert driver.memory.items == {}


def test_a_failed_run_is_retried_with_a_new_conversation() -> None:
    driver = Driver("""
name: two
version: sleipnir/1
engine: dag
start: s
nodes:
  s: {type: router, next: [ask, work]}
  ask: {type: llm, prompt: hi, tools: [a]}
  work: {type: function, call: "x.py:f"}
""").start()
    turn(driver, ToolCall("c1", "user__input", PERSON), arguments={"question": "?"})
    driver.fails("work")
    assert (driver.run.status, sorted(driver.failed())) == ("failed", ["ask", "work"])
    driver.send(Retried())
    [fresh] = parts(driver, "turn")
    assert fresh.part is not None
    assert (fresh.part.turn, driver.memory.items) == (0, {})
    turn(driver)
    driver.does("work")
    assert (driver.run.status, driver.memory.items) == ("completed", {})


@pytest.mark.parametrize("tool", ["user__confirm", "user__input"])
@pytest.mark.parametrize("options", ["yes, no", 5, {"a": 1}, [1]])
def test_a_question_ignores_options_that_it_does_not_take(tool: str, options: Any) -> None:
    driver = Driver(LOOP).start()
    turn(driver, ToolCall("c1", tool, PERSON), arguments={"question": "?", "options": options})
    [gate] = driver.last.gates if driver.last else ()
    assert gate.options == (("yes", "no") if tool == "user__confirm" else ())
    driver.send(Answered(gate.seq, "yes", gate.attempt))
    assert items(driver)["1.0.0"] == {"answer": "yes"}


def test_a_question_that_could_not_be_stored_is_asked_without_what_could_not() -> None:
    driver = Driver(LOOP).start()
    arguments = {"question": "\ud83d Which\ud83d\ude00?", "options": ["a\udc00", "b"]}
    turn(driver, ToolCall("c1", "user__ask", PERSON), arguments=arguments)
    [gate] = driver.last.gates if driver.last else ()
    assert (gate.question, gate.options) == ("� Which😀?", ("a�", "b"))


def test_a_call_whose_result_could_not_be_stored_is_an_error_that_the_model_reads() -> None:
    driver = turn(Driver(LOOP).start(), A)
    [call] = parts(driver, "tool")
    header = ResultHeader(ok=False, error="writes 9 bytes, too many", keys=("_error", "last_error"))
    driver.try_(Resulted(call.seq, 1, header), {"_error": {}, "last_error": ""})
    assert items(driver)["1.0.0"] == {"tool_call_error": "writes 9 bytes, too many"}
    assert driver.state == {}


def test_the_time_of_the_node_stops_while_its_run_is_paused() -> None:
    driver = turn(Driver(LOOP).start(), A)
    driver.send(Paused("me"), after_ms=20_000)
    loop = next(v for v in driver.run.frontier.values() if isinstance(v.body, Loop))
    assert isinstance(driver.try_(TimerFired(loop.timer), after_ms=50_000), IgnoredEvent)
    answer(driver, 0)
    driver.send(Resumed(), after_ms=50_000)
    assert driver.last is not None
    assert driver.last.timers[loop.timer] - driver.now_ms in range(39_000, 40_000)
    early = driver.send(TimerFired(loop.timer))
    assert (early.status, early.timers.keys()) == ("running", {loop.timer}), "it was the timer of an earlier time"
    driver.send(TimerFired(loop.timer), after_ms=40_000)
    assert driver.output == "LLM node failed: llm node timed out after 60s"


def asks(driver: Driver, call: int, name: str, **asked: Any) -> Driver:
    """A tool asks a person."""
    visit = next(v for v in parts(driver, "tool") if v.part and v.part.call == call)
    driver.send(asking(visit.seq, name, visit.attempt, **asked))
    return driver


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_call_that_asks_is_made_again_with_the_answers_and_ended_calls_stay(engine: str) -> None:
    driver = turn(Driver(f"engine: {engine}\n{LOOP}").start(), A, B)
    answer(driver, 1, "two")
    asks(driver, 0, "a#0", value="sure?")
    assert (driver.on_workers(), driver.run.status) == ([], "waiting")
    [asking_call] = parts(driver, "tool")
    assert driver.last is not None
    [gate] = driver.last.gates
    assert (gate.node, gate.key, gate.payload) == ("ask", "a#0", "sure?")
    driver.send(Answered(asking_call.seq, "true", asking_call.attempt))
    [again] = parts(driver, "tool")
    assert (again.seq, again.attempt, again.queue) == (asking_call.seq, 2, "scripts")
    talk = driver.memory.values.talk(again)
    assert answers_of(talk.told) == [UsedAnswer(None, 0, True)]
    assert json.loads(talk.turns[0][0])["tool_calls"][0]["id"] == "c1"
    assert read_visit(visit_text(again)) == again
    driver.send(LeaseLost(again.seq, again.attempt, "w"))
    [third] = parts(driver, "tool")
    assert answers_of(driver.memory.values.talk(third).told) == [UsedAnswer(None, 0, True)]
    answer(driver, 0, "one")
    assert items(driver)["1.0.0"] == "one" and items(driver)["1.0.1"] == "two"
    turn(driver, said="done")
    assert (driver.run.status, driver.memory.items) == ("completed", {})
    assert driver.run.counts["ask"] == 1


def test_a_call_whose_question_expires_fails_and_the_model_reads_it() -> None:
    driver = turn(Driver(LOOP).start(), A)
    asks(driver, 0, "a#0", timeout_ms=5_000)
    [visit] = parts(driver, "tool")
    assert read_visit(visit_text(visit)) == visit
    driver.now_ms = visit.due_ms or 0
    driver.send(TimerFired(visit.timer))
    assert items(driver)["1.0.0"] == {"tool_call_error": "question 'a#0' of node 'ask' was not answered within 5s"}
    assert [part.part and part.part.turn for part in parts(driver, "turn")] == [1]


@pytest.mark.parametrize("end", ["timeout", "cancel", "given up"])
@pytest.mark.parametrize("when", ["asking", "answered"])
def test_nothing_is_left_of_the_answers_of_a_loop_that_ends(end: str, when: str) -> None:
    driver = turn(Driver(LOOP).start(), A, B)
    answer(driver, 1)
    asks(driver, 0, "a#0")
    [visit] = parts(driver, "tool")
    driver.send(Answered(visit.seq, "1", visit.attempt))
    if when == "asking":
        asks(driver, 0, "a#1", at=1)
    [visit] = parts(driver, "tool")
    assert f"{visit.seq}.answers" in driver.memory.items
    loop = next(each for each in driver.run.frontier.values() if isinstance(each.body, Loop))
    if end == "timeout":
        driver.now_ms = loop.due_ms or 0
        driver.send(TimerFired(loop.timer))
    elif end == "cancel":
        driver.send(Cancelled())
    elif when == "asking":
        driver.send(Answered(visit.seq, "2", visit.attempt))
    while end == "given up" and (calls := parts(driver, "tool")):
        driver.send(LeaseLost(calls[0].seq, calls[0].attempt, "w"))
    assert f"{visit.seq}.answers" not in driver.memory.items
