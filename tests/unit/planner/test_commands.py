"""Where nodes send the run themselves: `_next`, named ends, lists of commands; and conditional edges."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.messages import ResultHeader
from sleipnir.runs.events import LeaseLost, Resulted
from tests.model_store import Driver

both = pytest.mark.parametrize("engine", ["bsp", "dag"])

FAN = """
name: g
version: sleipnir/1
start: plan
engine: {engine}
state: {{results: {{type: list, reducer: append}}}}
nodes:
  plan: {{type: function, call: "f.py:plan", next: aggregate, ends: {{work: worker, done: end}}}}
  worker: {{type: function, call: "f.py:work", wait_for: [never], next: {after}}}
  never: {{type: router}}
  aggregate: {{type: function, call: "f.py:sum"}}
"""


def fan(engine: str, sends: list[tuple[str, dict[str, object]]], after: str = "aggregate") -> Driver:
    text = FAN.format(engine=engine, after=after).replace("wait_for: [never], ", "")
    return Driver(text, {"results": [], "shared": "global"}).start().does("plan", sends=sends)


@both
@pytest.mark.conformance("FO-01", "FO-02", "FO-05")
def test_each_command_is_a_visit_with_values_of_its_own(engine: str) -> None:
    driver = fan(engine, [("worker", {"param": "A"}), ("worker", {"param": "B"})])
    visits = sorted((v for v in driver.run.frontier.values() if v.node == "worker"), key=lambda visit: visit.index)
    assert "aggregate" not in driver.on_workers(), "a list of commands takes no other edge"
    assert [driver.sees(visit)["param"] for visit in visits] == ["A", "B"]
    assert [driver.sees(visit)["shared"] for visit in visits] == ["global", "global"]
    for visit in reversed(visits):
        driver.ends(visit, results=driver.sees(visit)["param"])
    assert driver.state["results"] == ["A", "B"], "in the order of the commands"
    assert "param" not in driver.state
    assert driver.memory.items == {}


@both
@pytest.mark.conformance("FO-03")
def test_an_empty_list_of_commands_leads_nowhere(engine: str) -> None:
    driver = fan(engine, [])
    assert (driver.run.status, driver.run.counts) == ("completed", {"plan": 1})


@both
@pytest.mark.conformance("FO-04")
def test_a_command_without_an_update_reads_the_state_alone(engine: str) -> None:
    driver = fan(engine, [("worker", {})])
    assert driver.sees(driver.visit("worker")) == driver.state


@both
def test_a_command_without_a_target_runs_the_same_node_again(engine: str) -> None:
    assert fan(engine, [("", {"param": 1})]).on_workers() == ["plan"]


@both
@pytest.mark.conformance("FO-06")
def test_visits_of_one_node_have_numbers_of_their_own(engine: str) -> None:
    driver = fan(engine, [("worker", {}), ("worker", {})])
    ranks = [visit.rank for visit in driver.run.frontier.values()]
    assert len(set(ranks)) == len(set(driver.run.frontier)) == 2


@pytest.mark.conformance("FO-07")
def test_what_follows_the_workers_of_a_super_step_runs_once_with_all_results() -> None:
    driver = fan("bsp", [("worker", {"param": n}) for n in range(3)])
    for n in range(3):
        driver.does("worker", results=n)
    assert driver.on_workers() == ["aggregate"]
    assert driver.state["results"] == [0, 1, 2]


def test_in_a_dag_a_join_after_the_workers_counts_all_of_them() -> None:
    text = FAN.format(engine="dag", after="end").replace("wait_for: [never], next: end", "")
    text = text.replace('call: "f.py:sum"', 'call: "f.py:sum", wait_for: [worker]').replace("next: aggregate, ", "")
    driver = Driver(text, {"results": []}).start().does("plan", sends=[("worker", {"n": n}) for n in range(3)])
    driver.does("worker").does("worker")
    assert driver.on_workers() == ["worker"]
    driver.does("worker")
    assert (driver.on_workers(), driver.run.counts["aggregate"]) == (["aggregate"], 1)


@both
@pytest.mark.conformance("FO-11")
def test_a_command_to_the_end_ends_only_its_own_branch(engine: str) -> None:
    driver = fan(engine, [("end", {}), ("worker", {"n": 1}), ("done", {})])
    assert driver.on_workers() == ["worker"]


@both
@pytest.mark.conformance("FO-12", "RT-18")
def test_a_target_that_does_not_exist_fails_the_run_by_name(engine: str) -> None:
    driver = fan(engine, [("worker", {}), ("ghost", {})])
    if driver.run.status != "failed":
        driver.does("worker")
    assert driver.error is not None
    assert "Node 'ghost' not found in graph 'g'" in driver.error


@both
def test_a_worker_of_a_command_that_dies_runs_again_with_the_same_values(engine: str) -> None:
    driver = fan(engine, [("worker", {"param": "A"}), ("worker", {"param": "B"})])
    visit = driver.visit("worker")
    [again] = driver.send(LeaseLost(visit.seq, 1, "w")).dispatches
    assert driver.sees(again)["param"] == "A"


@both
@pytest.mark.conformance("RT-13", "RT-14", "RT-16")
def test_a_node_may_go_where_it_wants_by_name_or_named_end(engine: str) -> None:
    text = FAN.format(engine=engine, after="end")
    text = text.replace("wait_for: [never], ", "")
    assert Driver(text).start().does("plan", "worker", results="x").on_workers() == ["worker"]
    assert Driver(text).start().does("plan", "work").on_workers() == ["worker"]
    assert Driver(text).start().does("plan", ("work", "aggregate", "worker")).on_workers() in (
        ["aggregate", "worker"],
        ["worker", "aggregate"],
    )
    assert Driver(text).start().does("plan", "done").run.status == "completed"


ROUTES = """
name: g
version: sleipnir/1
start: a
engine: {engine}
nodes:
  a: {{type: script, script: s.sh, ends: {{fin: end, bee: b, twice: c}}, branch: {{BRANCH}}}}
  b: {{type: script, script: s.sh}}
  c: {{type: script, script: s.sh}}
