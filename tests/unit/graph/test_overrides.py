"""What the environment says of an agent otherwise than its file."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from sleipnir.graph.config_agent import load_config_agent
from sleipnir.graph.model import Graph, Json, LlmNode, Variable
from sleipnir.graph.overrides import overridden, overrides_of, with_every_model
from tests.unit.graph.writing import graph_of, yaml_graph

CONFIG = """
name: my-coder
model: openai:gpt-4o
temperature: 0.5
top_p: 0.5
global_tools: [fs_cat]
mcp_servers: [github]
agent_session: temp
variables:
  - {name: project, description: Where}
  - {name: style, description: How, default: plain}
"""


def config_agent() -> Graph:
    graph = load_config_agent(CONFIG, "config.yaml", "folder").graph
    assert graph is not None
    return graph


def graph_agent() -> Graph:
    return graph_of(yaml_graph("a: {type: end}", top="model: openai:gpt-4o\ntemperature: 0.5"))


def applied(graph: Graph, env: Mapping[str, str]) -> tuple[dict[str, Json], Graph]:
    """What is found, after a journey as JSON, and the graph with it."""
    found = json.loads(json.dumps(overrides_of(graph, "folder", env)))
    return found, overridden(graph, found)


@pytest.mark.conformance("C10")
def test_every_field_of_an_agent_can_be_overridden() -> None:
    env = {
        "MY_CODER_MODEL": "claude:sonnet",
        "MY_CODER_TEMPERATURE": "0.1",
        "MY_CODER_TOP_P": "1",
        "MY_CODER_REASONING_EFFORT": "high",
        "MY_CODER_GLOBAL_TOOLS": '["web", "fs_ls.sh"]',
        "MY_CODER_MCP_SERVERS": "[]",
        "MY_CODER_AGENT_SESSION": "mine",
        "MY_CODER_VARIABLES": '[{"name": "city", "description": "Which", "default": "Oslo"}]',
    }
    _, graph = applied(config_agent(), env)
    assert (graph.model, graph.temperature, graph.top_p) == ("claude:sonnet", 0.1, 1.0)
    assert graph.reasoning_effort == "high"
    assert (graph.global_tools, graph.mcp_servers) == (["web", "fs_ls.sh"], [])
    assert graph.variables == [Variable(name="city", description="Which", default="Oslo")]
    assert graph.loop is not None
    assert graph.loop.agent_session == "mine"


@pytest.mark.conformance("C10", "C02")
def test_the_model_is_offered_the_tools_that_the_environment_names() -> None:
    _, graph = applied(
        config_agent(), {"MY_CODER_GLOBAL_TOOLS": '["web"]', "MY_CODER_MCP_SERVERS": '["jira", "github"]'}
    )
    node = graph.nodes["agent"]
    assert isinstance(node, LlmNode)
    assert node.tools is not None
    assert (node.tools[0], node.tools[-2:]) == ("web", ["mcp:jira", "mcp:github"])
    assert "fs_cat" not in node.tools


def test_null_unsets_a_value() -> None:
    names = ("MODEL", "TEMPERATURE", "TOP_P", "AGENT_SESSION")
    _, graph = applied(config_agent(), {f"MY_CODER_{name}": "null" for name in names})
    assert (graph.model, graph.temperature, graph.top_p) == (None, None, None)
    assert graph.loop is not None
    assert graph.loop.agent_session is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TEMPERATURE", "warm"),
        ("TOP_P", "nan"),
        ("TOP_P", "1e999"),
        ("GLOBAL_TOOLS", "web"),
        ("GLOBAL_TOOLS", "[1]"),
        ("MCP_SERVERS", '{"a": 1}'),
        ("VARIABLES", "{"),
        ("VARIABLES", "3"),
        ("VARIABLES", '["x"]'),
        ("VARIABLES", '[{"name": "x"}]'),
        ("VARIABLES", '[{"name": 1, "description": "d"}]'),
        ("VARIABLES", '[{"name": "project", "value": 1}]'),
        ("VARIABLES", "[" * 100_000),
        ("MODEL", ""),
    ],
)
def test_an_unreadable_value_of_a_variable_is_ignored(name: str, text: str) -> None:
    assert applied(config_agent(), {f"MY_CODER_{name}": text}) == ({}, config_agent())


@pytest.mark.conformance("C10")
def test_variables_written_as_name_and_value_are_values_for_those_of_the_file() -> None:
    given = [{"name": "project", "value": "/src"}, {"name": "unknown", "value": "x"}]
    _, graph = applied(config_agent(), {"MY_CODER_VARIABLES": json.dumps(given)})
    assert graph.variables == [
        Variable(name="project", description="Where", default="/src"),
        Variable(name="style", description="How", default="plain"),
    ]


@pytest.mark.conformance("C10")
def test_a_graph_agent_is_known_by_the_name_of_its_folder() -> None:
    env = {"FOLDER_MODEL": "claude:sonnet", "G_MODEL": "a:b", "FOLDER_AGENT_SESSION": "x", "FOLDER_TEMPERATURE": "1"}
    found, graph = applied(graph_agent(), env)
    assert found == {"model": "claude:sonnet", "temperature": 1.0}
    assert (graph.model, graph.temperature, graph.nodes) == ("claude:sonnet", 1.0, graph_agent().nodes)


def test_other_agents_variables_are_not_its_own() -> None:
    graph = config_agent()
    assert applied(graph, {"FOLDER_MODEL": "a:b", "CODER_MODEL": "a:b"}) == ({}, graph)


def test_additions_of_a_later_release_are_ignored() -> None:
    assert overridden(graph_agent(), {"effort": "high"}) == graph_agent()


def test_the_model_of_all_llm_nodes_replaces_that_of_the_graph_and_of_each_node() -> None:
    nodes = (
        "a: {type: llm, prompt: p, model: 'openai:one', next: b}\nb: {type: llm, prompt: p, next: c}\nc: {type: end}"
    )
    graph = graph_of(yaml_graph(nodes, top="model: openai:two"))
    overrides = with_every_model({"agent": {"model": "openai:three", "top_p": 0.5}}, ["agent", "below"], "claude:four")
    assert overrides["below"] == {"every_model": "claude:four"}
    changed = overridden(graph, json.loads(json.dumps(overrides["agent"])))
    assert (changed.model, changed.top_p) == ("claude:four", 0.5)
    assert [node.model for node in changed.nodes.values() if isinstance(node, LlmNode)] == [None, None]
    assert list(changed.nodes) == list(graph.nodes)
