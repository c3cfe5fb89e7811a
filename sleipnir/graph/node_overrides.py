"""Overrides of nodes for one run: other settings of its llm nodes, and patches of what they say and may call.

    overrides  {"*": {"temperature": 0}, "expert/ask": {"max_tokens": 200}}
    patches    {"ask#instruction": "Be brief.", "expert/ask#tools+": ["search"]}

Rules. A path has the names of nodes, through agent and graph nodes; `*` at its end means all llm nodes of that run, and
of the runs below it. What names an agent node means all llm nodes of its run, except `timeout`, which is the node's
own. The more exact path wins, field by field; an empty override, and None, change nothing.

They are stored with the run, as one mapping by path (`checked`), and its graph is made of it wherever the run is read
(`overridden`): what is kept of an agent is never changed. A child run gets what begins with its node (`of_child`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from sleipnir.errors import UsageError
from sleipnir.graph.duration import milliseconds
from sleipnir.graph.findings import suggestion
from sleipnir.graph.message_keys import example_problem
from sleipnir.graph.model import AgentNode, Graph, GraphNode, Json, LlmNode, ModelSettings, Node, graph_below

ALL: Final = "*"
INSTRUCTION, FEW_SHOT, MODEL, TOOLS, MORE_TOOLS = "instruction", "few_shot", "model", "tools", "tools+"
SURFACES: Final = (INSTRUCTION, FEW_SHOT, MODEL, TOOLS, MORE_TOOLS)
"""What a patch replaces, or (`tools+`) adds to."""

MOST_BYTES: Final = 65_536
"""Of all overrides of a run, as JSON: every claim of a visit returns them."""

NodeOverrides = Mapping[str, Mapping[str, Json]]
"""By path, fields with their values; patches have the names of SURFACES."""

FindGraph = Callable[[Node, Graph], Graph | None]
"""The graph that a node of a graph runs, if it is not one of its `graphs`; None: it runs none, or none that is
known."""


class _Wrong(Exception):
    """What a field must be."""


def _number(value: Json) -> Json:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _Wrong("a number")
    return value


def _whole(value: Json) -> Json:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
        raise _Wrong("a whole number above 0")
    return value


def _integer(value: Json) -> Json:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**53:
        raise _Wrong("a whole number")
    return value


def _seconds(value: Json) -> Json:
    try:
        ms = milliseconds(value)
    except ValueError:
        ms = 0
    if ms < 1000 or ms % 1000:
        raise _Wrong("a whole number of seconds above 0, or a duration such as 30s")
    return ms // 1000


def _flag(value: Json) -> Json:
    if not isinstance(value, bool):
        raise _Wrong("true or false")
    return value


def _text(value: Json) -> Json:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong("a text that is not empty")
    return value


def _model(value: Json) -> Json:
    from sleipnir.graph.check_models import is_model

    if not isinstance(value, str) or not is_model(value):
        raise _Wrong("the name of a model as client:model, for example openai:gpt-4o-mini")
    return value


def _texts(value: Json) -> Json:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise _Wrong("a list of texts")
    return texts


def _examples(value: Json) -> Json:
    if not isinstance(value, list):
        raise _Wrong("a list of messages, each with a role (user or assistant) and a content")
    for example in value:
        if (wrong := example_problem(example)) is not None:
            raise _Wrong(f"a list of messages: {wrong}")
    return value


FIELDS: Final[Mapping[str, Callable[[Json], Json]]] = {
    "model": _model, "temperature": _number, "top_p": _number, "reasoning_effort": _text, "max_tokens": _whole,
    "stop": _texts, "seed": _integer, "presence_penalty": _number, "frequency_penalty": _number, "stream": _flag,
    "max_iterations": _whole, "max_attempts": _whole, "timeout": _seconds,
}  # fmt: skip
"""The fields of overrides, each with what checks its value."""

_OF_PATCHES: Final[Mapping[str, Callable[[Json], Json]]] = {
    INSTRUCTION: _text, FEW_SHOT: _examples, MODEL: _model, TOOLS: _texts, MORE_TOOLS: _texts,
}  # fmt: skip

_OF_GENERATION: Final = frozenset(field.name for field in fields(ModelSettings)) - {"temperature", "top_p"}


@dataclass(frozen=True)
class _Target:
    """What a path leads to: a node of the `graph` that runs under `prefix`, or (None) all llm nodes there."""

    prefix: tuple[str, ...]
    graph: Graph
    node: Node | None
    find_graph: FindGraph

    @property
    def runs_graph(self) -> bool:
        return self.node is not None and _runs_graph(self.node, self.graph, self.find_graph)

    @property
    def has_llm_nodes(self) -> bool:
        nodes = self.graph.nodes.values()
        return any(isinstance(node, LlmNode) or _runs_graph(node, self.graph, self.find_graph) for node in nodes)

    def path(self, name: str) -> str:
        return "/".join((*self.prefix, name))


def checked(
    overrides: Mapping[str, Any] | None, patches: Mapping[str, Any] | None, graph: Graph, find_graph: FindGraph
) -> dict[str, dict[str, Json]]:
    """Overrides and patches of a run of `graph` as it is stored; empty if there are none. Raises UsageError for a path
    or a field that does not exist, with the nearest one, and for a value that does not fit."""
    found: dict[str, dict[str, Json]] = {}
    for path, given in _mapping(overrides, "overrides", "by paths of nodes").items():
        target = _target(path, graph, find_graph)
        for name, value in _mapping(given, f"the override of {path!r}", "by fields").items():
            if value is not None:
                _put(found, target, name, _value(f"{path}.{name}", name, value, FIELDS, "fields of overrides"))
    for surface, value in _mapping(patches, "patches", "by surfaces such as ask#instruction").items():
        path, mark, name = surface.rpartition("#")
        if not mark:
            raise UsageError(f"patch {surface!r} names no surface: write it as NODE#instruction")
        target = _target(path, graph, find_graph)
        if not isinstance(target.node, LlmNode):
            raise UsageError(f"patch {surface!r}: {path!r} is no llm node; a patch is for one llm node")
        if name == INSTRUCTION and target.graph.loop is not None and target.graph.loop.dynamic_instructions:
            raise UsageError(f"patch {surface!r}: a function of agent {target.graph.name!r} writes its instructions")
        if name == FEW_SHOT and (target.graph.loop is not None or target.graph.is_loki):
            raise UsageError(f"patch {surface!r}: examples are for llm nodes of graphs of version sleipnir/1")
        _put(found, target, name, _value(surface, name, value, _OF_PATCHES, "surfaces"))
    if (size := len(json.dumps(found))) > MOST_BYTES:
        raise UsageError(
            f"the overrides and patches have {size:,} bytes, at most {MOST_BYTES:,} are possible: every visit gets them"
        )
    return found


def _mapping(value: Any, what: str, by: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{what} must be a mapping {by}, not {value!r:.60}")
    return value


def _value(what: str, name: str, value: Json, known: Mapping[str, Callable[[Json], Json]], plural: str) -> Json:
    if name not in known:
        raise UsageError(f"{what}: there is no {name!r}. {suggestion(name, known, plural)}")
    try:
        return known[name](value)
    except _Wrong as wrong:
        raise UsageError(f"{what} must be {wrong}, not {value!r:.60}") from None


def _put(found: dict[str, dict[str, Json]], target: _Target, name: str, value: Json) -> None:
    node = target.node
    if node is None and not target.has_llm_nodes:
        raise UsageError(f"the graph {target.graph.name!r} has no llm nodes and starts no agents: {name!r} has no use")
    if node is None:
        path = target.path(ALL)
    elif target.runs_graph and name != "timeout":
        path = target.path(f"{node.id}/{ALL}")
    elif isinstance(node, LlmNode) or (name == "timeout" and hasattr(node, "timeout")):
        path = target.path(node.id)
    else:
        raise UsageError(f"node {node.id!r} is of type {node.kind}, which has no {name!r}")
    found.setdefault(path, {})[name] = value


def _runs_graph(node: Node, graph: Graph, find_graph: FindGraph) -> bool:
    return isinstance(node, AgentNode | GraphNode) or find_graph(node, graph) is not None


def _target(path: str, graph: Graph, find_graph: FindGraph) -> _Target:
    """Raises UsageError for a path that leads nowhere, with the nearest name."""
    prefix: tuple[str, ...] = ()
    left = path
    while True:
        if left == ALL:
            return _Target(prefix, graph, None, find_graph)
        name = _first_node(left, graph)
        if name is None:
            first = left.partition("/")[0]
            if first == ALL:
                raise UsageError(f"path {path!r}: '*' stands for all llm nodes, so it is the last part of a path")
            where = f"the graph {graph.name!r}" + (f" under {'/'.join(prefix)!r}" if prefix else "")
            raise UsageError(f"path {path!r}: {where} has no node {first!r}. {suggestion(first, graph.nodes, 'nodes')}")
        node, left = graph.nodes[name], left[len(name) + 1 :]
        if not left:
            return _Target(prefix, graph, node, find_graph)
        below = _graph_of(node, graph, find_graph)
        if below is None:
            raise UsageError(
                f"path {path!r}: node {name!r} is of type {node.kind}, so no path leads through it. Paths go through "
                "agent nodes; '*' also reaches the agents that a model starts"
            )
        prefix, graph = (*prefix, name), below


def _first_node(path: str, graph: Graph) -> str | None:
    """The node that a path begins with: names of graphs in Python may have a slash."""
    fitting = [name for name in graph.nodes if path == name or path.startswith(f"{name}/")]
    return max(fitting, key=len, default=None)


def _graph_of(node: Node, graph: Graph, find_graph: FindGraph) -> Graph | None:
    if isinstance(node, GraphNode):
        return graph_below(graph, node.graph)
    return find_graph(node, graph)


# What is stored


def merged(below: NodeOverrides, above: NodeOverrides) -> dict[str, dict[str, Json]]:
    """Stored overrides with others on top."""
    return {path: _merged(below.get(path, {}), above.get(path, {})) for path in {**below, **above}}


def _merged(below: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    fields = {**below, **above}
    if TOOLS in above and MORE_TOOLS not in above:
        fields.pop(MORE_TOOLS, None)
    elif MORE_TOOLS in above and TOOLS not in above:
        fields[MORE_TOOLS] = list(dict.fromkeys([*below.get(MORE_TOOLS, []), *above[MORE_TOOLS]]))
    return fields


def without_models(stored: NodeOverrides) -> dict[str, dict[str, Json]]:
    """The same without models: those of a run whose llm nodes all use another one."""
    left = {path: {name: v for name, v in given.items() if name != MODEL} for path, given in stored.items()}
    return {path: given for path, given in left.items() if given}


def refuse_unnamed_tools(stored: NodeOverrides, graph: Graph) -> None:
    """Raises UsageError for a patch with a tool that no node of a stored definition names: its folder is not there to
    be looked at."""
    nodes = [node for each in (graph, *graph.graphs.values()) for node in each.nodes.values()]
    named = {tool: None for node in nodes if isinstance(node, LlmNode) for tool in node.tools or ()}
    for path, given in stored.items():
        for tool in [*given.get(TOOLS, []), *given.get(MORE_TOOLS, [])] if "/" not in path else []:
            if tool not in named:
                hint = suggestion(tool, named, "tools") or "It has none."
                raise UsageError(
                    f"patch {path!r}: no node of the run's definition has the tool {tool!r}. {hint} With the current "
                    "definition (--agent), all tools of the agent may be named"
                )


def of_child(stored: NodeOverrides, node: str) -> dict[str, dict[str, Json]]:
    """Those of a run that a visit of a node starts."""
    begin = f"{node}/"
    found = {path[len(begin) :]: dict(given) for path, given in stored.items() if path.startswith(begin)}
    for_all = {**stored.get(ALL, {}), **found.pop(ALL, {})}
    return {**({ALL: for_all} if for_all else {}), **found}


def overridden(graph: Graph, stored: NodeOverrides) -> Graph:
    """The graph of a run with these overrides."""
    return replace(graph, nodes={name: _node(node, stored) for name, node in graph.nodes.items()})


def _node(node: Node, stored: NodeOverrides) -> Node:
    for_all = stored.get(ALL, {}) if isinstance(node, LlmNode) else {}
    given = {**for_all, **stored.get(node.id, {})}
    if not given:
        return node
    if not isinstance(node, LlmNode):
        return replace(node, timeout=given["timeout"]) if "timeout" in given else node
    values = {name: value for name, value in given.items() if name in FIELDS and name not in _OF_GENERATION}
    settings: dict[str, Any] = {name: value for name, value in given.items() if name in _OF_GENERATION}
    if settings or (node.generation is not None and values.keys() & {"temperature", "top_p"}):
        settings |= {name: values[name] for name in ("temperature", "top_p") if name in values}
        if settings.get("stop") == []:
            settings["stop"] = None
        values["generation"] = replace(node.generation or ModelSettings(), **settings)
    if INSTRUCTION in given:
        values["instructions"] = given[INSTRUCTION]
    if FEW_SHOT in given:
        values["few_shot"] = given[FEW_SHOT]
    if TOOLS in given or MORE_TOOLS in given:
        tools = given.get(TOOLS, node.tools) or []
        values["tools"] = [*tools, *(tool for tool in given.get(MORE_TOOLS, []) if tool not in tools)]
    return replace(node, **values)


def in_words(stored: NodeOverrides) -> list[str]:
    """`ask.temperature=0`, `ask#instruction (1,204 characters)`."""
    return [_in_words(path, name, value) for path, given in stored.items() for name, value in given.items()]


def _in_words(path: str, name: str, value: Json) -> str:
    if name == INSTRUCTION:
        return f"{path}#{name} ({len(str(value)):,} characters)"
    if name == FEW_SHOT:
        return f"{path}#{name} ({len(value)} messages)"
    if name in (TOOLS, MORE_TOOLS):
        return f"{path}#{name}={','.join(value)}"
    return f"{path}.{name}={value if isinstance(value, str) else json.dumps(value)}"
