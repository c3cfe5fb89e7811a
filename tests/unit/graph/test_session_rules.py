"""The block `session` of a graph: what it says, and each mistake with its line and column."""

from __future__ import annotations

from typing import TypedDict

import pytest

from sleipnir.commands import START
from sleipnir.graph.load import load_graph, parse
from sleipnir.python_graph.errors import GraphBuildError
from sleipnir.python_graph.state_graph import StateGraph

GRAPH = "name: g\nversion: sleipnir/1\nstart: end\nsession: {}\nnodes:\n  end: {{type: end}}\n"


class State(TypedDict):
    a: str


def builder() -> StateGraph:
    return StateGraph(State).add_node("same", dict).add_edge(START, "same")


def test_turns_are_refused_unless_the_agent_says_otherwise() -> None:
    for block, queues in (("{}", False), ("{concurrent: refuse}", False), ("{concurrent: queue}", True)):
        assert load_graph(GRAPH.format(block), "graph.yaml", "g").queues_turns is queues
    assert not load_graph(GRAPH.replace("session: {}\n", "").format(), "graph.yaml", "g").queues_turns
    assert builder().compile(session={"concurrent": "queue"}).model.queues_turns


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("{concurent: queue}", "4:11 SLP203 unknown key 'concurent'"),
        ("{concurrent: wait}", "4:11 SLP201 'session.concurrent' must be `refuse` or `queue`, got the text 'wait'"),
        (
            "queue",
            "4:1 SLP201 'session' must hold a mapping with `concurrent`, `max_history` and `summary`, "
            "got the text 'queue'",
        ),
    ],
)
def test_each_mistake_is_named_with_its_place(block: str, problem: str) -> None:
    [found] = parse(GRAPH.format(block), "graph.yaml").problems
    assert f"{found.line}:{found.column} {found.code} {found.message}" == problem


def test_version_1_0_and_python_refuse_it_too() -> None:
    [found] = parse(GRAPH.replace("version: sleipnir/1\n", "").format("{concurrent: queue}"), "graph.yaml").problems
    assert (found.code, found.message) == ("SLP218", "'session' needs version sleipnir/1")
    with pytest.raises(GraphBuildError, match="unknown key 'concurent'"):
        builder().compile(session={"concurent": "queue"})
