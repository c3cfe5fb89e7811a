"""A builder's graph as the document that its graph.yaml would hold, and as the `Graph` that both mean.

The document goes through the loader and the rules of graph.yaml files, so a graph written in Python is the same graph,
with the same findings: each names the file and line of the `add_*` call that it is about.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from sleipnir.commands import END, START
from sleipnir.errors import Problem
from sleipnir.graph.check import check
from sleipnir.graph.findings import KeyPath, Position
from sleipnir.graph.load import from_data
from sleipnir.graph.model import END as YAML_END
from sleipnir.graph.model import SINGLE, SLEIPNIR, Graph
from sleipnir.graph.plain import first_not_json
from sleipnir.python_graph import schema
from sleipnir.python_graph.codec import codec_of, is_unstorable
from sleipnir.python_graph.errors import GraphBuildError
from sleipnir.python_graph.middleware import NamedCallbacks
from sleipnir.python_graph.parts import GraphParts, NodeSpec, Place, RouterSpec, is_graph
from sleipnir.python_graph.policies import CachePolicy, RetryPolicy
from sleipnir.python_graph.references import References
from sleipnir.python_graph.schema import Key
from sleipnir.python_graph.tools import written_tool
from sleipnir.python_graph.unreached import leads_anywhere

NOTHING: Final = "sleipnir.python_graph.document:nothing"
"""The function of the node that stands for START, where START has conditional edges."""


CODE: Final = "SLP200"
"""The code of findings that only a builder has."""

UNREACHED_CODE: Final = "SLP303"
"""The code of graph.check.every_node_can_be_reached, the only warning about a graph.yaml that holds for code too."""

MOST_VISITS: Final = 10_000
"""The most visits of one node: LangGraph's limit of super-steps, rounded."""


_TARGETS: Final = frozenset({"ends", "fallback", "on_error", "on_other", "on_timeout", "routes", "tools_node"})
"""The fields of nodes that lead to others beside their edges."""


def nothing(state: Any) -> None:
    """Writes nothing; its routers choose."""


@dataclass(frozen=True)
class GraphDocument:
    """A graph, its document, the calls that made the parts of the document, and warnings."""

    graph: Graph
    data: dict[str, Any]
    places: Mapping[KeyPath, Place]
    warnings: tuple[Problem, ...] = ()


class NameOfGraph(Protocol):
    """Gives a graph that is a node the name of its document, where documents travel (sub_graphs.py)."""

    def __call__(self, node: NodeSpec) -> str:
        """Raises GraphBuildError."""


def translate(
    parts: GraphParts,
    references: References,
    *,
    name: str,
    engine: str,
    max_steps: int | None,
    name_of_graph: NameOfGraph | None = None,
) -> GraphDocument:
    """Without `name_of_graph`, a graph that is a node is an object that its node calls. Raises GraphBuildError with all
    mistakes."""
    mistakes = [problem_at(place, message) for place, message in _mistakes(parts, has_limit=max_steps is not None)]
    sound = _without_mistakes(parts) if mistakes else parts
    document = _Document(sound, references, name, engine, max_steps, name_of_graph)
    data = document.data()
    file = parts.place[0]
    loaded = from_data(data, document.positions, file)
    found = list(loaded.problems)
    if loaded.graph is not None and name_of_graph is None:  # else its graphs are not here, and it was checked before
        found += check(loaded.graph, document.positions, file)
    errors = [*mistakes, *(document.placed(problem) for problem in found if problem.level == "error")]
    if errors or loaded.graph is None:
        raise GraphBuildError.of(sorted(errors, key=lambda problem: (problem.file, problem.line or 0)))
    unreached = [] if leads_anywhere(parts) else [each for each in found if each.code == UNREACHED_CODE]
    warnings = [
        replace(document.placed(each), message=f"Node '{each.node}' is unreachable: no edge leads to it")
        for each in unreached
    ]
    return GraphDocument(loaded.graph, data, document.places, tuple(warnings))


def problem_at(place: Place, message: str) -> Problem:
    return Problem("error", message, *place, code=CODE)


