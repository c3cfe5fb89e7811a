"""Failed runs that go on: `retry` runs again what has failed, and only that, whatever it was."""

from __future__ import annotations

import pytest

from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Answered, LeaseLost, Paused, Resulted, Resumed, Retried, TimerFired
from sleipnir.runs.journal import state_after
from tests.model_store import Driver

both = pytest.mark.parametrize("engine", ["bsp", "dag"])

CHOOSING = """
name: g
version: sleipnir/1
start: a
engine: {engine}
nodes:
  a: {{type: router, branch: {{call: "f.py:choose"}}}}
  b: {{type: script, script: s.sh}}
"""


@both
def test_a_choice_that_failed_is_made_again_by_its_function(engine: str) -> None:
    driver = Driver(CHOOSING.format(engine=engine)).start().fails("a")
    driver.send(Retried())
    visit = driver.visit("a")
    assert (visit.role, visit.queue) == ("branch", "functions")
    driver.send(Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, next="b")))
    assert driver.on_workers() == ["b"]


SKIPPING = """
name: g
start: m
settings: {timeout: 5, interrupt_on_timeout: true}
nodes:
  m: {type: map, over: "{{items}}", as: x, branch: w, collect_into: found, max_concurrency: 1, on_item_error: skip,
      next: e}
  w: {type: script, script: s.sh}
  e: {type: end, output: "{{found}}"}
"""


def test_a_map_that_leaves_failed_items_out_does_so_after_a_retry_too() -> None:
    driver = Driver(SKIPPING, {"items": [1, 2, 3]}).start().fails("w", item=0)
    driver.send(TimerFired("deadline"), after_ms=6_000)
    assert driver.run.status == "failed"
    driver.send(Retried())
    driver.does("w", item=1, output="b").does("w", item=2, output="c")
    assert (driver.run.status, driver.output) == ("completed", '["b","c"]')


REDUCING = """
name: g
version: sleipnir/1
start: a
engine: {engine}
state: {{log: {{type: list, reducer: append}}, total: {{type: any, reducer: sum}}}}
nodes:
  a: {{type: script, script: s.sh, next: b}}
  b: {{type: script, script: s.sh}}
"""


@both
def test_a_write_that_a_reducer_refuses_leaves_the_state_unchanged(engine: str) -> None:
    driver = Driver(REDUCING.format(engine=engine), {"log": [], "total": 1}).start()
    driver.does("a", log="x", total="no number")
    assert (driver.run.status, driver.state) == ("failed", {"log": [], "total": 1})
    assert state_after(driver.memory.entries) == driver.state


def test_what_runs_at_the_end_of_a_run_and_must_happen_once_is_asked_about_before_it_runs_again() -> None:
    text = """
name: g
version: sleipnir/1
start: s
engine: dag
settings: {timeout: 5, interrupt_on_timeout: INTERRUPT}
nodes:
  s: {type: script, script: s.sh, next: [pay, other]}
  pay: {type: script, script: s.sh, effect: once}
  other: {type: script, script: s.sh}
"""
    cut_off = Driver(text.replace("INTERRUPT", "true")).start().does("s")
    cut_off.send(TimerFired("deadline"), after_ms=6_000)
    unclaimed = Driver(text.replace("INTERRUPT", "false")).start().does("s")
    unclaimed.send(TimerFired("deadline"), after_ms=6_000)
    asking = Driver(text.replace("INTERRUPT", "true")).start().does("s")
    asking.send(LeaseLost(asking.visit("pay").seq, 1, "w"))
    asking.fails("other")
    failing = Driver(text.replace("INTERRUPT", "true")).start().does("s").fails("pay").does("other")
    for driver in (cut_off, unclaimed, asking, failing):
        assert driver.run.status == "failed"
        driver.send(Retried())
    assert unclaimed.on_workers() == ["pay", "other"], "no worker had it"
    assert failing.on_workers() == ["pay"], "it has said itself that it failed"
    for driver in (cut_off, asking):
        visit = driver.visit("pay")
        assert (visit.is_asking, driver.on_workers()) == (True, ["other"])
        driver.send(Answered(visit.seq, "run again", visit.attempt))
        assert sorted(driver.on_workers()) == ["other", "pay"]


STARVED = """
name: g
version: sleipnir/1
start: split
engine: {engine}
nodes:
  split: {{type: script, script: s.sh, branch: {{by: "{{{{way}}}}"}}}}
  a: {{type: script, script: s.sh}}
  b: {{type: script, script: s.sh}}
  c: {{type: script, script: s.sh, wait_for: [a, b]}}
"""


@both
def test_a_run_in_which_nothing_failed_but_its_graph_runs_nothing_again(engine: str) -> None:
    driver = Driver(STARVED.format(engine=engine)).start().does("split", way="a").does("a")
    first = driver.error
    driver.send(Retried())
    assert (driver.run.status, driver.error, driver.on_workers()) == ("failed", first, [])


