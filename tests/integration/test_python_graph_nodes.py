"""Nodes that are no functions, in a graph that runs in this process: a model over HTTP, a script as a process."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest

from sleipnir import START, StateGraph
from sleipnir.testing import ModelServer
from sleipnir_workers.processes import descendants


class State(TypedDict, total=False):
    topic: str
    text: str
    count: int


def choose(state: State) -> State:
    return {"topic": "bells"}


def test_an_llm_node_asks_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StateGraph(State).add_node(choose)
    builder.add_llm_node("ask", prompt="about {{topic}}", model="openai:gpt-test", state_updates={"text": "{{output}}"})
    graph = builder.add_edge(START, "choose").add_edge("choose", "ask").compile()
    with ModelServer(["ding"]) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        assert graph.invoke({}) == {"topic": "bells", "text": "ding"}
        assert server.requests[0].prompt == "about bells"


def test_a_script_node_starts_the_script_beside_the_file_of_the_graph() -> None:
    script = Path(__file__).parent / "python_graph_nodes" / "count.py"
    assert script.is_file()
    builder = StateGraph(State).add_node(choose)
    builder.add_script_node("count", script="python_graph_nodes/count.py")
    graph = builder.add_edge(START, "choose").add_edge("choose", "count").compile()
    descendants.resign()  # if commands of other tests have run in this process
    was_subreaper = descendants.is_subreaper()
    assert graph.invoke({}) == {"topic": "bells", "count": 5}
    assert descendants.is_subreaper() == was_subreaper, "the orphans of other processes are left to the system"
