"""`callbacks` of agent nodes, in process: before the child, after it, and what they change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.settings import Settings
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir_inprocess.agent_run import AgentRun
from tests.processes import write_agent

PARENT = """
name: parent
version: sleipnir/1
start: ask
TOP
nodes:
  ask: {type: agent, agent: child, prompt: "{{word}}", UPDATES NODE next: done}
  done: {type: end, output: "{{answer}} {{word}}"}
"""
UPDATES = 'state_updates: {answer: "{{output}}"},'
CHILD = """
name: child
version: sleipnir/1
start: work
nodes:
  work: {type: function, call: "work.py:work"}
  done: {type: end, output: "{{said}}"}
"""
WORK = """
def work(state):
    ran = state["initial_prompt"]
    if ran == "fail":
        raise ValueError("no luck")
    return {"said": ran + "!", "n": state.get("n"), "_next": "done"}
"""
HOOKS = """
def ran(*what):
    with open("PLACE", "a") as file:
        file.write(repr(what) + chr(10))
def give(state, info): return {"answer": "given"}
def refuse(state, info): raise PermissionError("not allowed")
def view(state, info): state["word"] = "changed"
def into(state): return {"n": len(state["word"])}
def out(state, child): return {"answer": f"{child['state']['n']} {child['output']}"}
def see(state, info, result, error):
    ran(info.context["child"]["status"], info.context["child"]["output"], result, error)
def replace(state, info, result, error): return {"answer": "not " + result["answer"]}
def mend(state, info, result, error): return {"answer": "mended"} if error else None
def spoil(state, info, result, error): raise ValueError("spoilt")
def note(state, info, error): ran(error)
def heard(state, info, event):
    ran(event["type"], event["data"].get("node"), event["data"].get("ok"), event["data"].get("status"))
    state["word"] = "not written"
