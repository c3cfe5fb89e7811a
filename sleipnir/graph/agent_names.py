"""The names of agents in runs: the name of a folder; for a run of one of the `graphs` of its document, or of one of
its remote agents, `agent/graph`.

No folder has a name with a slash. Such a run has the bundle of the agent, and its definition is a part of the agent's.
"""

from __future__ import annotations

from sleipnir.errors import GraphError
from sleipnir.graph.model import Graph, graph_below, remotes_of


def folder_of(agent: str) -> str:
    """The name of the folder of an agent."""
    return agent.partition("/")[0]


def name_below(agent: str, graph: str) -> str:
    """The name for a run of one of the `graphs` of an agent's document; `agent` may itself be such a name."""
    return f"{folder_of(agent)}/{graph}"


def part_for(whole: Graph, agent: str) -> Graph:
    """The part of the definition in an agent's folder that is the definition of `agent`. Raises GraphError."""
    name = agent.partition("/")[2]
    if not name:
        return whole
    if name not in whole.graphs and name not in remotes_of(whole):
        raise GraphError(f"the definition of agent {folder_of(agent)!r} has no graph {name!r}")
    return graph_below(whole, name)
