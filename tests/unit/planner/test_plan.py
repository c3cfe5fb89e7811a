"""The planner with literals: events in, transitions out. No Redis, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sleipnir.graph.model import EndNode, Graph, Node, ToolNode
from sleipnir.runs.events import Answered, Cancelled, LeaseLost, Retried, Submitted, TimerFired
from sleipnir.runs.transitions import Transition
from sleipnir.runs.values import WantedValues
from sleipnir.runs.visits import Visit, Work
from sleipnir_scheduler.planner.plan import IgnoredEvent, NeedValues, plan
from tests.model_store import Driver, bad, graph_of, new_run, ok, work_of

THREE = """
name: three
start: a
settings: {max_loop_iterations: 3, timeout: 10}
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: script, script: b.sh, next: done, fallback: rescue}
  rescue: {type: script, script: r.sh, next: done}
  lonely: {type: script, script: l.sh}
  done: {type: end, output: "x={{x}}"}
"""

ASKING = """
name: asking
start: ask
nodes:
  ask: {type: input, question: "Who, {{title}}?", default: "{{title}}", validation: "len(input) >= 3", next: ok,
        state_updates: {who: "{{input}}", both: "{{who}}/{{input}}"}}
  ok: {type: approval, question: "Sure, {{who}}?", options: [yes, no], routes: {yes: good, no: bad, maybe: bad},
       on_other: other, next: bad, state_updates: {decision: "{{choice}}"}}
  good: {type: end, output: "good {{decision}}", state_updates: {status: "[{{who}}]"}}
  bad: {type: end, output: bad}
  other: {type: end, output: "{{output}}{{decision}} {{status}}", state_updates: {status: done}}
"""


def test_a_submitted_run_opens_its_start_node_on_the_queue_of_its_type() -> None:
    driver = Driver(THREE)
    transition = driver.send(Submitted())
    assert [(v.seq, v.node, v.queue, v.attempt) for v in transition.dispatches] == [(1, "a", "scripts", 1)]
    assert driver.run.status == "running"
    assert driver.run.counts == {"a": 1}


def test_a_node_may_name_its_own_queue() -> None:
    text = THREE.replace("script: a.sh,", "script: a.sh, queue: gpu,")
    assert [v.queue for v in Driver(text).send(Submitted()).dispatches] == ["gpu"]


def test_a_result_moves_to_next_and_journals_the_visit() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    transition = driver.send(ok(1, keys=("x",)))
    step = transition.writes[0].step
    assert (step.step, step.seq, step.node, step.ok, step.next) == (1, 1, "a", True, "b")
    assert transition.writes[0].delta
    assert driver.live() == ["b"]


@pytest.mark.conformance("R06", "E02", "R15")
def test_a_script_s_own_choice_wins_over_next_and_may_name_a_node_without_a_static_edge() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1, "lonely"))
    assert driver.live() == ["lonely"]


@pytest.mark.conformance("R08")
def test_a_failed_script_goes_to_its_fallback() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1))
    driver.send(bad(2))
    assert driver.live() == ["rescue"]


@pytest.mark.conformance("R09")
def test_a_failed_script_without_fallback_goes_to_next() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(bad(1))
    assert driver.live() == ["b"]


@pytest.mark.conformance("R10", "S09")
def test_a_failed_script_with_neither_fails_the_run_naming_agent_and_node() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1, "lonely"))
    transition = driver.send(bad(2, "exit 3"))
    assert transition.error == "Graph execution failed for agent 'agent': at node 'lonely': exit 3"
    assert driver.run.status == "failed"
    assert driver.live() == []


@pytest.mark.conformance("R11")
def test_success_with_nowhere_to_go_fails_the_run() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1, "lonely"))
    transition = driver.send(ok(2))
    assert transition.error is not None
    assert "script node 'lonely' did not emit `_next` and has no static `next`" in transition.error


@pytest.mark.conformance("M17")
def test_an_llm_node_without_next_fails_the_run_when_it_is_done() -> None:
    text = "name: g\nstart: a\nnodes:\n  a: {type: llm, prompt: hi}\n  e: {type: end}\n"
    driver = Driver(text)
    driver.send(Submitted())
    error = driver.send(ok(1)).error
    assert error is not None
    assert "llm node 'a' has no `next` and is not an end node" in error


@pytest.mark.conformance("M11", "O08")
def test_a_failed_llm_node_goes_to_its_fallback() -> None:
    text = """
