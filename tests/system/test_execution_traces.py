"""Execution traces of runs on real processes: `sleipnir trace` and `run.trace()`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.errors import RunNotFound
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
version: sleipnir/1
name: asks
start: begin
nodes:
  begin: {type: function, call: "work.py:nothing", next: [left, right]}
  left: {type: function, call: "work.py:nothing", next: think}
  right: {type: function, call: "work.py:nothing", next: think}
  think: {type: llm, model: "openai:gpt-test", prompt: "{{initial_prompt}}", tools: [look], next: sure}
  sure: {type: approval, question: "Sure?", options: ["yes"], routes: {"yes": done}, on_other: done}
  done: {type: end, output: "over"}
"""
WORK = "def nothing(state): return {}\n"
TOOLS = '''
def look(where: str):
    """Look somewhere."""
    return "\\x1b[2Jnothing"
'''


def replies(request: Request) -> Reply:
    if request.turn == 1:
        return Reply("", calls=[Call("look", {"where": "here"}), Call("look", {"where": "there"})])
    return Reply("found")


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with ModelServer(replies) as model, Stack(redis_server, tmp_path / "home", key_prefix="traces") as stack:
        stack.start_scheduler()
        stack.start_worker("all", "llm,scripts,functions", env=model.env(), ready=False)
        stack.wait_for_worker("all")
        yield stack


def test_the_trace_of_a_run_and_of_its_fork(own: Stack, tmp_path: Path) -> None:
    with own.client() as client:
        run = client.submit(write_agent(tmp_path / "asks", GRAPH, work_py=WORK, tools_py=TOOLS), "go")
        wait_until(lambda: bool(run.gates()), "the question")
        waits = run.trace()
        assert (waits.status, waits.steps[-1].node, waits.steps[-1].status) == ("incomplete", "sure", "waiting")
        run.answer("yes")
        assert run.wait(60).status == "completed"
        trace = run.trace()
        steps = {step.node: step for step in trace.steps}
        think = steps["think"]
        assert set(think.predecessors) == {steps["left"].id, steps["right"].id}
        assert [(tool.name, tool.turn, tool.ok) for tool in think.tools] == [("look", 1, True), ("look", 1, True)]
        assert think.turns == 2 and think.usage is not None and think.usage.calls == 2
        assert steps["sure"].predecessors == (think.id,) == waits.steps[-1].predecessors
        assert (steps["sure"].answer, think.reads) == ("yes", ("initial_prompt",))
        assert trace.input["initial_prompt"] == "go"
        assert list(map(bool, (think.started_ms, think.ended_ms, think.worker))) == [True, True, True]

        fork = run.fork(before="sure")
        wait_until(lambda: bool(fork.gates()), "the question of the fork")
        [asks] = fork.trace().steps
        assert asks.predecessors == (think.id,), "the past of a fork is that of its source"
        with pytest.raises(RunNotFound):
            client.run("missing").trace()
    shown = own.sleipnir("trace", run.id)
    assert shown.returncode == 0, shown.stderr
    [line] = [line for line in shown.stdout.splitlines() if "think" in line]
    assert "2 turns  tools: look ×2  after" in line and "tokens" in line
    assert f"forked from {run.id} after its step" in own.sleipnir("trace", fork.id).stdout
    data = json.loads(own.sleipnir("trace", run.id, "--json").stdout)
    assert data == json.loads(json.dumps(trace.to_json()))
    assert "and more" in own.sleipnir("trace", run.id, "--limit", "2").stdout
    assert own.sleipnir("trace", "missing").returncode == 2


DAG = """
version: sleipnir/1
name: dag
engine: dag
start: begin
nodes:
  begin: {type: function, call: "work.py:nothing", next: [left, right, send]}
  left: {type: approval, question: "left?", options: ["yes"], routes: {"yes": meet}, on_other: meet}
  right: {type: approval, question: "right?", options: ["yes"], routes: {"yes": meet}, on_other: meet}
  send: {type: function, call: "work.py:send"}
  each: {type: function, call: "work.py:nothing", next: late}
  late: {type: input, question: "late?"}
  meet: {type: join, wait_for: [left, right], next: done}
  done: {type: end, output: over}
"""
SENDS = (
    WORK
    + 'def send(state): return {"_next": [{"to": "each", "update": {"n": 1}}, {"to": "each", "update": {"n": 2}}]}\n'
)


def test_the_trace_of_a_fork_of_a_dag_names_what_opened_its_visits_in_its_sources(own: Stack, tmp_path: Path) -> None:
    with own.client() as client:
        run = client.submit(write_agent(tmp_path / "dag", DAG, work_py=SENDS), "go")
        wait_until(lambda: sorted(gate.node for gate in run.gates()) == ["late", "left", "right"], "three questions")
        run.answer("yes", next(gate for gate in run.gates() if gate.node == "left"))
        wait_until(lambda: any(step.node == "left" and step.ended_ms for step in run.trace().steps), "left is over")
        of_run = {step.node: step for step in run.trace().steps}
        fork = run.fork()
        wait_until(lambda: sorted(gate.node for gate in fork.gates()) == ["late", "right"], "what was unfinished")
        again = fork.fork(at=0)  # the same past, one run further
        wait_until(lambda: len(again.gates()) == 2, "what was unfinished")

        eaches = {step.id for step in run.trace().steps if step.node == "each"}
        assert len(eaches) == 2
        for each in (fork, again):
            live = {step.node: step for step in each.trace().steps}
            assert live["right"].predecessors == (of_run["begin"].id,)
            assert set(live["late"].predecessors) <= eaches and live["late"].predecessors
            assert {step.run for step in live.values()} == {each.id}
            for gate in each.gates():
                each.answer("yes", gate)
        for each in (fork, again):
            wait_until(lambda each=each: each.gates() or each.info().is_final, "the other visit of late, or the end")  # type: ignore[misc]
            for gate in each.gates():
                each.answer("yes", gate)
            assert each.wait(60).status == "completed"
            steps = {step.node: step for step in each.trace().steps}
            assert set(steps["meet"].predecessors) == {of_run["left"].id, steps["right"].id}
            assert steps["done"].predecessors == (steps["meet"].id,)
            shown = own.sleipnir("trace", each.id)
            assert f"forked from {each.info().forked_from} after its step" in shown.stdout, shown.stderr
