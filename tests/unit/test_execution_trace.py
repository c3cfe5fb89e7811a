"""The execution trace of runs in this process: one step per visit, what opened it, and the tree of a run."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, StateGraph
from sleipnir.commands import Send
from sleipnir.runs.execution_trace import MOST_VALUE, Trace, TraceStep
from sleipnir.runs.predecessors import PredecessorReader
from sleipnir.runs.transitions import Closing, Step
from sleipnir.runs.visits import Part
from sleipnir.settings import Settings
from sleipnir.testing import run
from sleipnir_inprocess.agent_run import AgentRun

CODE = """
def pass_on(state): return {}
def route(state): return {"turn": state.get("turn", 0) + 1}
def fail(state): raise ValueError("no\\x1b[31m luck")
def flaky(state):
    from pathlib import Path
    marker = Path(state["marker"])
    if not marker.exists():
        marker.touch()
        raise ValueError("once")
    return {"text": "x" * 5000}
"""
COMPLEX = """
    version: sleipnir/1
    name: complex
    engine: {engine}
    state: {{turn: int}}
    start: begin
    nodes:
      begin: {{type: function, call: "work.py:pass_on", next: [route, prepare]}}
      route:
        type: function
        call: "work.py:route"
        branch: [{{when: "state.turn < 2", to: tools}}, {{when: "state.turn > 9", to: never}}, {{else: branch_a}}]
      tools: {{type: function, call: "work.py:pass_on", next: route}}
      prepare: {{type: function, call: "work.py:pass_on", next: branch_b}}
      branch_a: {{type: function, call: "work.py:pass_on", next: meet}}
      branch_b: {{type: function, call: "work.py:pass_on", next: meet}}
      never: {{type: function, call: "work.py:pass_on", next: done}}
      meet: {{type: function, call: "work.py:pass_on", wait_for: [branch_a, branch_b], next: done}}
      done: {{type: end, output: "{{{{turn}}}}"}}
