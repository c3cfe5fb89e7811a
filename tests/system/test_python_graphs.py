"""Graphs written in Python on a real scheduler, real workers and a real Redis: the same final state as in process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.python_graph.agent_modules import load
from sleipnir.runs.views import RunInfo
from tests.processes import RedisServer, Stack, wait_until, write_agent

LINEAR = """
from typing import TypedDict

from sleipnir import END, START, StateGraph


class State(TypedDict, total=False):
    n: int
    text: str


def double(state: State) -> dict:
    return {"n": state["n"] * 2}


def write(state: State) -> dict:
    return {"text": f"n is {state['n']}"}


graph = StateGraph(State).add_sequence([double, write]).add_edge(START, "double").add_edge("write", END).compile()
"""

PLANNER = '''
from __future__ import annotations

import operator
import time
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from sleipnir import START, Command, Runtime, Send, StateGraph, get_config
from helpers import longest, shout
from nodes.summary import summarise


class State(TypedDict, total=False):
    topic: str
    hold: str
    parts: list[str]
    found: Annotated[list[str], operator.add]
    best: Annotated[str, longest]
    seen: Annotated[set[str], operator.or_]
    threads: list[str | None]
    answer: str


def plan(state: State, config: dict, runtime: Runtime) -> dict:
    threads = [config["configurable"]["thread_id"], runtime.execution_info.thread_id]
    return {"parts": [f"{state['topic']}-{n}" for n in range(3)], "threads": threads}


def fan(state: State) -> list[Send]:
    """The state that it gets has the writes of its node."""
    return [Send("look", {"part": part, "hold": state.get("hold")}) for part in state["parts"]]


async def look(state: dict) -> dict:
    """Waits while the file `hold` exists, and leaves a mark beside it."""
    if state["hold"]:
        Path(state["hold"] + f".{state['part']}").touch()
        while Path(state["hold"]).exists():
            time.sleep(0.05)
    part = state["part"]
    return {"found": [shout(part)], "best": part * (1 + part.endswith("1")), "seen": {part, "all"}}


def decide(state: State) -> Command[Literal["summarise", "nothing"]]:
    assert get_config()["configurable"] is not None
    assert isinstance(state["seen"], set)
    return Command(update={"answer": "?"}, goto="summarise" if state["found"] else "nothing")


def nothing(state: State) -> dict:
    return {"answer": "nothing"}


def built() -> StateGraph:
    graph = StateGraph(State).add_node(plan).add_node(look).add_node(decide).add_node(summarise).add_node(nothing)
    graph.add_edge(START, "plan").add_conditional_edges("plan", fan, ["look"]).add_edge("look", "decide")
    return graph


graph = built()
'''
HELPERS = """
def longest(old, new):
    return new if len(new) > len(old) else old


def shout(text):
    return text.upper()
"""
SUMMARY = """
from helpers import shout


def summarise(state):
    return {"answer": shout(", ".join(state["found"]) + "; " + state["best"])}
"""


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    with Stack(redis_server, tmp_path / "home", key_prefix=request.node.name[:40], owner_ttl_s=0.5) as stack:
        yield stack


def planner(folder: Path) -> Path:
    return write_agent(folder / "planner", None, graph_py=PLANNER, helpers_py=HELPERS, nodes__summary_py=SUMMARY)


def in_process(agent: Path, input: dict[str, Any]) -> Any:
    """The final state of a run of the agent's graph in this process, as it is stored."""
    graph = load((agent / "graph.py").resolve()).graph
    compiled = graph if hasattr(graph, "invoke") else graph.compile()
    return compiled.objects.encoded(compiled.invoke(input, {"configurable": {"thread_id": None}}))


def of_run(state: dict[str, Any]) -> dict[str, Any]:
    """The keys of the graph; sets in one order."""
    return {
        key: sorted(value) if key == "seen" else value for key, value in state.items() if key not in ("initial_prompt",)
    }


def completed(info: RunInfo) -> None:
    assert (info.status, info.error) == ("completed", None)


def test_a_graph_of_functions_runs_on_a_worker(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "linear", None, graph_py=LINEAR)
    with stack.client() as client:
        run = client.submit(agent, state={"n": 4})
        completed(run.wait(60))
        assert of_run(run.state()) == {"n": 8, "text": "n is 8"} == in_process(agent, {"n": 4})
        assert [step.node for step in run.history() if step.node] == ["double", "write"]
        (agent / "graph.py").write_text(LINEAR.replace("* 2", "* 3"))
        changed = client.submit(agent, state={"n": 4})
        completed(changed.wait(60))
        assert changed.state()["text"] == "n is 12", "a change of the file is noticed"


def test_branches_reducers_sends_and_commands_give_the_state_of_a_run_in_process(stack: Stack, tmp_path: Path) -> None:
    agent = planner(tmp_path)
    with stack.client() as client:
        run = client.submit(agent, state={"topic": "sea"})
        completed(run.wait(60))
        assert of_run(run.state()) == of_run(in_process(agent, {"topic": "sea"}))
        assert run.state()["answer"] == "SEA-0, SEA-1, SEA-2; SEA-1SEA-1"


def test_a_worker_is_killed_while_it_executes_a_graph(own: Stack, tmp_path: Path) -> None:
    agent, hold = planner(tmp_path), tmp_path / "hold"
    hold.touch()
    own.start_scheduler()
    own.start_worker("first", concurrency=4)
    with own.client() as client:
        run = client.submit(agent, state={"topic": "sea", "hold": str(hold)})
        wait_until(lambda: len(list(tmp_path.glob("hold.sea-*"))) == 3, "all visits of the Sends are executed")
        own.kill("first")
        hold.unlink()
        own.start_worker("second")
        completed(run.wait(120))
        expected = in_process(agent, {"topic": "sea", "hold": str(hold)})
        assert of_run(run.state()) == of_run(expected)
        assert len([step for step in run.history() if step.node == "look" and step.role == "node"]) == 3
