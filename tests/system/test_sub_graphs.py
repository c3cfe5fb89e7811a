"""Graphs that are nodes of another graph, on a real scheduler and real workers: each is a child run with a state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleipnir import Client
from sleipnir.client.client import Run
from sleipnir.python_graph.agent_modules import load
from tests.processes import RedisServer, Stack, wait_until, write_agent

SHARED = """
import operator
from typing import Annotated, TypedDict

from sleipnir import END, START, Command, Send, StateGraph


def joined(old, new):
    return f"{old}+{new}" if old else new


class Inner(TypedDict, total=False):
    text: str
    log: Annotated[list[str], operator.add]
    path: Annotated[str, joined]
    secret: str


class Outer(TypedDict, total=False):
    text: str
    log: Annotated[list[str], operator.add]
    path: Annotated[str, joined]
    words: list[str]
    ask: str


def hide(state: Inner):
    return {"secret": state["text"][::-1], "log": ["hide"], "path": "hide"}


def show(state: Inner):
    assert "words" not in state
    return {"text": state["secret"], "log": ["show"]}


def before(state: Outer):
    return {"log": ["before"], "path": "before"}


def after(state: Outer):
    return {"log": ["after"]}


turn = StateGraph(Inner).add_sequence([hide, show]).add_edge(START, "hide").compile()
"""

FORMS = {
    "shared keys, and a reducer that counts the value of the graph above twice": (
        """
graph = StateGraph(Outer).add_sequence([before, ("inner", turn), after]).add_edge(START, "before").compile()
""",
        {"text": "abc", "log": ["input"]},
    ),
    "one graph as two nodes, one of them below another graph": (
        """
deeper = StateGraph(Inner).add_sequence([("turn", turn), hide]).add_edge(START, "turn").compile(name="deeper")
graph = StateGraph(Outer).add_sequence([("deep", deeper), ("again", turn)]).add_edge(START, "deep").compile()
""",
        {"text": "abc"},
    ),
    "an argument for each run, and a conditional edge": (
        """
def fan(state):
    return [Send("inner", {"text": word, "unknown": 1}) for word in state["words"]]


def where(state):
    return "after" if "show" in state["log"] else "before"


class Word(TypedDict, total=False):
    text: str
    log: Annotated[list[str], operator.add]
    word: str


