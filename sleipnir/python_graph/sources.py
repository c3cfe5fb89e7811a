"""References of a graph's functions for workers: by files of a folder that travels, and by installed modules.

`file.py:name` is of a file in the folder, `package.module:name` of a module that is installed where workers run. What
has neither is a mistake, with the line of its definition.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sleipnir.errors import Problem
from sleipnir.python_graph.parts import GraphParts, Place, is_graph
from sleipnir.python_graph.policies import RetryPolicy
from sleipnir.python_graph.references import References

CODE: Final = "SLP507"

_WAY_OUT: Final = "Define it with `def` at the top level of a file, and name it there."


def file_of(module: str) -> Path | None:
    """The Python file of a loaded module; None if it has none, as a notebook and an interactive session."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    path = Path(file).resolve()
    return path if path.is_file() else None


def is_installed(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed package: workers have their own copy."""
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return True
    return any(path.is_relative_to(folder) for folder in (_LIBRARY, _OWN))


_LIBRARY: Final = Path(sys.modules["threading"].__file__ or "").resolve().parent
_OWN: Final = Path(__file__).resolve().parents[1]


def references_to(root: Path) -> References:
    """References by which workers find functions and classes in a copy of the folder `root`."""
    folder = root.resolve()

    def name(module: str) -> str:
        path = file_of(module)
        if path is None or is_installed(path) or not path.is_relative_to(folder):
            return module
        return path.relative_to(folder).as_posix()

    return References(name)


def unreachable(parts: GraphParts, references: References) -> list[Problem]:
    """All functions and classes that no worker could find by their `references`; also of graphs that are nodes."""
    found: list[Problem] = []
    for each in with_graphs(parts):
        for place, what, target in _objects(each):
            found += _problems(place, what, target, references)
    return found


def targets(parts: GraphParts) -> list[Any]:
    """All functions and classes that the graph refers to, and the graphs that are its nodes."""
    return [target for each in with_graphs(parts) for _, _, target in _objects(each)]


def with_graphs(parts: GraphParts) -> list[GraphParts]:
    """The parts of a graph, and of the graphs that are nodes, at any depth: each once."""
    found, waiting = {id(parts): parts}, [parts]
    while waiting:
        for node in waiting.pop().nodes.values():
            if is_graph(node.action) and id(node.action.parts) not in found:
                found[id(node.action.parts)] = node.action.parts
                waiting.append(node.action.parts)
    return list(found.values())


def _problems(place: Place, what: str, target: Any, references: References) -> Iterator[Problem]:
    reference = references.to(target)
    why = references.unreachable.get(reference)
    if why is None and reference.startswith("__main__:"):
        why = "it is defined in a notebook or an interactive session"
    if why is not None:
        file, line = _definition_of(target) or place
        yield Problem("error", f"{what} cannot be found by a worker: {why}", file, line, hint=_WAY_OUT, code=CODE)


def _objects(parts: GraphParts) -> Iterator[tuple[Place, str, Any]]:
    """What the graph refers to: the place of the call, its role in messages, and the object."""
    for declared in parts.classes:
        yield parts.place, f"the state class {declared.__qualname__}", declared
    if parts.context_schema is not None:
        yield parts.place, f"the context class {parts.context_schema.__qualname__}", parts.context_schema
    for key in parts.keys.values():
        if key.reducer is not None:
            yield parts.place, f"the reducer of state key '{key.name}'", key.reducer
    for node in parts.nodes.values():
        if node.action is not None and not is_graph(node.action):
            yield node.place, f"node '{node.name}'", node.action
        if node.schema is not None:
            yield node.place, f"the input class of node '{node.name}'", node.schema
        for phase, named in node.callbacks.items():
            for callback in named:
                yield node.place, f"the callback under `{phase}` of node '{node.name}'", callback
        for policy in _policies(node.retry_policy):
            kinds = policy.retry_on if isinstance(policy.retry_on, list | tuple) else [policy.retry_on]
            for kind in kinds:
                yield node.place, f"`retry_on` of node '{node.name}'", kind
    for phase, named in parts.callbacks.items():
        for callback in named:
            yield parts.place, f"the callback under `{phase}`", callback
    for source, routers in parts.routers.items():
        for router in routers:
            yield router.place, f"the conditional edge '{router.name}' of node '{source}'", router.path


def _policies(given: Any) -> list[RetryPolicy]:
    if given is None:
        return []
    return [given] if isinstance(given, RetryPolicy) else list(given)


def _definition_of(target: Any) -> Place | None:
    """The file and line of a function's definition."""
    code = getattr(target, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else None
