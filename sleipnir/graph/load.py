"""Text to `Graph`: every check of a graph.yaml that does not need the graph as a whole. config_agent.py reads a
config.yaml.

Rules.
1. All problems are found in one pass and returned; only `load_graph` and `read_agent` raise.
2. A graph is returned only if there is no error. Warnings do not prevent it.
3. The messages for version, ids, name, nodes and start are Loki's, word for word (spec/graph-agents.md 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from sleipnir.errors import AgentNotFound, GraphError, Problem, SleipnirError
from sleipnir.graph import python_file
from sleipnir.graph.config_agent import load_config_agent
from sleipnir.graph.findings import Findings, KeyPath, Positions, below, in_file_order, suggestion
from sleipnir.graph.load_edges import EdgeReader, has_additions
from sleipnir.graph.loaded import LoadedGraph
from sleipnir.graph.message_keys import BUILT_IN, MESSAGES, SUMMARIES, USER_INPUT, declares_messages
from sleipnir.graph.model import (
    LOKI,
    LOKI_NODE_TYPES,
    NODE_TYPES,
    SLEIPNIR,
    STATE_GRAPH,
    STATE_GRAPH_TIMEOUT_S,
    VERSIONS,
    AgentInput,
    AgentNode,
    CallCallbacks,
    ChildOptions,
    ErrorRules,
    FunctionNode,
    Graph,
    GraphNode,
    Json,
    Limits,
    LlmNode,
    MapNode,
    ModelSettings,
    Node,
    NodeCache,
    NodeCallbacks,
    NodeTool,
    RemoteAgent,
    Retry,
    ScriptNode,
    SessionRules,
    Settings,
    StateField,
    SummaryRules,
    ToolConcurrency,
    ToolGroup,
    ToolsNode,
    sleipnir_keys,
)
from sleipnir.graph.salvage import salvaged
from sleipnir.graph.shape import Shaper, shown
from sleipnir.graph.source import YamlDocument, read

GRAPH_FILE: Final = "graph.yaml"
CONFIG_FILE: Final = "config.yaml"
PYTHON_FILE: Final = "graph.py"

MESSAGE: Final = "message"
"""A value of `on_error` of a tools node: the model reads errors as results."""

Kind: TypeAlias = Literal["graph", "config"]


@dataclass(frozen=True)
class AgentFolder:
    """A folder that defines an agent. The folder's name identifies the agent, not `name:` in the file.

    `config_file` replaces the folder's config.yaml. `is_python`: its graph is written in Python.
    """

    name: str
    path: Path
    kind: Kind
    config_file: Path | None = None
    is_python: bool = False

    @property
    def file(self) -> Path:
        """The file that defines the agent."""
        if self.is_python:
            return self.path / PYTHON_FILE
        if self.kind == "graph":
            return self.path / GRAPH_FILE
        return self.config_file or self.path / CONFIG_FILE


def parse(text: str, file: str) -> LoadedGraph:
    """The graph in `text` and all its problems. `file` is its name in problems. Never raises for any text."""
    document = read(text, file)
    findings = Findings(file, document.positions, document.problems)
    graph = _graph(document, findings) if document.readable else None
    problems = tuple(in_file_order(findings.problems))
    if findings.has_errors:
        return LoadedGraph(None, problems, document.positions, document, salvaged(document, file, _graph))
    return LoadedGraph(graph, problems, document.positions, document)


def _graph(document: YamlDocument, findings: Findings) -> Graph | None:
    return _GraphReader(document, findings).graph()


def from_data(data: Json, positions: Positions, file: str) -> LoadedGraph:
    """The graph in the data of a document that was not read from a text, and all its problems. `positions` are those of
    its values in `file`."""
    document = YamlDocument(data, positions, {}, (), readable=True)
    findings = Findings(file, positions)
    graph = _graph(document, findings)
    return LoadedGraph(None if findings.has_errors else graph, tuple(findings.problems), positions, document)


def load_graph(text: str, file: str, agent: str) -> Graph:
    """The graph of a text that was checked before. Warnings are dropped; errors raise a GraphError that lists them."""
    loaded = _load(text, file, agent, _kind_of(file))
    if loaded.graph is not None:
        return loaded.graph
    errors = "".join(f"\n  {problem}" for problem in loaded.problems if problem.level == "error")
    raise GraphError(f"{refusal(_kind_of(file), file, agent)}{errors}", loaded.problems)


def refusal(kind: Kind, file: str, agent: str) -> str:
    """The first words of the error for an agent that cannot be loaded (spec 2.2, 3.1)."""
    if kind == "graph":
        return f"Failed to load graph.yaml for agent '{agent}'"
    return f"Failed to load agent config at '{file}'"


def load_file(path: Path, config_file: Path | None = None) -> LoadedGraph:
    """The graph in a file or in an agent folder, where `config_file` replaces the config.yaml. An unreadable file is a
    problem, not an exception."""
    if not path.is_dir():
        return _load_file(path, path.absolute().parent.name, _kind_of(path.name))
    try:
        return load_agent(read_agent(path, config_file=config_file))
    except SleipnirError as error:
        return _failed(str(error), path)


def load_agent(agent: AgentFolder) -> LoadedGraph:
    """The graph of an agent's folder. An unreadable file is a problem, not an exception."""
    return _load_file(agent.file, agent.name, agent.kind)