@both
def test_a_run_that_stops_for_its_steps_reports_no_joins(engine: str) -> None:
    limits = "limits: {max_steps: MOST, on_max_steps: stop}\nnodes:"
    text = STARVED.format(engine=engine).replace("nodes:", limits.replace("MOST", "2"))
    driver = Driver(text.replace("a: {type: script, script: s.sh", "a: {type: script, script: s.sh, next: b")).start()
    driver.does("split", way="a").does("a")
    assert driver.run.status == "completed"


@both
def test_a_run_that_has_used_up_its_steps_continues_where_it_stopped(engine: str) -> None:
    text = """
name: g
version: sleipnir/1
start: a
engine: ENGINE
limits: {max_steps: 1}
nodes:
  a: {type: script, script: s.sh, next: b}
  b: {type: script, script: s.sh}
"""
    driver = Driver(text.replace("ENGINE", engine)).start().does("a")
    assert driver.run.status == "failed"
    driver.send(Retried())
    assert driver.on_workers() == ["b"]


TIMED = """
name: g
version: sleipnir/1
start: a
engine: bsp
limits: {step_timeout: 5s}
nodes:
  a: {type: script, script: s.sh}
"""


def test_a_step_that_runs_again_has_its_time_again() -> None:
    driver = Driver(TIMED).start()
    driver.send(TimerFired("step/1"), after_ms=5_000)
    driver.send(Retried())
    assert driver.last is not None
    assert driver.last.timers["step/1"] == driver.now_ms + 5_000


def test_the_time_of_a_step_stops_while_its_run_is_held() -> None:
    driver = Driver(TIMED).start()
    driver.send(Paused("me"))
    driver.try_(TimerFired("step/1"), after_ms=5_000)
    assert driver.run.status == "paused"
    driver.send(Resumed())
    assert driver.last is not None
    assert driver.last.timers["step/1"] == driver.now_ms + 5_000


@both
def test_each_target_of_a_list_of_commands_is_counted(engine: str) -> None:
    text = """
name: g
version: sleipnir/1
start: a
engine: ENGINE
nodes:
  a: {type: script, script: s.sh, branch: {by: end}}
  b: {type: script, script: s.sh, branch: {by: end}}
  c: {type: script, script: s.sh, branch: {by: end}}
"""
    driver = Driver(text.replace("ENGINE", engine)).start()
    driver.does("a", sends=[("b", {}), ("c", {}), ("c", {})])
    assert driver.run.counts == {"a": 1, "b": 1, "c": 1}


def test_the_output_of_a_dag_is_that_of_its_last_end_in_visit_order_for_any_order_of_ends() -> None:
    text = """
name: g
version: sleipnir/1
start: s
engine: dag
nodes:
  s: {type: script, script: s.sh, next: [a, b]}
  a: {type: script, script: s.sh, next: e1}
  b: {type: script, script: s.sh, next: e2}
  e1: {type: end, output: "one"}
  e2: {type: end, output: "two"}
"""
    outputs = []
    for order in (["a", "b"], ["b", "a"]):
        driver, output = Driver(text).start().does("s"), None
        for node in order:
            driver.does(node)
            output = driver.output or output
        assert (driver.run.status, driver.run.tops) == ("completed", {})
        outputs.append(output)
    assert outputs == ["two", "two"]


def test_an_end_may_write_through_a_reducer_of_the_agents_own() -> None:
    text = """
name: g
version: sleipnir/1
start: a
engine: bsp
state: {best: {type: any, reducer: "r.py:best"}}
nodes:
  a: {type: script, script: s.sh, next: e}
  e: {type: end, output: "{{best}}", state_updates: {best: "9"}}
"""
    driver = Driver(text, {"best": 1}).start().does("a")
    if driver.run.status != "completed":
        driver.does("e", best=9)
    assert (driver.run.status, driver.output, driver.state["best"]) == ("completed", "9", 9)


def test_an_item_that_a_person_left_without_a_result_has_failed() -> None:
    text = SKIPPING.replace("script: s.sh}", "script: s.sh, effect: once}").replace("skip", "fail")
    driver = Driver(text, {"items": [1]}).start()
    visit = driver.visit("w")
    driver.send(LeaseLost(visit.seq, 1, "w"))
    driver.send(Answered(visit.seq, "{}", 1))
    assert driver.error is not None
    assert "map node 'm': sub-branch [0] did not write `output_key` 'output'" in driver.error


@both
def test_the_values_of_a_command_that_ends_its_branch_are_not_kept(engine: str) -> None:
    text = CHOOSING.format(engine=engine).replace('router, branch: {call: "f.py:choose"}', "script, script: s.sh")
    driver = Driver(text).start().does("a", sends=[("end", {"x": 1}), ("b", {"x": 2})])
    assert list(driver.memory.items) == ["1.1"]
    assert driver.sees(driver.visit("b"))["x"] == 2
