"""Overrides of an agent's settings from the submitter's environment (spec/graph-agents.md 3.3).

Rules. The variables are `<NAME>_MODEL` and so on. NAME is the `name` of a config.yaml, or the folder name of a graph
agent, in upper case with `-` as `_`. They are read once, at submission, and stored with the run: they apply to
this run only, on every machine. A value that cannot be read is ignored, as in Loki. `null` unsets a value.

Two are not of the environment, but of one run and the runs that it starts: EVERY_MODEL, the model of all their llm
nodes, also of those that name another one; and OF_NODES, overrides and patches by paths of nodes (node_overrides.py),
which only the agent of the run itself has, because they depend on the path to the run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from sleipnir.graph import node_overrides
from sleipnir.graph.config_agent import with_every_tool
from sleipnir.graph.model import Graph, Json, LlmNode, Node, Variable
from sleipnir.graph.node_overrides import NodeOverrides

EVERY_MODEL: Final = "every_model"
OF_NODES: Final = "nodes"
SESSION: Final = "agent_session"
_OF_LOOPS: Final = (SESSION, "spawnable_agents")
"""Fields of a config.yaml that graphs do not have."""


def env_name(agent: str) -> str:
    """The prefix of an agent's environment variables."""
    return agent.upper().replace("-", "_")


def overrides_of(graph: Graph, agent: str, env: Mapping[str, str]) -> dict[str, Json]:
    """The overrides in `env` for `agent` (the name of its folder), by field, as JSON values."""
    prefix = env_name(agent if graph.loop is None else graph.name)
    overrides: dict[str, Json] = {}
    for key, read in _READERS.items():
        text = env.get(f"{prefix}_{key.upper()}")
        if text and (key not in _OF_LOOPS or graph.loop is not None):
            try:
                overrides[key] = read(text, graph)
            except (ValueError, RecursionError):
                continue
    return overrides


def overridden(graph: Graph, overrides: Mapping[str, Json]) -> Graph:
    """The graph with the values of `overrides_of`, and with EVERY_MODEL and OF_NODES."""
    values: dict[str, Any] = {key: overrides[key] for key in _READERS if key in overrides and key not in _OF_LOOPS}
    if "variables" in values:
        values["variables"] = [_declared(each) for each in values["variables"]]
    of_loop: dict[str, Any] = {key: overrides[key] for key in _OF_LOOPS if key in overrides}
    if graph.loop is not None and of_loop:
        values["loop"] = replace(graph.loop, **of_loop)
    if (model := overrides.get(EVERY_MODEL)) is not None:
        values |= {"model": model, "nodes": {name: _without_model(node) for name, node in graph.nodes.items()}}
    if values:
        graph = with_every_tool(replace(graph, **values))
    return node_overrides.overridden(graph, nodes) if (nodes := overrides.get(OF_NODES)) else graph


def nodes_of(overrides: Mapping[str, Mapping[str, Json]], agent: str) -> NodeOverrides:
    """Those by paths of nodes, of a run of `agent` with these overrides by agent (RunSpec.overrides)."""
    found: NodeOverrides = overrides.get(agent, {}).get(OF_NODES, {})
    return found


def with_nodes(
    overrides: Mapping[str, Mapping[str, Json]], agent: str, nodes: NodeOverrides
) -> dict[str, dict[str, Json]]:
    """Overrides by agent, with these by paths of nodes of a run of `agent`, and no others."""
    known = {name: {key: value for key, value in given.items() if key != OF_NODES} for name, given in overrides.items()}
    if nodes:
        known[agent] = {**known.get(agent, {}), OF_NODES: nodes}
    return {name: given for name, given in known.items() if given}


def with_every_model(
    overrides: Mapping[str, Mapping[str, Json]], agents: Iterable[str], model: str
) -> dict[str, dict[str, Json]]:
    """Overrides by agent (RunSpec.overrides), with the model of all llm nodes of these agents."""
    known = {agent: dict(fields) for agent, fields in overrides.items()}
    return known | {agent: {**known.get(agent, {}), EVERY_MODEL: model} for agent in agents}


def _without_model(node: Node) -> Node:
    """An llm node that uses the model of its graph."""
    return replace(node, model=None) if isinstance(node, LlmNode) and node.model is not None else node


def _text(text: str, graph: Graph) -> str | None:
    return None if text == "null" else text


def _number(text: str, graph: Graph) -> float | None:
    if text == "null":
        return None
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def _names(text: str, graph: Graph) -> list[str]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{text[:40]!r} is not a JSON list of names")
    return names


def _variables(text: str, graph: Graph) -> list[dict[str, Json]]:
    """Declarations that replace the file's; or, given as names and values, values for the declarations of the file."""
    given = json.loads(text)
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ValueError(f"{text[:40]!r} is not a JSON list of objects")
    if given and all("value" in each for each in given):
        values = {_text_of(each, "name"): _text_of(each, "value") for each in given}
        variables = [replace(known, default=values.get(known.name, known.default)) for known in graph.variables]
    else:
        variables = [_declared(each) for each in given]
    return [asdict(variable) for variable in variables]


def _declared(entry: Mapping[str, Json]) -> Variable:
    default = None if entry.get("default") is None else _text_of(entry, "default")
    return Variable(name=_text_of(entry, "name"), description=_text_of(entry, "description"), default=default)


def _text_of(entry: Mapping[str, Json], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key!r} of a variable must be text")
    return value


_READERS: Final[Mapping[str, Callable[[str, Graph], Json]]] = {
    "model": _text,
    "temperature": _number,
    "top_p": _number,
    "reasoning_effort": _text,
    "global_tools": _names,
    "mcp_servers": _names,
    SESSION: _text,
    "spawnable_agents": lambda text, graph: None if text == "null" else _names(text, graph),
    "variables": _variables,
}
