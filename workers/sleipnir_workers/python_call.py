"""Call a Python function that the graph names: a node's body, a conditional edge's choice, a reducer.

Rules. It is `file.py:name` (a file of the agent's folder) or `package.module:name` (installed on the worker). It runs
in the worker's process: what needs memory of its own, a hard time limit or a clean environment is a script. However it
fails, that is a NodeFailed that names the function and the user's own line. What it is given are copies: it may change
them, and nobody else sees it.
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
from sleipnir_workers import bundle_writes, deadline, machine
from sleipnir_workers.agent_files import agent_file
from sleipnir_workers.agent_modules import load
from sleipnir_workers.execution import Execution

TIMEOUT_S = 30  # of what has no timeout of its own in the graph: as long as a function node's default

TRANSIENT = (ConnectionError, TimeoutError)
"""Exceptions after which another try may succeed; sockets, requests and database drivers derive theirs from these."""

T = TypeVar("T")


def call(name: str, execution: Execution, use: Callable[[Callable[..., Any]], T], *, timeout_s: float = TIMEOUT_S) -> T:
    """`use(function)` for the function called `name`, within `timeout_s`. Raises NodeFailed, VisitLost and
    MachineFailed.

    Loading counts towards the timeout: a module's top level is the user's code too.
    """
    try:
        return deadline.call(lambda: use(function(name, execution.folder)), timeout_s=timeout_s, lost=execution.lost)
    except deadline.DeadlinePassed:
        raise NodeFailed(f"Function '{name}' timed out after {timeout_s}s", "timeout") from None
    except NodeFailed:
        raise
    except (Exception, SystemExit) as error:
        if failure := machine.failure_behind(error):
            raise failure from error
        message = f"Function '{name}' {_raised(error, execution.folder)}"
        message += bundle_writes.advice(str(error), execution.folder, None)
        raise NodeFailed(message, "exception", transient=isinstance(error, TRANSIENT)) from error


@functools.lru_cache(maxsize=4096)
def function(name: str, folder: Path) -> Callable[..., Any]:
    """The function called `name`. Found once per bundle: its folder never changes. Errors are not kept."""
    place, colon, own_name = name.rpartition(":")
    if not colon or not place or not own_name:
        raise NodeFailed(f"Function call '{name}' must be 'file.py:name' or 'package.module:name'", "not_found")
    found = getattr(_module(name, place, folder), own_name, None)
    if found is None:
        raise NodeFailed(f"Function '{name}' not found: '{place}' defines no '{own_name}'", "not_found")
    if not callable(found):
        raise NodeFailed(f"Function '{name}' is a {type(found).__name__}, which cannot be called", "not_found")
    if inspect.iscoroutinefunction(found):
        raise NodeFailed(f"Function '{name}' is async; write a plain def", "not_found")
    usable: Callable[..., Any] = found
    return usable


def _module(name: str, place: str, folder: Path) -> Any:
    if place.endswith(".py"):
        return load(agent_file(folder, place, what="Function"))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(error.name + ".")):
            raise  # the module is there; something that it imports is not
        raise NodeFailed(
            f"Function '{name}' not found: no module '{place}' is installed on this worker; "
            f"a file of the agent's folder is written 'file.py:name'",
            "not_found",
        ) from error


def _raised(error: BaseException, folder: Path) -> str:
    """`raised ValueError: bad (steps.py:12: x = int(y))`, the line being the last one of the agent's own code."""
    text = f"raised {type(error).__name__}: {error}" if str(error) else f"raised {type(error).__name__}"
    frames = traceback.extract_tb(error.__traceback__)
    root = str(folder.resolve())
    own = [frame for frame in frames if frame.filename.startswith(root)] or frames[-1:]
    if isinstance(error, SyntaxError) or not own:
        return text  # a syntax error names its own line
    last = own[-1]
    return f"{text} ({Path(last.filename).name}:{last.lineno}: {last.line})"
