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
from sleipnir.python_graph.parts import GraphParts, NodeSpec, Place, Policies, RouterSpec
from sleipnir.python_graph.policies import CachePolicy
from sleipnir.python_graph.schema import add_keys, is_state_class

if TYPE_CHECKING:
    from sleipnir.python_graph.compiled import CompiledGraph


_log = logging.getLogger(__name__)

_EDGES: Final = frozenset({"branch", "id", "next", "type", "wait_for"})
"""The fields of nodes in a graph.yaml that a builder has methods and parameters for."""


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
    ) -> Self:
        """Add a node: `add_node(function)` under the function's name, or `add_node("name", function)`. A compiled graph
        is a node too. `destinations` name the targets of its Commands, for drawings. `timeout` is in seconds."""
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

    # Node types of the graph language

    def add_llm_node(self, name: str, *, prompt: str, **fields: Any) -> Self:
        """A call of a model. `fields` are those of a node of type llm in a graph.yaml."""
        return self._add_typed(name, "llm", {"prompt": prompt, **fields})

    def add_agent_node(self, name: str, *, agent: str, prompt: str, **fields: Any) -> Self:
        """A run of another agent. `fields` are those of a node of type agent in a graph.yaml."""
        return self._add_typed(name, "agent", {"agent": agent, "prompt": prompt, **fields})

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

    def add_tools_node(self, name: str, **fields: Any) -> Self:
        """Calls of tools that a model asked for. Not in force yet: it raises NotImplementedError."""
        raise NotImplementedError(
            "tools nodes are not supported yet: give the tools to the model's node, add_llm_node(..., tools=[...]), "
            "which calls them itself"
        )

    def _add_typed(self, name: str, kind: str, fields: dict[str, Any]) -> Self:
        self._check_new(name)
        place = _caller()
        for key in _EDGES.intersection(fields):
            message = f"Node `{name}`: '{key}' is no field here; add edges by add_edge and add_conditional_edges"
            self._parts.mistakes.append((place, message))
        own = {key: value for key, value in fields.items() if key not in _EDGES}
        self._parts.nodes[name] = NodeSpec(name, place, fields={"type": kind, **own})
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
    ) -> CompiledGraph:
        """The graph, checked, ready to run. Raises GraphBuildError, a ValueError with one line per mistake. A node that
        no edge leads to is a GraphWarning.

        Runs remember their thread if a `checkpointer` is given; which one does not matter, it stores nothing.
        """
        from sleipnir.python_graph.compiled import CompiledGraph

        for names in (interrupt_before, interrupt_after):
            for unknown in () if names is None or names == "*" else set(names) - self._parts.nodes.keys():
                raise GraphBuildError(f"Interrupt node `{unknown}` not found")
        for given, what in (
            (cache, "cache="),
            (store, "store="),
            (interrupt_before, "interrupt_before="),
            (interrupt_after, "interrupt_after="),
        ):
            if given:
                raise GraphBuildError(f"compile({what}...) is not supported yet")
        self._is_compiled = True
        parts = self._parts.copy()
        parts.nodes = {name: self._with_defaults(node) for name, node in parts.nodes.items()}
        graph = CompiledGraph(parts, name=name, engine=engine, max_steps=max_steps, remembers=bool(checkpointer))
        for problem in graph.warnings:
            warnings.warn_explicit(problem.message, GraphWarning, problem.file, problem.line or 1)
        return graph

    def _with_defaults(self, node: NodeSpec) -> NodeSpec:
        if node.action is None:
            return node
        retry_policy, cache_policy, timeout = self._defaults
        return replace(
            node,
            retry_policy=retry_policy if node.retry_policy is None else node.retry_policy,
            cache_policy=cache_policy if node.cache_policy is None else node.cache_policy,
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