"""


def agent(folder: Path, graph: str, name: str = "agent") -> Path:
    (folder / name).mkdir()
    (folder / name / "graph.yaml").write_text(dedent(graph))
    (folder / name / "work.py").write_text(CODE)
    return folder / name


def begun(folder: Path, graph: str, **more: Any) -> AgentRun:
    """A run that was driven as far as it goes."""
    begun_run = AgentRun(agent(folder, graph), settings=Settings(agents_dir=folder), **more)
    for _ in begun_run.steps():
        pass
    return begun_run


def of_node(trace: Trace, node: str) -> list[TraceStep]:
    return [step for step in trace.steps if step.node == node]


def opened_by(trace: Trace) -> dict[str, list[str]]:
    """By node and the number of its visit, from 1 on, what opened it in the same form."""
    names: dict[str, str] = {}
    for step in sorted(trace.steps, key=lambda step: step.seq):
        names[step.id] = f"{step.node}#{1 + sum(name.startswith(f'{step.node}#') for name in names.values())}"
    return {names[step.id]: sorted(names[id_] for id_ in step.predecessors) for step in trace.steps}


@pytest.mark.conformance("TR-01", "EX-45", "TR-04")
@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_each_visit_is_a_step_with_the_visits_that_opened_it(tmp_path: Path, engine: str) -> None:
    trace = begun(tmp_path, COMPLEX.format(engine=engine)).trace()
    assert (trace.status, trace.output) == ("completed", "2")
    assert opened_by(trace) == {
        "begin#1": [],
        "route#1": ["begin#1"],
        "prepare#1": ["begin#1"],
        "tools#1": ["route#1"],
        "branch_b#1": ["prepare#1"],
        "route#2": ["tools#1"],
        "branch_a#1": ["route#2"],
        "meet#1": ["branch_a#1", "branch_b#1"],
        "done#1": ["meet#1"],
    }
    assert {step.path for step in trace.steps} == {step.node for step in trace.steps}
    assert of_node(trace, "route")[0].output == {"turn": 1}


@pytest.mark.conformance("TR-02")
def test_the_attempts_of_a_visit_share_a_step_and_long_values_are_cut(tmp_path: Path) -> None:
    graph = """
        version: sleipnir/1
        name: again
        state: {marker: string}
        start: work
        nodes:
          work: {type: function, call: "work.py:flaky", retry: {max_attempts: 3}, next: done}
          done: {type: end, output: "{{text}}"}
    """
    trace = run(agent(tmp_path, graph), state={"marker": str(tmp_path / "marker")}).trace
    [step] = of_node(trace, "work")
    assert (step.attempts, step.status, step.written) == (2, "completed", ("text",))
    assert step.output == {"text": {"cut": '"' + "x" * (MOST_VALUE - 1), "chars": 5002}}
    assert of_node(trace, "done")[0].reads == ("text",)
    assert json.loads(json.dumps(trace.to_json()))["steps"][0]["output"]["text"]["chars"] == 5002


@pytest.mark.conformance("TR-03")
def test_a_visit_whose_result_was_cached_is_one_step(tmp_path: Path) -> None:
    graph = """
        version: sleipnir/1
        name: cached
        state: {turn: int}
        start: work
        nodes:
          work: {type: function, call: "work.py:pass_on", cache: {key: "'same'"}, next: route}
          route: {type: function, call: "work.py:route", branch: [{when: "state.turn < 2", to: work}, {else: done}]}
          done: {type: end, output: "over"}
    """
    driven = begun(tmp_path, graph)
    trace = driven.trace()
    assert [(step.status, step.attempts, step.cached) for step in of_node(trace, "work")] == [
        ("completed", 1, False),
        ("completed", 1, True),
    ]
    assert "cached" in list(driven.trace_lines())[3]


class Words(TypedDict, total=False):
    words: Annotated[list[str], operator.add]
    word: str


@pytest.mark.conformance("TR-05")
def test_commands_to_one_node_are_a_step_each_after_the_node_that_sent_them() -> None:
    builder = StateGraph(Words)
    builder.add_node("one", lambda state: {"words": ["1"]})
    builder.add_node("two", lambda state: {"words": ["2"]})
    builder.add_node("each", lambda state: {"words": [state["word"]]})
    builder.add_node("last", lambda state: {})
    builder.add_edge(START, "one")
    builder.add_edge(START, "two")
    builder.add_conditional_edges("one", lambda state: [Send("each", {"word": "a"}), Send("each", {"word": "b"})])
    builder.add_conditional_edges("two", lambda state: [Send("each", {"word": "c"})])
    builder.add_edge("each", "last")
    builder.add_edge("last", END)
    found = opened_by(run(builder.compile(), {"words": []}).trace)
    assert [found[f"each#{number}"] for number in (1, 2, 3)] == [["one#1"], ["one#1"], ["two#1"]]
    assert found["last#1"] == ["each#1", "each#2", "each#3"]


ASKS = """
    version: sleipnir/1
    name: asks
    start: {start}
    nodes:
      work: {{type: function, call: "work.py:pass_on", next: ask}}
      broken: {{type: function, call: "work.py:fail", next: ask}}
      ask: {{type: input, question: "What?", next: done}}
      done: {{type: end, output: "{{{{input}}}}"}}
