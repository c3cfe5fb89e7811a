"""The builder: `StateGraph(State).add_node("plan", plan)`. Names, argument orders and texts are LangGraph's.

Mistakes that LangGraph reports in `add_*` are reported there, with its types and texts; all others when the graph is
compiled (document.py), in one error.
"""

from __future__ import annotations

import inspect
import logging
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args, get_origin, get_type_hints

from sleipnir.commands import END, START, Command
from sleipnir.python_graph.errors import GraphBuildError, GraphWarning
from sleipnir.python_graph.middleware import Callbacks, Middleware, named_callbacks
from sleipnir.python_graph.parts import GraphParts, NodeSpec, Place, Policies, RouterSpec, is_graph
from sleipnir.python_graph.policies import CachePolicy
from sleipnir.python_graph.schema import add_keys, is_state_class
from sleipnir.python_graph.tools import TOOLS, ToolLike, ToolRetryPolicy, name_of_tool, tools_condition
from sleipnir.runs.memory_cache import MemoryCache

if TYPE_CHECKING:
    from sleipnir.python_graph.compiled import CompiledGraph


_log = logging.getLogger(__name__)

_EDGES: Final = frozenset({"branch", "id", "next", "type", "wait_for"})
"""The fields of nodes in a graph.yaml that a builder has methods and parameters for."""

_AROUND: Final = ("before", "after", "middleware")
"""The arguments of nodes of all types that are callbacks, not fields."""


