"""Agent nodes on real processes: a child run of its own, started once, told of its parent's fate, and its result taken.

All cases share one scheduler and its workers, and are under way together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import GateError
from sleipnir.runs.run import child_id
from sleipnir.testing import ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

PARENT = """
name: parent
start: call
nodes:
  call: {{type: agent, agent: {agent}, prompt: "{prompt}", state_updates: {{said: "<{{{{output}}}}>"}},
         next: done{more}}}
  done: {{type: end, output: "parent: {{{{said}}}}{end}"}}
"""
CHILDREN = {
    "echo": """
        name: echo
        start: work
        nodes:
          work: {type: function, call: "work.py:work", next: done}
          done: {type: end, output: "child: {{words}}"}
        """,
    "asks": """
        name: asks
        start: ask
        nodes:
          ask: {type: input, question: "What now, {{initial_prompt}}?", state_updates: {now: "{{input}}"}, next: done}
          done: {type: end, output: "now {{now}}"}
        """,
    "picky": """
        name: picky
        start: work
        nodes:
          work: {type: function, call: "work.py:work", next: ask}
          ask: {type: input, question: "How many?", validation: "len(input) > 1", state_updates: {n: "{{input}}"},
                next: done}
          done: {type: end, output: "{{words}} {{n}}"}
        """,
    "between": """
        name: between
        start: below
        nodes:
          below: {type: agent, agent: picky, prompt: "again", state_updates: {got: "{{output}}"}, next: done}
          done: {type: end, output: "between got {{got}}"}
        """,
    "fails": """
        name: fails
        start: work
        nodes:
          work: {type: function, call: "work.py:fail"}
          done: {type: end}
        """,
    "wants": """
        name: wants
        start: done
        variables: [{name: dsn, description: "Where the data is"}]
        nodes: {done: {type: end, output: "never"}}
        """,
    "says": """
        name: says
        start: done
        nodes: {done: {type: end, output: "{{initial_prompt}}"}}
        """,
    "nests": """
        name: nests
        start: deeper
        nodes:
          deeper: {type: agent, agent: nests, prompt: "{{initial_prompt}}", next: done}
          done: {type: end}
        """,
    "middle": """
        name: middle
        start: below
        nodes:
          below: {type: agent, agent: asks, prompt: "again", state_updates: {got: "{{output}}"}, next: done}
          done: {type: end, output: "middle got {{got}}"}
        """,
}
WORK = """
def work(state):
    if state["initial_prompt"] == "hidden":
        assert "said" not in state
    return {"words": state["initial_prompt"].upper()}


def twice(state):
    return {"more": state["item"] + "+"}


def fail(state):
    raise ValueError("the disk is full")
"""

Check: TypeAlias = Callable[["Lab", Run], None]


@dataclass(frozen=True)
class Case:
    """A parent, and what must have come of it. `person` is what somebody does meanwhile."""

    graph: str
    check: Check
    person: Check | None


@dataclass
class Lab:
    stack: Stack
    client: Client
    agents: Path
    runs: dict[str, Run] = field(default_factory=dict)


CASES: dict[str, Case] = {}


def case(
    agent: str,
    *,
    prompt: str = "hello",
    more: str = "",
    end: str = "",
    graph: str | None = None,
    person: Check | None = None,
) -> Callable[[Check], Check]:
    """Make a case of a function, which checks how its parent ended."""

    def add(check: Check) -> Check:
        written = graph or PARENT.format(agent=agent, prompt=prompt, more=more, end=end)
        CASES[check.__name__] = Case(written, check, person)
        return check

    return add


def error_of(run: Run) -> str:
    assert (run.status, run.output) == ("failed", None)
    return str(run.error)


@case("echo")
def the_output_of_the_child_is_that_of_the_node(lab: Lab, run: Run) -> None:
    assert run.output == "parent: <child: HELLO>"
    [call, _] = [step for step in run.history() if step.seq]
    assert (call.node, call.kind, call.ok, call.keys) == ("call", "agent", True, ("said",))
    child = lab.client.run(child_id(run.id, 1))
    assert (child.info().agent, child.status, child.output) == ("echo", "completed", "child: HELLO")
    assert "output" not in run.state()


@case("fails")
def a_child_that_fails_fails_the_graph(lab: Lab, run: Run) -> None:
    assert "at node 'call': Agent 'fails' failed: Graph execution failed for agent 'fails': " in error_of(run)
    assert "the disk is full" in error_of(run)


@case("wants")
def a_child_that_cannot_be_started_says_why(lab: Lab, run: Run) -> None:
    assert "Agent 'wants' failed: The following agent variables are required:" in error_of(run)


@case("echo", prompt="{{nothing.here}}")
def a_prompt_that_cannot_be_rendered_fails_the_graph(lab: Lab, run: Run) -> None:
    assert "Failed to interpolate prompt for agent 'echo'" in error_of(run)


@case("asks", more=", timeout: 1")
def a_child_that_takes_too_long_is_cancelled_and_fails_the_graph(lab: Lab, run: Run) -> None:
    assert "at node 'call': Agent 'asks' timed out after 1s" in error_of(run)
    child = lab.client.run(child_id(run.id, 1))
    wait_until(lambda: child.status == "cancelled", "the child is cancelled")
    assert (run.gates(), child.gates()) == ([], [])
    assert child.id not in {gate.run for gate in lab.client.gates()}
    with pytest.raises(GateError, match="is cancelled; its question 1 needs no answer any more"):
        child.answer("dinner", 1)


TWICE = """
name: parent
start: first
nodes:
  first: {type: agent, agent: keeper, prompt: "count 1", state_updates: {one: "{{output}}"}, next: second}
  second: {type: agent, agent: keeper, prompt: "count 2", state_updates: {two: "{{output}}"}, next: done}
  done: {type: end, output: "{{one}}, {{two}}"}
