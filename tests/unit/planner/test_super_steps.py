"""Super-steps: what runs side by side, what it sees, when it counts, and what comes next."""

from __future__ import annotations

import pytest

from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Cancelled, LeaseLost, Resulted, Retried, TimerFired
from sleipnir.runs.journal import state_after
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, bad

LOKI = """
name: g
start: split
settings: {max_concurrency: 8}
nodes:
  split: {type: script, script: s.sh, next: [b, a]}
  a: {type: script, script: s.sh, next: meet}
  b: {type: script, script: s.sh, next: meet}
  meet: {type: script, script: s.sh, next: e}
  e: {type: end, output: "{{one}} {{two}}"}
"""

SLEIPNIR = LOKI.replace("start: split", "start: split\nversion: sleipnir/1")


def split(text: str) -> Driver:
    return Driver(text).start().does("split")


@pytest.mark.conformance("Y01", "BS-02")
def test_branches_run_side_by_side_in_the_order_of_their_names_and_meet_once() -> None:
    driver = split(LOKI)
    assert driver.on_workers() == ["a", "b"]
    driver.does("b", two=2)
    assert driver.on_workers() == ["a"]
    driver.does("a", one=1)
    assert driver.on_workers() == ["meet"]
    driver.does("meet")
    assert (driver.run.status, driver.output) == ("completed", "1 2")
    assert [driver.run.counts[node] for node in ("a", "b", "meet")] == [1, 1, 1]


@pytest.mark.conformance("BS-03")
def test_an_end_that_is_reported_twice_starts_the_next_step_once() -> None:
    driver = split(LOKI)
    told = Resulted(driver.visit("b").seq, 1, ResultHeader(ok=True))
    driver.send(told)
    assert isinstance(driver.try_(told), IgnoredEvent)
    driver.does("a")
    assert isinstance(driver.try_(told), IgnoredEvent)
    assert (driver.on_workers(), driver.run.counts["meet"]) == (["meet"], 1)


@pytest.mark.conformance("BS-01")
def test_the_next_step_begins_when_the_slowest_branch_has_ended() -> None:
    driver = split(
        LOKI.replace("b: {type: script, script: s.sh, next: meet}", "b: {type: script, script: s.sh, next: e}")
    )
    driver.does("b")
    assert driver.on_workers() == ["a"]


def test_a_branch_reads_the_state_at_the_start_of_its_step() -> None:
    driver = split(LOKI)
    driver.does("a", one="new")
    assert "one" not in driver.sees(driver.visit("b"))
    driver.does("b")
    assert driver.state["one"] == "new"


@pytest.mark.conformance("Y03")
def test_two_branches_that_write_a_key_without_a_reducer_fail_the_run() -> None:
    driver = split(LOKI).does("a", k=1).does("b", k=2)
    assert driver.run.status == "failed"
    assert driver.error is not None
    assert (
        "Key 'k' was written by 2 parallel branches but has no reducer declared. Add a reducer for 'k' to the graph's "
        "`reducers:` block, or rename one writer."
    ) in driver.error
    assert "k" not in driver.state


def test_in_sleipnir_1_the_later_branch_in_visit_order_counts() -> None:
    for order in (("a", "b"), ("b", "a")):
        driver = split(SLEIPNIR)
        for node in order:
            driver.does(node, k=node)
        assert driver.state["k"] == "b"


def test_a_branch_that_writes_what_was_there_has_not_written() -> None:
    driver = Driver(LOKI, {"k": [1], "other": True}).start().does("split")
    driver.does("a", k=[1], other=True).does("b", k=[2], other=1)
    assert driver.state["k"] == [2]
    assert driver.state["other"] == 1, "true and 1 are different JSON values"


@pytest.mark.conformance("Y02", "IS-02")
def test_reducers_fold_in_visit_order_for_any_order_of_ends() -> None:
    text = LOKI.replace("start: split", "start: split\nreducers: {log: append, total: sum}")
    for order in (("a", "b"), ("b", "a")):
        driver = Driver(text, {"log": [], "total": 1}).start().does("split")
        for node in order:
            driver.does(node, log=node, total=2)
        assert (driver.state["log"], driver.state["total"]) == (["a", "b"], 5)


def test_a_reducer_folds_what_a_node_alone_writes_too() -> None:
    text = LOKI.replace("start: split", "start: split\nreducers: {log: append}")
    driver = Driver(text, {"log": ["start"]}).start().does("split", log="split")
    assert driver.state["log"] == ["start", "split"]


def test_a_write_that_a_reducer_refuses_fails_the_run() -> None:
    text = LOKI.replace("start: split", "start: split\nreducers: {log: append}")
    driver = Driver(text, {"log": "text"}).start().does("split", log="x")
    assert driver.error is not None
    assert "reducer 'append' requires an array (or absent) for the current value, got string" in driver.error


