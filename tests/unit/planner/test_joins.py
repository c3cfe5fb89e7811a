"""Joins, in both engines: a source counts once, a join fires once, and starts anew for the next time."""

from __future__ import annotations

import pytest

from sleipnir.graph.model import Join
from sleipnir.runs.arrivals import name_of
from tests.model_store import Driver

DIAMOND = """
name: g
version: sleipnir/1
start: split
engine: {engine}
nodes:
  split: {{type: script, script: s.sh, next: [a, b]}}
  a: {{type: script, script: s.sh}}
  b: {{type: script, script: s.sh}}
  join: {{type: script, script: s.sh, wait_for: [a, b], next: e}}
  e: {{type: end, output: "{{{{order}}}}"}}
"""

both = pytest.mark.parametrize("engine", ["bsp", "dag"])


@both
@pytest.mark.conformance("JN-01")
def test_a_join_starts_its_node_once_when_all_sources_have_completed(engine: str) -> None:
    driver = Driver(DIAMOND.format(engine=engine)).start().does("split").does("b")
    assert driver.on_workers() == ["a"]
    driver.does("a")
    assert driver.on_workers() == ["join"]
    driver.does("join", order="done")
    assert (driver.run.status, driver.output, driver.run.arrived) == ("completed", "done", {})


STEPS = """
name: g
version: sleipnir/1
start: split
engine: {engine}
nodes:
  split: {{type: router, next: [b, tick]}}
  b: {{type: script, script: s.sh}}
  tick: {{type: script, script: s.sh, branch: [{{when: "state.n < 3", to: tick}}, {{else: c}}]}}
  c: {{type: script, script: s.sh}}
  join: {{type: script, script: s.sh, wait_for: [b, c]}}
"""


@both
@pytest.mark.conformance("JN-02", "JN-03")
def test_sources_may_complete_in_different_steps_and_what_has_arrived_is_kept_with_the_run(engine: str) -> None:
    driver = Driver(STEPS.format(engine=engine)).start().does("b")
    for n in (1, 2, 3):
        driver.does("tick", n=n)
    [(_, arrived)] = driver.run.arrived.items()
    assert list(arrived) == ["b"]
    driver.does("c")
    assert driver.on_workers() == ["join"]
    driver.does("join")
    assert (driver.run.status, driver.run.counts["join"]) == ("completed", 1)


LOOP = """
name: g
version: sleipnir/1
start: split
engine: {engine}
nodes:
  split: {{type: script, script: s.sh, next: [a, b]}}
  a: {{type: script, script: s.sh}}
  b: {{type: script, script: s.sh}}
  join: {{type: script, script: s.sh, wait_for: [a, b], branch: [{{when: "state.n < 3", to: split}}, {{else: end}}]}}
"""


@both
@pytest.mark.conformance("JN-04")
def test_a_join_in_a_loop_fires_once_each_time_round(engine: str) -> None:
    driver = Driver(LOOP.format(engine=engine)).start()
    for n in (1, 2, 3):
        driver.does("split").does("a").does("b").does("join", n=n)
    assert (driver.run.status, driver.run.counts["join"]) == ("completed", 3)


TWO_JOINS = """
name: g
version: sleipnir/1
start: split
engine: {engine}
nodes:
  split: {{type: router, next: [a, b, c]}}
  a: {{type: script, script: s.sh}}
  b: {{type: script, script: s.sh}}
  c: {{type: script, script: s.sh}}
  join: {{type: script, script: s.sh, wait_for: [[a, b], [c]]}}
"""


@both
@pytest.mark.conformance("JN-05")
def test_several_joins_before_one_node_start_it_once_each(engine: str) -> None:
    driver = Driver(TWO_JOINS.format(engine=engine)).start().does("a").does("b").does("c")
    driver.does("join").does("join")
    assert driver.run.status == "completed"


TWICE = """
name: g
version: sleipnir/1
start: split
engine: {engine}
nodes:
  split: {{type: router, next: [a, slow]}}
  a: {{type: script, script: s.sh, branch: [{{when: "state.n < 2", to: a}}]}}
  slow: {{type: script, script: s.sh, next: b}}
  b: {{type: script, script: s.sh}}
  join: {{type: script, script: s.sh, wait_for: [a, b]}}
"""


@both
@pytest.mark.conformance("JN-06")
def test_a_source_that_completes_twice_counts_once(engine: str) -> None:
    driver = Driver(TWICE.format(engine=engine)).start().does("a", n=1).does("slow").does("a", n=2)
    assert driver.on_workers() == ["b"]
    driver.does("b")
    assert driver.on_workers() == ["join"]
    driver.does("join")
    assert (driver.run.status, driver.run.counts["join"]) == ("completed", 1)


SKIPPED = """
name: g
version: sleipnir/1
start: split
engine: {engine}
nodes:
  split: {{type: script, script: s.sh, next: [a], branch: {{by: "{{{{way}}}}", to: {{b: b, no: ""}}}}}}
  a: {{type: script, script: s.sh}}
  b: {{type: script, script: s.sh}}
  c: {{type: script, script: s.sh, wait_for: [a, b]}}
"""


