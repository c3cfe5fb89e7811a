"""`defer`: a node that runs when nothing else of the run is left to run."""

from __future__ import annotations

from sleipnir.runs.events import Paused, Resumed, Retried
from tests.model_store import Driver

BRANCHES = """
name: g
version: sleipnir/1
start: split
nodes:
  split: {type: router, next: [short, long1]}
  short: {type: script, script: s.sh, next: last}
  long1: {type: script, script: s.sh, next: long2}
  long2: {type: script, script: s.sh, next: last}
  last: {type: script, script: s.sh, defer: true, next: e}
  e: {type: end, output: "{{order}}"}
"""


def test_a_deferred_node_runs_once_after_branches_of_unequal_length() -> None:
    driver = Driver(BRANCHES).start().does("short").does("long1")
    assert (driver.on_workers(), dict(driver.run.deferred)) == (["long2"], {"last": 2})
    driver.does("long2")
    assert (driver.on_workers(), driver.run.deferred) == (["last"], {})
    driver.does("last", order="done")
    assert (driver.run.status, driver.output, driver.run.counts["last"]) == ("completed", "done", 1)


def test_without_defer_the_node_runs_once_per_branch() -> None:
    driver = Driver(BRANCHES.replace("defer: true, ", "")).start().does("short").does("long1")
    assert driver.on_workers() == ["last", "long2"]


def test_a_deferred_node_runs_when_the_last_branch_simply_ends() -> None:
    text = BRANCHES.replace("long2: {type: script, script: s.sh, next: last}", "long2: {type: script, script: s.sh}")
    driver = Driver(text).start().does("short").does("long1")
    assert driver.on_workers() == ["long2"]
    assert driver.does("long2").on_workers() == ["last"]


def test_a_deferred_node_that_follows_alone_runs_at_once() -> None:
    driver = Driver(BRANCHES.replace("next: [short, long1]", "next: short")).start().does("short")
    assert (driver.on_workers(), driver.run.deferred) == (["last"], {})


def test_all_deferred_nodes_run_in_one_super_step_and_run_again_when_led_to_again() -> None:
    text = """
name: g
version: sleipnir/1
start: split
nodes:
  split: {type: router, next: [first, second, work]}
  work: {type: script, script: s.sh, next: more}
  more: {type: script, script: s.sh}
  first: {type: script, script: s.sh, defer: true, next: second}
  second: {type: script, script: s.sh, defer: true}
"""
    driver = Driver(text).start().does("work")
    assert driver.on_workers() == ["more"]
    assert driver.does("more").on_workers() == ["first", "second"]
    assert driver.does("first").does("second").on_workers() == ["second"]
    driver.does("second")
    assert (driver.run.status, driver.run.counts["first"], driver.run.counts["second"]) == ("completed", 1, 2)


def test_a_loop_runs_to_its_end_before_a_deferred_node() -> None:
    text = """
name: g
version: sleipnir/1
start: split
nodes:
  split: {type: router, next: [loop, last]}
  loop: {type: script, script: s.sh, branch: [{when: "state.n < 3", to: loop}, {else: end}]}
  last: {type: script, script: s.sh, defer: true}
"""
    driver = Driver(text).start()
    for n in (1, 2):
        assert driver.does("loop", n=n).on_workers() == ["loop"]
    assert driver.does("loop", n=3).on_workers() == ["last"]


JOIN = """
name: g
version: sleipnir/1
start: split
nodes:
  split: {type: router, next: [a, b, long]}
  a: {type: script, script: s.sh}
  b: {type: script, script: s.sh}
  long: {type: script, script: s.sh, next: longer}
  longer: {type: script, script: s.sh}
  last: {type: script, script: s.sh, wait_for: [a, b], defer: true}
"""


def test_a_join_that_has_fired_is_deferred_too() -> None:
    driver = Driver(JOIN).start().does("a").does("b").does("long")
    assert (driver.on_workers(), list(driver.run.deferred)) == (["longer"], ["last"])
    assert driver.does("longer").on_workers() == ["last"]


def test_a_command_starts_a_deferred_node_at_once() -> None:
    driver = Driver(BRANCHES).start().does("long1")
    driver.does("short", sends=[("last", {"order": "early"})])
    assert driver.on_workers() == ["last", "long2"]
    assert driver.run.deferred == {}


def test_a_failed_run_keeps_its_deferred_nodes_for_the_retry() -> None:
    driver = Driver(BRANCHES).start().does("short").does("long1").fails("long2")
    assert (driver.run.status, list(driver.run.deferred)) == ("failed", ["last"])
    driver.send(Retried())
    assert driver.does("long2").on_workers() == ["last"]


def test_a_held_run_opens_its_deferred_nodes_when_it_goes_on() -> None:
    driver = Driver(BRANCHES).start().does("short").does("long1")
    driver.send(Paused("ann"))
    driver.does("long2")
    assert driver.on_workers() == []
    driver.send(Resumed())
    assert driver.on_workers() == ["last"]