def read_agent(folder: Path, name: str | None = None, config_file: Path | None = None) -> AgentFolder:
    """The agent in a folder. `name` None: the folder's name. `config_file` replaces its config.yaml.

    In the folder of a config.yaml, graph.py is a file like others. Raises GraphError if it has two definitions,
    AgentNotFound if it has none.
    """
    name = folder.resolve().name if name is None else name
    has_python = (folder / PYTHON_FILE).is_file()
    has_config, has_graph = (config_file or folder / CONFIG_FILE).is_file(), (folder / GRAPH_FILE).is_file()
    if has_config and has_graph:
        message = (
            f"Agent '{name}' has both config.yaml and graph.yaml. A graph agent is defined by graph.yaml alone; "
            "a normal agent by config.yaml alone. Remove one of the two files."
        )
        raise GraphError(message, [Problem("error", message, str(folder), code="SLP107")])
    if has_graph and has_python:
        message = (
            f"Agent '{name}' has both graph.yaml and graph.py. A graph agent is defined by one of them. Remove the "
            "other, or give it another name."
        )
        raise GraphError(message, [Problem("error", message, str(folder), code="SLP107")])
    if not has_config and not has_graph and not has_python:
        raise AgentNotFound(f"Agent '{name}' has neither a config.yaml nor a graph.yaml at '{folder}'")
    is_python = has_python and not has_config
    return AgentFolder(name, folder, "config" if has_config else "graph", config_file, is_python)


def _kind_of(file: str) -> Kind:
    return "config" if Path(file).name == CONFIG_FILE else "graph"


def _load_file(file: Path, agent: str, kind: Kind) -> LoadedGraph:
    if file.suffix == ".py" and file.is_file():
        return load_python(file)
    what = "graph file" if kind == "graph" else "agent config file"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        return _failed(f"Failed to read {what} at '{file}': {error.strerror}", file)
    except UnicodeDecodeError as error:
        return _failed(f"Failed to read {what} at '{file}': byte {error.start} is not UTF-8", file)
    return _load(text, str(file), agent, kind)


def load_python(file: Path) -> LoadedGraph:
    """The graph that a Python file defines. It is executed, in a process of its own; no failure is an exception."""
    answer = python_file.answer_of(file)
    if "document" not in answer:
        return LoadedGraph(None, tuple(answer["problems"]), {})
    loaded = of_document(answer["document"], python_file.places_in(answer, file), file)
    return replace(loaded, config=answer["config"], problems=(*loaded.problems, *answer["problems"]))


def of_document(document: Json, places: Mapping[KeyPath, tuple[str, int]], file: Path) -> LoadedGraph:
    """The graph in the document of a graph written in Python. `places` are the calls that made its parts."""
    loaded = from_data(document, {path: (line, 1) for path, (_, line) in places.items()}, str(file))
    files: dict[tuple[str | None, int | None], str] = {
        (str(path[1]) if path else None, line): made for path, (made, line) in places.items()
    }
    return replace(loaded, text=python_file.text_of(document), files=files)