@both
@pytest.mark.conformance("JN-07")
def test_a_join_that_can_no_longer_fire_fails_the_run_and_names_what_is_missing(engine: str) -> None:
    text = SKIPPED.format(engine=engine).replace(', no: ""', "")
    driver = Driver(text).start().does("split", way="a").does("a")
    assert driver.run.status == "failed"
    assert driver.error is not None
    assert "the join before node 'c' can never fire: 'a' arrived, and 'b' did not, and nothing is left to run" in (
        driver.error
    )


@both
def test_a_quorum_fires_early_and_does_not_count_the_late_ones_for_the_next_time(engine: str) -> None:
    text = LOOP.format(engine=engine).replace("wait_for: [a, b]", "wait_for: {from: [a, b], min: 1}")
    driver = Driver(text).start().does("split").does("a")
    if engine == "bsp":
        driver.does("b")
    assert driver.on_workers() == (["join"] if engine == "bsp" else ["b", "join"])
    if engine == "dag":
        driver.does("b")
        assert driver.on_workers() == ["join"], "b was not waited for"
    driver.does("join", n=3)
    assert driver.run.status == "completed"


def test_a_quorum_in_a_loop_fires_once_per_round_even_if_a_source_is_rounds_behind() -> None:
    text = LOOP.format(engine="dag").replace("wait_for: [a, b]", "wait_for: {from: [a, b], min: 1}")
    driver = Driver(text).start()
    for n in (1, 2, 3):
        driver.does("split").does("a").does("join", n=n)
    for _ in range(3):
        driver.does("b")
    assert (driver.run.status, driver.run.counts["join"], driver.run.arrived) == ("completed", 3, {})


@pytest.mark.conformance("BD-20")
def test_joins_of_different_sources_have_different_names_for_any_names_of_nodes() -> None:
    names = {name_of("t", Join(sources=sources)) for sources in (["a", "b"], ["a_b"], ["a, b"], ['a", "b'])}
    assert len(names) == 4


@both
def test_a_join_of_a_thousand_sources_fires_once(engine: str) -> None:
    names = [f"n{number:03}" for number in range(1000)]
    nodes = "\n".join(f"  {name}: {{type: script, script: s.sh}}" for name in names)
    text = f"""
name: g
version: sleipnir/1
start: split
engine: {engine}
settings: {{max_concurrency: 1000}}
nodes:
  split: {{type: router, next: [{", ".join(names)}]}}
{nodes}
  join: {{type: script, script: s.sh, wait_for: [{", ".join(names)}]}}
"""
    driver = Driver(text).start()
    for name in reversed(names):
        driver.does(name)
    assert driver.on_workers() == ["join"]
    driver.does("join")
    assert (driver.run.status, driver.run.counts["join"]) == ("completed", 1)


EDGES_INTO_A_JOIN = """
name: g
version: sleipnir/1
start: split
engine: {engine}
nodes:
  split: {{type: router, next: [b, c]}}
  b: {{type: script, script: s.sh, next: j}}
  c: {{type: script, script: s.sh, fallback: j, branch: [{{when: "true", to: j}}]}}
  j: {{type: script, script: s.sh, wait_for: [b, c], next: e}}
  e: {{type: end}}
"""


@both
@pytest.mark.parametrize("chosen", [None, "j"])
def test_an_edge_into_a_node_that_waits_for_its_source_is_an_arrival_and_no_trigger(
    engine: str, chosen: str | None
) -> None:
    """Finding U2 of the second review."""
    driver = Driver(EDGES_INTO_A_JOIN.format(engine=engine)).start().does("b", chosen)
    assert driver.on_workers() == ["c"]
    driver.fails("c")
    assert driver.on_workers() == ["j"]
    driver.does("j")
    assert (driver.run.status, driver.run.counts["j"], driver.run.arrived) == ("completed", 1, {})


@both
def test_an_edge_into_a_join_comes_again_in_each_round_of_a_loop(engine: str) -> None:
    """Finding U2 of the second review."""
    text = LOOP.replace("a: {{type: script, script: s.sh}}", "a: {{type: script, script: s.sh, next: join}}")
    driver = Driver(text.format(engine=engine)).start()
    for n in (1, 2, 3):
        driver.does("split").does("a").does("b").does("join", n=n)
    assert (driver.run.status, driver.run.counts["join"]) == ("completed", 3)


def test_a_graph_in_python_completes_with_a_join_that_lacks_sources_and_says_so() -> None:
    text = """
name: g
version: sleipnir/1
start: a
state_classes: ["g.py:State"]
nodes:
  a: {type: function, call: "g.py:a", protocol: state_graph}
  b: {type: function, call: "g.py:b", protocol: state_graph}
  c: {type: function, call: "g.py:c", protocol: state_graph, wait_for: [a, b]}
"""
    driver = Driver(text).start().does("a")
    assert driver.run.status == "completed"
    assert driver.last is not None
    [message] = [notice.data["message"] for notice in driver.last.notices if notice.type == "join_starved"]
    assert message.startswith("the join before node 'c' can never fire: 'a' arrived, and 'b' did not")