class _Document:
    """Builds the document, and notes the place of each part."""

    def __init__(
        self,
        parts: GraphParts,
        references: References,
        name: str,
        engine: str,
        max_steps: int | None,
        name_of_graph: NameOfGraph | None,
    ) -> None:
        self._parts, self._references, self._name_of_graph = parts, references, name_of_graph
        self._head: dict[str, Any] = {"name": name, "version": SLEIPNIR}
        if engine != "bsp":
            self._head["engine"] = engine
        if max_steps is not None:
            self._head["limits"] = {"max_steps": max_steps}
        self.places: dict[KeyPath, Place] = {(): parts.place}
        self._edges: dict[str, list[tuple[str, Place]]] = {}
        for source, target, place in parts.edges:
            self._edges.setdefault(source, []).append((target, place))
        self._end = YAML_END if YAML_END not in parts.nodes else END

    @property
    def positions(self) -> Mapping[KeyPath, Position]:
        return {path: (line, 1) for path, (_, line) in self.places.items()}

    def placed(self, problem: Problem) -> Problem:
        """A finding, with the file of its node's `add_*` call."""
        file, line = self.places.get(("nodes", problem.node or ""), (problem.file, problem.line or 0))
        return replace(problem, file=file, line=problem.line or line, column=None)

    def _place(self, node: NodeSpec) -> None:
        """Note the calls that made a node, its edges and its routers."""
        own: KeyPath = ("nodes", node.name)
        self.places[own] = node.place
        edges: dict[str, Place] = {}
        for target, place in self._edges.get(node.name, ()):
            if target != END:
                edges.setdefault(target, place)
        for index, place in enumerate(edges.values()):
            self.places[(*own, "next", index) if len(edges) > 1 else (*own, "next")] = place
        for index, router in enumerate(self._parts.routers.get(node.name, ())):
            self.places[*own, "routers", index] = router.place

    def data(self) -> dict[str, Any]:
        parts = self._parts
        nodes: dict[str, Any] = {}
        first = [target for target, _ in self._edges.get(START, ())]
        if len(first) == 1 and START not in parts.routers and first[0] != END:
            start = first[0]
        else:
            start, nodes[START] = START, self._start(first)
        nodes |= {node.name: self._node(node) for node in parts.nodes.values()}
        for sources, target, _ in parts.joins:
            if target != END:
                waits = nodes[target].setdefault("wait_for", [])
                waits.append(list(sources))
        for node in nodes.values():
            if len(node.get("wait_for", ())) == 1:
                node["wait_for"] = node["wait_for"][0]
        state = self._state()
        head = {**self._head, "start": start, "settings": {"max_loop_iterations": MOST_VISITS}, "state": state}
        # They also say that LangGraph's rules apply (Graph.is_state_graph), whatever the types of the nodes are.
        head["state_classes"] = [self._references.to(declared) for declared in parts.classes]
        for key, names in (("interrupt_before", parts.interrupt_before), ("interrupt_after", parts.interrupt_after)):
            if names:
                head[key] = [*names]
        if parts.errors is not None:
            head["errors"] = self._errors(parts.errors)
        if parts.session is not None:
            head["session"] = {**parts.session}
        if parts.history is not None:
            head["history"] = parts.history
        if parts.remotes:
            head["agents"] = {**parts.remotes}
        if parts.callbacks:
            head["callbacks"] = self._callbacks(parts.callbacks)
        return {**head, "nodes": nodes}

    def _errors(self, errors: Mapping[str, Any]) -> dict[str, Any]:
        """The rules for failures, with references to exceptions in the place of their classes."""
        named = errors.get("recoverable", ())
        names = [named] if isinstance(named, str | type) else list(named)
        recoverable = [name if isinstance(name, str) else self._error(name) for name in names]
        return {**errors, "recoverable": recoverable}

    def _error(self, kind: type) -> str:
        return kind.__name__ if kind.__module__ == "builtins" else self._references.to(kind)

    def _start(self, targets: list[str]) -> dict[str, Any]:
        """The node that stands for START, where it has several edges or conditional ones."""
        routers = self._parts.routers.get(START, [])
        plain = self._targets(targets)
        if not routers:
            return {"type": "router", **plain}
        return {"type": "function", "call": NOTHING, "protocol": "state_graph", **self._routers(routers), **plain}

    def _node(self, node: NodeSpec) -> dict[str, Any]:
        self._place(node)
        targets = [target for target, _ in self._edges.get(node.name, ())]
        routers = self._parts.routers.get(node.name, [])
        edges = self._targets(targets)
        if node.action is None:
            if routers:
                edges |= self._branch(routers)
            around = {"callbacks": self._callbacks(node.callbacks)} if node.callbacks else {}
            return {**self._typed(node.fields), **around, **edges}
        if self._name_of_graph is not None and is_graph(node.action):
            fields: dict[str, Any] = {"type": "graph", "graph": self._name_of_graph(node)}
        else:
            call = self._references.to(node.action)
            fields = {"type": "function", "call": call, "protocol": "state_graph"}
        own = node.schema or self._parts.state_schema
        keys = list(schema.keys_of(own))
        if set(keys) != set(self._parts.keys):
            fields["reads"] = keys
        if not schema.is_typed_dict(own):
            fields["state_class"] = self._references.to(own)
        if node.retry_policy is not None:
            policies = [node.retry_policy] if isinstance(node.retry_policy, RetryPolicy) else node.retry_policy
            fields["retry"] = [self._retry(policy) for policy in policies]
        if node.cache_policy is not None and self._parts.caches:
            fields["cache"] = self._cache(node.cache_policy)
        if node.callbacks:
            fields["callbacks"] = self._callbacks(node.callbacks)
        if node.destinations:
            fields["ends"] = {target: self._target(target) for target in node.destinations}
        if node.timeout is not None:
            fields["timeout"] = math.ceil(node.timeout)
        if node.stream_input is not None:
            fields["stream_input"] = node.stream_input
        if node.defer:
            fields["defer"] = True
        return {**fields, **self._routers(routers), **edges}

    def _typed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a node that is no function, with END as the language writes it."""
        targets: dict[str, Any] = {
            key: self._target(value) for key, value in fields.items() if key in _TARGETS and isinstance(value, str)
        }
        if fields.get("type") == "tools":
            targets["tools"] = [written_tool(tool, self._references.to) for tool in fields["tools"]]
        for key in ("routes", "ends"):
            if isinstance(named := fields.get(key), Mapping):
                targets[key] = {name: self._target(target) for name, target in named.items()}
        mappers = {key: self._references.to(fields[key]) for key in ("map_in", "map_out") if callable(fields.get(key))}
        return {**fields, **targets, **mappers}

    def _retry(self, policy: RetryPolicy) -> dict[str, Any]:
        """A policy of the language. `on` names what a worker asks whether an error is to be retried."""
        retry_on = policy.retry_on
        kinds = [retry_on] if isinstance(retry_on, type) or callable(retry_on) else list(retry_on)
        return {
            "max_attempts": policy.max_attempts,
            "initial_interval": f"{round(policy.initial_interval * 1000)}ms",
            "backoff": policy.backoff_factor,
            "max_interval": f"{round(policy.max_interval * 1000)}ms",
            "jitter": policy.jitter,
            "on": [self._references.to(kind) for kind in kinds],
        }

    def _callbacks(self, callbacks: NamedCallbacks) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, named in callbacks.items():
            kind, dot, phase = key.rpartition(".")
            (fields.setdefault(kind, {}) if dot else fields)[phase] = [self._references.to(each) for each in named]
        return fields

    def _cache(self, policy: CachePolicy) -> dict[str, Any] | bool:
        """A policy of the language; True: the defaults."""
        fields: dict[str, Any] = {}
        if policy.ttl is not None:
            fields["ttl"] = f"{max(1, round(policy.ttl * 1000))}ms"
        if policy.key_func is not None:
            fields["key_func"] = self._references.to(policy.key_func)
        return fields or True

    def _targets(self, targets: list[str]) -> dict[str, Any]:
        """The plain edges. An edge to END beside others changes nothing."""
        names = list(dict.fromkeys(target for target in targets if target != END))
        if not targets:
            return {}
        if not names:
            return {"next": self._end}
        return {"next": names[0] if len(names) == 1 else names}

    def _routers(self, routers: list[RouterSpec]) -> dict[str, Any]:
        written = [self._router(router) for router in routers]
        return {"routers": written} if written else {}

    def _router(self, router: RouterSpec) -> dict[str, Any]:
        reference = self._references.to(router.path)
        if router.targets is None:
            return {"call": reference}
        return {
            "call": reference,
            "to": {label_of(key): self._target(target) for key, target in router.targets.items()},
        }

    def _branch(self, routers: list[RouterSpec]) -> dict[str, Any]:
        """The conditional edge of a node that is no function."""
        router = self._router(routers[0])
        return {"branch": {**router, "many": True}}

    def _target(self, target: Any) -> Any:
        return self._end if target == END else target

    def _state(self) -> dict[str, Any]:
        return {key.name: self._field(key) for key in self._parts.keys.values()}

    def _field(self, key: Key) -> dict[str, Any]:
        if key.reducer is None:
            return {"type": "any", "reducer": SINGLE}
        built_in, first = schema.built_in(key), key.first
        if built_in is not None:
            return {"type": schema.TYPE_NAMES[type(first)], "reducer": built_in, "default": first}
        field = {"type": "any", "reducer": self._references.to(key.reducer)}
        if first is schema.ABSENT:
            return field
        codec = codec_of(key)
        value = first if codec is None else codec.encode(first)
        return field if first_not_json({key.name: value}) else {**field, "default": value}


def _without_mistakes(parts: GraphParts) -> GraphParts:
    """The parts about which `_mistakes` has nothing to say, so that the rules of the language report only others."""
    known = {START, END, *parts.nodes}
    routers = {
        source: [replace(router, targets=_known_targets(router, known)) for router in added]
        for source, added in parts.routers.items()
        if source in known
    }
    if not any(source == START for source, _, _ in parts.edges) and START not in routers and parts.nodes:
        parts = replace(parts, edges=[(START, next(iter(parts.nodes)), parts.place), *parts.edges])
    return replace(
        parts,
        edges=[edge for edge in parts.edges if known.issuperset(edge[:2])],
        routers=routers,
        nodes={
            name: replace(
                node,
                destinations=tuple(target for target in node.destinations if target in known),
                fields=_sound_fields(node),
            )
            for name, node in parts.nodes.items()
        },
        keys={name: Key(name, Any) if is_unstorable(key) else key for name, key in parts.keys.items()},
    )


def _sound_fields(node: NodeSpec) -> dict[str, Any]:
    """The fields of a node, without tools that are none."""
    if node.fields.get("type") != "tools":
        return node.fields
    return {**node.fields, "tools": [tool for tool in node.fields["tools"] if isinstance(tool, str)]}


def _known_targets(router: RouterSpec, known: Collection[str]) -> dict[Hashable, str] | None:
    if router.targets is None:
        return None
    return {label: target for label, target in router.targets.items() if target in known}


def label_of(result: Any) -> str:
    """A router's result as a label of its `to`: texts as they are, other values as Python writes them."""
    return result if isinstance(result, str) else str(result)


