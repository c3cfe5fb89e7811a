"""The document of a graph whose nodes are graphs: what travels, and what is refused."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import START, StateGraph
from sleipnir.errors import GraphError
from sleipnir.graph.agent_names import folder_of, name_below, part_for
from sleipnir.graph.check import check
from sleipnir.graph.load import of_document, parse
from sleipnir.graph.model import GraphNode
from sleipnir.python_graph.errors import GraphBuildError
from sleipnir.python_graph.sources import references_to, unreachable


class Inner(TypedDict, total=False):
    text: str
    log: Annotated[list[str], operator.add]
    secret: str


class Given(TypedDict, total=False):
    text: str


def one(state: Inner) -> dict[str, Any]:
    return {}


REFERENCES = references_to(Path(__file__).parent)
INNER = StateGraph(Inner, output_schema=Given).add_node(one).add_edge(START, "one").compile()
NAMED = StateGraph(Inner).add_node("inner", INNER).add_edge(START, "inner").compile(name="a name/with  signs")


def built(*graphs: Any) -> Any:
    builder = StateGraph(Inner)
    for number, graph in enumerate(graphs):
        builder.add_node(f"n{number}", graph).add_edge(START, f"n{number}")
    return builder.compile()


def test_each_graph_has_one_document_with_the_keys_that_it_takes_and_returns() -> None:
    data = built(NAMED, INNER, INNER).travelling(REFERENCES).data
    assert [data["nodes"][f"n{number}"] for number in range(3)] == [
        {"type": "graph", "graph": "a-name-with-signs"},
        {"type": "graph", "graph": "inner"},
        {"type": "graph", "graph": "inner"},
    ]
    graphs = data["graphs"]
    assert list(graphs) == ["inner", "a-name-with-signs"]
    assert (graphs["inner"]["input_keys"], graphs["inner"]["output_keys"]) == (["text", "log", "secret"], ["text"])
    assert graphs["a-name-with-signs"]["nodes"] == {"inner": {"type": "graph", "graph": "inner"}}
    assert graphs["inner"]["state_classes"] == ["test_sub_graphs.py:Inner", "test_sub_graphs.py:Given"]


def test_two_graphs_of_one_name_have_two_documents() -> None:
    other = StateGraph(Inner).add_node(one).add_edge(START, "one").compile(name="n0")
    assert list(built(INNER, other).travelling(REFERENCES).data["graphs"]) == ["n0", "n0-2"]


def test_the_document_is_loaded_and_checked_with_its_graphs() -> None:
    document = built(NAMED).travelling(REFERENCES)
    loaded = of_document(document.data, document.places, Path(__file__))
    assert loaded.graph is not None
    assert check(loaded.graph, loaded.positions, __file__, Path(__file__).parent) == []
    below = part_for(loaded.graph, "agent/a-name-with-signs")
    assert isinstance(below.nodes["inner"], GraphNode)
    assert part_for(below, "agent/inner").output_keys == ["text"]
    assert part_for(loaded.graph, "agent") is loaded.graph
    with pytest.raises(GraphError, match="the definition of agent 'agent' has no graph 'other'"):
        part_for(loaded.graph, "agent/other")


def test_the_name_of_a_run_below_is_that_of_the_folder_and_the_graph() -> None:
    assert name_below("agent", "inner") == "agent/inner" == name_below("agent/outer", "inner")
    assert folder_of("agent/inner") == "agent" == folder_of("agent")


def test_a_graph_that_is_a_node_of_itself_is_refused() -> None:
    outer = built(INNER)
    middle = built(outer)
    outer.parts.nodes["n0"].action = middle
    assert unreachable(middle.parts, REFERENCES) == []
    with pytest.raises(
        GraphBuildError, match=r"test_sub_graphs.py:\d+: Node `n0` runs the graph 'n0', which runs this"
    ):
        middle.travelling(REFERENCES)


def test_a_graph_that_is_a_node_and_has_a_configuration_of_its_own_is_refused() -> None:
    bound = INNER.with_config({"configurable": {"model": "small"}})
    with pytest.raises(GraphBuildError, match=r"py:\d+: Node `n0`: what with_config gives to a graph that is a node"):
        built(bound).travelling(REFERENCES)


def test_functions_of_graphs_below_that_cannot_travel_are_found() -> None:
    below = StateGraph(Inner).add_node("two", lambda state: {}).add_edge(START, "two").compile()
    [problem] = unreachable(built(built(below), below).parts, REFERENCES)
    assert problem.message == "node 'two' cannot be found by a worker: it is a lambda"


HEAD = """
version: sleipnir/1
name: agent
start: a
state_classes: ["steps.py:State"]
nodes:
  a: {type: graph, graph: low}
"""


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (HEAD, "SLP809", "'low' is not one of the `graphs` of this document"),
        (
            HEAD + "graphs:\n  low:" + HEAD.replace("\n", "\n    "),
            "SLP810",
            "Graph 'low' leads to a graph that runs itself: 'low' -> 'low'",
        ),
        (HEAD + "graphs: {low: {graphs: {}}}\n", "SLP201", "'graphs' must hold graphs without `graphs` of their own"),
        (
            HEAD + "graphs:\n  low:" + HEAD.replace("graph, graph: low", "rag, documents: []").replace("\n", "\n    ")
            + "output_keys: []\n",
            "SLP811",
            "A graph that is a node cannot have nodes of type rag yet",
        ),
    ],
)  # fmt: skip
def test_wrong_graphs_of_a_document_are_findings(text: str, code: str, message: str) -> None:
    loaded = parse(text, "graph.yaml")
    graph = loaded.graph if loaded.graph is not None else loaded.salvaged and loaded.salvaged.graph
    found = [*loaded.problems, *(check(graph, loaded.positions, "graph.yaml") if graph is not None else ())]
    assert [problem.line for problem in found if (problem.code, problem.message[: len(message)]) == (code, message)]