def deaf(state, info, event): raise ValueError("of " + event["type"])
"""


class Called:
    """A run of the parent, to its end."""

    def __init__(self, folder: Path, node: str, top: str = "", updates: str = UPDATES, **state: Any) -> None:
        text = PARENT.replace("UPDATES", updates).replace("NODE", f"{node}," if node else "").replace("TOP", top)
        write_agent(folder / "child", CHILD, work_py=WORK)
        hooks = HOOKS.replace("PLACE", str(folder / "seen"))
        run = AgentRun(
            write_agent(folder / "parent", text, hooks_py=hooks),
            state={"word": "hello", **state},
            settings=Settings(agents_dir=folder),
        )
        for _ in run.steps():
            pass
        file = folder / "seen"
        self.seen = file.read_text().splitlines() if file.exists() else []
        info = run.info()
        self.ended = info.status, run.output if info.status == "completed" else info.error
        self.marks = [mark for step, _ in run.record.values.journal for mark in step.callbacks]
        self.children = sum(event.type == "child_started" for event in run.record.events)
        self.state = run.state()


def around(**named: str) -> str:
    return f"callbacks: {{{', '.join(f'{phase}: hooks.py:{name}' for phase, name in named.items())}}}"


@pytest.mark.conformance("AG-15")
def test_what_before_returns_is_the_result_and_no_child_runs(tmp_path: Path) -> None:
    called = Called(tmp_path, around(before="give", after="see"))
    assert (called.ended, called.children, called.seen) == (("completed", "given hello"), 0, [])
    assert called.marks == ["skipped by before hooks.py:give"]


@pytest.mark.conformance("AG-16")
def test_a_before_that_raises_fails_the_node_and_no_child_runs(tmp_path: Path) -> None:
    called = Called(tmp_path, around(before="refuse", error="note"))
    status, error = called.ended
    assert (status, called.children) == ("failed", 0)
    assert "not allowed" in (error or "")
    assert "not allowed" in called.seen[0]
    assert called.marks == ["failed by before hooks.py:refuse"]


@pytest.mark.conformance("AG-17")
def test_what_after_returns_replaces_what_the_node_writes(tmp_path: Path) -> None:
    called = Called(tmp_path, "callbacks: {after: ['hooks.py:see', 'hooks.py:replace']}")
    assert (called.ended, called.children) == (("completed", "not hello! hello"), 1)
    assert called.seen == ["('completed', 'hello!', {'answer': 'hello!'}, None)"]
    assert called.marks == ["replaced by after hooks.py:replace"]


@pytest.mark.conformance("AG-18")
def test_an_after_that_raises_fails_the_node(tmp_path: Path) -> None:
    called = Called(tmp_path, around(after="spoil"))
    status, error = called.ended
    assert (status, called.children) == ("failed", 1)
    assert "spoilt" in (error or "")
    assert called.marks == ["failed by after hooks.py:spoil"]


def test_after_recovers_from_a_child_that_failed(tmp_path: Path) -> None:
    node = "callbacks: {error: 'hooks.py:note', after: ['hooks.py:see', 'hooks.py:mend']}"
    called = Called(tmp_path, node, word="fail")
    assert called.ended == ("completed", "mended fail")
    assert "no luck" in called.seen[0]
    assert called.seen[1].startswith("('failed', '', None, ")
    assert called.marks == ["recovered by after hooks.py:mend"]


def test_the_error_of_a_child_is_the_same_with_callbacks_and_without(tmp_path: Path) -> None:
    errors = []
    for name, node in (("a", ""), ("b", around(after="mend").replace("mend", "see"))):
        (tmp_path / name).mkdir()
        errors.append(Called(tmp_path / name, node, word="fail").ended)
    assert errors[0][0] == "failed"
    without_run = [str(error).split("(")[0] for _, error in errors]
    assert without_run[0] == without_run[1]


def test_before_changes_the_input_of_the_child_and_not_the_state(tmp_path: Path) -> None:
    called = Called(tmp_path, around(before="view"))
    assert called.ended == ("completed", "changed! hello")
    assert called.marks == ["input changed: word by before hooks.py:view"]


def test_callbacks_are_called_around_mappers(tmp_path: Path) -> None:
    node = around(before="view", after="replace") + ", map_in: 'hooks.py:into', map_out: 'hooks.py:out'"
    called = Called(tmp_path, node, updates="")
    assert called.ended == ("completed", "not 7 changed! hello")
    assert called.marks == ["input changed: word by before hooks.py:view", "replaced by after hooks.py:replace"]


def test_callbacks_of_the_graph_run_around_agent_nodes_too(tmp_path: Path) -> None:
    called = Called(tmp_path, "", around(after="see"))
    assert called.ended == ("completed", "hello! hello")
    assert called.seen == ["('completed', 'hello!', {'answer': 'hello!'}, None)"]
    assert called.marks == []


@pytest.mark.conformance("CB-11")
def test_each_event_of_a_child_is_seen_once_it_is_over_and_before_after(tmp_path: Path) -> None:
    node = "callbacks: {agent_event: ['hooks.py:deaf', 'hooks.py:heard'], after: 'hooks.py:see'}"
    called = Called(tmp_path, node)
    assert called.ended == ("completed", "hello! hello")
    assert called.seen == [
        "('visit_closed', 'work', True, None)",
        "('visit_closed', 'done', True, None)",
        "('run_ended', None, None, 'completed')",
        "('completed', 'hello!', {'answer': 'hello!'}, None)",
    ]
    assert called.marks == []


def test_the_events_of_a_child_that_failed_are_seen(tmp_path: Path) -> None:
    called = Called(tmp_path, "", around(agent_event="heard"), word="fail")
    assert called.ended[0] == "failed"
    assert called.seen == ["('visit_closed', 'work', False, None)", "('run_ended', None, None, 'failed')"]


IN_PYTHON = """
from typing import TypedDict

from sleipnir import END, START, NodeMiddleware, StateGraph

class State(TypedDict, total=False):
    word: str
    answer: str