name: g
start: a
nodes:
  a: {type: llm, prompt: hi, next: e, fallback: f}
  e: {type: end}
  f: {type: end}
"""
    driver = Driver(text)
    driver.send(Submitted())
    assert driver.send(bad(1)).writes[0].step.next == "f"


@pytest.mark.conformance("S08")
def test_a_choice_that_names_no_node_fails_the_run() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    error = driver.send(ok(1, "nowhere")).error
    assert error is not None
    assert "Node 'nowhere' not found in graph 'three'" in error


@pytest.mark.conformance("S01", "S03", "V03")
def test_the_visit_cap_counts_dynamic_loops_and_fails_the_entry_after_the_last() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    for seq in (1, 2):
        driver.send(ok(seq, "a"))
    error = driver.send(ok(3, "a")).error
    assert error is not None
    assert "Node 'a' visited 4 times (max_loop_iterations=3). Possible infinite loop." in error


@pytest.mark.conformance("S02")
def test_the_visit_cap_is_per_node() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    for seq, target in enumerate(["lonely", "a", "lonely", "a", "lonely"], start=1):
        driver.send(ok(seq, target))
    assert driver.run.counts == {"a": 3, "lonely": 3}
    assert driver.run.status == "running"


@pytest.mark.conformance("S04")
def test_the_run_s_timeout_lets_a_running_node_finish_and_starts_no_other() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    transition = driver.send(ok(1), after_ms=10_001)
    assert transition.writes[0].step.node == "a"
    assert transition.error is not None
    assert "Graph 'three' timed out after 10s at 'b'" in transition.error


def test_the_run_s_timeout_is_strict_an_elapsed_time_of_just_the_timeout_passes() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1), after_ms=10_000)
    assert driver.live() == ["b"]


@pytest.mark.conformance("S05")
def test_without_a_timeout_a_run_may_take_any_time() -> None:
    driver = Driver(THREE.replace(", timeout: 10", ""))
    transition = driver.send(Submitted())
    assert transition.timers == {}
    driver.send(ok(1), after_ms=10**12)
    assert driver.live() == ["b"]


def test_the_deadline_ends_a_run_that_waits_for_a_person_but_not_one_whose_worker_is_busy() -> None:
    waiting = Driver(ASKING.replace("start: ask", "start: ask\nsettings: {timeout: 5}"), {"title": "Dr"})
    assert waiting.send(Submitted()).timers == {"deadline": 6_002}
    assert waiting.send(TimerFired("deadline"), after_ms=5_001).status == "failed"
    busy = Driver(THREE)
    busy.send(Submitted())
    assert busy.send(TimerFired("deadline"), after_ms=20_000).unless_claimed


def test_the_deadline_interrupts_a_node_if_the_graph_sets_it() -> None:
    driver = Driver(THREE.replace("timeout: 10", "timeout: 10, interrupt_on_timeout: true"))
    driver.send(Submitted())
    transition = driver.send(TimerFired("deadline"), after_ms=10_001)
    assert (transition.status, transition.unless_claimed) == ("failed", False)
    assert "timed out after 10s at 'a'" in str(transition.error)


def test_a_lost_worker_is_not_replaced_after_the_deadline() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    transition = driver.send(LeaseLost(1, 1, "w1"), after_ms=10_001)
    assert "timed out after 10s at 'a'" in str(transition.error)


@pytest.mark.conformance("S12")
def test_a_cancel_ends_the_run_at_its_current_step() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    transition = driver.send(Cancelled())
    assert (driver.run.status, transition.error) == ("cancelled", "Graph 'three' aborted at 'a'")
    assert [visit.seq for visit in transition.close] == [1]


def test_a_failed_run_is_continued_at_the_node_that_failed_with_a_new_visit() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1, "lonely"))
    driver.send(bad(2))
    assert (driver.run.status, driver.failed()) == ("failed", ["lonely"])
    transition = driver.send(Retried())
    assert transition.revives
    assert [(visit.seq, visit.node) for visit in transition.dispatches] == [(3, "lonely")]
    assert transition.writes[0].step.kind == "retried"
    driver.send(ok(3, "done"))
    assert driver.run.status == "completed"
    assert isinstance(plan(driver.graph, driver.run, Retried(), 9_000), IgnoredEvent)


def test_a_retry_restarts_the_deadline_and_the_cap_of_the_failed_node() -> None:
    late = Driver(THREE)
    late.send(Submitted())
    late.send(ok(1), after_ms=10_001)
    assert late.failed() == ["b"]
    assert late.send(Retried()).timers == {"deadline": late.now_ms + 10_001}
    assert late.live() == ["b"]
    looping = Driver(THREE)
    looping.send(Submitted())
    for seq in (1, 2, 3):
        looping.send(ok(seq, "a"))
    assert (looping.run.status, looping.failed()) == ("failed", ["a"])
    looping.send(Retried())
    assert (looping.live(), looping.run.counts["a"]) == (["a"], 1)


def test_only_a_failed_run_is_retried() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    assert isinstance(plan(driver.graph, driver.run, Retried(), 5_000), IgnoredEvent)
    driver.send(Cancelled())
    assert isinstance(plan(driver.graph, driver.run, Retried(), 5_000), IgnoredEvent)


def test_nothing_happens_to_a_run_that_is_over() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(Cancelled())
    for event in (ok(1), Submitted(), Cancelled(), LeaseLost(1, 1, "w")):
        assert isinstance(plan(driver.graph, driver.run, event, 5_000), IgnoredEvent)


def test_the_same_result_twice_changes_nothing_the_second_time() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1))
    outcome = plan(driver.graph, driver.run, ok(1), 5_000)
    assert isinstance(outcome, IgnoredEvent)
    assert outcome.notice is not None
    assert outcome.notice.type == "late_result"


def test_a_second_submission_changes_nothing() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    assert isinstance(plan(driver.graph, driver.run, Submitted(), 5_000), IgnoredEvent)


def test_a_lost_lease_reopens_the_visit_as_its_next_attempt_and_fences_the_old_one() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    transition = driver.send(LeaseLost(1, 1, "w1"))
    assert [(v.seq, v.attempt) for v in transition.dispatches] == [(1, 2)]
    assert driver.run.counts == {"a": 1}
    assert isinstance(plan(driver.graph, driver.run, ok(1, attempt=1), 5_000), IgnoredEvent)
    driver.send(ok(1, attempt=2))
    assert driver.live() == ["b"]


def test_a_visit_whose_workers_keep_dying_fails_with_worker_lost_and_takes_the_fallback() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1))
    for attempt in (1, 2, 3):
        driver.send(LeaseLost(2, attempt, "w"))
    transition = driver.send(LeaseLost(2, 4, "w"))
    assert driver.live() == ["rescue"]
    assert transition.writes[0].values["_error"]["node"] == "b"
    assert "WorkerLost" in str(transition.writes[0].step.error)


def test_a_visit_that_a_machine_could_not_begin_goes_to_another_worker_and_is_never_counted() -> None:
    """Finding C18."""
    driver = Driver(THREE)
    driver.send(Submitted())
    for attempt in range(1, 10):
        transition = driver.send(LeaseLost(1, attempt, "w", handed_back=True, begun=False))
        assert [(v.seq, v.attempt) for v in transition.dispatches] == [(1, attempt + 1)]
    assert work_of(driver.run.frontier[1]).losses == 0


def test_a_definition_that_a_worker_cannot_read_fails_the_run_and_takes_no_fallback() -> None:
    """Finding C18."""
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1))
    transition = driver.send(bad(2, "bundle 1234 is damaged", error_kind="bundle"))
    assert driver.run.status == "failed"
    assert "bundle 1234 is damaged" in str(transition.error)


@pytest.mark.conformance("E01", "P09")
def test_an_end_node_renders_its_output_leniently() -> None:
    driver = Driver(THREE)
    driver.send(Submitted())
    driver.send(ok(1, "done"))
    assert driver.run.status == "completed"
    other = Driver(THREE, {"x": [1, "a"]})
    other.send(Submitted())
    assert other.send(ok(1, "done")).output == 'x=[1,"a"]'


@pytest.mark.conformance("A01")
def test_an_approval_asks_its_rendered_question_with_its_options_and_holds_no_worker() -> None:
    driver = Driver(ASKING, {"title": "Dr"})
    driver.send(Submitted())
    transition = driver.send(Answered(1, "Ada"))
    gate = transition.gates[0]
    assert (gate.seq, gate.question, gate.options) == (2, "Sure, Ada?", ("yes", "no"))
    assert transition.dispatches == ()
    assert driver.run.status == "waiting"


@pytest.mark.conformance("A01", "P07")
def test_an_approval_whose_question_names_missing_state_fails_the_run() -> None:
    text = """