class StateGraph:
    """A graph of functions that share a state. Methods return the graph, so calls can be chained.

    `state_schema` is a TypedDict, a pydantic model or a dataclass. `Annotated[list, operator.add]` gives a key a
    reducer. `input_schema` and `output_schema` select the keys that are accepted and returned; `context_schema` is the
    class of what nodes get as `runtime.context`. Raises ValueError for what is no state class.
    """

    def __init__(
        self,
        state_schema: type,
        context_schema: type | None = None,
        *,
        input_schema: type | None = None,
        output_schema: type | None = None,
    ) -> None:
        self._parts = GraphParts(
            _caller(), state_schema, context_schema, input_schema or state_schema, output_schema or state_schema
        )
        self._defaults: tuple[Policies | None, CachePolicy | None, float | None] = (None, None, None)
        self._is_compiled = False
        for schema in (state_schema, input_schema or state_schema, output_schema or state_schema):
            self._add_keys(schema)

    def add_node(
        self,
        node: str | Callable[..., Any] | CompiledGraph,
        action: Callable[..., Any] | CompiledGraph | None = None,
        *,
        defer: bool = False,
        metadata: Mapping[str, Any] | None = None,
        input_schema: type | None = None,
        retry_policy: Policies | None = None,
        cache_policy: CachePolicy | None = None,
        destinations: Mapping[str, str] | Sequence[str] | None = None,
        timeout: float | None = None,
        before: Callbacks = None,
        after: Callbacks = None,
        on_error: Callbacks = None,
        middleware: Middleware = None,
        stream_input: str | None = None,
    ) -> Self:
        """Add a node: `add_node(function)` under the function's name, or `add_node("name", function)`. A compiled graph
        is a node too. `destinations` name the targets of its Commands, for drawings. `timeout` is in seconds.
        `before(state, info)`, `after(state, info, result, error)` and `on_error(state, info, error)`, and those of
        `middleware`, run around the node: see compile. It reads the node stream `stream_input` with `open_stream`."""
        if not isinstance(node, str):
            action, node = node, _name_of(node)
        elif action is None:
            raise _unsupported(node)
        if not callable(action) and not hasattr(action, "invoke"):
            raise _unsupported(action)
        self._check_new(node)
        schema = input_schema or _first_parameter(action)
        if schema is not None:
            self._add_keys(schema)
        self._parts.nodes[node] = NodeSpec(
            node,
            _caller(),
            action,
            schema,
            defer,
            metadata,
            retry_policy,
            cache_policy,
            _destinations(action, destinations),
            timeout,
            named_callbacks(before, after, on_error, middleware, "function"),
            stream_input,
        )
        return self

    def add_sequence(self, nodes: Sequence[Callable[..., Any] | tuple[str, Callable[..., Any]]]) -> Self:
        """Add nodes, functions or (name, function), and an edge from each to the next."""
        if not nodes:
            raise ValueError("Sequence requires at least one node.")
        names = [node[0] if isinstance(node, tuple) else _name_of(node) for node in nodes]
        if len(set(names)) < len(names) or any(name in self._parts.nodes for name in names):
            twice = next(name for index, name in enumerate(names) if name in names[:index] or name in self._parts.nodes)
            raise ValueError(f"Node names must be unique: node with the name '{twice}' already exists.")
        for name, node in zip(names, nodes, strict=True):
            self.add_node(name, node[1] if isinstance(node, tuple) else node)
        for source, target in pairwise(names):
            self.add_edge(source, target)
        return self

    def add_edge(self, start_key: str | Sequence[str], end_key: str) -> Self:
        """After `start_key` comes `end_key`. Of several sources: when all of them have ended since the last time."""
        place = _caller()
        if end_key == START:
            raise ValueError("START cannot be an end node")
        if isinstance(start_key, str):
            if start_key == END:
                raise ValueError("END cannot be a start node")
            self._parts.edges.append((start_key, end_key, place))
            return self
        for source in start_key:
            if source == END:
                raise ValueError("END cannot be a start node")
            if source not in self._parts.nodes:
                raise ValueError(f"Need to add_node `{source}` first")
        if end_key != END and end_key not in self._parts.nodes:
            raise ValueError(f"Need to add_node `{end_key}` first")
        self._parts.joins.append((tuple(dict.fromkeys(start_key)), end_key, place))
        return self

    def add_conditional_edges(
        self,
        source: str,
        path: Callable[..., Any],
        path_map: Mapping[Hashable, str] | Sequence[str] | None = None,
    ) -> Self:
        """After `source`, `path(state)` chooses: a target, a Send, or a list of these; with `path_map`, keys of it."""
        if not callable(path):
            raise _unsupported(path)
        name, routers = _name_of(path), self._parts.routers.setdefault(source, [])
        if any(router.name == name for router in routers):
            raise ValueError(f"Branch with name `{name}` already exists for node `{source}`")
        if schema := _first_parameter(path):
            self._add_keys(schema)
        targets: dict[Hashable, str] | None = None
        if isinstance(path_map, Mapping):
            targets = dict(path_map)
        elif path_map is not None:
            targets = {target: target for target in path_map}
        elif literals := _literals(_returns(path)):
            targets = {target: target for target in literals}
        routers.append(RouterSpec(path, name, targets, _caller()))
        return self

    def set_entry_point(self, key: str) -> Self:
        """An edge from START."""
        return self.add_edge(START, key)

    def set_finish_point(self, key: str) -> Self:
        """An edge to END."""
        return self.add_edge(key, END)

    def set_conditional_entry_point(
        self, path: Callable[..., Any], path_map: Mapping[Hashable, str] | Sequence[str] | None = None
    ) -> Self:
        """Conditional edges from START."""
        return self.add_conditional_edges(START, path, path_map)

    def set_node_defaults(
        self,
        *,
        retry_policy: Policies | None = None,
        cache_policy: CachePolicy | None = None,
        timeout: float | None = None,
    ) -> Self:
        """What applies to functions and graphs without a policy or a timeout of their own."""
        self._defaults = (retry_policy, cache_policy, timeout)
        return self

    # Node types of the graph language. Those that do work take `before`, `after` and `middleware` as add_node does

    def add_llm_node(self, name: str, *, prompt: str | None = None, **fields: Any) -> Self:
        """A call of a model. Without `prompt` it sends the messages of the state and adds the reply to them. `fields`
        are those of a node of type llm in a graph.yaml; its `tools` may be functions, as those of a tools node."""
        own = {} if prompt is None else {"prompt": prompt}
        if "tools" in fields:
            fields["tools"] = [name_of_tool(tool) for tool in fields["tools"]]
        return self._add_typed(name, "llm", own | fields)

    def add_agent_node(
        self,
        name: str,
        agent: str,
        prompt: str | None = None,
        *,
        input_mapper: Callable[[dict[str, Any]], Mapping[str, Any] | None] | Mapping[str, Any] | None = None,
        output_mapper: Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any] | None]
        | Mapping[str, Any]
        | None = None,
        isolated: bool = False,
        on_error: str | None = None,
        **fields: Any,
    ) -> Self:
        """A run of another agent. `input_mapper(state)` returns the first values of its state,
        `output_mapper(state, child)` what the node writes; both may be mappings of templates, as `map_in` and `map_out`
        in a graph.yaml. `fields` are the others of a node of type agent there."""
        own = {"prompt": prompt, "map_in": input_mapper, "map_out": output_mapper, "on_error": on_error}
        given = {key: value for key, value in own.items() if value is not None} | (
            {"isolated": True} if isolated else {}
        )
        return self._add_typed(name, "agent", {"agent": agent, **given, **fields})

    def add_remote_agent(self, name: str, url: str, token: str | None = None) -> Self:
        """Let `add_agent_node(..., agent=name)` run the agent at `url`, over A2A; `token` names that of the workers for
        it, as in `agents` of a graph.yaml."""
        self._parts.remotes[name] = {"a2a": url} | ({} if token is None else {"token": token})
        return self

    def add_script_node(self, name: str, *, script: str, **fields: Any) -> Self:
        """A script of the agent's folder. `fields` are those of a node of type script in a graph.yaml."""
        return self._add_typed(name, "script", {"script": script, **fields})

    def add_rag_node(self, name: str, *, documents: Sequence[str], **fields: Any) -> Self:
        """A search of documents. `fields` are those of a node of type rag in a graph.yaml."""
        return self._add_typed(name, "rag", {"documents": list(documents), **fields})

    def add_approval_node(
        self,
        name: str,
        *,
        question: str,
        options: Sequence[str],
        routes: Mapping[str, str],
        on_other: str,
        **fields: Any,
    ) -> Self:
        """A decision of a person. `fields` are those of a node of type approval in a graph.yaml."""
        own = {"question": question, "options": list(options), "routes": dict(routes), "on_other": on_other}
        return self._add_typed(name, "approval", own | fields)

    def add_input_node(self, name: str, *, question: str, **fields: Any) -> Self:
        """A text from a person. `fields` are those of a node of type input in a graph.yaml."""
        return self._add_typed(name, "input", {"question": question, **fields})

    def add_tools_node(
        self,
        name: str,
        tools: Sequence[ToolLike],
        *,
        parallel: bool | int | Mapping[str, Any] = False,
        retry: ToolRetryPolicy | Sequence[ToolRetryPolicy] | None = None,
        on_error: str | None = None,
        permissions: Mapping[str, Literal["allow", "deny", "ask"]] | None = None,
        **fields: Any,
    ) -> Self:
        """The execution of the tool calls of the newest message. `tools` are functions, ExternalTools, or names of
        tools of files; the others are as in a node of type tools in a graph.yaml. `parallel` may be a number: so many
        calls at once."""
        own: dict[str, Any] = {"tools": list(tools), **fields}
        if parallel is not False:
            own["parallel"] = {"max": parallel} if type(parallel) is int else parallel
        if retry is not None:
            policies = [retry] if isinstance(retry, ToolRetryPolicy) else retry
            own["tool_retry"] = [policy.as_json() for policy in policies]
        if on_error is not None:
            own["on_error"] = on_error
        if permissions is not None:
            own["permissions"] = dict(permissions)
        return self._add_typed(name, "tools", own)

    def add_tools_conditional_edges(self, source: str, tools: str, fallback: str) -> Self:
        """After `source` comes the node `tools` if the last message has tool calls, else `fallback`. An llm node
        without a prompt offers the tools of that node to its model. Raises ValueError if `source` is not added yet."""
        node = self._parts.nodes.get(source)
        if node is None:
            raise ValueError(f"Need to add_node `{source}` first")
        if node.fields.get("type") != "llm" or "prompt" in node.fields:
            return self.add_conditional_edges(source, tools_condition, {TOOLS: tools, END: fallback})
        self._parts.nodes[source] = replace(node, fields={**node.fields, "tools_node": tools})
        return self.add_edge(source, fallback)

    def _add_typed(self, name: str, kind: str, fields: dict[str, Any]) -> Self:
        self._check_new(name)
        place = _caller()
        for key in _EDGES.intersection(fields):
            message = f"Node `{name}`: '{key}' is no field here; add edges by add_edge and add_conditional_edges"
            self._parts.mistakes.append((place, message))
        own = {key: value for key, value in fields.items() if key not in (*_EDGES, *_AROUND)}
        around = [fields.get(key) for key in _AROUND]
        callbacks = named_callbacks(around[0], around[1], None, around[2], kind)
        self._parts.nodes[name] = NodeSpec(name, place, callbacks=callbacks, fields={"type": kind, **own})
        return self

    def compile(
        self,
        checkpointer: Any = None,
        *,
        cache: Any = None,
        store: Any = None,
        interrupt_before: Sequence[str] | Literal["*"] | None = None,
        interrupt_after: Sequence[str] | Literal["*"] | None = None,
        debug: bool = False,
        name: str | None = None,
        engine: Literal["bsp", "dag"] = "bsp",
        max_steps: int | None = None,
        errors: Mapping[str, Any] | None = None,
        session: Mapping[str, Any] | None = None,
        history: Literal["full", "request", "isolated_request", "isolated_invocation"] | None = None,
        before: Callbacks = None,
        after: Callbacks = None,
        on_error: Callbacks = None,
        middleware: Middleware = None,
    ) -> CompiledGraph:
        """The graph, checked, ready to run. Raises GraphBuildError, a ValueError with one line per mistake. A node that
        no edge leads to is a GraphWarning.

        Runs remember their thread if a `checkpointer` is given; which one does not matter, it stores nothing. Runs stop
        before and after the nodes that `interrupt_before` and `interrupt_after` name (`"*"`: each node), until
        `invoke(None, config)` or, on the fleet, `resume` goes on. With a `cache`, the policies of nodes for it are in
        force: InMemoryCache holds the results of runs in this process, on the fleet its Redis does. `errors` is as in a
        graph.yaml, `{"collect": True, "recoverable": ["timeout", SoftError]}`; the state key `execution_errors` has the
        records, and a node that is to see them declares it. `session` and `history` are as there too, for
        turns of threads: `{"max_history": 20}`, and for runs on the fleet `{"concurrent": "queue"}`.

        `before`, `after` and `on_error` are functions, or lists of them, that run around each node that does work: what
        a `before` returns is the node's result, what an `after` returns replaces it or recovers a failure. A
        `middleware`, or a list of them, has such functions together, and others around calls of models and tools.
        """
        from sleipnir.python_graph.compiled import CompiledGraph

        if store:
            raise GraphBuildError("compile(store=...) is not supported yet")
        stops_before, stops_after = self._breakpoints(interrupt_before), self._breakpoints(interrupt_after)
        callbacks = named_callbacks(before, after, on_error, middleware)
        self._is_compiled = True
        parts = replace(
            self._parts.copy(),
            interrupt_before=stops_before,
            interrupt_after=stops_after,
            caches=cache not in (None, False),
            callbacks=callbacks,
            errors=errors,
            session=session,
            history=history,
        )
        parts.nodes = {name: self._with_defaults(node) for name, node in parts.nodes.items()}
        graph = CompiledGraph(parts, name=name, engine=engine, max_steps=max_steps, remembers=bool(checkpointer))
        if parts.caches:
            graph.cache = cache if isinstance(cache, MemoryCache) else MemoryCache()
        for problem in graph.warnings:
            warnings.warn_explicit(problem.message, GraphWarning, problem.file, problem.line or 1)
        return graph

    def _breakpoints(self, names: Sequence[str] | None) -> list[str]:
        """The nodes of these names. Raises GraphBuildError."""
        if names is None or names == "*":
            return [] if names is None else list(self._parts.nodes)
        given = [names] if isinstance(names, str) else list(names)
        for name in given:
            if name not in self._parts.nodes:
                raise GraphBuildError(f"Interrupt node `{name}` not found")
        return given

    def _with_defaults(self, node: NodeSpec) -> NodeSpec:
        if node.action is None:
            return node
        retry_policy, cache_policy, timeout = self._defaults
        return replace(
            node,
            retry_policy=retry_policy if node.retry_policy is None else node.retry_policy,
            cache_policy=cache_policy if node.cache_policy is None and not is_graph(node.action) else node.cache_policy,
            timeout=timeout if node.timeout is None else node.timeout,
        )

    def _check_new(self, name: str) -> None:
        if self._is_compiled:
            _log.warning("node '%s' is added to a graph that is compiled already: the compiled graph stays", name)
        if name in self._parts.nodes:
            raise ValueError(f"Node `{name}` already present.")
        if name in (START, END):
            raise ValueError(f"Node `{name}` is reserved.")
        for character in (":", "|"):
            if character in name:
                raise ValueError(f"'{character}' is a reserved character and is not allowed in the node names.")

    def _add_keys(self, schema: type) -> None:
        if not is_state_class(schema):
            raise ValueError(f"{schema!r} is no state class: use a TypedDict, a pydantic model or a dataclass")
        if schema in self._parts.classes:
            return
        self._parts.classes.append(schema)
        add_keys(self._parts.keys, schema)