def _load(text: str, file: str, agent: str, kind: Kind) -> LoadedGraph:
    return parse(text, file) if kind == "graph" else load_config_agent(text, file, agent)


def _failed(message: str, path: Path) -> LoadedGraph:
    return LoadedGraph(None, (Problem("error", message, str(path), code="SLP107"),), {})


class _GraphReader:
    """Reads one document, top down. Each part that cannot be built is None, and its problems are in the findings."""

    def __init__(self, document: YamlDocument, findings: Findings) -> None:
        self._data = document.data
        self._positions = document.positions
        self._findings = findings
        self._is_sleipnir = isinstance(document.data, dict) and document.data.get("version") == SLEIPNIR
        self._types = NODE_TYPES if self._is_sleipnir else LOKI_NODE_TYPES
        self._valid_types = f"Valid node types: {', '.join(self._types)}."
        self._shaper = Shaper(document, findings, refuses_unknown=self._is_sleipnir)
        self._edges = EdgeReader(self._shaper, findings, is_sleipnir=self._is_sleipnir)

    def graph(self) -> Graph | None:
        """The graph, even an incomplete one with findings. None: the file has no mapping of keys."""
        if not isinstance(self._data, dict):
            message = f"a graph must be a mapping of keys, got {shown(self._data)}"
            self._findings.error((), message, "Start with `name:`, `start:` and `nodes:`.", code="SLP201")
            return None
        values = self._shaper.fields(Graph, self._graph_keys(), ())
        self._check_version(values)
        self._check_keys(Graph, values, ())
        self._check_name_and_nodes(values)
        self._check_start(values)
        self._read_parts(values)
        self._add_built_in_keys(values)
        self._shaper.report_unsupported()
        values["has_additions"] = has_additions(self._data)
        return self._shaper.build(Graph, {key: value for key, value in values.items() if value is not None}, ())

    def _read_parts(self, values: dict[str, Json]) -> None:
        parts: Mapping[str, Callable[[Json], Any]] = {
            "settings": lambda data: self._section(Settings, data, ("settings",)),
            "variables": self._shaper.variables,
            "limits": self._limits,
            "errors": lambda data: self._section(ErrorRules, data, ("errors",)),
            "session": self._session,
            "concurrency": self._shaper.concurrency,
            "state_classes": self._edges.state_classes,
            "state": self._state,
            "graphs": self._graphs,
            "agents": self._agents,
            "retry": lambda data: self._retries(data, ("retry",)),
            "cache": lambda data: self._cache(data, ("cache",)),
            "callbacks": lambda data: self._callbacks(data, ("callbacks",)),
        }
        for key in parts.keys() & values.keys():
            values[key] = parts[key](values[key])
        if "nodes" in values:
            limits = values.get("limits")
            values["nodes"] = self._nodes(
                values["nodes"], _node_timeout(limits if isinstance(limits, Limits) else Limits())
            )

    def _add_built_in_keys(self, values: dict[str, Json]) -> None:
        """Add the keys of a state with messages that the file does not declare."""
        state, nodes = values.get("state"), values.get("nodes")
        if not self._is_sleipnir or not isinstance(state, dict):
            return
        if declares_messages(state):
            values["has_messages"] = True
            values["state"] = {**state, **{key: field for key, field in BUILT_IN.items() if key not in state}}
        elif values.get("state_classes") and MESSAGES in state and _sends_messages(nodes):
            values["has_messages"] = True
            values["state"] = {**state, **BUILT_IN}
        session = values.get("session")
        if isinstance(session, SessionRules) and session.summary is not None and values.get("has_messages"):
            declared = values["state"]
            values["state"] = {**declared, **{key: field for key, field in SUMMARIES.items() if key not in declared}}

    def _graph_keys(self) -> dict[str, Json]:
        """The top-level entries. `nodes:` without a value is a graph without nodes."""
        is_empty = "nodes" in self._data and self._data["nodes"] is None
        return dict(self._data) | ({"nodes": {}} if is_empty else {})

    def _check_version(self, values: Mapping[str, Json]) -> None:
        version = values.get("version", LOKI)
        if isinstance(version, str) and version not in VERSIONS:
            message = f"Unsupported graph schema version '{version}'. Supported versions: {', '.join(VERSIONS)}"
            self._findings.error(("version",), message, code="SLP207")

    def _check_keys(self, model: type[Any], values: Mapping[str, Json], path: KeyPath) -> None:
        """Report keys that version 1.0 does not have, and remove them."""
        if self._is_sleipnir:
            return
        for key in sleipnir_keys(model):
            if values.get(key) is not None:
                hint = f"Write `version: {SLEIPNIR}`."
                self._findings.error((*path, key), f"'{key}' needs version {SLEIPNIR}", hint, code="SLP218")

    def _check_name_and_nodes(self, values: Mapping[str, Json]) -> None:
        name = values.get("name")
        if isinstance(name, str) and not name.strip():
            self._findings.error(("name",), "Graph must have a non-empty 'name' field", code="SLP209")
        if values.get("nodes") == {}:
            self._findings.error(("nodes",), f"Graph '{name or ''}' has no nodes defined", code="SLP209")

    def _check_start(self, values: dict[str, Json]) -> None:
        start, nodes = values.get("start"), values.get("nodes")
        if isinstance(start, list):
            hint = "A run has one start node: use a node of type router whose `next` names these."
            self._findings.error(("start",), "'start' must name one node, got a list", hint, code="SLP210")
            values["start"] = ""
        if not isinstance(start, str) or not isinstance(nodes, dict) or not nodes or start in nodes:
            return
        available = ", ".join(nodes)
        message = f"Start node '{start}' not found in graph '{values.get('name', '')}'. Available nodes: {available}"
        self._findings.error(("start",), message, suggestion(start, nodes, "nodes"), code="SLP210")

    def _limits(self, data: Json) -> Any:
        """Zero means no limit; for concurrency, a negative number does too."""
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if not _is_no_limit(key, value)}
        return self._section(Limits, data, ("limits",))

    def _session(self, data: Json) -> Json:
        """The rules about threads, with those about summaries."""
        if isinstance(data, dict) and data.get("summary") is not None:
            data = {**data, "summary": self._section(SummaryRules, data["summary"], ("session", "summary"))}
        return self._section(SessionRules, data, ("session",))

    def _state(self, data: Json) -> Json:
        """Declared keys, each by a mapping or by its type alone."""
        if not isinstance(data, dict):
            return data
        fields = {
            key: self._section(StateField, {"type": item} if isinstance(item, str) else item, ("state", key))
            for key, item in data.items()
        }
        return {key: declared for key, declared in fields.items() if declared is not None}

    def _agents(self, data: Json) -> Json:
        """Remote agents by name."""
        if not isinstance(data, dict):
            return data
        read = {name: self._section(RemoteAgent, item, ("agents", name)) for name, item in data.items()}
        return {name: remote for name, remote in read.items() if remote is not None}

    def _graphs(self, data: Json) -> Json:
        """The graphs of nodes of type graph: documents of their own, without graphs of theirs."""
        if not isinstance(data, dict):
            return data
        read = {name: self._graph_below(name, item) for name, item in data.items()}
        return {name: graph for name, graph in read.items() if graph is not None}

    def _graph_below(self, name: str, data: Json) -> Graph | None:
        path: KeyPath = ("graphs", name)
        if not isinstance(data, dict) or data.get("graphs") is not None:
            message = f"'graphs' must hold graphs without `graphs` of their own, got {shown(data)}"
            self._findings.error(path, message, code="SLP201")
            return None
        positions = below(self._positions, path)
        findings = Findings(self._findings.file, positions)
        graph = _graph(YamlDocument(data, positions, {}, (), readable=True), findings)
        self._findings.add(findings.problems, path)
        return None if findings.has_errors else graph

    def _retries(self, data: Json, path: KeyPath) -> list[Retry]:
        """One policy, or a list of them."""
        given = data if isinstance(data, list) else [data]
        places = [(*path, index) for index in range(len(given))] if isinstance(data, list) else [path]
        read = [self._section(Retry, item, place) for item, place in zip(given, places, strict=True)]
        return [policy for policy in read if policy is not None]

    def _without_execution_keys(self, model: type[Node], data: Json, path: KeyPath) -> Json:
        """The keys of an agent or graph node without those that need an execution of the node itself."""
        kind = "an agent" if model is AgentNode else "a graph"
        refused = {"cache": "SLP219"} if model is AgentNode else {"cache": "SLP219", "callbacks": "SLP220"}
        for key, code in refused.items():
            if data.get(key) is not None:
                hint = f"It is a run of its own. Give `{key}` to nodes of that run."
                self._findings.error((*path, key), f"'{key}' has no effect on {kind} node", hint, code=code)
        return {name: value for name, value in data.items() if name not in refused}

    def _callbacks(self, data: Json, path: KeyPath) -> Any:
        if isinstance(data, dict):
            self._check_references(data, path)
            around_calls = {
                key: self._calls(data[key], (*path, key))
                for key in ("model", "tool", "agent")
                if data.get(key) is not None
            }
            data = {**data, **around_calls}
        return self._section(NodeCallbacks, data, path)

    def _calls(self, data: Json, path: KeyPath) -> CallCallbacks | None:
        """The callbacks around the calls of a model, or of tools, or around a whole run."""
        if not isinstance(data, dict):
            message = f"'{path[-1]}' must hold a mapping of before and after, got {shown(data)}"
            self._findings.error(path, message, code="SLP201")
            return None
        self._check_references(data, path)
        read: CallCallbacks | None = self._section(CallCallbacks, data, path)
        return read

    def _check_references(self, data: Mapping[str, Json], path: KeyPath) -> None:
        for phase, named in data.items():
            for index, name in enumerate(named if isinstance(named, list) else [named]):
                if isinstance(name, str):
                    self._edges.reference(name, (*path, phase, index) if isinstance(named, list) else (*path, phase))

    def _cache(self, data: Json, path: KeyPath) -> Json:
        """A policy, or whether there is one. `key: []` would make all visits one."""
        if isinstance(data, bool):
            return data
        if isinstance(data, dict) and data.get("key") in ([], ""):
            message = "'cache.key' is empty: all visits would have the same result"
            self._findings.error(
                (*path, "key"), message, "Remove it: the key is then all that the node reads.", code="SLP219"
            )
        if isinstance(data, dict) and isinstance(data.get("key_func"), str):
            self._edges.reference(data["key_func"], (*path, "key_func"))
        return self._section(NodeCache, data, path)

    def _section(self, model: type[Any], data: Json, path: KeyPath) -> Any:
        if not isinstance(data, dict):
            section = path[2] if path[0] == "nodes" else path[0] if path[-1] != "summary" else "session.summary"
            message = f"'{section}' must hold {_SECTIONS[section]}, got {shown(data)}"
            self._findings.error(path, message, code="SLP201")
            return None
        return self._shaper.build(model, self._shaper.fields(model, data, path), path)

    def _nodes(self, nodes: Json, timeout: int | None) -> Json:
        if not isinstance(nodes, dict):
            return nodes
        for key in nodes:
            if not key.strip():
                hint = "Write it as `name: {type: ...}`."
                self._findings.graph_error(("nodes", key), "a node needs a name", hint, code="SLP211")
        read = {key: self._node(key, data, timeout, ("nodes", key)) for key, data in nodes.items()}
        return {key: node for key, node in read.items() if node is not None}

    def _node(self, key: str, data: Json, timeout: int | None, path: KeyPath) -> Node | None:
        """A node. `timeout` is the default for nodes of a type that has a timeout."""
        if not isinstance(data, dict):
            message = f"a node must be a mapping that holds a type, got {shown(data)}"
            self._findings.error(path, message, self._valid_types, code="SLP201")
            return None
        model = self._model(data.get("type"), path)
        if model is None:
            self._check_id(key, data.get("id"), path)
            return None
        if model in (AgentNode, GraphNode):
            data = self._without_execution_keys(model, data, path)
        data, value_updates = self._split_updates({name: value for name, value in data.items() if name != "type"})
        values = self._shaper.fields(model, data, path)
        self._check_id(key, values.get("id"), path)
        self._check_keys(model, values, path)
        values["id"] = key
        if value_updates:
            values["value_updates"] = value_updates
        if model is LlmNode:
            self._check_input(values, path)
        given = ("prompt", "input", "map_in")
        if model is AgentNode and self._declares_messages() and not any(key in values for key in given):
            values.setdefault("user_input_key", USER_INPUT)
        # Without an agent, that is reported, and names both.
        if model is AgentNode and not self._is_sleipnir and "prompt" not in values and "agent" in values:
            hint = "An agent node needs: agent, prompt."
            self._findings.error((*path, "prompt"), "missing field `prompt`", hint, code="SLP202")
        if model is ToolsNode and values.get("on_error") == MESSAGE:
            values |= {"on_error": None, "answers_errors": True}
        if timeout is not None and model in _TIMED:
            values.setdefault("timeout", timeout)
        if model is FunctionNode and values.get("protocol") == STATE_GRAPH:
            values.setdefault("timeout", STATE_GRAPH_TIMEOUT_S)
        for name, part in self._node_parts(model).items():
            if name in values:
                values[name] = part(values[name], (*path, name))
        for name in ("call", "state_class"):
            if isinstance(values.get(name), str):
                self._edges.reference(values[name], (*path, name))
        fields, names = self._edges.map_fields(values, path) if model is MapNode else (values, {})
        return self._shaper.build(
            model, {name: value for name, value in fields.items() if value is not None}, path, names
        )

    def _split_updates(self, data: dict[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
        """The keys of a node, without those of its `state_updates` that are lists or mappings, and these."""
        updates = data.get("state_updates")
        if not self._is_sleipnir or not isinstance(updates, dict):
            return data, {}
        values = {key: value for key, value in updates.items() if isinstance(value, list | dict)}
        texts = {key: value for key, value in updates.items() if key not in values}
        return {**data, "state_updates": texts}, values

    def _check_input(self, values: dict[str, Json], path: KeyPath) -> None:
        """An llm node has a prompt, or in a graph with messages an input."""
        has_messages = self._declares_messages()
        if not has_messages and self._is_sleipnir and self._data.get("state_classes"):
            state = self._data.get("state")
            has_messages = isinstance(state, dict) and MESSAGES in state
        if "prompt" in values:
            for key in ("input", "user_input_key", "repair_calls"):
                if self._is_sleipnir and key in values:
                    message = f"'{key}' has no effect on an llm node with a prompt"
                    self._findings.error((*path, key), message, "Remove one of the two.", code="SLP240")
        elif has_messages:
            values.setdefault("input", "auto")
        else:
            hint = "An llm node needs: prompt."
            if self._is_sleipnir:
                hint += " Without one it sends the messages of the state, which needs `state: {messages: messages}`."
            self._findings.error((*path, "prompt"), "missing field `prompt`", hint, code="SLP202")
            values["prompt"] = "?"

    def _declares_messages(self) -> bool:
        """Whether the file says that its state has messages."""
        state = self._data.get("state")
        declared = state.get(MESSAGES) if self._is_sleipnir and isinstance(state, dict) else None
        return declared == "messages" or (isinstance(declared, dict) and declared.get("type") == "messages")

    def _tools(self, data: Json, path: KeyPath) -> Json:
        """The tools of a tools node: names, and tools that it declares."""
        if not isinstance(data, list):
            return data
        read = [self._tool(item, (*path, index)) for index, item in enumerate(data)]
        return [tool for tool in read if tool is not None]

    def _tool(self, data: Json, path: KeyPath) -> Json:
        if not isinstance(data, dict):
            return data
        tool = self._shaper.build(NodeTool, self._shaper.fields(NodeTool, data, path), path)
        if tool is None:
            return None
        if (tool.call is None) != tool.external:
            hint = "Write `external: true`, or `call: file.py:name`."
            self._findings.error(path, f"tool '{tool.name}' does not say who executes it", hint, code="SLP241")
        if tool.call is not None:
            self._edges.reference(tool.call, (*path, "call"))
        return tool

    def _parallel(self, data: Json, path: KeyPath) -> Json:
        """The concurrency of calls: `true`, `false` or a mapping."""
        if isinstance(data, bool):
            return ToolConcurrency() if data else None
        if not isinstance(data, dict):
            message = f"'parallel' must be true, false or a mapping, got {shown(data)}"
            self._findings.error(path, message, "Write `parallel: {max: 4}`.", code="SLP201")
            return None
        if isinstance(groups := data.get("groups"), list):
            read = [self._section(ToolGroup, item, (*path, "groups", n)) for n, item in enumerate(groups)]
            data = {**data, "groups": [group for group in read if group is not None]}
        return self._section(ToolConcurrency, data, path)

    def _node_parts(self, model: type[Node]) -> Mapping[str, Callable[[Json, KeyPath], Any]]:
        """The readers of keys that hold more than plain values."""
        parts: dict[str, Callable[[Json, KeyPath], Any]] = {
            "next": self._edges.next,
            "ends": self._edges.ends,
            "wait_for": self._edges.wait_for,
            "retry": self._retries,
            "cache": self._cache,
            "callbacks": self._callbacks,
            "routers": self._edges.routers,
            "generation": lambda data, path: self._section(ModelSettings, data, path),
            "input": lambda data, path: self._section(AgentInput, data, path),
            "options": lambda data, path: self._section(ChildOptions, data, path),
        }
        if model is not AgentNode:  # approval nodes have `options` too
            parts = {key: part for key, part in parts.items() if key not in ("input", "options")}
        if model is ToolsNode:
            parts |= {"tools": self._tools, "parallel": self._parallel, "tool_retry": self._retries}
        return parts if model is MapNode else parts | {"branch": self._edges.branch}

    def _model(self, kind: Json, path: KeyPath) -> type[Node] | None:
        if kind is None:
            self._findings.error(path, "missing field `type`", self._valid_types, code="SLP202")
        elif not isinstance(kind, str):
            message = f"'type' must be the name of a node type, got {shown(kind)}"
            self._findings.error((*path, "type"), message, self._valid_types, code="SLP201")
        elif kind in self._types:
            return self._types[kind]
        elif kind in NODE_TYPES:
            message = f"node type '{kind}' needs version {SLEIPNIR}"
            self._findings.error((*path, "type"), message, f"Write `version: {SLEIPNIR}`.", code="SLP208")
        else:
            hint = suggestion(kind, self._types, "valid node types")
            hint = self._valid_types if hint is None or hint.startswith("The") else f"{hint} {self._valid_types}"
            self._findings.error((*path, "type"), f"unknown node type '{kind}'", hint, code="SLP208")
        return None

    def _check_id(self, key: str, given: Json, path: KeyPath) -> None:
        if given not in (None, "", key):
            message = f"Node ID mismatch: key '{key}' does not match node.id '{given}'"
            self._findings.error((*path, "id"), message, "Leave `id` out: the key is the id.", code="SLP211")


def _sends_messages(nodes: Json) -> bool:
    """Whether a node of the language reads the messages of a graph written in Python."""
    all_nodes = nodes.values() if isinstance(nodes, dict) else ()
    return any(
        isinstance(node, ToolsNode) or (isinstance(node, LlmNode) and node.input is not None) for node in all_nodes
    )


def _is_no_limit(key: str, value: Json) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value <= 0 if key == "max_concurrency" else value == 0 and key in ("step_timeout", "node_timeout")


def _node_timeout(limits: Limits) -> int | None:
    """The default timeout of a node in seconds: `node_timeout`, else half of `step_timeout`, at least 1 (F49)."""
    if limits.node_timeout is not None:
        return math.ceil(limits.node_timeout / 1000)
    return None if limits.step_timeout is None else max(math.ceil(limits.step_timeout / 2000), 1)


_TIMED: Final = (ScriptNode, FunctionNode, LlmNode)
_SECTIONS: Mapping[str | int, str] = {
    "settings": "a mapping",
    "retry": "a retry policy, or a list of them",
    "cache": "a mapping, or true or false",
    "callbacks": "a mapping of before, after, error, agent_event, model, tool and agent",
    "limits": "a mapping",
    "agents": "a mapping with `a2a` per remote agent",
    "state": "a type, or a mapping, per key",
    "generation": "a mapping",
    "input": "a mapping with `from`, `template` or `messages`",
    "options": "a mapping of options of a run",
    "parallel": "groups that are mappings",
    "tool_retry": "a retry policy, or a list of them",
    "errors": "a mapping with `collect` and `recoverable`",
    "session": "a mapping with `concurrent`, `max_history` and `summary`",
    "session.summary": "a mapping with `enabled`, `max_words` and `template`",
}
