"""Failures: who takes them over, what the run does otherwise, and what it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sleipnir.messages import RESULT, ResultHeader
from sleipnir.runs.events import Cancelled, ChildEnded, Resulted, Retried
from sleipnir.runs.run import FailedVisit, FailedVisits, RunSpec, changed, child_id
from sleipnir.runs.visits import Child, Failure
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, bad

CHAIN = """
name: g
{top}
start: a
nodes:
  a: {{{a}, next: b{more}}}
  b: {{type: script, script: s.sh, next: e}}
  help: {{type: script, script: s.sh, next: e}}
  e: {{type: end, output: "{{{{last_error}}}}"}}
"""

SCRIPT = "type: script, script: s.sh"
AGENT = 'type: agent, agent: x, prompt: "p"'


def driver_of(a: str = SCRIPT, more: str = "", top: str = "", strict: bool = False) -> Driver:
    driver = Driver(CHAIN.format(a=a, more=more and f", {more}", top=top))
    driver.run = changed(driver.run, spec=replace(driver.run.spec, strict=strict))
    return driver.start()


def failed(*visits: tuple[str, str, bool]) -> FailedVisits:
    first = tuple(FailedVisit(*each) for each in visits)
    return FailedVisits(len(visits), sum(each.ends_run for each in first), first)


def test_a_failure_that_a_run_passes_over_is_a_failed_visit_that_is_counted() -> None:
    """Finding U1 of the second review."""
    driver = driver_of().fails("a", "TypeError: x")
    assert driver.last is not None
    [closed] = [notice.data for notice in driver.last.notices if notice.type == "visit_closed"]
    assert closed["failed_visit"] is True
    assert [write.step.failed_visit for write in driver.last.writes] == [True]
    driver.does("b")
    assert (driver.run.status, driver.run.failed_visits) == ("completed", failed(("a", "TypeError: x", False)))
    [ended] = [notice.data for notice in driver.last.notices if notice.type == "run_ended"]
    assert ended["failed_visits"] == 1


@pytest.mark.parametrize("more", ["fallback: help", "on_error: help"])
@pytest.mark.parametrize("strict", [False, True])
def test_a_failure_that_another_node_takes_over_is_no_failed_visit(more: str, strict: bool) -> None:
    driver = driver_of(more=more, strict=strict).fails("a")
    assert driver.on_workers() == ["help"]
    driver.does("help")
    assert (driver.run.status, driver.run.failed_visits) == ("completed", FailedVisits())


def test_a_failure_before_a_successful_retry_is_no_failed_visit() -> None:
    driver = driver_of(more="retry: {max_attempts: 2, initial_interval: 0}").fails("a")
    assert driver.run.failed_visits == FailedVisits()


def test_on_error_fail_fails_the_run_where_loki_would_continue() -> None:
    """Finding U1 of the second review."""
    driver = driver_of(more="on_error: fail").fails("a")
    assert (driver.run.status, driver.run.failed_visits) == ("failed", failed(("a", "boom", True)))


def test_keys_of_a_node_take_precedence_over_those_of_the_graph() -> None:
    assert driver_of(top="on_error: fail").fails("a").run.status == "failed"
    assert driver_of(top="on_error: fail", more="on_error: continue").fails("a").on_workers() == ["b"]
    assert driver_of(top="on_error: help").fails("a").on_workers() == ["help"]
    assert driver_of(top="on_error: help", more="on_error: continue").fails("a").on_workers() == ["b"]
    assert driver_of(top="on_error: help", more="fallback: b").fails("a").on_workers() == ["b"]


def test_a_graphs_on_error_node_does_not_take_over_its_own_failure() -> None:
    driver = driver_of(top="on_error: help").fails("a").fails("help")
    assert driver.run.failed_visits.count == 1


@pytest.mark.parametrize(
    ("more", "node"), [("on_error: continue", "b"), ("on_error: help", "help"), ("", None), ("on_error: fail", None)]
)
def test_any_node_may_have_on_error(more: str, node: str | None) -> None:
    driver = driver_of("type: map, over: '{{l}}', as: i, branch: help, collect_into: k", more)
    if node is None:
        assert driver.run.status == "failed"
    else:
        assert driver.on_workers() == [node]
        assert driver.state["_error"] == {"node": "a", "message": driver.state["last_error"]}


@pytest.mark.parametrize("more", ["", "on_error: continue"])
def test_a_strict_run_fails_for_a_failed_visit(more: str) -> None:
    """Finding U1 of the second review."""
    driver = driver_of(more=more, strict=True).fails("a")
    assert (driver.run.status, driver.run.failed_visits.ending) == ("failed", 1)


def test_a_retried_run_drops_the_failures_that_it_runs_again() -> None:
    driver = driver_of(more="on_error: continue").fails("a").fails("b", "no")
    assert driver.run.failed_visits == failed(("a", "boom", False), ("b", "no", False))
    driver = driver_of(more="on_error: fail").fails("a")
    driver.send(Retried())
    assert driver.run.failed_visits == FailedVisits()
    driver.does("a").does("b")
    assert driver.run.status == "completed"


WIDE = """
name: g
start: a
{top}
nodes:
  a: {{type: script, script: s.sh, next: [b, c]}}
  b: {{type: script, script: s.sh, next: d, state_updates: {{x: "1"}}}}
  c: {{type: script, script: s.sh, next: d, state_updates: {{y: "1"}}}}
  d: {{type: script, script: s.sh, next: e}}
  e: {{type: end}}
