"""Call a Python function that the graph names: a node's body, a conditional edge's choice, a reducer.

Rules. It is `file.py:name` (a file of the agent's folder) or `package.module:name` (installed on the worker). It runs
in the worker's process: code that needs its own memory, a hard time limit or a clean environment must be a script. All
its failures become a NodeFailed that names the function and the user's own line. Its arguments are copies, which it may
change.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sleipnir.errors import NodeFailed
from sleipnir.python_graph.agent_modules import load
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.folders import bundle_writes
from sleipnir_workers.folders.agent_files import agent_file
from sleipnir_workers.functions import deadline
from sleipnir_workers.functions.graph_objects import objects_of
from sleipnir_workers.machine import health

TIMEOUT_S = 30  # of functions without a timeout in the graph: the same as the default of a function node

TRANSIENT = (ConnectionError, TimeoutError)
"""Exceptions after which a retry may succeed; sockets, requests and database drivers derive theirs from these."""

T = TypeVar("T")


def call(name: str, execution: Execution, use: Callable[[Callable[..., Any]], T], *, timeout_s: float = TIMEOUT_S) -> T:
    """`use(function)` for the function called `name`, within `timeout_s`. Raises NodeFailed, VisitLost and
    MachineFailed.

    Loading counts towards the timeout: a module's top level is the user's code too.
    """
    return guarded(f"Function '{name}'", execution, lambda: use(_found(name, execution)), timeout_s=timeout_s)


def guarded(title: str, execution: Execution, body: Callable[[], T], *, timeout_s: float = TIMEOUT_S) -> T:
    """`body()`, which calls code of the agent. `title` names that code in messages. Limits and errors are those of
    `call`."""
    try:
        return deadline.call(body, timeout_s=timeout_s, lost=execution.lost)
    except deadline.DeadlinePassed:
        raise NodeFailed(f"{title} timed out after {timeout_s}s", "timeout") from None
    except NodeFailed:
        raise
    except (Exception, SystemExit) as error:
        if failure := health.failure_behind(error):
            raise failure from error
        raise failure_of(title, error, execution.folder) from error


def failure_of(title: str, error: BaseException, folder: Path) -> NodeFailed:
    """What code of the agent has raised, as a failure of the node."""
    message = f"{title} {_raised(error, folder)}{bundle_writes.advice(str(error), folder, None)}"
    return NodeFailed(message, "exception", transient=isinstance(error, TRANSIENT))


def _found(name: str, execution: Execution) -> Callable[..., Any]:
    objects = execution.objects
    if objects is None and execution.graph.state_classes:
        objects = objects_of(tuple(execution.graph.state_classes), execution.folder)
    if objects is not None:
        found: Callable[..., Any] = objects.find(name)
        return found
    return function(name, execution.folder)


def is_instance(error: Exception, name: str, execution: Execution) -> bool:
    """Whether an exception is of the class of this name. False for a class that cannot be found: the error that is
    reported is the node's own."""
    try:
        kind = _found(name, execution)
    except Exception:
        return False
    return isinstance(kind, type) and isinstance(error, kind)


@functools.lru_cache(maxsize=4096)
def function(name: str, folder: Path) -> Callable[..., Any]:
    """The function called `name`, looked up once per bundle, whose folder never changes. Errors are not cached."""
    module_name, colon, own_name = name.rpartition(":")
    if not colon or not module_name or not own_name:
        raise NodeFailed(f"Function call '{name}' must be 'file.py:name' or 'package.module:name'", "not_found")
    value = _module(name, module_name, folder)
    for part in own_name.split("."):
        value = getattr(value, part, None)
    if value is None:
        raise NodeFailed(f"Function '{name}' not found: '{module_name}' defines no '{own_name}'", "not_found")
    if not callable(value):
        raise NodeFailed(f"Function '{name}' is a {type(value).__name__}, which cannot be called", "not_found")
    if inspect.iscoroutinefunction(value):
        raise NodeFailed(f"Function '{name}' is async; write a plain def", "not_found")
    function: Callable[..., Any] = value
    return function


def _module(name: str, module_name: str, folder: Path) -> Any:
    if module_name.endswith(".py"):
        return load(agent_file(folder, module_name, what="Function"))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise  # the module exists; one that it imports does not
        raise NodeFailed(
            f"Function '{name}' not found: no module '{module_name}' is installed on this worker; "
            f"a file of the agent's folder is written 'file.py:name'",
            "not_found",
        ) from error


def _raised(error: BaseException, folder: Path) -> str:
    """`raised ValueError: bad (steps.py:12: x = int(y))`; the line is the last one of the agent's own code."""
    text = f"raised {type(error).__name__}: {error}" if str(error) else f"raised {type(error).__name__}"
    frames = traceback.extract_tb(error.__traceback__)
    root = str(folder.resolve())
    own_frames = [frame for frame in frames if frame.filename.startswith(root)] or frames[-1:]
    if isinstance(error, SyntaxError) or not own_frames:
        return text  # a syntax error names its own line
    last = own_frames[-1]
    return f"{text} ({Path(last.filename).name}:{last.lineno}: {last.line})"