"""


@pytest.mark.conformance("TR-06")
def test_a_run_that_waits_is_incomplete_and_one_that_failed_says_where(tmp_path: Path) -> None:
    waits = begun(tmp_path, ASKS.format(start="work")).trace()
    [work, ask] = waits.steps
    assert (waits.status, waits.ended_ms, ask.status, ask.ended_ms) == ("incomplete", None, "waiting", None)
    assert ask.predecessors == (work.id,)
    (tmp_path / "other").mkdir()
    failed_run = begun(tmp_path / "other", ASKS.format(start="broken"))
    failed = failed_run.trace()
    [broken] = failed.steps
    assert (failed.status, broken.status) == ("failed", "failed")
    assert "no" in str(broken.error)
    lines = list(failed_run.trace_lines())
    assert "broken (1)  function  failed" in lines[1]
    assert "\x1b" not in "".join(lines), "what a node wrote does nothing to a terminal"


@pytest.mark.conformance("TR-07")
def test_a_child_run_is_below_the_step_that_started_it(tmp_path: Path) -> None:
    agent(tmp_path, ASKS.format(start="work").replace("next: ask", "next: done"), "child")
    graph = """
        version: sleipnir/1
        name: parent
        start: call
        nodes:
          call: {type: agent, agent: child, prompt: "go", next: done}
          done: {type: end, output: "over"}
    """
    driven = begun(tmp_path, graph)
    trace = driven.trace()
    assert trace.status == "completed", trace.error
    [call] = of_node(trace, "call")
    [child] = trace.runs[1:]
    assert call.runs == (child.run,)
    assert (child.parent, child.path) == (call.id, ("call",))
    below = [step for step in trace.steps if step.run == child.run]
    assert [(step.path, step.parent, step.parent_run) for step in below] == [
        ("call/work", call.id, trace.run),
        ("call/done", call.id, trace.run),
    ]
    assert not driven.trace(depth=0).runs[1:]
    assert driven.trace(limit=1).is_cut
    lines = [re.sub(r"(\)|agent|child)  .*$", r"\1", line) for line in driven.trace_lines()]
    assert lines == [
        f"run {trace.run} agent",
        "├─ call (1)",
        f"│  └─ run {child.run} child",
        "│     ├─ work (1)",
        "│     └─ done (2)",
        "└─ done (2)",
    ]
    assert any(line.startswith("└─ and more") for line in driven.trace_lines(limit=1))


def test_items_of_a_map_are_below_it_and_one_line_of_the_tree(tmp_path: Path) -> None:
    graph = """
        version: sleipnir/1
        name: many
        state: {marker: string}
        start: all
        nodes:
          all: {type: map, for_each: "{{numbers}}", as: number, node: one, collect: found, next: done}
          one: {type: function, call: "work.py:fail"}
          done: {type: end, output: "over"}
    """
    driven = begun(tmp_path, graph, state={"numbers": [1, 2, 3]})
    trace = driven.trace()
    [whole] = of_node(trace, "all")
    items = {(step.item, step.parent, step.predecessors) for step in of_node(trace, "one")}
    assert items == {(number, whole.id, (whole.id,)) for number in range(3)}
    lines = list(driven.trace_lines())
    assert any("visits of items: 3, 3 failed" in line for line in lines)
    assert len([line for line in lines if "one" in line]) == 0


# The journal


def add_all(*steps: Step) -> dict[int, tuple[str, ...]]:
    reader = PredecessorReader()
    return {step.seq or 0: reader.add("r", step) for step in steps if step.seq is not None or reader.add("r", step)}


def step(number: int, node: str, **more: Any) -> Step:
    return Step(number, "script", number, seq=number, node=node, **more)


def test_a_join_waits_for_sources_of_several_super_steps() -> None:
    arrived: Mapping[str, Mapping[str, int]] = {'["meet", "a", "b"]': {"a": 1}}
    found = add_all(
        step(1, "a", next="meet", held=True),
        step(2, "c", next="b", held=True, closing=Closing(("b",), arrived)),
        step(3, "b", next="meet", closing=Closing(("meet",), {})),
        step(4, "meet", next="a"),
        step(5, "a"),
    )
    assert found == {1: (), 2: (), 3: ("r/2",), 4: ("r/1", "r/3"), 5: ("r/4",)}


def test_a_visit_that_is_tried_again_in_its_super_step_has_the_same_predecessors() -> None:
    found = add_all(step(1, "a", next="b"), step(2, "b", ok=False), step(3, "b", next="c"), step(4, "c"))
    assert found == {1: (), 2: ("r/1",), 3: ("r/1",), 4: ("r/3",)}


def test_commands_of_an_earlier_release_have_all_that_led_to_their_node() -> None:
    found = add_all(
        step(1, "a", next="each", held=True),
        step(2, "b", next="each", held=True, closing=Closing((), None, None, 3)),
        step(3, "each", held=True),
        step(4, "each", sent_by=2, held=True),
    )
    assert found[3] == ("r/1", "r/2")
    assert found[4] == ("r/2",)


def test_turns_and_calls_are_no_visits() -> None:
    reader = PredecessorReader()
    reader.add("r", step(1, "a", next="b"))
    reader.add("r", Step(2, "llm", 2, seq=3, node="b", part=Part(2, 0), role="turn"))
    assert reader.of_live("b") == ("r/1",)
    assert reader.add("r", Step(3, "llm", 3, seq=2, node="b", next="c")) == ("r/1",)