"""


@case("keeper", graph=TWICE)
def an_agent_with_a_session_remembers_what_it_was_told_as_a_child(lab: Lab, run: Run) -> None:
    assert (run.output, run.error) == ("1 said, 2 said", None)
    assert [message["content"] for message in lab.client.said("keeper", "desk")] == [
        "count 1", "1 said", "count 2", "2 said"
    ]  # fmt: skip


@case("nests")
def agents_are_nested_three_levels_deep_and_no_deeper(lab: Lab, run: Run) -> None:
    error = error_of(run)
    assert error.count("Agent 'nests' failed") == 3
    assert error.endswith("at node 'deeper': Max agent depth exceeded (4/3)")


@case("says", prompt='{\\"n\\": 3}', more=", output_schema: {type: object}", end=", {{n}}")
def what_the_child_says_is_data_where_the_node_has_a_schema(lab: Lab, run: Run) -> None:
    assert run.output == 'parent: <{"n":3}>, 3'
    assert run.state()["n"] == 3


@case("says", prompt="three of them", more=", output_schema: {type: object}", end=", {{n}}")
def a_model_makes_data_of_what_the_child_says(lab: Lab, run: Run) -> None:
    assert (run.output, run.error) == ('parent: <{"n":3}>, 3', None)
    assert run.info().usage.calls == 1


@case("says", prompt="no data", more=", output_schema: {type: object}")
def a_text_that_gives_no_data_fails_the_graph(lab: Lab, run: Run) -> None:
    assert "Agent 'says' output failed structured-output extraction: " in error_of(run)
    assert "said" not in run.state()


def cancels(lab: Lab, run: Run) -> None:
    child = waiting_child(lab, run)
    wait_until(lambda: bool(child.gates()), "the child asks")
    run.cancel()
    wait_until(lambda: child.status == "cancelled", "the child is cancelled too")


@case("asks", person=cancels)
def who_cancels_a_run_cancels_its_children(lab: Lab, run: Run) -> None:
    assert run.status == "cancelled"


def cancels_child(lab: Lab, run: Run) -> None:
    child = waiting_child(lab, run)
    wait_until(lambda: bool(child.gates()), "the child asks")
    child.cancel()


@case("asks", person=cancels_child)
def a_child_that_somebody_cancels_fails_its_parent(lab: Lab, run: Run) -> None:
    assert error_of(run).endswith("at node 'call': Agent 'asks' failed: it was cancelled")


def holds_and_lets_go(lab: Lab, run: Run) -> None:
    child = waiting_child(lab, run)
    wait_until(lambda: bool(child.gates()), "the child asks")
    run.pause("a person")
    wait_until(lambda: child.status == "paused", "the child is held too")
    run.resume()
    wait_until(lambda: child.status == "waiting", "the child goes on")
    assert [visit.reason.code for visit in run.info().visits] == ["child"]
    child.answer("dinner")


@case("asks", person=holds_and_lets_go)
def who_holds_a_run_holds_its_children(lab: Lab, run: Run) -> None:
    assert run.output == "parent: <now dinner>"


def answers_three_levels_down(lab: Lab, run: Run) -> None:
    middle = waiting_child(lab, run)
    bottom = waiting_child(lab, middle)
    wait_until(lambda: bool(bottom.gates()), "the grandchild asks")
    for each in (run, middle, bottom):
        assert [visit.state for visit in each.info().visits] == ["waiting"]
    [gate] = run.gates()
    assert (gate.run, gate.place) == (bottom.id, "call/below/ask")
    run.answer("sleep", gate="call/below/ask")


@case("middle", person=answers_three_levels_down)
def a_grandchild_has_a_root_and_its_answer_comes_up(lab: Lab, run: Run) -> None:
    assert run.output == "parent: <middle got now sleep>"
    seen = [(event.type, event.data.get("path")) for event in run.events(follow=False)]
    assert ("gate_opened", ["call", "below"]) in seen
    assert ("child_started", ["call"]) in seen


def answers_badly_and_retries(lab: Lab, run: Run) -> None:
    middle = waiting_child(lab, run)
    bottom = waiting_child(lab, middle)
    wait_until(lambda: bool(bottom.gates()), "the grandchild asks")
    run.answer("1", gate="call/below/ask")
    wait_until(lambda: run.status == "failed", "the run fails")
    [kept] = run.info().kept
    assert (kept.again, kept.child) == (True, middle.id)
    run.retry()
    wait_until(lambda: run.status == "waiting" and bool(bottom.gates()), "the grandchild asks again")
    run.answer("12", gate="call/below/ask")


@case("between", person=answers_badly_and_retries)
def a_retry_goes_down_to_where_it_failed_and_repeats_nothing_else(lab: Lab, run: Run) -> None:
    assert run.output == "parent: <between got AGAIN 12>"
    tree = run.tree()
    [middle] = tree.children
    [bottom] = middle.children
    assert [each.info.retries for each in (tree, middle, bottom) if each.info] == [1, 1, 1]
    steps = [step.node for step in lab.client.run(bottom.id).history()]
    assert steps == [None, "work", "ask", None, "ask", "done"]
    assert ("child_retried", "call") in [(e.type, e.data.get("node")) for e in run.events(follow=False)]


MAP = """
name: parent
start: each
initial_state: {items: [a, b, c]}
nodes:
  each: {type: map, over: "{{items}}", as: item, branch: one, collect_into: all, next: chained}
  one: {type: agent, agent: echo, prompt: "{{item}}"}
  chained: {type: map, for_each: "{{items}}", as: item, node: [first, second], collect: twice, next: shown}
  first: {type: function, call: "work.py:twice"}
  second: {type: agent, agent: echo, prompt: "{{item}}{{more}}", state_updates: {output: "({{output}})"}}
  shown: {type: end, output: "{{all}} {{twice}}"}
