"""Graphs that are nodes of another graph, on a real scheduler and real workers: each is a child run with a state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir import Client
from sleipnir.client.client import Run
from sleipnir.python_graph.agent_modules import load
from sleipnir.runs.views import GateInfo
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


one = StateGraph(Word, output_schema=Found).add_node(look).add_node("show", look)
one = one.add_edge(START, "look").compile()
graph = StateGraph(Outer).add_node("inner", one).add_node("rest", turn).add_node(before).add_node(after)
graph = graph.add_conditional_edges(START, fan, ["inner"]).add_edge("inner", "rest")
graph = graph.add_conditional_edges("rest", where, ["before", "after"]).compile()
""",
        {"words": ["b", "a", "c"], "text": "xy"},
    ),
    "a command for the graph above": (
        """
def up(state: Inner):
    return Command(graph=Command.PARENT, update={"text": "up", "words": ["w"]}, goto=["rescue", Send("turn", {"text": "st"})])


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
