"""Callbacks of graphs written in Python: functions around nodes, and around the calls of their models and tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

Callbacks: TypeAlias = Callable[..., Any] | Sequence[Callable[..., Any] | None] | None

NamedCallbacks: TypeAlias = Mapping[str, Sequence[Callable[..., Any]]]
"""By the key in a graph.yaml (`before`, `model.after`), the functions in the order in which they run."""


class NodeMiddleware:
    """Functions that belong together: a subclass has those that it wants, as static methods, and is itself given to
    `middleware=`. An object of it may be given too; if it has methods of its own, no worker finds these again, and the
    graph runs in this process only."""

    before: ClassVar[Callable[..., Any] | None] = None
    """(state, info)"""
    after: ClassVar[Callable[..., Any] | None] = None
    """(state, info, result, error)"""
    on_error: ClassVar[Callable[..., Any] | None] = None
    """(state, info, error)"""
    agent_event: ClassVar[Callable[..., Any] | None] = None
    """(state, info, event), for each event of the child of an agent node"""
    before_model: ClassVar[Callable[..., Any] | None] = None
    """(state, info, request)"""
    after_model: ClassVar[Callable[..., Any] | None] = None
    """(state, info, request, response, error)"""
    before_tool: ClassVar[Callable[..., Any] | None] = None
    """(state, info, call)"""
    after_tool: ClassVar[Callable[..., Any] | None] = None
    """(state, info, call, result, error)"""
    before_agent: ClassVar[Callable[..., Any] | None] = None
    """(state, info), once per run; of middleware of a graph"""
    after_agent: ClassVar[Callable[..., Any] | None] = None
    """(state, info, output, error), once per run; of middleware of a graph"""


Middleware: TypeAlias = type[NodeMiddleware] | NodeMiddleware | Sequence[type[NodeMiddleware] | NodeMiddleware] | None

_NODE: Final = {"before": "before", "after": "after", "error": "on_error"}
_MODEL: Final = {"model.before": "before_model", "model.after": "after_model"}
_TOOL: Final = {"tool.before": "before_tool", "tool.after": "after_tool"}
_AGENT: Final = {"agent.before": "before_agent", "agent.after": "after_agent"}
_EVENTS: Final = {"agent_event": "agent_event"}
_OF_TYPES: Final[Mapping[str, Mapping[str, str]]] = {
    "llm": _NODE | _MODEL | _TOOL,
    "tools": _TOOL,
    "agent": _NODE | _EVENTS,
}
"""By the type of a node, what can run around it: the functions of a middleware by their keys; others: _NODE."""


def named_callbacks(
    before: Callbacks, after: Callbacks, on_error: Callbacks, middleware: Middleware, node_type: str | None = None
) -> NamedCallbacks:
    """The callbacks of a node of this type (None: of a graph). Those of middleware run in its order after those given
    alone, and `after` in the reverse order. Raises TypeError."""
    named: dict[str, list[Callable[..., Any]]] = {}
    for key, given in (("before", before), ("after", after), ("error", on_error)):
        if given is not None:
            named[key] = [each for each in ([given] if callable(given) else given) if each is not None]
    functions = _NODE | _EVENTS | _MODEL | _TOOL | _AGENT if node_type is None else _OF_TYPES.get(node_type, _NODE)
    for key, name in functions.items():
        wrapping = [function for each in _listed(middleware) if (function := getattr(each, name)) is not None]
        if wrapping:
            is_after = key.endswith("after")
            named[key] = [*reversed(wrapping), *named.get(key, ())] if is_after else [*named.get(key, ()), *wrapping]
    return named


def _listed(middleware: Middleware) -> Sequence[type[NodeMiddleware] | NodeMiddleware]:
    given = [] if middleware is None else list(middleware) if isinstance(middleware, Sequence) else [middleware]
    for each in given:
        if not isinstance(each, NodeMiddleware) and not (isinstance(each, type) and issubclass(each, NodeMiddleware)):
            raise TypeError(f"middleware is a subclass of NodeMiddleware, not {each!r}")
    return given
