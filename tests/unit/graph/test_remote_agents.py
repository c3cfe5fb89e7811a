"""`agents` of a graph: remote agents, as they are read and checked."""

from __future__ import annotations

from typing import TypedDict

import pytest

from sleipnir import START, StateGraph
from sleipnir.graph.agent_names import part_for
from sleipnir.graph.check import check
from sleipnir.graph.load import parse
from sleipnir.graph.model import RemoteNode, agents_of
from sleipnir.python_graph.errors import GraphBuildError

GRAPH = """
name: g
version: sleipnir/1
start: ask
agents:
  risk: REMOTE
nodes:
  ask: {type: agent, agent: risk, prompt: hello, next: local}
  local: {type: agent, agent: near, prompt: hello, next: done}
  done: {type: end, output: done}
"""


def problems(remote: str) -> list[tuple[int | None, int | None, str]]:
    loaded = parse(GRAPH.replace("REMOTE", remote), "graph.yaml")
    found = list(loaded.problems)
    if loaded.graph is not None:
        found += check(loaded.graph, loaded.positions, "graph.yaml")
    return [(each.line, each.column, each.message) for each in found if each.level == "error"]


def test_the_graph_of_a_remote_agent_is_one_node_and_its_end() -> None:
    loaded = parse(GRAPH.replace("REMOTE", "{a2a: 'https://example.com/risk', token: RISK}"), "graph.yaml")
    assert loaded.graph is not None
    graph = part_for(loaded.graph, "g/risk")
    remote = graph.nodes[graph.start]
    assert isinstance(remote, RemoteNode)
    assert (remote.url, remote.token, list(graph.nodes)) == ("https://example.com/risk", "RISK", ["remote", "end"])
    assert agents_of(loaded.graph) == ["near"]


@pytest.mark.parametrize(
    ("remote", "column", "message"),
    [
        ("{a2a: 'ftp://example.com'}", 10, "'a2a' of agent 'risk' must be a URL that begins with https:// or http://"),
        ("{a2a: 'https://me:secret@example.com'}", 10, "must not have a user or a password: name a `token`"),
        ("{a2a: 'https://example.com/?key=1'}", 10, "must not have a query or a fragment"),
        ("{a2a: 'https://example.com:99999/'}", 10, "is no URL: Port out of range 0-65535"),
        ("{a2a: 'https://example.com/a b'}", 10, "ASCII characters without spaces"),
        ("{a2a: 'https://example.com', token: 'sk-12'}", 38, "must be a name of capital letters, digits and _"),
        ("{a2a: 'https://example.com', key: x}", 38, "unknown key 'key'"),
        ("{token: RISK}", 3, "missing field `a2a`"),
        ("https://example.com", 3, "'agents' must hold a mapping with `a2a` per remote agent"),
    ],
)
def test_what_is_wrong_has_a_place_and_a_reason(remote: str, column: int, message: str) -> None:
    [(line, at, said)] = problems(remote)
    assert (line, at) == (6, column)
    assert message in said


def test_version_1_0_has_no_remote_agents() -> None:
    text = GRAPH.replace("REMOTE", "{a2a: 'https://example.com'}").replace("sleipnir/1", '"1.0"')
    loaded = parse(text, "graph.yaml")
    assert "'agents' needs version sleipnir/1" in [problem.message for problem in loaded.problems]


def test_a_graph_written_in_python_names_one_too() -> None:
    class State(TypedDict):
        risk: str

    graph = StateGraph(State).add_remote_agent("risk", "https://example.com/risk", token="RISK")
    graph.add_agent_node("ask", "risk", "{{risk}}").add_edge(START, "ask")
    model = graph.compile().model
    assert model.agents["risk"].a2a == "https://example.com/risk"
    assert isinstance(part_for(model, "g/risk").nodes["remote"], RemoteNode)


def test_a_wrong_address_in_python_is_an_error_of_the_graph() -> None:
    class State(TypedDict):
        risk: str

    graph = StateGraph(State).add_remote_agent("risk", "example.com")
    graph.add_agent_node("ask", "risk", "{{risk}}").add_edge(START, "ask")
    with pytest.raises(GraphBuildError, match="must be a URL that begins with"):
        graph.compile()