"""


def test_branches_that_fail_together_continue_and_are_all_counted() -> None:
    """Finding U1 of the second review."""
    driver = Driver(WIDE.format(top="")).start().does("a")
    for node in ("b", "c"):
        visit = driver.visit(node)
        error = {"node": node, "message": "boom"}
        header = ResultHeader(ok=False, error="boom", keys=("_error", "last_error"))
        driver.try_(Resulted(visit.seq, visit.attempt, header), {"_error": error, "last_error": "boom"})
    assert driver.on_workers() == ["d"]
    assert driver.state["_error"] == {"node": "c", "message": "boom"}
    assert driver.run.failed_visits == failed(("b", "boom", False), ("c", "boom", False))


def test_the_record_keeps_the_first_errors_and_the_total_number() -> None:
    visits = FailedVisits()
    for number in range(50):
        visits = visits.plus(f"n{number}", "x" * 1_000, ends_run=False)
    assert (visits.count, len(visits.first), len(visits.first[0].error)) == (50, 5, 300)


def test_runs_of_an_earlier_release_are_not_strict() -> None:
    assert RunSpec("a", "d").strict is False


@pytest.mark.parametrize("a", [SCRIPT, "type: llm, prompt: p", "type: function, call: 'f.py:f'"])
def test_in_sleipnir_1_a_failed_visit_fails_the_run_unless_it_is_handled(a: str) -> None:
    """Finding U1 of the second review."""
    failing = driver_of(a, top="version: sleipnir/1").fails("a")
    assert (failing.run.status, failing.run.failed_visits.ending) == ("failed", 1)
    assert driver_of(a, top="version: sleipnir/1", more="on_error: continue").fails("a").on_workers() == ["b"]
    assert driver_of(a, top="version: sleipnir/1\non_error: help").fails("a").on_workers() == ["help"]


def test_in_sleipnir_1_a_branch_that_continues_without_a_next_ends() -> None:
    text = "name: g\nversion: sleipnir/1\nstart: a\nnodes:\n  a: {type: script, script: s.sh, on_error: continue}\n"
    driver = Driver(text).start().fails("a")
    assert (driver.run.status, driver.run.failed_visits.count) == ("completed", 1)


def test_on_error_may_end_the_branch_in_sleipnir_1() -> None:
    text = "name: g\nversion: sleipnir/1\nstart: a\nnodes:\n  a: {type: script, script: s.sh, on_error: end, next: a}\n"
    driver = Driver(text).start().fails("a")
    assert (driver.run.status, driver.run.failed_visits) == ("completed", FailedVisits())


def test_a_stored_graph_of_an_earlier_release_plans_as_before() -> None:
    """Issue 15: runs that are under way keep the rules that they began with."""
    text = "name: g\nstart: a\nlimits: {max_steps: 9}\nnodes:\n  a: {type: script, script: s.sh, next: b}\n"
    text += "  b: {type: script, script: s.sh}\n"
    now = Driver(text).start().fails("a").does("b")
    assert now.run.status == "failed", "by Loki's rules it leads nowhere"
    before = Driver(Driver(text).graph.of_earlier_release).start().fails("a").does("b")
    assert (before.run.status, before.run.failed_visits.count) == ("completed", 1)


@pytest.mark.parametrize("version", ["'1.0'", "sleipnir/1"])
def test_a_run_that_a_limit_has_stopped_is_completed_in_both_versions(version: str) -> None:
    text = f"name: g\nversion: {version}\nstart: a\nlimits: {{max_steps: 1, on_max_steps: stop}}\nnodes:\n"
    text += "  a: {type: script, script: s.sh, next: b}\n  b: {type: end}\n"
    assert Driver(text).start().does("a").run.status == "completed"


def test_in_version_1_0_the_first_end_of_a_dag_ends_the_run() -> None:
    text = "name: g\nversion: '1.0'\nengine: dag\nstart: a\nnodes:\n  a: {type: script, script: s.sh, next: [b, c]}\n"
    text += "  b: {type: script, script: s.sh, next: e}\n  c: {type: script, script: s.sh, next: e}\n"
    driver = Driver(text + "  e: {type: end, output: '{{k}}'}\n").start().does("a").does("c", k=1)
    assert (driver.run.status, driver.output, dict(driver.run.frontier)) == ("completed", "1", {})


# --- of child runs

PARENT = """
name: g
start: a
{top}
nodes:
  a: {{type: agent, agent: x, prompt: p, {more}next: b}}
  b: {{type: script, script: s.sh, next: e}}
  e: {{type: end}}