"""


@case("echo", graph=MAP)
def a_map_of_agents_collects_what_they_say(lab: Lab, run: Run) -> None:
    assert run.error is None
    chained = '["(child: AA+)","(child: BB+)","(child: CC+)"]'
    assert run.output == f'["child: A","child: B","child: C"] {chained}'
    assert len(lab.client.store.runs.children([run.id])[run.id]) == 6


def waiting_child(lab: Lab, run: Run) -> Run:
    """The child that a run waits for."""

    def known() -> bool:
        return any(visit.reason.run for visit in run.info().visits) and is_there(lab, child_of(run))

    wait_until(known, f"run {run.id} waits for a child")
    return lab.client.run(child_of(run))


def child_of(run: Run) -> str:
    return next((str(visit.reason.run) for visit in run.info().visits if visit.reason.run), "")


def is_there(lab: Lab, run_id: str) -> bool:
    return lab.client.store.runs.find([run_id])[0] is not None


def replies(request: Request) -> Reply | str:
    if request.prompt.startswith("count"):
        return f"{sum(message['role'] == 'user' for message in request.messages)} said"
    return '{"n": 3}' if "three of them" in request.prompt else "I cannot say."


@pytest.fixture
def lab(redis_server: RedisServer, tmp_path: Path) -> Iterator[Lab]:
    folder = tmp_path / "agents"
    for name, graph in CHILDREN.items():
        write_agent(folder / name, "\n".join(line[8:] for line in graph.splitlines()), work_py=WORK)
    (folder / "keeper").mkdir()
    (folder / "keeper" / "config.yaml").write_text("name: keeper\nagent_session: desk\n")
    settings = {"key_prefix": "children", "agents_dir": folder, "model": "openai:gpt-test"}
    with ModelServer(replies) as model, Stack(redis_server, tmp_path / "home", **settings) as stack:
        stack.start_scheduler()
        stack.start_worker("models", "llm", concurrency=4, env=model.env(), ready=False)
        stack.start_worker("work", "functions", concurrency=4, ready=False)
        for name in ("models", "work"):
            stack.wait_for_worker(name, 90)
        with stack.client() as client:
            yield Lab(stack, client, folder)


@pytest.mark.conformance("G01", "G02", "G03", "G04", "G05", "G06", "O09")
def test_agent_nodes_run_agents_as_children(lab: Lab, subtests: pytest.Subtests) -> None:
    for name, each in CASES.items():
        lab.runs[name] = lab.client.submit(write_agent(lab.agents / name, each.graph, work_py=WORK))
    for name, each in CASES.items():
        if each.person is not None:
            with subtests.test(f"person of {name}"):
                each.person(lab, lab.runs[name])
    for name, each in CASES.items():
        with subtests.test(name):
            lab.runs[name].wait(60)
            each.check(lab, lab.runs[name])