def _unsupported(action: Any) -> TypeError:
    return TypeError(f"Expected a Runnable, callable or dict.Instead got an unsupported type: {type(action)}")


_OWN_FOLDER = str(Path(__file__).parent)


def _caller() -> Place:
    """The place outside this package that called it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _name_of(action: Any) -> str:
    """The name of a node or a router without one: of a function, of the class of a callable object, of a graph."""
    name = getattr(action, "__name__", None) or getattr(action, "name", None)
    return name if isinstance(name, str) else type(action).__name__


def _hints(action: Any) -> dict[str, Any]:
    """The annotations of a callable; without those that cannot be resolved."""
    target = action if inspect.isroutine(action) or inspect.isclass(action) else type(action).__call__
    try:
        return get_type_hints(target)
    except Exception:  # a name that exists for type checkers only
        return {}


def _first_parameter(action: Any) -> type | None:
    """The annotation of the first parameter, if it is a state class."""
    if hasattr(action, "invoke"):
        return None
    try:
        first = next(iter(inspect.signature(action).parameters.values()), None)
    except (TypeError, ValueError):
        return None
    hint = _hints(action).get(first.name) if first is not None else None
    return hint if is_state_class(hint) else None


def _returns(action: Any) -> Any:
    return _hints(action).get("return")


def _literals(hint: Any) -> list[str]:
    return [value for value in get_args(hint) if isinstance(value, str)] if get_origin(hint) is Literal else []


def _destinations(action: Any, given: Mapping[str, str] | Sequence[str] | None) -> tuple[str, ...]:
    """The declared targets of a node's Commands: `destinations`, else those of `-> Command[Literal["a"]]`."""
    if given is not None:
        return tuple(given)
    hint = _returns(action)
    return tuple(_literals(get_args(hint)[0])) if get_origin(hint) is Command and get_args(hint) else ()