"""


def routed(engine: str, branch: str, **state: object) -> Driver:
    return Driver(ROUTES.format(engine=engine).replace("{BRANCH}", branch)).start().does("a", **state)


@both
@pytest.mark.conformance("RT-02", "RT-03", "RT-04")
def test_a_label_is_looked_up_in_the_branch_then_in_the_ends_then_among_the_nodes(engine: str) -> None:
    by = '{by: "{{k}}", to: {twice: b}}'
    assert routed(engine, by, k="c").on_workers() == ["c"]
    assert routed(engine, by, k="bee").on_workers() == ["b"]
    assert routed(engine, by, k="twice").on_workers() == ["b"]
    assert routed(engine, by, k="fin").run.status == "completed"


@both
@pytest.mark.conformance("RT-05", "RT-06")
def test_a_conditional_edge_that_cannot_choose_fails_the_run_and_names_its_node(engine: str) -> None:
    unknown = routed(engine, '{by: "{{k}}", to: {x: b}}', k="nowhere")
    assert unknown.error is not None
    assert "at node 'a': conditional edge chose 'nowhere', which is no label, no named end and no node" in unknown.error
    missing = routed(engine, '{by: "{{gone}}", to: {x: b}}')
    assert missing.error is not None
    assert "at node 'a': conditional edge evaluation failed" in missing.error
    wrong = routed(engine, '[{when: "state.k > 1", to: b}]', k="text")
    assert wrong.error is not None
    assert "conditional edge evaluation failed" in wrong.error


@both
def test_a_label_found_nowhere_takes_the_default_and_the_empty_one_no_way(engine: str) -> None:
    assert routed(engine, '{by: "{{k}}", default: c}', k="nowhere").on_workers() == ["c"]
    assert routed(engine, '{by: "{{k}}", default: c}', k="").run.status == "completed"


@both
@pytest.mark.conformance("RT-07", "RT-08", "RT-09")
def test_a_conditional_edge_may_choose_several_each_once(engine: str) -> None:
    many = '{by: "{{k}}", many: true}'
    assert sorted(routed(engine, many, k=["b", "", "b", "bee", "c"]).on_workers()) == ["b", "c"]
    assert sorted(routed(engine, many, k='["b", "c"]').on_workers()) == ["b", "c"]
    assert routed(engine, many, k=[]).run.status == "completed"


@both
@pytest.mark.conformance("RT-10")
def test_one_wrong_label_of_many_fails_the_run(engine: str) -> None:
    assert routed(engine, '{by: "{{k}}", many: true}', k=["b", "nowhere"]).run.status == "failed"


@both
def test_the_first_case_that_holds_decides(engine: str) -> None:
    cases = '[{when: "state.n > 10", to: b}, {when: "state.n > 5", to: c}, {else: end}]'
    assert routed(engine, cases, n=11).on_workers() == ["b"]
    assert routed(engine, cases, n=6).on_workers() == ["c"]
    assert routed(engine, cases, n=1).run.status == "completed"


@both
def test_a_function_of_the_agents_own_chooses_on_a_worker_after_the_writes_count(engine: str) -> None:
    driver = routed(engine, '{call: "f.py:choose", to: {x: b}}', k=1)
    [visit] = driver.run.frontier.values() if len(driver.run.frontier) == 1 else [driver.visit("a")]
    assert (visit.role, visit.queue, driver.state["k"]) == ("branch", "functions", 1)
    driver.send(LeaseLost(visit.seq, 1, "w"))
    visit = driver.visit("a")
    driver.send(Resulted(visit.seq, 2, ResultHeader(ok=True, next=("x", "c"))))
    assert sorted(driver.on_workers()) == ["b", "c"]


LARGE = list(range(20_001))


@both
@pytest.mark.parametrize(
    ("condition", "state"),
    [
        ("state.k.exists(x, x == 5)", {"k": [5]}),
        ("state.k.all(x, state.k.all(y, state.k.exists(z, z == x + y)))", {"k": [5]}),
        ("state.k.filter(x, x > 1).size() > 0", {"k": [5]}),
        ("state.k.map(x, x)[0] == 5", {"k": [5]}),
        ("state.k.exists_one(x, x == 5)", {"k": [5]}),
        ("state.k.matches(state.pattern)", {"k": "a", "pattern": "a"}),
        ("state.k.matches('(?i)a')", {"k": "a"}),
        ("size(state.k) > 5", {"k": LARGE}),
        ("state.k.contains('a')", {"k": "a" * 2_100_000}),
        (f"({' + '.join(['state.k'] * 200)}).size() > 5", {"k": "a" * 20_000}),
    ],
)
def test_a_condition_that_may_be_costly_is_evaluated_on_a_worker(
    engine: str, condition: str, state: dict[str, Any]
) -> None:
    """Finding S2: in the scheduler, loops over 5,000 items held all runs up for seconds."""
    driver = routed(engine, f"[{{when: {json.dumps(condition)}, to: b}}, {{else: c}}]", **state)
    [visit] = driver.run.frontier.values() if len(driver.run.frontier) == 1 else [driver.visit("a")]
    assert (visit.role, visit.queue) == ("branch", "functions")
    driver.send(Resulted(visit.seq, 1, ResultHeader(ok=True, next="b")))
    assert driver.on_workers() == ["b"]


@both
@pytest.mark.parametrize(
    ("condition", "state"),
    [
        ("size(state.k) > 5", {"k": LARGE[:19_000]}),
        ("state.k.matches('^[a-z]+$') && has(state.k)", {"k": "abc"}),
        ("state.all == 1 && 'x.exists(y, z)' != ''", {"all": 1, "k": 0}),
    ],
)
def test_a_plain_condition_is_evaluated_at_once(engine: str, condition: str, state: dict[str, Any]) -> None:
    driver = routed(engine, f"[{{when: {json.dumps(condition)}, to: b}}, {{else: c}}]", **state)
    assert driver.on_workers() == ["b"]


@both
@pytest.mark.conformance("RT-06")
def test_a_function_that_cannot_choose_fails_the_run(engine: str) -> None:
    driver = routed(engine, '{call: "f.py:choose", to: {x: b}}').fails("a", "conditional edge evaluation failed: ouch")
    assert driver.error is not None
    assert "at node 'a': conditional edge evaluation failed: ouch" in driver.error


CUSTOM = """
name: g
version: sleipnir/1
start: split
engine: {engine}
state: {{best: {{type: any, reducer: "r.py:best"}}, plain: int}}
nodes:
  split: {{type: router, next: [a, b]}}
  a: {{type: script, script: s.sh}}
  b: {{type: script, script: s.sh}}
  join: {{type: end, wait_for: [a, b], output: "{{{{best}}}} {{{{plain}}}}"}}