class Found(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def look(state: Word):
    return {"log": [state["text"].upper()], "word": "look"}


one = StateGraph(Word, output_schema=Found).add_node(look)
one = one.add_edge(START, "look").compile()
graph = StateGraph(Outer).add_node("inner", one).add_node("rest", turn).add_node(before).add_node(after)
graph = graph.add_conditional_edges(START, fan, ["inner"]).add_edge("inner", "rest")
graph = graph.add_conditional_edges("rest", where, ["before", "after"]).compile()
""",
        {"words": ["b", "a", "c"], "text": "xy"},
    ),
    "a command for the graph above": (
        """
TARGETS = ["rescue", Send("turn", {"text": "st"})]


def up(state: Inner):
    return Command(graph=Command.PARENT, update={"text": "up", "words": ["w"]}, goto=TARGETS)


def rescue(state: Outer):
    return {"log": ["rescue"], "path": "rescue"}


inner = StateGraph(Inner).add_sequence([hide, up]).add_edge(START, "hide").compile()
graph = StateGraph(Outer).add_node(before).add_node("inner", inner, destinations=("rescue", "turn")).add_node(after)
graph = graph.add_node(rescue).add_node("turn", turn).add_edge(START, "before").add_edge("before", "inner")
graph = graph.add_edge("inner", "after").compile()
""",
        {"text": "abc"},
    ),
    "a command that goes up two levels, once for each": (
        """
def up(state: Inner):
    return Command(graph=Command.PARENT, update={"text": "one"}, goto="up_again")


def up_again(state: Inner):
    return Command(graph=Command.PARENT, update={"text": state["text"] + " two"}, goto=END)


low = StateGraph(Inner).add_node(up).add_edge(START, "up").compile()
middle = StateGraph(Inner).add_node("low", low, destinations=("up_again",)).add_node(up_again).add_edge(START, "low")
graph = StateGraph(Outer).add_sequence([("middle", middle.compile()), after]).add_edge(START, "middle").compile()
""",
        {"text": "abc", "log": ["input"]},
    ),
    "models of pydantic in both graphs": (
        """
from pydantic import BaseModel


class Point(BaseModel):
    x: int = 0


class Below(BaseModel):
    point: Point = Point(x=5)
    seen: Annotated[list[int], operator.add] = []


class Above(BaseModel):
    point: Point = Point()
    seen: Annotated[list[int], operator.add] = []


def move(state: Below):
    return {"point": Point(x=state.point.x + 1), "seen": [state.point.x]}


below = StateGraph(Below).add_node(move).add_edge(START, "move").compile()
graph = StateGraph(Above).add_sequence([("first", below), ("second", below)]).add_edge(START, "first").compile()
""",
        {"seen": [0]},
    ),
}


def in_process(agent: Path, input: dict[str, Any]) -> Any:
    """The final state in this process, as it is stored."""
    graph = load((agent / "graph.py").resolve()).graph
    return graph.objects.encoded(graph.invoke(input))


def state_of(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.state().items() if key != "initial_prompt"}


@pytest.mark.parametrize("form", FORMS)
def test_the_state_is_that_of_a_run_in_process(form: str, stack: Stack, tmp_path: Path) -> None:
    text, input = FORMS[form]
    agent = write_agent(tmp_path / "outer", None, graph_py=SHARED + text)
    with stack.client() as client:
        run = client.submit(agent, state=input)
        info = run.wait(60)
        assert (info.status, info.error) == ("completed", None)
        assert state_of(run) == in_process(agent, input)


HELD = """
import operator
import time
from pathlib import Path
from typing import Annotated, TypedDict

from sleipnir import START, StateGraph


class State(TypedDict, total=False):
    hold: str
    fails: str
    ids: Annotated[list[str], operator.add]


def first(state: State):
    return {"ids": ["first"]}


def waits(state: State):
    Path(state["hold"] + ".begun").touch()
    while Path(state["hold"]).exists():
        time.sleep(0.05)
    if state.get("fails") and Path(state["fails"]).exists():
        raise ValueError("the file is there")
    return {"ids": ["waits"]}


def last(state: State):
    return {"ids": ["last"]}


low = StateGraph(State).add_sequence([first, waits]).add_edge(START, "first").compile()
middle = StateGraph(State).add_sequence([("low", low)]).add_edge(START, "low").compile(name="middle")
graph = StateGraph(State).add_sequence([first, ("middle", middle), last]).add_edge(START, "first").compile()
"""
ENDED = ["first", "first", "first", "first", "waits", "last"]
"""What each level writes: all that it was given, and what it added, above the value that it had."""


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    with Stack(redis_server, tmp_path / "home", key_prefix=request.node.name[:40], owner_ttl_s=0.5) as stack:
        yield stack


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """An agent with graphs of three levels, the lowest of which waits."""
    (tmp_path / "hold").touch()
    return write_agent(tmp_path / "held", None, graph_py=HELD)


def waiting(client: Client, agent: Path, **more: str) -> Run:
    """A run of which the lowest graph executes its second node."""
    hold = agent.parent / "hold"
    run = client.submit(agent, state={"hold": str(hold), **more})
    wait_until(lambda: hold.with_name("hold.begun").exists(), "the lowest node is executed")
    return run


def runs_below(run: Run) -> list[Run]:
    """The runs of the graphs, from the top."""
    below, found = run.tree().children, []
    while below:
        [child] = below
        assert child.info is not None
        found.append(child.info)
        below = child.children
    return found


def test_a_worker_and_a_scheduler_are_killed_while_a_graph_below_runs(own: Stack, held: Path) -> None:
    own.start_scheduler()
    own.start_worker("first")
    with own.client() as client:
        run = waiting(client, held)
        own.kill("first")
        own.kill("scheduler")
        (held.parent / "hold").unlink()
        own.start_scheduler("second")
        own.start_worker("other")
        assert run.wait(120).status == "completed"
        assert run.state()["ids"] == in_process(held, {"hold": str(held.parent / "hold")})["ids"] == ENDED
        assert [(info.agent, info.status) for info in runs_below(run)] == [
            ("held/middle", "completed"),
            ("held/low", "completed"),
        ]


def test_a_cancel_reaches_the_graphs_below(stack: Stack, held: Path) -> None:
    with stack.client() as client:
        run = waiting(client, held)
        run.cancel()
        assert run.wait(60).status == "cancelled"
        wait_until(lambda: [info.status for info in runs_below(run)] == ["cancelled"] * 2, "the runs below are over")


def test_a_pause_reaches_the_graphs_below(stack: Stack, held: Path) -> None:
    with stack.client() as client:
        run = waiting(client, held)
        run.pause()
        wait_until(lambda: [info.status for info in runs_below(run)] == ["paused"] * 2, "the runs below are paused")
        (held.parent / "hold").unlink()
        run.resume()
        assert run.wait(60).status == "completed"
        assert run.state()["ids"] == ENDED


def test_a_graph_that_fails_fails_its_node_and_a_retry_goes_on_where_it_failed(stack: Stack, held: Path) -> None:
    fails = held.parent / "fails"
    fails.touch()
    (held.parent / "hold").unlink()
    with stack.client() as client:
        run = client.submit(held, state={"hold": str(held.parent / "hold"), "fails": str(fails)})
        info = run.wait(60)
        assert info.status == "failed"
        expected = "at node 'middle': Graph 'middle' failed: .*at node 'low': Graph 'low' failed: .*at node 'waits': .*"
        assert re.search(expected + r"raised ValueError: the file is there \(graph.py:25", info.error or "")
        fails.unlink()
        run.retry()
        wait_until(lambda: run.info().status == "completed", "the run has completed")
        assert run.state()["ids"] == ENDED
        assert len(runs_below(run)) == 2


ASKS = """
from typing import TypedDict

from sleipnir import START, StateGraph


class State(TypedDict, total=False):
    topic: str
    answer: str


low = StateGraph(State).add_input_node("ask", question="What of {{topic}}?", state_updates={"answer": "{{input}}"})
low = low.add_edge(START, "ask").compile()


def loud(state: State):
    return {"answer": state["answer"].upper()}


graph = StateGraph(State).add_sequence([("low", low), loud]).add_edge(START, "low").compile(name="asks")

if __name__ == "__main__":
    run = graph.submit({"topic": "bells"})
    print(run.id)
"""


def test_a_question_of_a_graph_below_is_answered_at_the_top(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "asks", None, graph_py=ASKS)
    command = [sys.executable, str(agent / "graph.py")]
    done = subprocess.run(command, env=stack.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with stack.client() as client:
        run = client.run(done.stdout.strip())
        wait_until(lambda: [gate.question for gate in run.gates()] == ["What of bells?"], "the run asks")
        run.answer("loud")
        assert run.result(60) == {"topic": "bells", "answer": "LOUD"}


ROUTED = """
from typing import TypedDict

from sleipnir import START, StateGraph, interrupt


class State(TypedDict, total=False):
    topic: str
    answer: str


def think(state: State):
    return {"topic": state["topic"] + "!"}


low = StateGraph(State).add_node(think).add_edge(START, "think").compile()


def choose(state: State):
    return interrupt({"about": state["topic"]}) if interrupt("is it done?") == "no" else "good"


def good(state: State):
    return {"answer": "good"}


def bad(state: State):
    return {"answer": "bad"}


graph = StateGraph(State).add_node("low", low).add_node(good).add_node(bad).add_edge(START, "low")
graph = graph.add_conditional_edges("low", choose, ["good", "bad"]).compile(name="routed")
"""


def test_a_router_of_a_graph_below_asks_and_its_run_is_not_run_again(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "routed", None, graph_py=ROUTED)
    with stack.client() as client:
        run = client.submit(agent, state={"topic": "bells"})
        wait_until(lambda: [gate.payload for gate in run.gates()] == ["is it done?"], "the run asks")
        run.answer("no")
        wait_until(lambda: [gate.payload for gate in run.gates()] == [{"about": "bells!"}], "the run asks again")
        run.answer("bad")
        assert run.result(60)["answer"] == "bad"
        assert len(runs_below(run)) == 1


TOLD = """
from dataclasses import dataclass
from typing import TypedDict

from sleipnir import START, Runtime, StateGraph


@dataclass
class Who:
    name: str


class State(TypedDict, total=False):
    text: str


def greet(state: State, runtime: Runtime[Who], config: dict):
    return {"text": f"{config['configurable']['greeting']} {runtime.context.name}"}


low = StateGraph(State).add_node(greet).add_edge(START, "greet").compile()
graph = StateGraph(State, context_schema=Who).add_node("low", low).add_edge(START, "low").compile(name="told")

if __name__ == "__main__":
    run = graph.submit({"text": ""}, config={"configurable": {"greeting": "hello"}}, context=Who("ann"))
    print(run.result(60))
"""


def test_a_graph_below_has_the_configuration_and_the_context_of_the_run(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "told", None, graph_py=TOLD)
    command = [sys.executable, str(agent / "graph.py")]
    done = subprocess.run(command, env=stack.environment(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{'text': 'hello ann'}\n", "")


CALLS = """
name: calls
version: sleipnir/1
start: call
nodes:
  call: {type: agent, agent: outer, prompt: "hello", next: done}
  done: {type: end, output: "called"}
"""


def test_commands_take_an_agent_whose_nodes_are_graphs(stack: Stack, tmp_path: Path) -> None:
    text, _ = FORMS["one graph as two nodes, one of them below another graph"]
    agent = write_agent(tmp_path / "outer", None, graph_py=SHARED + text)
    given = ("--state", 'text="abc"')
    validated = stack.sleipnir("validate", str(agent))
    assert (validated.returncode, validated.stderr) == (0, "")
    drawing = stack.sleipnir("draw", str(agent)).stdout
    assert 'n0[["deep' in drawing and 'n1[["again' in drawing
    shown = stack.sleipnir("agents", "show", str(agent), "--json")
    assert json.loads(shown.stdout)["name"] == "outer"
    for options in ((), ("--in-process",)):
        ran = stack.sleipnir("run", str(agent), "hello", *given, *options, "--json")
        assert ran.returncode == 0, ran.stderr
    with stack.client() as client:
        assert client.nodes(agent) == {"deep", "again", "turn", "hide", "show"}
        run = client.submit(agent, state={"text": "abc"})
        assert run.wait(60).status == "completed"
        shown = stack.sleipnir("show", run.id)
        assert (shown.stdout.count(" outer/turn "), shown.stdout.count(" outer/deeper ")) == (2, 1)


BEGINS = """
def begin(state: Outer):
    return {"text": "xyz"}


graph = StateGraph(Outer).add_sequence([begin, ("inner", turn)]).add_edge(START, "begin").compile()
"""


def test_an_agent_node_starts_an_agent_whose_nodes_are_graphs(stack: Stack, tmp_path: Path) -> None:
    write_agent(tmp_path / "outer", None, graph_py=SHARED + BEGINS)
    above = write_agent(tmp_path / "calls", CALLS)
    with Client(replace(stack.settings, agents_dir=tmp_path)) as client:
        run = client.submit(above)
        info = run.wait(60)
        assert (info.status, info.error, run.output) == ("completed", None, "called")
        assert [(each.agent, each.status) for each in runs_below(run)] == [
            ("outer", "completed"),
            ("outer/inner", "completed"),
        ]


REFUSED = """
from typing import TypedDict

from sleipnir import START, StateGraph


class State(TypedDict, total=False):
    n: int


def one(state: State):
    return {}


inner = StateGraph(State).add_sequence([one, ("two", lambda state: {})]).add_edge(START, "one").compile()
graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
"""


def test_a_function_that_cannot_travel_is_refused_in_a_graph_below(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "refused", None, graph_py=REFUSED)
    validated = stack.sleipnir("validate", str(agent))
    assert validated.returncode != 0
    assert "graph.py:15: node 'two' cannot be found by a worker: it is a lambda" in validated.stdout + validated.stderr