@pytest.mark.conformance("RT-17")
def test_an_end_ends_its_branch_and_the_run_when_nothing_is_left() -> None:
    text = SLEIPNIR.replace("b: {type: script, script: s.sh, next: meet}", "b: {type: script, script: s.sh, next: end}")
    driver = split(text).does("b", "end").does("a", one=1)
    assert driver.on_workers() == ["meet"]
    driver.does("meet")
    assert driver.run.status == "completed"


def test_a_loki_graph_ends_with_its_first_end_node_and_drops_what_else_was_next() -> None:
    text = LOKI.replace("a: {type: script, script: s.sh, next: meet}", "a: {type: script, script: s.sh, next: e}")
    driver = split(text).does("b", two=2).does("a", one=1)
    assert driver.on_workers() == ["meet"], "the end node is in the same step as meet"
    driver.does("meet", two=3)
    assert (driver.run.status, driver.output) == ("completed", "1 3")


def test_two_ends_in_one_super_step_are_an_error_of_a_loki_graph() -> None:
    text = LOKI.replace("b: {type: script, script: s.sh, next: meet}", "b: {type: script, script: s.sh, next: f}")
    text = text.replace("a: {type: script, script: s.sh, next: meet}", "a: {type: script, script: s.sh, next: e}")
    driver = split(text + "  f: {type: end}\n").does("a").does("b")
    assert driver.error is not None
    assert "super-step ended with multiple End targets (e, f)." in driver.error


@pytest.mark.conformance("FO-10", "LM-02")
def test_no_more_branches_run_at_once_than_the_graph_allows() -> None:
    driver = split(LOKI.replace("max_concurrency: 8", "max_concurrency: 1"))
    assert driver.on_workers() == ["a"]
    assert driver.run.frontier[3].state == "ready"
    driver.does("a")
    assert driver.on_workers() == ["b"]
    driver.does("b")
    assert driver.on_workers() == ["meet"]


def test_a_failed_branch_lets_its_siblings_end_and_retry_runs_only_the_failed_one() -> None:
    text = SLEIPNIR.replace("a: {type: script, script: s.sh, next: meet}", "a: {type: script, script: s.sh}")
    driver = split(text)
    driver.fails("a")
    assert (driver.run.status, driver.on_workers()) == ("running", ["b"])
    driver.does("b", two=2)
    assert driver.run.status == "failed"
    assert driver.error == "Graph execution failed for agent 'agent': at node 'a': boom"
    assert "two" not in driver.state, "the step has not closed"
    driver.send(Retried())
    assert driver.on_workers() == ["a"]
    driver.does("a", "meet", one=1)
    assert driver.state == {"one": 1, "two": 2}
    assert driver.on_workers() == ["meet"]
    driver.does("meet")
    assert driver.run.status == "completed"


def test_the_first_failure_in_visit_order_is_the_runs() -> None:
    text = LOKI.replace(", next: meet}", "}")
    for order in (("a", "b"), ("b", "a")):
        driver = split(text)
        for node in order:
            driver.fails(node, f"no {node}")
        assert driver.error == "Graph execution failed for agent 'agent': at node 'a': no a"
        driver.send(Retried())
        assert sorted(driver.on_workers()) == ["a", "b"]


def test_a_branch_whose_worker_dies_runs_again_and_its_siblings_do_not() -> None:
    driver = split(LOKI)
    driver.does("b")
    visit = driver.visit("a")
    transition = driver.send(LeaseLost(visit.seq, 1, "w"))
    assert [(again.node, again.attempt) for again in transition.dispatches] == [("a", 2)]
    late = driver.try_(bad(visit.seq, attempt=1))
    assert late is not None
    assert driver.visit("a").attempt == 2


@pytest.mark.conformance("DU-07")
def test_nothing_starts_after_a_cancel() -> None:
    driver = split(LOKI.replace("max_concurrency: 8", "max_concurrency: 1"))
    driver.send(Cancelled())
    assert (driver.run.status, driver.run.frontier) == ("cancelled", {})


@pytest.mark.conformance("RT-12", "RT-20", "RT-01", "RT-15")
def test_static_and_conditional_edges_are_both_taken() -> None:
    text = """
name: g
version: sleipnir/1
start: a
nodes:
  a: {type: script, script: s.sh, next: [x, y], branch: {by: "{{k}}", to: {deep: z}}}
  x: {type: script, script: s.sh}
  y: {type: script, script: s.sh}
  z: {type: script, script: s.sh}
"""
    assert Driver(text).start().does("a", k="deep").on_workers() == ["x", "y", "z"]
    assert Driver(text).start().does("a", k="x").on_workers() == ["x", "y"]