"""


@both
def test_a_reducer_of_the_agents_own_runs_on_a_worker_before_the_writes_count(engine: str) -> None:
    driver = Driver(CUSTOM.format(engine=engine), {"best": 1, "plain": 0}).start()
    driver.does("b", best=7, plain=2)
    if engine == "dag":
        visit = driver.visit("b")
        assert (visit.role, driver.sees(visit)["best"]) == ("reduce", {"current": 1, "incoming": [7]})
        driver.ends(visit, best=7)
    driver.does("a", best=5, plain=1)
    visit = driver.visit("a")
    assert driver.sees(visit)["best"] == {"current": 1, "incoming": [5, 7]}, "in visit order"
    driver.ends(visit, best=[5, 7])
    assert (driver.run.status, driver.output) == ("completed", "[5,7] 2")


ASKS = """
name: g
version: sleipnir/1
start: plan
engine: {engine}
nodes:
  plan: {{type: script, script: s.sh}}
  ask: {{type: approval, question: "pay {{{{amount}}}}?", options: [yes], routes: {{yes: end}}, on_other: end}}
  done: {{type: end, output: "{{{{amount}}}}"}}
"""


@both
@pytest.mark.conformance("FO-09")
def test_nodes_without_a_worker_see_the_values_of_their_commands_at_once(engine: str) -> None:
    driver = Driver(ASKS.format(engine=engine)).start()
    driver.does("plan", sends=[("ask", {"amount": 1}), ("ask", {"amount": 3}), ("done", {"amount": 5})])
    assert driver.last is not None
    assert sorted(gate.question for gate in driver.last.gates) == ["pay 1?", "pay 3?"]
    outputs = [driver.output]
    driver.answers("ask", "yes").answers("ask", "yes")
    assert "5" in (*outputs, driver.output)
    assert (driver.run.status, driver.memory.items) == ("completed", {})


SENDS = """
name: g
version: sleipnir/1
start: plan
state_classes: ["g.py:State"]
state: {log: {type: list, reducer: append}}
nodes:
  plan: {type: function, call: "g.py:plan", protocol: state_graph}
  amy: {type: function, call: "g.py:work", protocol: state_graph}
  zed: {type: function, call: "g.py:work", protocol: state_graph}
"""


@pytest.mark.parametrize(
    ("text", "order"),
    [
        (SENDS, ["plain", "first", "second"]),
        (SENDS.replace('state_classes: ["g.py:State"]\n', ""), ["second", "plain", "first"]),
    ],
    ids=["of a graph in Python", "of another graph"],
)
def test_writes_of_commands_fold_last_in_a_graph_in_python_and_else_by_the_names_of_nodes(
    text: str, order: list[str]
) -> None:
    driver = Driver(text, {"log": []}).start()
    driver.does("plan", ("zed",), sends=[("zed", {}), ("amy", {})])
    plain, first = sorted((v for v in driver.run.frontier.values() if v.node == "zed"), key=lambda v: bool(v.overlay))
    [second] = [visit for visit in driver.run.frontier.values() if visit.node == "amy"]
    for visit, name in ((second, "second"), (first, "first"), (plain, "plain")):
        driver.ends(visit, log=[name])
    assert driver.state["log"] == order
