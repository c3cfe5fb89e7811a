"""What was added to a graph that is being built."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from sleipnir.python_graph.middleware import NamedCallbacks
from sleipnir.python_graph.policies import CachePolicy, RetryPolicy
from sleipnir.python_graph.schema import Key

Place: TypeAlias = tuple[str, int]
"""The file and the line of a call."""

Policies: TypeAlias = RetryPolicy | Sequence[RetryPolicy]


@dataclass
class NodeSpec:
    """A node as it was added. `schema` is the class of its input; None: that of the graph. `fields` are those of a node
    type of the language (`action` None), as in a graph.yaml."""

    name: str
    place: Place
    action: Any = None
    schema: type | None = None
    defer: bool = False
    metadata: Mapping[str, Any] | None = None
    retry_policy: Policies | None = None
    cache_policy: CachePolicy | None = None
    destinations: tuple[str, ...] = ()
    timeout: float | None = None
    callbacks: NamedCallbacks = field(default_factory=dict)
    stream_input: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class RouterSpec:
    """A conditional edge. `targets` maps results to targets; None: a result is a target."""

    path: Callable[..., Any]
    name: str
    targets: dict[Hashable, str] | None
    place: Place


@dataclass
class GraphParts:
    """The parts of a graph, in the order they were added. `place` is the call that made the builder; `keys` are those
    of all its `classes`. `mistakes` are those of calls, to be reported with all others. `caches`: the policies
    of nodes for caches are in force. `errors` says which failures are recorded and recovered from,
    `session` and `history` how threads of the graph behave. `remotes` are remote agents, by name, as in a
    graph.yaml."""

    place: Place
    state_schema: type
    context_schema: type | None
    input_schema: type
    output_schema: type
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    edges: list[tuple[str, str, Place]] = field(default_factory=list)
    joins: list[tuple[tuple[str, ...], str, Place]] = field(default_factory=list)
    routers: dict[str, list[RouterSpec]] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    classes: list[type] = field(default_factory=list)
    mistakes: list[tuple[Place, str]] = field(default_factory=list)
    interrupt_before: list[str] = field(default_factory=list)
    interrupt_after: list[str] = field(default_factory=list)
    caches: bool = False
    errors: Mapping[str, Any] | None = None
    session: Mapping[str, Any] | None = None
    history: str | None = None
    remotes: dict[str, dict[str, str]] = field(default_factory=dict)
    callbacks: NamedCallbacks = field(default_factory=dict)

    def copy(self) -> GraphParts:
        """The same parts, to which a builder adds nothing more."""
        return replace(
            self,
            nodes=dict(self.nodes),
            edges=[*self.edges],
            joins=[*self.joins],
            routers={source: [*routers] for source, routers in self.routers.items()},
            keys=dict(self.keys),
            classes=[*self.classes],
            mistakes=[*self.mistakes],
            remotes=dict(self.remotes),
        )


def is_graph(action: Any) -> bool:
    """Whether what a node does is a compiled graph."""
    return isinstance(getattr(action, "parts", None), GraphParts)