def _mistakes(parts: GraphParts, *, has_limit: bool) -> Iterator[tuple[Place, str]]:
    """What LangGraph reports when a graph is compiled, with its texts, and what only a builder can get wrong."""
    yield from parts.mistakes
    known = {START, END, *parts.nodes}
    for source, target, place in parts.edges:
        if source not in known:
            yield place, f"Found edge starting at unknown node '{source}'"
        if target not in known:
            yield place, f"Found edge ending at unknown node `{target}`"
    for source, routers in parts.routers.items():
        for router in routers:
            if source not in known:
                yield router.place, f"Found edge starting at unknown node '{source}'"
            for target in (router.targets or {}).values():
                if target not in known:
                    yield router.place, f"At '{source}' node, '{router.name}' branch found unknown target '{target}'"
            if source in parts.nodes and parts.nodes[source].action is None and len(routers) > 1:
                yield router.place, f"Node '{source}' is no function: it can have one conditional edge"
    for node in parts.nodes.values():
        for target in node.destinations:
            if target not in known:
                yield node.place, f"Found edge ending at unknown node `{target}`"
        for tool in node.fields.get("tools", ()) if node.fields.get("type") == "tools" else ():
            try:
                written_tool(tool, str)
            except TypeError as error:
                yield node.place, f"Node `{node.name}`: {error}"
        if node.cache_policy is not None and is_graph(node.action):
            message = "its result is that of a run of its own. Give cache_policy to nodes of that graph"
            yield node.place, f"Node `{node.name}` is a graph, which has no cache_policy: {message}"
        if node.callbacks and is_graph(node.action):
            message = "it is a run of its own. Give them to nodes of that graph"
            yield node.place, f"Node `{node.name}` is a graph, which has no callbacks: {message}"
    if not has_limit:
        yield from _loops(parts)
    for name, key in parts.keys.items():
        if is_unstorable(key):
            yield parts.place, f"State key '{name}' has the type {schema.shown(key.type)}, which JSON cannot hold"
    if not any(source == START for source, _, _ in parts.edges) and not parts.routers.get(START):
        yield parts.place, "Graph must have an entrypoint: add at least one edge from START to another node"