name: g
start: a
nodes:
  a: {type: approval, question: "{{x}} {{y}}", options: [], routes: {}, on_other: e}
  e: {type: end}
"""
    transition = Driver(text).send(Submitted())
    assert transition.error is not None
    assert (
        "at node 'a': Failed to interpolate approval question: Template interpolation failed: 'x', 'y' not found"
        in transition.error
    )


@pytest.mark.conformance("A02", "A05")
def test_an_answer_routes_by_exact_match_and_next_is_ignored() -> None:
    for answer, node in [("yes", "good"), ("no", "bad"), ("maybe", "bad"), ("Yes", "other"), ("yes ", "other")]:
        driver = Driver(ASKING, {"title": "Dr"})
        driver.send(Submitted())
        driver.send(Answered(1, "Ada"))
        assert driver.send(Answered(2, answer)).writes[0].step.next == node, answer


@pytest.mark.conformance("A04", "U02", "U08", "U09")
def test_free_text_goes_to_on_other_and_the_choice_is_stored_but_not_leaked() -> None:
    driver = Driver(ASKING, {"title": "Dr"})
    driver.send(Submitted())
    driver.send(Answered(1, "Ada"))
    transition = driver.send(Answered(2, "make it shorter"))
    assert transition.output == "make it shorter done"
    assert "choice" not in driver.state
    assert driver.state["decision"] == "make it shorter"


@pytest.mark.conformance("U09")
def test_output_in_an_end_node_is_just_a_state_key() -> None:
    driver = Driver(ASKING, {"title": "Dr", "output": "kept "})
    driver.send(Submitted())
    driver.send(Answered(1, "Ada"))
    assert driver.send(Answered(2, "x")).output == "kept x done"


@pytest.mark.conformance("I01", "U02", "U03")
def test_an_input_stores_the_text_entries_see_those_above_and_input_does_not_leak() -> None:
    driver = Driver(ASKING, {"title": "Dr"})
    transition = driver.send(Submitted())
    assert transition.gates[0].question == "Who, Dr? [default: Dr]"
    driver.send(Answered(1, "Ada"))
    assert driver.state == {"title": "Dr", "who": "Ada", "both": "Ada/Ada"}


@pytest.mark.conformance("I02", "I03")
def test_an_empty_answer_takes_the_rendered_default_without_validating_it() -> None:
    driver = Driver(ASKING, {"title": "Dr"})
    driver.send(Submitted())
    driver.send(Answered(1, ""))
    assert driver.state["who"] == "Dr"


@pytest.mark.conformance("I05")
def test_an_answer_that_fails_its_validation_fails_the_run() -> None:
    driver = Driver(ASKING, {"title": "Dr"})
    driver.send(Submitted())
    transition = driver.send(Answered(1, "ab"))
    assert transition.error is not None
    assert "at node 'ask': Input failed validation 'len(input) >= 3' (got 2 chars)" in transition.error


@pytest.mark.conformance("I06")
def test_a_rule_outside_the_grammar_fails_the_run_when_it_is_used() -> None:
    driver = Driver(ASKING.replace("len(input) >= 3", "input > 3"), {"title": "Dr"})
    driver.send(Submitted())
    error = driver.send(Answered(1, "Ada")).error
    assert error is not None
    assert "Unsupported validation expression 'input > 3'; only `len(input) OP N` is supported" in error


def test_an_input_without_next_fails_the_run_after_its_answer() -> None:
    text = "name: g\nstart: a\nnodes:\n  a: {type: input, question: q}\n  e: {type: end}\n"
    driver = Driver(text)
    driver.send(Submitted())
    error = driver.send(Answered(1, "x")).error
    assert error is not None
    assert "Input node has no `next` set" in error


def test_an_answer_to_a_question_that_is_closed_changes_nothing() -> None:
    driver = Driver(ASKING, {"title": "Dr"})
    driver.send(Submitted())
    driver.send(Answered(1, "Ada"))
    assert isinstance(plan(driver.graph, driver.run, Answered(1, "Bob"), 5_000), IgnoredEvent)


@pytest.mark.conformance("O09")
def test_a_failed_agent_visit_fails_the_run_despite_next() -> None:
    graph = graph_of("name: g\nstart: a\nnodes:\n  a: {type: agent, agent: x, prompt: p, next: e}\n  e: {type: end}\n")
    visit = Visit(1, "a", "agent", 1, 5, body=Work("llm"))
    run = replace(new_run(), status="running", seq=1, started_ms=5, frontier={1: visit})
    outcome = plan(graph, run, bad(1, "Agent 'x' output failed structured-output extraction"), 9)
    assert isinstance(outcome, Transition)
    assert outcome.status == "failed"
    assert outcome.error == (
        "Graph execution failed for agent 'agent': at node 'a': Agent 'x' output failed structured-output extraction"
    )


def test_the_planner_asks_only_for_the_state_that_a_control_node_reads() -> None:
    graph = graph_of(THREE)
    run = replace(new_run(), status="running")
    started = plan(graph, new_run(), Submitted(), 1)
    assert isinstance(started, Transition)
    run = started.apply(new_run())
    assert plan(graph, run, ok(1, "done"), 2) == NeedValues(WantedValues(state=frozenset({"x"})))
    assert isinstance(plan(graph, run, ok(1), 2), Transition)


@pytest.mark.parametrize("kind", ["router", "join"])
def test_a_node_that_only_continues_writes_its_state_updates(kind: str) -> None:
    nodes = (
        f"a: {{type: {kind}, state_updates: {{x: 'y is {{{{y}}}}'}}, next: e}}\n  e: {{type: end, output: '{{{{x}}}}'}}"
    )
    assert Driver(f"name: g\nstart: a\nnodes:\n  {nodes}\n", {"y": "1"}).send(Submitted()).output == "y is 1"


def test_a_cap_of_zero_fails_the_very_first_entry() -> None:
    transition = Driver(THREE.replace("max_loop_iterations: 3", "max_loop_iterations: 0")).send(Submitted())
    assert transition.error is not None
    assert "Node 'a' visited 1 times (max_loop_iterations=0)" in transition.error


@pytest.mark.conformance("C07")
def test_a_tool_node_goes_to_the_workers_of_tools_and_its_failure_is_the_runs() -> None:
    nodes: dict[str, Node] = {
        "instructions": ToolNode(id="instructions", tool="_instructions", output_key="_instructions", next="done"),
        "done": EndNode(id="done", output="{{_instructions}}"),
    }
    graph = Graph(name="dynamic", start="instructions", nodes=nodes)
    [dispatch] = Driver(graph).send(Submitted()).dispatches
    assert dispatch.queue == "scripts"
    assert Driver(graph).start().does("instructions", _instructions="be brief").run.status == "completed"
    failed = Driver(graph).start()
    over = failed.send(bad(1, "No return value from '_instructions' function"))
    assert over.status == "failed"
    assert str(over.error).endswith("at node 'instructions': No return value from '_instructions' function")


def test_a_visit_without_a_worker_for_its_directory_is_tried_on_others_and_then_fails_with_that_error() -> None:
    """Finding U6 of the second review."""
    driver = Driver(THREE)
    driver.run = replace(driver.run, spec=replace(driver.run.spec, cwd="/srv/shop"))
    driver.send(Submitted())
    driver.send(ok(1))
    for attempt in (1, 2, 3):
        lost = LeaseLost(2, attempt, f"w{attempt}", handed_back=True, begun=False, lacks_directory=True)
        assert [visit.attempt for visit in driver.send(lost).dispatches] == [attempt + 1]
    transition = driver.send(LeaseLost(2, 4, "w4", handed_back=True, begun=False, lacks_directory=True))
    assert driver.live() == ["rescue"]
    error = str(transition.writes[0].step.error)
    assert "'/srv/shop' was missing on the worker each time that one took this visit, 4 times, last on w4" in error
