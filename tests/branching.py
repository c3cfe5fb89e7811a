"""Agents that branch, for system tests: graphs of functions that a test holds, counts and kills through files.

The prompt of a run is its scratch folder. Every function first calls `did`: it writes its node's name to the file
`did`, and waits where the test has put a file: `hold-<node>` until `go-<node>` appears, `hang-<node>` for good, the
first time (the file `at-<node>` says that it does). So no test sleeps, and one worker's death can hit any node.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ops.chaos import verdict
from sleipnir.client.client import Client, Run
from tests.processes import wait_until, write_agent

both = pytest.mark.parametrize("engine", ["bsp", "dag"])

FUNCTIONS = """
import pathlib
import threading

from sleipnir.commands import Command


def did(state, name):
    folder = pathlib.Path(state["initial_prompt"])
    with (folder / "did").open("a") as file:
        file.write(name + "\\n")
    hang, at = folder / f"hang-{name}", folder / f"at-{name}"
    if hang.exists() and not at.exists():
        at.touch()
        until(folder / "never")
    if (folder / f"hold-{name}").exists():
        until(folder / f"go-{name}")


def until(file):
    while not file.exists():
        threading.Event().wait(0.01)


def nothing(name):
    def function(state):
        did(state, name)
    return function
"""

DIAMOND = """
name: diamond
version: sleipnir/1
start: splitter
engine: ENGINE
state: {results: {type: list, items: string, reducer: append}}
nodes:
  splitter: {type: function, call: "f.py:splitter", next: [analyzer1, analyzer2]}
  analyzer1: {type: function, call: "f.py:analyzer1", EDGE}
  analyzer2: {type: function, call: "f.py:analyzer2", EDGE}
  aggregator: {type: function, call: "f.py:aggregator", JOIN
               branch: [{when: "size(state.results) >= 2", to: final}, {else: end}]}
  final: {type: function, call: "f.py:final", next: done}
  done: {type: end, output: "{{final}}"}
"""
DIAMOND_PY = """
def splitter(state):
    did(state, "splitter")
    return {"text": "X"}

def analyzer1(state):
    did(state, "analyzer1")
    return {"results": ["Result1[A1-" + state["text"] + "]"]}

def analyzer2(state):
    did(state, "analyzer2")
    return {"results": ["Result2[A2-" + state["text"] + "]"]}

def aggregator(state):
    did(state, "aggregator")
    return {"seen": len(state["results"])}

def final(state):
    did(state, "final")
    return {"final": " ".join(state["results"])}
"""

JOIN = """
name: joining
version: sleipnir/1
start: begin
engine: ENGINE
state: {order: {type: list, reducer: append}}
nodes:
  begin: {type: function, call: "f.py:begin", next: [a, b]}
  a: {type: function, call: "f.py:a"}
  b: {type: function, call: "f.py:b"}
  join: {type: function, call: "f.py:join", wait_for: [a, b], next: done}
  done: {type: end, output: "{{order}}"}
"""
JOIN_PY = """
def writes(name):
    def function(state):
        did(state, name)
        return {"order": [name]}
    return function

begin, a, b, join = map(writes, ["begin", "a", "b", "join"])
"""

MAP_REDUCE = """
name: map-reduce
version: sleipnir/1
start: retrieve
engine: ENGINE
state: {partials: {type: list, reducer: append}}
nodes:
  retrieve: {type: function, call: "f.py:retrieve"}
  summarize: {type: function, call: "f.py:summarize", EDGE}
  collect: {type: function, call: "f.py:collect", JOIN
            branch: [{when: "state.count == 3", to: reduce}, {else: end}]}
  reduce: {type: function, call: "f.py:reduce", next: done}
  done: {type: end, output: "{{answer}}"}
"""
MAP_REDUCE_PY = """
CHUNKS = ["red", "green", "blue"]

def retrieve(state):
    did(state, "retrieve")
    return {"question": "which colours?",
            "_next": [{"to": "summarize", "update": {"chunk": chunk, "question": ""}} for chunk in CHUNKS]}

def summarize(state):
    did(state, "summarize")
    return {"partials": [state["chunk"].upper()]}

def collect(state):
    did(state, "collect")
    return {"count": len(state["partials"])}

def reduce(state):
    did(state, "reduce")
    return {"answer": state["question"] + " " + " ".join(state["partials"])}
"""

GRAPHS = {
    "diamond": (DIAMOND, DIAMOND_PY, "next: aggregator", "wait_for: [analyzer1, analyzer2],"),
    "joining": (JOIN, JOIN_PY, "", ""),
    "map-reduce": (MAP_REDUCE, MAP_REDUCE_PY, "next: collect", "wait_for: [summarize],"),
}
"""Text, functions, and how branches come together: in a super-step by plain edges, in a dag by a join."""

NODES = {
    "diamond": {"splitter": 1, "analyzer1": 1, "analyzer2": 1, "aggregator": 1, "final": 1},
    "joining": {"begin": 1, "a": 1, "b": 1, "join": 1},
    "map-reduce": {"retrieve": 1, "summarize": 3, "collect": 1, "reduce": 1},
}
"""How often each function is called by a run without faults."""

OUTPUTS = {
    "diamond": "Result1[A1-X] Result2[A2-X]",
    "joining": '["begin","a","b","join"]',
    "map-reduce": "which colours? RED GREEN BLUE",
}


def agent(folder: Path, text: str, functions: str) -> Path:
    return write_agent(folder, text, f_py=FUNCTIONS + functions)


def known_agent(folder: Path, name: str, engine: str) -> Path:
    """One of GRAPHS."""
    text, functions, edge, join = GRAPHS[name]
    text = text.replace("ENGINE", engine)
    eager = engine == "dag"
    text = text.replace(", EDGE", "" if eager else f", {edge}").replace(" JOIN", f" {join}" if eager else "")
    return agent(folder / f"{name}-{engine}", text, functions)


class Scratch:
    """The scratch folder of one run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder

    def start(self, client: Client, agent: Path) -> Run:
        return client.submit(agent, str(self.folder))

    def hold(self, *nodes: str) -> None:
        for node in nodes:
            (self.folder / f"hold-{node}").touch()

    def go(self, node: str) -> None:
        (self.folder / f"go-{node}").touch()

    def hang(self, node: str) -> None:
        (self.folder / f"hang-{node}").touch()

    def hangs(self, node: str) -> bool:
        return (self.folder / f"at-{node}").exists()

    def did(self) -> list[str]:
        """The nodes in the order in which their functions began."""
        file = self.folder / "did"
        return file.read_text().split() if file.exists() else []

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.did()))

    def wait_for(self, *nodes: str) -> None:
        """Until all of them have begun."""
        wait_until(lambda: set(nodes) <= set(self.did()), f"{nodes} have begun; so far: {self.did()}")


def completed(client: Client, run: Run, timeout_s: float = 60) -> str:
    """The output of a run that must complete, with a journal that is right."""
    info = run.wait(timeout_s)
    assert info.status == "completed", info.error
    is_right(client, run)
    return run.output or ""


def failed(client: Client, run: Run, timeout_s: float = 60) -> str:
    """The error of a run that must fail, with a journal that is right."""
    info = run.wait(timeout_s)
    assert info.status == "failed", info
    is_right(client, run)
    return info.error or ""


def is_right(client: Client, run: Run) -> None:
    """No step is missing or doubled, no visit is committed twice, and the state is the fold of the journal."""
    assert list(verdict.of_journal(client, run, run.history())) == []


def committed(run: Run) -> dict[str, int]:
    """How often each node is in the journal."""
    return dict(Counter(step.node for step in run.history() if step.node))
