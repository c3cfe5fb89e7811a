"""The dag engine: a visit starts when what it waits for has ended; the state is the same whatever ends first."""

from __future__ import annotations

import itertools

import pytest

from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Resulted, Retried
from tests.model_store import Driver

FAST_AND_SLOW = """
name: g
version: sleipnir/1
start: split
engine: dag
state: {log: {type: list, reducer: append, default: []}, last: string}
nodes:
  split: {type: router, next: [slow, fast, mid]}
  slow: {type: script, script: s.sh, next: slow_next}
  fast: {type: script, script: s.sh, next: fast_next}
  mid: {type: script, script: s.sh}
  slow_next: {type: script, script: s.sh}
  fast_next: {type: script, script: s.sh}
"""


@pytest.mark.conformance("DG-01", "EX-37")
def test_what_follows_a_fast_branch_starts_before_the_slow_one_ends() -> None:
    driver = Driver(FAST_AND_SLOW).start()
    driver.does("fast")
    assert sorted(driver.on_workers()) == ["fast_next", "mid", "slow"]


@pytest.mark.conformance("IS-02")
def test_reducers_and_later_writes_give_the_same_state_in_every_order_of_ending() -> None:
    names = ["slow", "fast", "mid", "slow_next", "fast_next"]
    states = []
    for order in itertools.permutations(names):
        if order.index("slow_next") < order.index("slow") or order.index("fast_next") < order.index("fast"):
            continue
        driver = Driver(FAST_AND_SLOW, {"log": []}).start()
        for name in order:
            driver.does(name, log=name, last=name)
        assert driver.run.status == "completed"
        assert (driver.run.tops, driver.memory.windows) == ({}, {})
        states.append(driver.state)
    assert len(states) == 30
    assert all(state == states[0] for state in states)
    assert states[0] == {"log": ["fast", "mid", "slow", "fast_next", "slow_next"], "last": "slow_next"}


def test_a_write_counts_at_once_while_others_still_run() -> None:
    driver = Driver(FAST_AND_SLOW, {"log": []}).start().does("slow", log="slow")
    assert driver.state["log"] == ["slow"]
    driver.does("fast", log="fast")
    assert driver.state["log"] == ["fast", "slow"], "in visit order, not in the order of ending"


def test_the_state_has_the_later_of_two_failures_in_visit_order_for_any_order_of_arrival() -> None:
    for names in (["fast", "slow"], ["slow", "fast"]):
        text = FAST_AND_SLOW.replace(", next: slow_next", "").replace(", next: fast_next", "")
        driver = Driver(text).start()
        for name in names:
            visit = driver.visit(name)
            failed = ResultHeader(ok=False, error="boom", keys=("last_error",))
            driver.try_(Resulted(visit.seq, visit.attempt, failed), {"last_error": name})
        assert driver.state["last_error"] == "slow"


@pytest.mark.conformance("DG-02")
def test_with_one_slot_nothing_runs_side_by_side() -> None:
    driver = Driver(FAST_AND_SLOW.replace("engine: dag", "engine: dag\nlimits: {max_concurrency: 1}")).start()
    seen = []
    while driver.on_workers():
        [node] = driver.on_workers()
        seen.append(node)
        driver.does(node)
    assert sorted(seen) == ["fast", "fast_next", "mid", "slow", "slow_next"]


@pytest.mark.conformance("DG-03")
def test_a_node_that_is_started_twice_runs_one_visit_after_the_other() -> None:
    text = FAST_AND_SLOW.replace("next: slow_next", "next: fast_next")
    driver = Driver(text).start().does("fast").does("slow")
    assert driver.on_workers().count("fast_next") == 1
    driver.does("fast_next")
    assert driver.on_workers().count("fast_next") == 1
    driver.does("fast_next").does("mid")
    assert (driver.run.status, driver.run.counts["fast_next"]) == ("completed", 2)


@pytest.mark.conformance("DG-04")
def test_the_step_limit_counts_visits() -> None:
    text = """
name: g
version: sleipnir/1
start: entry
engine: dag
limits: {max_steps: 2, on_max_steps: HOW}
nodes:
  entry: {type: script, script: s.sh, next: [a, b]}
  a: {type: script, script: s.sh}
  b: {type: script, script: s.sh}
"""
    stopping = Driver(text.replace("HOW", "stop")).start().does("entry")
    assert stopping.on_workers() == ["a"]
    stopping.does("a")
    assert stopping.run.status == "completed"
    failing = Driver(text.replace("HOW", "error")).start().does("entry")
    assert failing.run.status == "failed", "nothing more is started once it is known that the run fails"
    assert failing.error is not None
    assert "not done after 2 visits" in failing.error


