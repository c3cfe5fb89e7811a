"""A config.yaml as a graph with one loop (spec/graph-agents.md 3.1).

The model of such an agent is called in a loop, with all of its tools, until it answers without a tool call. So the
agent is a graph whose node `agent` is an llm node with tools. If its instructions are dynamic, a node before it runs
the function of its tools file that writes them; if it has documents, a node searches them.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from sleipnir.graph.findings import Findings, in_file_order
from sleipnir.graph.loaded import LoadedGraph
from sleipnir.graph.model import (
    ConfigAgent,
    EndNode,
    Graph,
    LlmNode,
    LoopAgent,
    Node,
    RagNode,
    SkillKeys,
    ToolNode,
)
from sleipnir.graph.salvage import salvaged
from sleipnir.graph.shape import Shaper, shown
from sleipnir.graph.source import YamlDocument, read
from sleipnir.graph.tools import (
    FOUND_CONTEXT,
    FOUND_SOURCES,
    INSTRUCTIONS,
    MCP,
    MESSAGE_TOOLS,
    OWN_TOOLS,
    SPAWN_TOOLS,
    TODO_TOOLS,
    USER_TOOLS,
)

AGENT: Final = "agent"
"""The node that calls the model."""

DYNAMIC: Final = "instructions"
"""The node that runs `_instructions`."""

DOCUMENTS: Final = "rag"
"""The node that searches the agent's documents; its name makes rag.yaml the file of its knowledge base."""

DONE: Final = "done"

MOST_TURNS: Final = 1000  # far more than a useful conversation has; it ends one that goes in circles


def load_config_agent(text: str, file: str, agent: str) -> LoadedGraph:
    """The config.yaml of `agent` as a graph. `file` is its name in problems. Never raises."""
    document = read(text, file)
    findings = Findings(file, document.positions, document.problems)

    def build(document: YamlDocument, findings: Findings) -> Graph | None:
        config = _read(document, findings, agent)
        return None if config is None else graph_of(config)

    graph = build(document, findings) if document.readable else None
    problems = tuple(in_file_order(findings.problems))
    if findings.has_errors:
        return LoadedGraph(None, problems, document.positions, document, salvaged(document, file, build))
    return LoadedGraph(graph, problems, document.positions, document)


def graph_of(agent: ConfigAgent) -> Graph:
    """The graph of an agent."""
    nodes: list[Node] = []
    if agent.dynamic_instructions:
        then = DOCUMENTS if agent.documents else AGENT
        nodes.append(ToolNode(id=DYNAMIC, tool=INSTRUCTIONS, output_key=INSTRUCTIONS, next=then))
    if agent.documents:
        updates = {FOUND_CONTEXT: "{{output.context}}", FOUND_SOURCES: "{{output.sources}}"}
        nodes.append(RagNode(id=DOCUMENTS, documents=agent.documents, state_updates=updates, next=AGENT))
    nodes.append(
        LlmNode(
            id=AGENT,
            prompt="{{initial_prompt}}",
            tools=[],
            max_iterations=MOST_TURNS,
            state_updates={"output": "{{output}}"},
            next=DONE,
        )
    )
    nodes.append(EndNode(id=DONE, output="{{output}}"))
    graph = Graph(
        name=agent.name,
        start=nodes[0].id,
        nodes={node.id: node for node in nodes},
        description=agent.description,
        model=agent.model,
        temperature=agent.temperature,
        top_p=agent.top_p,
        reasoning_effort=agent.reasoning_effort,
        global_tools=agent.global_tools,
        mcp_servers=agent.mcp_servers,
        conversation_starters=agent.conversation_starters,
        variables=agent.variables,
        concurrency=agent.concurrency,
        **{field.name: getattr(agent, field.name) for field in fields(SkillKeys)},
        loop=LoopAgent(**{field.name: getattr(agent, field.name) for field in fields(LoopAgent)}),
    )
    return with_every_tool(graph)


def with_every_tool(graph: Graph) -> Graph:
    """The graph of a config.yaml agent with all of the agent's tools for its model. Other graphs are unchanged."""
    node = graph.nodes.get(AGENT)
    if graph.loop is None or not isinstance(node, LlmNode):
        return graph
    tools = [
        *graph.global_tools,
        OWN_TOOLS,
        *(TODO_TOOLS if graph.loop.auto_continue else ()),
        *(SPAWN_TOOLS if graph.loop.can_spawn_agents else ()),
        *MESSAGE_TOOLS,
        *USER_TOOLS,
        *(MCP + server for server in graph.mcp_servers),
    ]
    return replace(graph, nodes={**graph.nodes, AGENT: replace(node, tools=list(dict.fromkeys(tools)))})


def _read(document: YamlDocument, findings: Findings, agent: str) -> ConfigAgent | None:
    if not isinstance(document.data, dict):
        message = f"a config.yaml must be a mapping of keys, got {shown(document.data)}"
        findings.error((), message, f"Start with `name: {agent}` and `instructions:`.", code="SLP201")
        return None
    shaper = Shaper(document, findings)
    values = shaper.fields(ConfigAgent, document.data, ())
    shaper.report_unsupported()
    if isinstance(values.get("name"), str) and not values["name"].strip():
        findings.error(("name",), "Agent must have a non-empty 'name' field", f"Write `name: {agent}`.", code="SLP209")
    if "variables" in values:
        values["variables"] = shaper.variables(values["variables"])
    if "concurrency" in values:
        values["concurrency"] = shaper.concurrency(values["concurrency"])
    return shaper.build(ConfigAgent, values, ())
