"""Overrides and patches of nodes: where they lead, what is refused, and what a run's graph is then."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.errors import UsageError
from sleipnir.graph import node_overrides
from sleipnir.graph.load import load_graph
from sleipnir.graph.model import AgentNode, Graph, LlmNode, Node
from sleipnir.graph.node_overrides import checked, in_words, merged, of_child, overridden, without_models

PARENT = """
version: sleipnir/1
name: parent
start: ask
nodes:
  ask: {type: llm, prompt: p, tools: [find], model: "openai:one", generation: {temperature: 1, stop: [x]}, next: expert}
  other: {type: llm, prompt: p, instructions: long, next: expert}
  expert: {type: agent, agent: child, prompt: p, next: work}
  work: {type: script, script: s.sh, next: done}
  done: {type: end}
"""
CHILD = """
version: sleipnir/1
name: child
start: ask
nodes:
  ask: {type: llm, prompt: p, next: again}
  again: {type: agent, agent: child, prompt: p, next: done}
  done: {type: end}
"""


@pytest.fixture
def parent() -> Graph:
    return load_graph(PARENT, "graph.yaml", "parent")


def find(node: Node, graph: Graph) -> Graph | None:
    return child_graph() if isinstance(node, AgentNode) else None


def child_graph() -> Graph:
    return load_graph(CHILD, "graph.yaml", "child")


def llm(graph: Graph, node: str = "ask") -> LlmNode:
    found = graph.nodes[node]
    assert isinstance(found, LlmNode)
    return found


def settings(node: LlmNode) -> tuple[Any, Any]:
    generation = node.generation
    temperature = node.temperature if generation is None or generation.temperature is None else generation.temperature
    return temperature, None if generation is None else generation.max_tokens


@pytest.mark.conformance("CO-01", "CO-02", "CO-06")
def test_a_star_is_for_all_llm_nodes_and_the_name_of_a_node_for_it_alone(parent: Graph) -> None:
    before = repr(parent)
    stored = checked({"*": {"temperature": 0}, "ask": {"max_tokens": 7}}, None, parent, find)
    now = overridden(parent, stored)
    assert settings(llm(now)) == (0, 7)
    assert settings(llm(now, "other")) == (0, None)
    assert repr(parent) == before, "the graph that is kept is not changed"
    assert overridden(parent, checked({"ask": {"temperature": 2}}, None, parent, find)) != now


@pytest.mark.conformance("CO-03", "CO-07")
def test_a_child_run_gets_what_is_for_all_what_names_its_node_and_what_begins_with_it(parent: Graph) -> None:
    given = {
        "*": {"temperature": 0.1, "top_p": 0.1, "max_tokens": 1},
        "expert": {"max_tokens": 2, "top_p": 0.2},
        "expert/ask": {"temperature": 0.3},
        "expert/again/ask": {"seed": 4},
    }
    child = child_graph()
    below = of_child(checked(given, None, parent, find), "expert")
    node = llm(overridden(child, below))
    assert settings(node) == (0.3, 2)
    assert node.top_p == 0.2 and (node.generation is None or node.generation.seed is None)
    deeper = llm(overridden(child, of_child(below, "again")))
    assert settings(deeper) == (0.1, 2) and deeper.generation is not None and deeper.generation.seed == 4
    assert of_child({"ask": {"seed": 1}}, "expert") == {}


@pytest.mark.conformance("CO-04", "CO-05")
def test_nothing_changes_nothing_and_an_empty_stop_clears(parent: Graph) -> None:
    assert checked({"*": {}, "ask": {"temperature": None}}, {}, parent, find) == {}
    assert checked(None, None, parent, find) == {}
    generation = llm(overridden(parent, checked({"ask": {"stop": []}}, None, parent, find))).generation
    assert generation is not None and generation.stop is None and generation.temperature == 1


@pytest.mark.conformance("SP-01", "SP-02", "SP-03")
def test_patches_replace_what_a_node_says_and_may_call(parent: Graph) -> None:
    patches = {"ask#instruction": "Be brief.", "ask#model": "openai:two", "ask#tools+": ["fetch", "find"]}
    stored = checked(None, patches, parent, find)
    node = llm(overridden(parent, stored))
    assert (node.instructions, node.model, node.tools) == ("Be brief.", "openai:two", ["find", "fetch"])
    assert in_words(stored) == ["ask#instruction (9 characters)", "ask.model=openai:two", "ask#tools+=fetch,find"]
    assert llm(overridden(parent, checked(None, {"ask#tools": "fetch"}, parent, find))).tools == ["fetch"]
    again = merged(stored, checked(None, {"ask#tools": ["x"], "other#instruction": "o"}, parent, find))
    assert llm(overridden(parent, again)).tools == ["x"]
    assert "model" not in str(without_models(stored))


@pytest.mark.conformance("SP-01")
def test_a_patch_replaces_the_examples_of_a_node(parent: Graph) -> None:
    examples = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    stored = checked(None, {"ask#few_shot": examples}, parent, find)
    assert llm(overridden(parent, stored)).few_shot == examples
    assert in_words(stored) == ["ask#few_shot (2 messages)"]
    for wrong in ("text", [{"role": "system", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": ""}]):
        with pytest.raises(UsageError, match="ask#few_shot must be a list of messages"):
            checked(None, {"ask#few_shot": wrong}, parent, find)
    loki = load_graph("name: l\nstart: a\nnodes:\n  a: {type: llm, prompt: p, next: e}\n  e: {type: end}\n", "g", "l")
    with pytest.raises(UsageError, match="examples are for llm nodes of graphs of version sleipnir/1"):
        checked(None, {"a#few_shot": examples}, loki, find)


def test_other_nodes_have_a_timeout(parent: Graph) -> None:
    now = overridden(parent, checked({"work": {"timeout": "2m"}, "expert": {"timeout": 9}}, None, parent, find))
    assert [now.nodes[name].timeout for name in ("work", "expert")] == [120, 9]


@pytest.mark.parametrize(
    ("overrides", "patches", "why"),
    [
        ({"aks": {"seed": 1}}, None, r"""the graph 'parent' has no node 'aks'. Did you mean "ask"\?"""),
        ({"expert/aks": {"seed": 1}}, None, r"""'child' under 'expert' has no node 'aks'. Did you mean "ask"\?"""),
        ({"ask/ask": {"seed": 1}}, None, "node 'ask' is of type llm, so no path leads through it"),
        ({"*/ask": {"seed": 1}}, None, "so it is the last part of a path"),
        (
            {"ask": {"temprature": 1}},
            None,
            r"""there is no 'temprature'. Did you mean "temperature"\?""",
        ),
        ({"ask": {"temperature": "hot"}}, None, "ask.temperature must be a number, not 'hot'"),
        ({"ask": {"temperature": float("nan")}}, None, "must be a number"),
        ({"ask": {"max_tokens": 0}}, None, "must be a whole number above 0"),
        ({"ask": {"max_iterations": True}}, None, "must be a whole number above 0"),
        ({"ask": {"timeout": "soon"}}, None, "a duration such as 30s"),
        ({"ask": {"model": "gpt"}}, None, "the name of a model as client:model"),
        ({"ask": {"stream": 1}}, None, "must be true or false"),
        ({"ask": 3}, None, "the override of 'ask' must be a mapping"),
        ({"work": {"seed": 1}}, None, "node 'work' is of type script, which has no 'seed'"),
        ({"done": {"timeout": 1}}, None, "node 'done' is of type end, which has no 'timeout'"),
        (None, {"ask": "x"}, "names no surface"),
        (None, {"ask#instructions": "x"}, r"""there is no 'instructions'. Did you mean "instruction"\?"""),
        (None, {"expert#instruction": "x"}, "'expert' is no llm node"),
        (None, {"*#tools": ["x"]}, r"'\*' is no llm node"),
        (None, {"ask#tools": 3}, "must be a list of texts"),
        (None, {"ask#instruction": "x" * 70_000}, "at most 65,536 are possible"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_nearest_name(
    parent: Graph, overrides: Any, patches: Any, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        checked(overrides, patches, parent, find)


def test_a_stored_definition_has_only_the_tools_that_its_nodes_name(parent: Graph) -> None:
    node_overrides.refuse_unnamed_tools(checked(None, {"other#tools": ["find"]}, parent, find), parent)
    with pytest.raises(UsageError, match=r"""has the tool 'fnd'. Did you mean "find"\?"""):
        node_overrides.refuse_unnamed_tools(checked(None, {"other#tools+": ["fnd"]}, parent, find), parent)