@pytest.mark.conformance("DG-05")
def test_a_failure_starts_nothing_more_and_lets_what_runs_end() -> None:
    text = FAST_AND_SLOW.replace(
        "mid: {type: script, script: s.sh}", "mid: {type: script, script: s.sh, fallback: ghost}"
    )
    driver = Driver(text).start().does("fast").fails("mid")
    assert "ghost" in [visit.node for visit in driver.run.frontier.values() if visit.state == "failed"]
    driver.does("slow", log="kept")
    assert driver.run.status == "running"
    driver.does("fast_next")
    assert driver.run.status == "failed"
    assert driver.state["log"] == ["kept"]
    assert "slow_next" not in driver.on_workers()
    driver.send(Retried())
    assert "slow_next" in driver.on_workers(), "what was ready when the run failed goes on"


@pytest.mark.conformance("IS-02", "DU-10")
def test_a_continued_run_ends_in_the_state_of_one_that_never_failed() -> None:
    text = FAST_AND_SLOW.replace("next: fast_next}", "queue: q}")
    driver = Driver(text, {"log": []}).start().fails("fast")
    driver.does("slow", log="slow", last="slow").does("mid", log="mid")
    assert (driver.run.status, driver.state["log"]) == ("failed", ["mid", "slow"])
    driver.send(Retried())
    driver.does("fast", log="fast", last="fast").does("slow_next")
    assert (driver.run.status, driver.state) == ("completed", {"log": ["fast", "mid", "slow"], "last": "slow"})
    assert (driver.run.tops, driver.memory.windows) == ({}, {})


@pytest.mark.conformance("EX-03", "FO-07")
def test_an_aggregator_after_a_plain_edge_runs_once_per_branch() -> None:
    text = """
name: g
version: sleipnir/1
start: split
engine: dag
state: {results: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [a1, a2]}
  a1: {type: script, script: s.sh, next: aggregate}
  a2: {type: script, script: s.sh, next: aggregate}
  aggregate: {type: router, branch: [{when: "size(state.results) >= 2", to: final}, {else: end}]}
  final: {type: end, output: "{{results}}"}
"""
    driver = Driver(text, {"results": []}).start().does("a2", results="A2").does("a1", results="A1")
    assert (driver.run.counts["aggregate"], driver.run.counts["final"]) == (2, 1)
    assert driver.output == '["A1","A2"]'


FIRES_TWICE = """
name: g
version: sleipnir/1
start: s
engine: dag
nodes:
  s: {type: router, next: [low, x, y]}
  low: {type: script, script: s.sh}
  x: {type: script, script: s.sh, next: [a, b]}
  y: {type: script, script: s.sh, next: [a, b]}
  a: {type: script, script: s.sh}
  b: {type: script, script: s.sh}
  j: {type: script, script: s.sh, wait_for: [a, b], next: e}
  k: {type: script, script: s.sh, next: e}
  e: {type: end, output: "{{said}}"}
"""


@pytest.mark.parametrize("between", ["e", "k"])
@pytest.mark.parametrize(
    "order",
    [
        "low x y a b j k a b j k",
        "x y a b j k a b j k low",
        "x y a b a b j k j k low",
        "x y low a b a b j j k k",
    ],
)
def test_the_second_of_two_firings_of_a_join_at_one_depth_gives_state_and_output(order: str, between: str) -> None:
    """Finding C17: while a visit that comes before them was live, the first one's output was kept."""
    text = FIRES_TWICE.replace("wait_for: [a, b], next: e", f"wait_for: [a, b], next: {between}")
    driver, said = Driver(text).start(), iter(["first", "second"])
    outputs = []
    for node in order.split():
        if node == "k" and between == "e":
            continue
        driver.does(node, **({"said": next(said)} if node == "j" else {}))
        outputs.append(driver.output)
    assert (driver.run.status, driver.state["said"]) == ("completed", "second")
    assert [output for output in outputs if output][-1] == "second"