@pytest.mark.conformance("LM-05", "LP-01")
def test_a_loop_runs_until_its_condition_lets_it_out_or_the_steps_are_used_up() -> None:
    text = """
name: g
version: sleipnir/1
start: a
engine: bsp
limits: {max_steps: 4}
nodes:
  a: {type: script, script: s.sh, branch: [{when: "state.n < 3", to: a}, {else: e}]}
  e: {type: end, output: "{{n}}"}
"""
    driver = Driver(text).start()
    for n in (1, 2, 3):
        driver.does("a", n=n)
    assert (driver.run.status, driver.output) == ("completed", "3")
    assert driver.run.counts["a"] == 3
    endless = Driver(text).start()
    for _ in range(4):
        endless.does("a", n=0)
    assert endless.run.status == "failed"
    assert endless.error is not None
    assert "Graph 'g' is not done after 4 super-steps (limits.max_steps)" in endless.error
    stopping = Driver(text.replace("max_steps: 4", "max_steps: 4, on_max_steps: stop")).start()
    for _ in range(4):
        stopping.does("a", n=0)
    assert stopping.run.status == "completed"


def test_a_super_step_has_a_time_limit_of_its_own() -> None:
    driver = split(SLEIPNIR.replace("version: sleipnir/1", "version: sleipnir/1\nlimits: {step_timeout: 5s}"))
    step = driver.visit("a").group
    assert f"step/{step}" in (driver.last.timers if driver.last else {})
    driver.does("b", two=2)
    driver.send(TimerFired(f"step/{step}"))
    assert driver.run.status == "failed"
    assert driver.error is not None
    assert "super-step 2 timed out after 5s; not done by then: 'a'" in driver.error
    driver.send(Retried())
    assert driver.on_workers() == ["a"]


def test_questions_of_parallel_branches_are_open_together_and_keep_their_answers() -> None:
    text = """
name: g
version: sleipnir/1
start: split
engine: bsp
nodes:
  split: {type: router, next: [q1, q2, work]}
  q1: {type: input, question: "one?", state_updates: {one: "{{input}}"}, next: e}
  q2: {type: approval, question: "two?", options: [yes, no], routes: {yes: e, no: e}, on_other: e}
  work: {type: script, script: s.sh, next: e}
  e: {type: end, output: "{{one}}"}
"""
    driver = Driver(text).start()
    assert driver.live() == ["q1", "q2", "work"]
    driver.answers("q2", "yes").does("work").answers("q1", "hello")
    assert (driver.run.status, driver.output) == ("completed", "hello")


# An event may close a step, and open one that ends at once: the later write counts


def test_a_visit_that_fails_as_soon_as_its_step_opens_writes_after_the_step_before() -> None:
    driver = split(
        SLEIPNIR.replace(
            "meet: {type: script, script: s.sh, next: e}",
            'meet: {type: map, over: "{{one}}", as: x, branch: leaf, collect_into: all, next: e, on_error: continue}\n'
            '  leaf: {type: script, script: s.sh, state_updates: {output: "{{output}}"}}',
        ).replace("a: {type: script,", "a: {type: script, on_error: continue,")
    )
    driver.does("b", one="no list")
    driver.fails("a")
    assert driver.run.status == "completed"
    assert driver.state["_error"]["node"] == "meet"
    assert state_after(driver.memory.entries) == driver.state


@pytest.mark.parametrize("text", [LOKI, SLEIPNIR], ids=["loki", "sleipnir"])
@pytest.mark.parametrize("writers", ["a", "ab"])
def test_an_end_node_writes_after_the_step_before_it(text: str, writers: str) -> None:
    text = text.replace("next: meet", "next: e").replace("e: {type: end,", "e: {type: end, state_updates: {k: last},")
    text = text.replace("  meet: {type: script, script: s.sh, next: e}\n", "")
    driver = Driver(text, {"k": 0}).start().does("split")
    for node in "ab":
        driver.does(node, **({"k": 0 if node == "a" else "first"} if node in writers else {}))
    assert driver.run.status == "completed"
    assert driver.state["k"] == "last"
    assert state_after(driver.memory.entries) == driver.state


def test_a_write_after_one_that_was_superseded_in_the_same_event_counts() -> None:
    driver = Driver(
        """
name: g
version: sleipnir/1
engine: dag
start: split
nodes:
  split: {type: function, call: "f:f", next: [late, early]}
  early: {type: function, call: "f:f", next: ahead}
  ahead: {type: function, call: "f:f", next: slow}
  slow: {type: function, call: "f:f"}
  late: {type: function, call: "f:f", next: one}
  one: {type: map, over: "{{none}}", as: x, branch: leaf, collect_into: all, next: two}
  two: {type: map, over: "{{none}}", as: x, branch: leaf, collect_into: k, next: three}
  three: {type: function, call: "f:f"}
  leaf: {type: function, call: "f:f"}
""",
        {"none": []},
    ).start()
    driver.does("split").does("early").does("ahead", k="ahead", other="ahead")
    driver.does("late", k="late")
    assert driver.state["k"] == [], "`two` comes after `ahead`, which comes after `late`"
    assert state_after(driver.memory.entries) == driver.state