def _loops(parts: GraphParts) -> Iterator[tuple[Place, str]]:
    """A loop of edges that are always taken: neither a Command nor a conditional edge ends it. Loops without a function
    are the language's to report."""
    next_of: dict[str, dict[str, Place]] = {}
    sources_of: dict[str, list[str]] = {}
    for source, target, place in parts.edges:
        if target in parts.nodes and source in parts.nodes and not _chooses(parts, source):
            if target not in next_of.setdefault(source, {}):
                sources_of.setdefault(target, []).append(source)
            next_of[source].setdefault(target, place)
    ended = [node for node in parts.nodes if node not in next_of]
    while ended:
        node = ended.pop()
        for source in sources_of.get(node, ()):
            del next_of[source][node]
            if not next_of[source]:
                del next_of[source]
                ended.append(source)
    if not next_of:
        return
    path: dict[str, None] = {}
    node = next(iter(next_of))
    while node not in path:
        path[node] = None
        node = next(iter(next_of[node]))
    loop = list(path)[list(path).index(node) :]
    if any(parts.nodes[name].action is not None for name in loop):
        way = " -> ".join(f"'{name}'" for name in (*loop, node))
        message = f"The loop {way} has no way out: its edges are always taken. Choose one of them by "
        yield next_of[loop[-1]][node], f"{message}add_conditional_edges, or limit the run by compile(max_steps=...)"


def _chooses(parts: GraphParts, name: str) -> bool:
    """Whether a node that is no function chooses between its ways. A function adds to its edges only."""
    node = parts.nodes[name]
    return node.action is None and (name in parts.routers or not _TARGETS.isdisjoint(node.fields))
