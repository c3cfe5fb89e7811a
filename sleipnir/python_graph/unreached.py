"""Nodes that no edge leads to: a warning, because LangGraph takes such a graph.

Only edges are known before a run. A function may lead to any node by a Command or a Send, so nothing is reported if the
code of a function that names no `destinations` mentions these, or cannot be read.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from sleipnir.commands import Command, Send
from sleipnir.python_graph.parts import GraphParts


def leads_anywhere(parts: GraphParts) -> bool:
    """Whether a node or a router of the graph may lead to nodes that it does not name."""
    free = [router.path for routers in parts.routers.values() for router in routers if router.targets is None]
    nodes = [node.action for node in parts.nodes.values() if node.action is not None and not node.destinations]
    return bool(free) or any(map(_mentions_commands, nodes))


def _mentions_commands(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    found: Any = inspect.unwrap(function)
    if not inspect.isroutine(found):  # an object that can be called
        found = type(found).__call__
    code = getattr(found, "__code__", None)
    if code is None:
        return True
    names = set(_names(code))
    module = getattr(found, "__globals__", {})
    return not names.isdisjoint(("Command", "Send")) or any(module.get(name) in (Command, Send) for name in names)


def _names(code: CodeType) -> Iterator[str]:
    """The names of globals, attributes and enclosing variables that a function and those inside it use."""
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