"""
CHILD = child_id("run1", 1)
TWO = failed(("search", "TypeError: x", False), ("rank", "no", False))


def parent(top: str = "", more: str = "") -> Driver:
    return Driver(PARENT.format(top=top, more=more)).start()


def over(status: str = "completed", visits: FailedVisits = TWO, *, seq: int = 1, attempt: int = 1) -> ChildEnded:
    return ChildEnded(seq, attempt, CHILD, status, failed_visits=visits)  # type: ignore[arg-type]


def test_the_failed_visits_of_a_child_run_count_in_its_parent_once() -> None:
    """Finding U1 of the second review: a run whose child has passed over failures does not look clean."""
    driver = parent()
    driver.try_(over(), {RESULT: "hello"})
    [told] = [notice.data for notice in driver.last.notices if notice.type == "child_ended"]  # type: ignore[union-attr]
    assert told["failed_visits"] == 2
    again = driver.try_(over(), {RESULT: "hello"})
    assert isinstance(again, IgnoredEvent)
    driver.does("b")
    assert driver.run.status == "completed"
    assert driver.run.failed_visits == FailedVisits(
        count=2,
        of_children=2,
        first=(
            FailedVisit("a/search", "TypeError: x", run=CHILD),
            FailedVisit("a/rank", "no", run=CHILD),
        ),
    )
    assert driver.run.failed_visits.own == 0


def test_those_of_a_childs_child_are_named_with_the_complete_path() -> None:
    below = FailedVisits().plus_child("look", Child("grandchild", "y"), TWO).plus("sum", "late", ends_run=False)
    above = FailedVisits().plus("z", "before", ends_run=False).plus_child("a", Child(CHILD, "x"), below)
    assert [(each.node, each.run) for each in above.first] == [
        ("z", None), ("a/look/search", "grandchild"), ("a/look/rank", "grandchild"), ("a/sum", CHILD)
    ]  # fmt: skip
    assert (above.count, above.own) == (4, 1)


def test_the_visit_for_which_a_child_failed_is_not_counted_twice() -> None:
    """What is told of a failed child are the visits after which it went on; its failure is one of its parent."""
    driver = parent(more="on_error: continue, ")
    driver.send(over("failed", TWO))
    assert (driver.run.failed_visits.count, driver.run.failed_visits.own) == (3, 1)
    handled = parent(more="on_error: b, ")
    handled.send(over("failed", FailedVisits()))
    assert handled.run.failed_visits == FailedVisits()


def test_a_child_that_continues_with_its_parent_is_counted_from_where_it_was() -> None:
    driver = parent(top="on_error: fail")
    driver.send(over("failed", TWO))
    assert (driver.run.status, driver.run.failed_visits.count) == ("failed", 3)
    driver.send(Retried())
    assert driver.run.failed_visits.count == 2
    [visit] = driver.run.frontier.values()
    three = TWO.plus("mail", "refused", ends_run=False)
    driver.try_(over("completed", three, seq=visit.seq, attempt=visit.attempt), {RESULT: "hello"})
    assert [(each.node, each.error) for each in driver.run.failed_visits.first] == [
        ("a/search", "TypeError: x"), ("a/rank", "no"), ("a/mail", "refused")
    ]  # fmt: skip
    assert (driver.run.failed_visits.count, driver.run.failed_visits.own) == (3, 0)


def test_the_record_keeps_few_of_the_errors_of_many_children() -> None:
    visits = FailedVisits()
    for number in range(50):
        visits = visits.plus_child("a", Child(f"c{number}", "x"), TWO)
    assert (visits.count, len(visits.first)) == (100, 5)


def test_nothing_ends_a_dag_of_version_1_0_in_which_a_visit_could_not_be_made() -> None:
    """While what is ready is started, a map without items leads on at once, here to a node that has been entered too
    often; an end that is ready too must not make a success of that."""
    text = """
