"""`callbacks.agent`: the agent's functions around a whole run, in process."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, NodeMiddleware, StateGraph
from sleipnir.settings import Settings
from sleipnir_inprocess.agent_run import AgentRun
from tests.processes import write_agent

GRAPH = """
name: watched
version: sleipnir/1
start: work
callbacks: {agent: {AROUND}}
state: {n: int, log: {type: list, reducer: append}}
nodes:
  work: {type: TYPE, next: done}
  done: {type: end, output: "{{n}} {{word}}"}
"""
FUNCTION = 'function, call: "work.py:work"'
WORK = """
def work(state):
    if state["word"] == "fail":
        raise ValueError("no luck")
    return {"n": state["n"] + 1, "log": ["work"]}
"""
HOOKS = """
def ran(*what):
    with open("PLACE", "a") as file:
        file.write(repr(what) + chr(10))
def see(state, info): ran(info.type, info.node, info.agent, state["n"])
def more(state, info):
    state["n"] += 10
    state["log"] = ["before"]
def give(state, info): return {"answer": state["n"]}
def say(state, info): return "no"
def refuse(state, info): raise PermissionError("not allowed")
def wrong(state, info): state["n"] = "many"
def drop(state, info): del state["word"]
def odd(state, info): return {1, 2}
def end(state, info, output, error): ran(state["n"], output, error)
def sign(state, info, output, error):
    state["word"] = "signed"
    return output + "!"
def mend(state, info, output, error): return "mended" if error else None
def spoil(state, info, output, error): raise ValueError("spoilt")
"""


class Called:
    """A run of the agent, to its end."""

    def __init__(self, folder: Path, before: str = "", after: str = "", kind: str = FUNCTION, **state: Any) -> None:
        named = {"before": before.split(), "after": after.split()}
        around = ", ".join(f"{key}: {[f'hooks.py:{name}' for name in names]}" for key, names in named.items() if names)
        text = GRAPH.replace("AROUND", around).replace("TYPE", kind)
        hooks = HOOKS.replace("PLACE", str(folder / "seen"))
        agent = write_agent(folder / "watched", text, hooks_py=hooks, work_py=WORK)
        run = AgentRun(agent, state={"word": "hello", "n": 1, **state}, settings=Settings(agents_dir=folder))
        for _ in run.steps():
            pass
        file = folder / "seen"
        self.seen = file.read_text().splitlines() if file.exists() else []
        info = run.info()
        self.ended = info.status, run.output if info.status == "completed" else info.error
        self.events = [event.type for event in run.record.events]
        self.roles = [step.role for step, _ in run.record.values.journal if step.seq]
        self.marks = [mark for step, _ in run.record.values.journal for mark in step.callbacks]
        self.state = run.state()


@pytest.mark.conformance("CB-14")
def test_a_run_that_before_answers_has_one_event_of_its_end_and_none_of_its_nodes(tmp_path: Path) -> None:
    called = Called(tmp_path, "give see", "end")
    assert (called.ended, called.seen) == (("completed", '{"answer":1}'), [])
    assert called.events == ["run_started", "run_ended"]
    assert (called.roles, called.marks) == (["before_run"], ["run skipped by before hooks.py:give"])
    assert Called(tmp_path, "see say").ended == ("completed", "no")


@pytest.mark.conformance("SE-07")
def test_the_first_state_of_a_run_is_that_after_the_functions_before_it(tmp_path: Path) -> None:
    called = Called(tmp_path, "see more see", kind=f"{FUNCTION}")
    assert called.ended == ("completed", "12 hello")
    assert called.seen == ["('agent', 'watched', 'watched', 1)", "('agent', 'watched', 'watched', 11)"]
    assert called.state == {"n": 12, "word": "hello", "log": ["before", "work"], "initial_prompt": ""}
    assert (called.roles, called.marks) == (["before_run", "node", "node"], ["state changed: n, log"])


@pytest.mark.conformance("CB-15")
def test_after_sees_the_error_of_a_run_and_may_give_an_output_in_its_place(tmp_path: Path) -> None:
    called = Called(tmp_path, "", "end mend end", word="fail")
    assert called.ended == ("completed", "mended")
    assert len(called.seen) == 2
    assert "no luck" in called.seen[0] and called.seen[0].startswith("(1, None, 'Graph execution failed")
    assert called.seen[1] == "(1, 'mended', None)"
    assert called.marks == ["run recovered by after hooks.py:mend"]


def test_after_sees_the_output_of_a_run_and_may_replace_it(tmp_path: Path) -> None:
    called = Called(tmp_path, "", "end sign end mend")
    assert (called.ended, called.state["word"]) == (("completed", "2 hello!"), "signed")
    assert called.seen == ["(2, '2 hello', None)", "(2, '2 hello!', None)"]
    assert called.marks == ["run replaced by after hooks.py:sign", "state changed: word"]


def test_a_run_that_fails_and_is_not_recovered_fails_as_without_them(tmp_path: Path) -> None:
    plain, called = Called(tmp_path / "a", word="fail"), Called(tmp_path / "b", "", "end", word="fail")
    without_run = [str(each.ended[1]).split("(")[0] for each in (plain, called)]
    assert (called.ended[0], without_run[0]) == ("failed", without_run[1])


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("refuse", "end", "Function 'hooks.py:refuse' raised PermissionError: not allowed"),
        ("wrong", "end", "state key 'n'"),
        ("drop", "end", "removed keys of the state, which stay: word"),
        ("odd", "end", "not JSON"),
        ("", "spoil", "Function 'hooks.py:spoil' raised ValueError: spoilt"),
    ],
)
def test_what_they_may_not_do_fails_the_run(tmp_path: Path, before: str, after: str, error: str) -> None:
    called = Called(tmp_path, before, after)
    assert called.ended[0] == "failed"
    assert error in str(called.ended[1])
    assert called.seen == []


def test_they_run_around_a_graph_whose_first_node_calls_a_model(tmp_path: Path) -> None:
    called = Called(tmp_path, "give", "", kind="llm, prompt: x, model: none:none")
    assert called.ended == ("completed", '{"answer":1}')


class Counted(TypedDict):
    n: int
    log: Annotated[list[str], operator.add]


class Around(NodeMiddleware):
    @staticmethod
    def before_agent(state: Any, info: Any) -> Any:
        state["n"] += 10
        return "enough" if state["n"] > 20 else None

    @staticmethod
    def after_agent(state: Any, info: Any, output: Any, error: Any) -> Any:
        state["log"] = [*state["log"], error or "well"]
        return "mended" if error else None


def work(state: Counted) -> dict[str, Any]:
    if state["n"] == 15:
        raise ValueError("no luck")
    return {"n": state["n"] + 1, "log": ["work"]}


def test_a_graph_written_in_python_has_them_as_middleware() -> None:
    builder = StateGraph(Counted)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    graph = builder.compile(middleware=Around)
    assert graph.invoke({"n": 1, "log": []}) == {"n": 12, "log": ["work", "well"]}
    assert graph.invoke({"n": 11, "log": []}) == {"n": 21, "log": []}
    recovered = graph.invoke({"n": 5, "log": []})
    assert recovered["n"] == 15
    assert "no luck" in recovered["log"][0]
    assert list(graph.stream({"n": 1, "log": []}, stream_mode="updates")) == [{"work": {"n": 12, "log": ["work"]}}]
    assert [each["n"] for each in graph.stream({"n": 1, "log": []}, stream_mode="values")] == [1, 11, 12]
