"""What an agent node gives to its child, and what its end writes: `input`, `map_in`, `map_out`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sleipnir.messages import CHILD, RESULT, ResultHeader
from sleipnir.runs.child_run import ChildSettings
from sleipnir.runs.events import ChildEnded, ChildGone, Resulted, Retried, TimerFired
from sleipnir.runs.run import RunSpec, child_id
from sleipnir.runs.transitions import RetryChild, StartChild, effect_fields, effect_of
from sleipnir.runs.visits import Child, ChildWait, Failed, Failure, Visit, Work
from sleipnir.store.visit_records import read_visit, visit_text
from tests.model_store import Driver

GRAPH = """
name: g
version: sleipnir/1
start: call
state: {count: int, names: {type: list, reducer: append}}
nodes:
  call: {type: agent, agent: helper, MORE, next: done}
  done: {type: end, output: "{{verdict}}"}
  rescue: {type: end, output: "rescued: {{said}}"}
"""
RUN = child_id("run1", 1)
FAILED = Failure("visit", 4, "steps:Bad")


def started(more: str, **state: Any) -> Driver:
    return Driver(GRAPH.replace("MORE", more), state).start()


def begun(driver: Driver) -> StartChild:
    assert driver.last is not None
    [effect] = [each for each in driver.last.effects if isinstance(each, StartChild)]
    return effect


def of(driver: Driver, node: str = "call") -> Visit:
    [visit] = [visit for visit in driver.run.frontier.values() if visit.node == node]
    return visit


def end(output: str = "said", *, status: str = "completed", error: str | None = None, **state: Any) -> dict[str, Any]:
    failure = None if status == "completed" else FAILED
    about = {"error_kind": failure and failure.kind, "error_type": failure and failure.error_type, "error": error}
    return {CHILD: {"run": RUN, "agent": "helper", "status": status, "output": output, "state": state, **about}}


def ends(driver: Driver, delta: dict[str, Any], **more: Any) -> None:
    child = delta.get(CHILD, {})
    status, failure = child.get("status", "completed"), more.pop("failure", None)
    visit, size = of(driver), len(json.dumps(child))
    about = (visit.seq, visit.attempt, RUN, status, child.get("error"))
    driver.try_(ChildEnded(*about, failure=failure, end_bytes=size, **more), delta)


@pytest.mark.conformance("AG-03", "AG-04", "AG-06")
def test_a_child_gets_its_message_and_the_mapped_values_and_nothing_else_of_its_parent() -> None:
    driver = started(
        'input: {from: topic}, map_in: {n: "{{n}}", deep: {list: ["{{n}}", "{{topic}}!"]}, fixed: 7}',
        topic="rivers",
        n=3,
        secret="s",
    )
    start = begun(driver)
    assert start.prompt == "rivers"
    assert start.settings == ChildSettings({"n": 3, "deep": {"list": [3, "rivers!"]}, "fixed": 7})
    assert driver.state["topic"] == "rivers", "and it stays for the other nodes"


def test_a_list_of_messages_is_given_with_the_last_one_of_a_user_as_the_prompt() -> None:
    said = "[{role: user, content: 'Look at {{topic}}'}, {role: assistant, content: 'Why?'}]"
    start = begun(started(f"input: {{messages: {said}}}", topic="rivers"))
    assert start.settings is not None
    assert start.prompt == "Look at rivers"
    messages = [{"role": "user", "content": "Look at rivers"}, {"role": "assistant", "content": "Why?"}]
    assert start.settings.given == {"messages": messages}


@pytest.mark.conformance("AG-25", "AG-26")
def test_a_chained_agent_gets_only_what_is_composed_for_it() -> None:
    chained = started('map_in: {n: 1}, map_out: {first: "{{child.output}}"}', topic="rivers")
    assert begun(chained).prompt == "", "without a message it gets none"
    start = begun(started('prompt: "{{topic}} and {{first}}"', topic="rivers", first="lakes"))
    assert (start.prompt, start.settings) == ("rivers and lakes", None)


def test_a_missing_value_fails_the_visit_before_a_child_starts() -> None:
    driver = started("input: {from: absent}, map_out: {}")
    assert driver.error is not None
    assert "'absent' not found in state" in driver.error
    assert driver.last is not None
    assert not driver.last.effects


def test_an_isolated_child_is_in_no_session_and_its_id_does_not_depend_on_one() -> None:
    driver = Driver(GRAPH.replace("MORE", 'prompt: "x", isolated: true'), {})
    driver.run = replace(driver.run, spec=RunSpec("agent", "digest", sessions={"helper": "desk"}))
    start = begun(driver.start())
    assert (start.child, start.settings) == (RUN, ChildSettings(isolated=True))


@pytest.mark.conformance("AG-09")
@pytest.mark.parametrize("value", [3, 2**53, 1.5, True, None, "text", [1, {"a": 2}], {"b": [3]}])
def test_a_template_that_is_one_placeholder_keeps_the_type_of_the_value(value: Any) -> None:
    driver = started('prompt: x, map_out: {verdict: "{{child.state.verdict}}", text: "v={{child.output}}"}')
    assert begun(driver).settings == ChildSettings(returns=("verdict",))
    ends(driver, end(verdict=value, other=1))
    assert driver.state == {"verdict": value, "text": "v=said"}
    assert type(driver.state["verdict"]) is type(value)


@pytest.mark.parametrize(
    ("mapping", "keys"),
    [
        ("{}", ()),
        ('{a: "{{child.output}} {{child.status}}"}', ()),
        ('{a: "{{child.state.x.y[0]}} {{child.state.z[1]}}"}', ("x", "z")),
        ('{a: {b: ["{{child.state.x}}"]}}', ("x",)),
        ('{a: "{{child.state}}"}', ("*",)),
        ('{a: "{{child}}"}', ("*",)),
        ('"maps.py:out"', ("*",)),
    ],
)
def test_a_child_returns_only_the_keys_that_are_read(mapping: str, keys: tuple[str, ...]) -> None:
    assert begun(started(f"prompt: x, map_out: {mapping}")).settings == ChildSettings(returns=keys)


@pytest.mark.conformance("AG-10")
def test_an_empty_mapping_writes_nothing() -> None:
    driver = started("prompt: x, map_out: {}", topic="rivers")
    ends(driver, end(verdict=1))
    assert (driver.run.status, driver.state) == ("completed", {"topic": "rivers"})


def test_a_mapping_reads_keys_of_its_own_run_and_goes_through_reducers() -> None:
    driver = started('prompt: x, map_out: {names: ["{{topic}}", "{{child.run}}"]}', topic="rivers", names=["a"])
    ends(driver, end())
    assert driver.state["names"] == ["a", "rivers", RUN]


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        ('{verdict: "{{child.state.absent}}"}', "'child.state.absent' not found"),
        ('{count: "{{child.output}}"}', "state key 'count' must be int, not string 'said'"),
    ],
)
def test_what_cannot_be_mapped_fails_the_visit_and_a_retry_maps_the_same_child_again(mapping: str, why: str) -> None:
    driver = started(f"prompt: x, map_out: {mapping}")
    ends(driver, end())
    assert driver.error is not None
    assert why in driver.error
    driver.send(Retried())
    assert driver.last is not None
    assert driver.last.effects == (RetryChild(RUN, "helper", 2, 1),)
    ends(driver, end("7", absent=1) if "absent" in mapping else {CHILD: {**end()[CHILD], "output": 8}})
    assert driver.run.status == "completed"


def test_a_state_that_is_too_large_fails_the_visit_with_the_way_out() -> None:
    driver = started('prompt: x, map_out: {verdict: "{{child.output}}"}')
    ends(driver, {CHILD: {**end()[CHILD], "state": {}, "too_large": 20_000_000}})
    assert driver.error is not None
    assert "20,000,000 bytes" in driver.error
    assert "SLEIPNIR_MAX_OUTPUT_BYTES" in driver.error


# The child fails


@pytest.mark.conformance("AG-12")
def test_a_failed_child_fails_its_parent_and_nothing_is_mapped() -> None:
    driver = started('prompt: x, map_out: {verdict: "{{child.error}}"}')
    ends(driver, end(status="failed", error="boom"), failure=FAILED)
    assert driver.run.status == "failed"
    assert driver.state == {}
    assert driver.last is not None
    assert driver.last.failure == Failure("visit", 1, "steps:Bad")


@pytest.mark.conformance("AG-11")
def test_with_on_error_the_parent_goes_on_and_reads_why_and_what_the_child_had() -> None:
    out = '{verdict: "{{child.error_type}}: {{child.error}}", kept: "{{child.state.part}}", no: "{{child.state.gone}}"}'
    driver = started(f"prompt: x, on_error: continue, map_out: {out}")
    ends(driver, end("", status="failed", error="boom", part=3), failure=FAILED)
    assert driver.run.status == "completed"
    error = {"node": "call", "message": "Agent 'helper' failed: boom", "kind": "visit", "type": "steps:Bad"}
    written = {"verdict": "steps:Bad: boom", "kept": 3, "_error": error, "last_error": error["message"]}
    assert driver.state == written
    assert driver.run.failed_visits.count == 1


def test_a_handler_reads_the_error_of_a_child_that_could_not_start() -> None:
    driver = started('prompt: x, on_error: rescue, map_out: {said: "{{child.status}} {{child.error}}"}')
    visit = of(driver)
    driver.try_(ChildEnded(visit.seq, visit.attempt, RUN, "refused", "no such agent"))
    assert driver.output == "rescued: refused Agent 'helper' failed: no such agent"


def test_a_child_that_times_out_is_mapped_too() -> None:
    driver = started(
        'prompt: x, timeout: 5, on_error: rescue, map_out: {said: "{{child.status}} {{child.error_kind}}"}'
    )
    visit = of(driver)
    driver.now_ms += 5_000
    driver.send(TimerFired(f"visit/{visit.seq}/{visit.attempt}"))
    assert driver.output == "rescued: timed_out timeout"


# Functions of the agent's own


def test_a_function_makes_the_first_values_on_a_worker_before_the_child_starts() -> None:
    driver = started('prompt: "{{topic}}", map_in: "maps.py:into", timeout: 60', topic="rivers")
    assert of(driver).body == Work("functions")
    visit = of(driver)
    driver.try_(Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, keys=(RESULT,))), {RESULT: {"n": 4}})
    start = begun(driver)
    assert (start.prompt, start.attempt, start.settings) == ("rivers", 2, ChildSettings({"n": 4}))
    assert of(driver).body == ChildWait(Child(RUN, "helper"), driver.now_ms + 60_000)
    assert RESULT not in driver.state


def mapping_on_a_worker(more: str = "") -> Driver:
    driver = started(f'prompt: x, map_out: "maps.py:out"{more}')
    ends(driver, end(verdict=2))
    return driver


def test_a_function_gets_the_end_of_the_child_and_what_it_returns_is_written() -> None:
    driver = mapping_on_a_worker()
    visit = of(driver)
    assert (visit.attempt, visit.body) == (2, Work("functions", given="1.output", child=Child(RUN, "helper")))
    assert read_visit(visit_text(visit)) == visit, "another scheduler reads the same"
    assert '"verdict": 2' in driver.memory.items["1.output"]
    driver.ends(visit, verdict=4)
    assert (driver.run.status, driver.state, driver.memory.items) == ("completed", {"verdict": 4}, {})


def test_templates_over_much_state_are_rendered_on_a_worker() -> None:
    driver = started('prompt: x, map_out: {verdict: "{{child.state.verdict}}"}')
    ends(driver, end(verdict="v" * 300_000))
    assert of(driver).body == Work("functions", given="1.output", child=Child(RUN, "helper"))
    driver.ends(of(driver), verdict="short")
    assert (driver.run.status, driver.state) == ("completed", {"verdict": "short"})


def test_after_a_function_that_fails_a_retry_waits_for_the_same_child_again() -> None:
    driver = mapping_on_a_worker()
    driver.fails("call", "KeyError")
    assert driver.run.status == "failed"
    failed = of(driver).body
    assert isinstance(failed, Failed)
    assert failed.was == Child(RUN, "helper")
    driver.send(Retried())
    assert driver.last is not None
    assert driver.last.effects == (RetryChild(RUN, "helper", 2, 1),)
    ends(driver, end(verdict=3))
    assert isinstance(of(driver).body, Work)


def test_a_child_that_has_expired_is_replaced_from_its_first_state_on() -> None:
    driver = started('prompt: x, map_in: "maps.py:into"')
    visit = of(driver)
    driver.try_(Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, keys=(RESULT,))), {RESULT: {}})
    visit = of(driver)
    driver.send(ChildGone(visit.seq, visit.attempt, RUN))
    assert (of(driver).attempt, of(driver).body) == (3, Work("functions"))


# What is stored


def test_an_effect_with_settings_is_of_version_2_and_one_without_is_as_before() -> None:
    plain = StartChild(RUN, "helper", "x", "call", 1, 1)
    assert {"v": 1}.items() <= effect_fields(plain).items()
    assert "settings" not in effect_fields(plain)
    mapped = replace(plain, settings=ChildSettings({"n": 1}, ("verdict",), isolated=True, event_scope="s"))
    assert effect_fields(mapped)["v"] == 2
    assert effect_of(effect_fields(mapped)) == mapped
    assert "isolated" not in effect_fields(RetryChild(RUN, "helper", 1, 1))
    alone = RetryChild(RUN, "helper", 1, 1, isolated=True)
    assert (effect_fields(alone)["v"], effect_of(effect_fields(alone))) == (2, alone)