name: g
engine: dag
on_error: continue
start: a
settings: {max_loop_iterations: 4}
nodes:
  a: {type: map, over: "{{nothing}}", as: it, branch: body, collect_into: found, next: c}
  body: {type: script, script: s.sh}
  c: {type: script, script: s.sh, next: end}
  end: {type: end}
"""
    driver = Driver(text).start().does("c", sends=[("a", {})] * 3)
    driver.does("c", sends=[("a", {}), ("end", {})])
    assert (driver.run.status, driver.run.counts["c"]) == ("running", 5)
    driver.does("c", sends=[])
    assert driver.run.status == "failed"
    assert "Node 'c' visited 5 times (max_loop_iterations=4)" in str(driver.error)


LOOPING = """
version: sleipnir/1
name: g
start: a
engine: {engine}
limits: {{max_steps: 2}}
nodes:
  a: {{type: script, script: s.sh, next: a}}
"""

COLLIDING = """
version: sleipnir/1
name: g
start: a
state: {x: {type: number, reducer: sum}}
nodes:
  a: {type: script, script: s.sh, next: [b, c]}
  b: {type: script, script: s.sh}
  c: {type: script, script: s.sh}
"""


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_run_that_has_used_up_its_steps_says_so_to_programs(engine: str) -> None:
    driver = Driver(LOOPING.format(engine=engine)).start().does("a").does("a")
    assert driver.last is not None
    assert (driver.run.status, driver.last.failure) == ("failed", Failure("steps"))


def test_a_reducer_that_refuses_a_write_fails_the_run_for_its_writes() -> None:
    driver = Driver(COLLIDING).start().does("a").does("b", x=1).does("c", x="one")
    assert driver.last is not None
    assert (driver.run.status, driver.last.failure) == ("failed", Failure("writes"))


def test_a_run_fails_for_its_first_failed_visit_in_the_visit_order() -> None:
    driver = Driver(COLLIDING).start().does("a")
    for node, type_ in (("c", "builtins:KeyError"), ("b", "pkg.x:MyError")):
        driver.send(bad(driver.visit(node).seq, error_type=type_))
    assert driver.last is not None
    assert (driver.run.status, driver.last.failure) == ("failed", Failure("visit", 2, "pkg.x:MyError"))


def test_a_run_that_is_cancelled_or_completes_has_no_failure() -> None:
    assert driver_of().fails("a").does("b").last.failure is None  # type: ignore[union-attr]
    assert driver_of().send(Cancelled()).failure is None
