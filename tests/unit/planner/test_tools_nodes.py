"""Tools nodes: which calls start when, and how the node ends, without workers (spec/graph-package.md F22, F23, F60)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.graph.model import ToolsNode
from sleipnir.messages import QUEUE_OF, RESULT, ResultHeader
from sleipnir.runs.events import Answered, Cancelled, LeaseLost, Paused, Resulted, Resumed, Retried, TimerFired
from sleipnir.runs.visits import Loop, Question, Visit
from sleipnir.store.visit_records import read_visit, visit_text
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver

HEAD = """
name: g
version: sleipnir/1
start: work
state: {messages: messages, found: any}
nodes:
  after: {type: end, output: "{{last_tool_response}}"}
"""


def call(id_: str, tool: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}


def started(*calls: dict[str, Any], tools: str = "[a, b, c]", engine: str = "bsp", **fields: str) -> Driver:
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    graph = f"engine: {engine}\n{HEAD}  work: {{type: tools, tools: {tools}, next: after{more}}}\n"
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    return Driver(graph, {"messages": [{"role": "user", "content": "hi"}, message]}).start()


def live(driver: Driver) -> list[tuple[str, str]]:
    """The tool and the state of each live call, in the order of the calls."""
    calls = [visit for visit in driver.run.frontier.values() if visit.role == "tool"]
    ordered = sorted(calls, key=lambda visit: (visit.part and visit.part.call) or 0)
    return [(visit.part.tool, visit.state) for visit in ordered if visit.part]


def visit_of(driver: Driver, number: int) -> Visit:
    return next(each for each in driver.run.frontier.values() if each.part is not None and each.part.call == number)


def ends(driver: Driver, number: int, result: Any = "done", **header: Any) -> Driver:
    visit = visit_of(driver, number)
    event = Resulted(visit.seq, visit.attempt, ResultHeader(**{"ok": True, "keys": (RESULT,), **header}))
    driver.try_(event, {RESULT: result})
    return driver


def answers(driver: Driver, number: int, text: str) -> Driver:
    visit = visit_of(driver, number)
    driver.send(Answered(visit.seq, text, visit.attempt, "ada"))
    return driver


def tool_messages(driver: Driver) -> list[tuple[str, str]]:
    return [(each["tool_call_id"], each["content"]) for each in driver.state["messages"] if each["role"] == "tool"]


A, B, C = call("1", "a"), call("2", "b"), call("3", "c")


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_without_parallel_a_call_starts_when_the_one_before_has_ended(engine: str) -> None:
    driver = started(A, B, C, engine=engine)
    for number, tool in enumerate("abc"):
        assert live(driver) == [(tool, "queued")]
        ends(driver, number, f"of {tool}")
    assert (driver.run.status, driver.output) == ("completed", '"of c"')
    assert tool_messages(driver) == [("1", '"of a"'), ("2", '"of b"'), ("3", '"of c"')]
    assert driver.memory.items == {}, "nothing is left of the conversation"


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_results_are_in_call_order_regardless_of_the_order_of_their_ends(engine: str) -> None:
    driver = started(A, B, C, parallel="true", engine=engine)
    assert live(driver) == [("a", "queued"), ("b", "queued"), ("c", "queued")]
    for number in (2, 0, 1):
        ends(driver, number, {"n": number})
    assert tool_messages(driver) == [("1", '{"n":0}'), ("2", '{"n":1}'), ("3", '{"n":2}')]
    assert json.loads(driver.state["node_responses"]["work"])[2] == {
        "tool_id": "3",
        "tool_name": "c",
        "output": {"n": 2},
    }


def test_a_group_holds_only_its_own_calls_back() -> None:
    calls = [call(str(number), tool) for number, tool in enumerate("aababc")]
    driver = started(*calls, parallel="{max: 3, groups: [{tools: [a, b], limit: 1}]}")
    assert live(driver) == [("a", "queued"), ("c", "queued")]
    ends(driver, 5)
    assert live(driver) == [("a", "queued")]
    ends(driver, 0)
    assert live(driver) == [("a", "queued")]


@pytest.mark.conformance("TL-13", "TL-14")
def test_the_first_failure_ends_the_node_and_what_comes_later_changes_nothing() -> None:
    driver = started(A, B, C, parallel="{max: 2}")
    other = visit_of(driver, 0)
    ends(driver, 1, {"tool_call_error": "x"}, ok=False, error="tool 'b' failed: boom", error_kind="exit")
    assert driver.run.status == "failed"
    assert "tool 'b' failed: boom" in str(driver.error)
    assert live(driver) == []
    late = Resulted(other.seq, other.attempt, ResultHeader(ok=False, error="cancelled"))
    assert isinstance(driver.try_(late, {}), IgnoredEvent)
    assert "boom" in str(driver.error)


def test_a_retry_of_the_run_executes_the_calls_of_the_failed_node_again() -> None:
    driver = started(A, B)
    ends(driver, 0)
    ends(driver, 1, ok=False, error="tool 'b' failed")
    driver.send(Retried("ada"))
    assert live(driver) == [("a", "queued")]
    ends(ends(driver, 0), 1)
    assert driver.run.status == "completed"
    assert len(tool_messages(driver)) == 2


def test_errors_for_the_model_are_results() -> None:
    driver = started(A, B, on_error="message")
    ends(driver, 0, {"tool_call_error": "broken"}, ok=False, error="tool 'a' failed")
    ends(driver, 1)
    assert driver.run.status == "completed"
    assert tool_messages(driver)[0] == ("1", '{"tool_call_error":"broken"}')


@pytest.mark.conformance("TL-15", "TL-16", "TL-17")
def test_a_failed_call_is_tried_again_as_its_policy_says() -> None:
    driver = started(A, B, tool_retry="{max_attempts: 2, on: [exit]}", parallel="true")
    ends(driver, 0, ok=False, error="x", error_kind="exit")
    assert live(driver) == [("a", "waiting"), ("b", "queued")]
    waiting = visit_of(driver, 0)
    driver.send(TimerFired(waiting.timer), after_ms=60_000)
    assert (visit_of(driver, 0).attempt, live(driver)[0]) == (2, ("a", "queued"))
    ends(driver, 0, ok=False, error="again", error_kind="exit")
    assert driver.run.status == "failed"


@pytest.mark.conformance("TL-18")
@pytest.mark.parametrize("kind", ["unknown", "not_allowed", "arguments", "timeout"])
def test_a_failure_that_another_try_cannot_mend_or_that_no_policy_names_is_final(kind: str) -> None:
    driver = started(A, tool_retry="{max_attempts: 5, on: [exit, unknown, not_allowed, arguments]}")
    ends(driver, 0, ok=False, error="x", error_kind=kind)
    assert driver.run.status == "failed"


def test_a_lost_worker_costs_one_call_its_attempt_and_the_others_nothing() -> None:
    driver = started(A, B, parallel="true")
    ends(driver, 1, "kept")
    visit = visit_of(driver, 0)
    driver.send(LeaseLost(visit.seq, visit.attempt, "w1", begun=True))
    assert (visit_of(driver, 0).attempt, live(driver)) == (2, [("a", "queued")])
    ends(driver, 0)
    assert tool_messages(driver) == [("1", '"done"'), ("2", '"kept"')]


def test_a_call_that_no_worker_survives_fails_the_node() -> None:
    driver = started(A)
    while driver.run.status == "running":
        visit = visit_of(driver, 0)
        driver.send(LeaseLost(visit.seq, visit.attempt, "w1", begun=True))
    assert "WorkerLost" in str(driver.error)


@pytest.mark.conformance("TL-24")
def test_denied_calls_need_no_worker() -> None:
    driver = started(A, B, permissions="{a: deny, b: deny}")
    assert driver.run.status == "completed"
    assert all("was not called" in content for _, content in tool_messages(driver))


def test_a_question_about_a_call_has_the_key_of_the_call_and_is_asked_again_after_an_unclear_answer() -> None:
    driver = started(A, call("2", "b", path="/x"), parallel="true", permissions="{a: ask, b: ask}")
    assert driver.last is not None
    assert {gate.key for gate in driver.last.gates} == {"work/1", "work/2"}
    assert [type(visit_of(driver, number).body) for number in (0, 1)] == [Question, Question]
    answers(driver, 1, "perhaps")
    assert visit_of(driver, 1).is_asking
    answers(driver, 1, "yes")
    assert live(driver) == [("a", "waiting"), ("b", "queued")]
    answers(driver, 0, "no")
    ends(driver, 1)
    assert driver.run.status == "completed"
    assert "a person has refused it" in tool_messages(driver)[0][1]


def test_external_calls_are_answered_one_by_one_and_hold_no_worker() -> None:
    tools = "[a, {name: browse, external: true}]"
    driver = started(call("1", "browse"), call("2", "browse"), tools=tools, parallel="true")
    assert driver.run.status == "waiting"
    answers(driver, 1, '{"page": 2}')
    assert live(driver) == [("browse", "waiting")]
    answers(driver, 0, "text")
    assert tool_messages(driver) == [("1", '"text"'), ("2", '{"page":2}')]


def test_a_message_without_calls_to_execute_ends_the_node_at_once() -> None:
    driver = started(A)
    messages = [*driver.state["messages"], {"role": "tool", "tool_call_id": "1", "content": "known"}]
    again = Driver(driver.graph, {"messages": messages}).start()
    assert again.run.status == "completed"
    assert [each["content"] for each in again.state["messages"]] == ["hi", None, "known"]


def test_a_pause_keeps_what_has_ended_and_starts_nothing_before_its_end() -> None:
    driver = started(A, B)
    driver.send(Paused("ada"))
    ends(driver, 0)
    driver.send(Resumed("ada"))
    ends(driver, 1)
    assert driver.run.status == "completed"


def test_its_timeout_ends_the_node_and_a_cancel_the_run() -> None:
    driver = started(A, B, parallel="true", timeout="60")
    [node] = [visit for visit in driver.run.frontier.values() if visit.role == "node"]
    driver.send(TimerFired(node.timer), after_ms=61_000)
    assert "tools node timed out after 60s" in str(driver.error)
    cancelled = started(A, B, parallel="true")
    cancelled.send(Cancelled("ada"))
    assert (cancelled.run.status, live(cancelled)) == ("cancelled", [])


def test_too_many_calls_are_refused() -> None:
    driver = started(*[call(str(number), "a") for number in range(1_001)])
    assert "executes at most 1,000" in str(driver.error)


def test_functions_of_servers_and_of_the_agent_have_their_own_workers() -> None:
    tools = '[a, "mcp:files", {name: plus, call: "steps.py:add"}]'
    calls = [call("1", "a"), call("2", "mcp_invoke_files"), call("3", "plus")]
    driver = started(*calls, tools=tools, parallel="true")
    assert [visit_of(driver, number).queue for number in range(3)] == ["scripts", "llm", "functions"]
    own = started(*calls, tools=tools, parallel="true", queue="mine")
    assert {visit_of(own, number).queue for number in range(3)} == {"mine"}
    assert QUEUE_OF[ToolsNode.kind] == "scripts"


def test_a_stored_node_that_waits_is_read_as_it_was() -> None:
    driver = started(A, B, C)
    [node] = [visit for visit in driver.run.frontier.values() if isinstance(visit.body, Loop)]
    assert node.body == Loop(node.seq, calls=3, open=3, waiting=(1, 2))
    assert read_visit(visit_text(node)) == node


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "found no messages in the state"),
        ([{"role": "user", "content": "hi"}], "found no message with tool calls"),
        ("text", "found no messages in the state"),
    ],
)
def test_a_node_without_calls_fails_visibly(messages: Any, error: str) -> None:
    driver = started(A)
    again = Driver(driver.graph, {"messages": messages}).start()
    assert (again.run.status, error in str(again.error)) == ("failed", True)