class Heard(NodeMiddleware):
    @staticmethod
    def agent_event(state, info, event):
        with open("PLACE", "a") as file:
            print(info.node, state["word"], event["type"], event["data"].get("node"), file=file)

builder = StateGraph(State).add_agent_node("ask", "child", "{{word}}", output_mapper={"answer": "{{child.output}}"}NODE)
graph = builder.add_edge(START, "ask").add_edge("ask", END).compile(GRAPH)
"""


@pytest.mark.parametrize("node, graph", [(", middleware=Heard", ""), ("", "middleware=Heard")], ids=["node", "graph"])
def test_a_middleware_in_python_sees_the_events_of_a_child(tmp_path: Path, node: str, graph: str) -> None:
    write_agent(tmp_path / "child", CHILD, work_py=WORK)
    (tmp_path / "parent").mkdir()
    text = IN_PYTHON.replace("PLACE", str(tmp_path / "seen")).replace("NODE", node).replace("GRAPH", graph)
    (tmp_path / "parent" / "graph.py").write_text(text)
    run = AgentRun(tmp_path / "parent", state={"word": "hello"}, settings=Settings(agents_dir=tmp_path))
    for _ in run.steps():
        pass
    assert run.info().status == "completed", run.info().error
    assert (tmp_path / "seen").read_text().splitlines() == [
        "ask hello visit_closed work",
        "ask hello visit_closed done",
        "ask hello run_ended None",
    ]


SCENES = """
name: scenes
version: sleipnir/1
start: pre
state: {scene_id: string, scene_info: object, parsed_time: string, secret: string}
nodes:
  pre: {type: function, call: "pre.py:pre", next: play}
  play:
    type: agent
    agent: player
    prompt: "play it"
    map_in: {scene_id: "{{scene_id}}", scene_info: "{{scene_info}}", parsed_time: "{{parsed_time}}"}
    state_updates: {answer: "{{output}}"}
    next: done
  done: {type: end, output: "{{answer}}"}
"""
PRE = """
def pre(state):
    return {"scene_id": state.get("scene_id") or "s1", "scene_info": {"lights": 2}, "parsed_time": "noon"}
"""
PLAYER = """
name: player
version: sleipnir/1
start: ask
model: openai:gpt-test
callbacks: {model: {before: "hooks.py:model"}, tool: {before: "hooks.py:tool"}}
nodes:
  ask: {type: llm, prompt: "Light it.", tools: [light], state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""
PLAYER_HOOKS = """
import json
def note(kind, state):
    with open("PLACE", "a") as file:
        file.write(json.dumps([kind, {key: state[key] for key in sorted(state)}]) + chr(10))
def model(state, info, request): note("model", state)
def tool(state, info, call): note("tool", state)
"""
LIGHT = '''
def light(number: int):
    """Switch a light on."""
    return number
'''


@pytest.mark.conformance("EX-20")
@pytest.mark.parametrize("given", [None, "s9"])
def test_callbacks_of_a_child_see_what_a_node_of_its_parent_has_written(tmp_path: Path, given: str | None) -> None:
    hooks = PLAYER_HOOKS.replace("PLACE", str(tmp_path / "seen"))
    write_agent(tmp_path / "player", PLAYER, hooks_py=hooks, tools_py=LIGHT)
    parent = write_agent(tmp_path / "scenes", SCENES, pre_py=PRE)
    state = {"secret": "x", **({} if given is None else {"scene_id": given})}
    with ModelServer([Reply(calls=[Call("light", {"number": 1})]), "lit"]) as model:
        run = AgentRun(parent, state=state, settings=Settings(agents_dir=tmp_path), env=model.env())
        for _ in run.steps():
            pass
    assert (run.info().status, run.output) == ("completed", "lit")
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    values = {"scene_id": given or "s1", "scene_info": {"lights": 2}, "parsed_time": "noon"}
    assert seen == [[kind, {"initial_prompt": "play it", **values}] for kind in ("model", "tool", "model")]
