"""The function node: a Python callable gets a copy of the state as a dict and returns a dict of new state.

Rules. `call` is `file.py:name` (a file of the agent's folder) or `package.module:name` (installed on the
worker). The function is called with the state and nothing else; it returns a dict, or None for an empty
one; `_next` routes as in a script, and every value must be JSON. It runs in the worker's process: what
needs memory of its own, a hard time limit or a clean environment is a script.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import FunctionNode, Json
from sleipnir.messages import VisitResult
from sleipnir_workers import deadline, output
from sleipnir_workers.agent_files import agent_file
from sleipnir_workers.agent_modules import load
from sleipnir_workers.node import Visit, executor

TRANSIENT = (ConnectionError, TimeoutError)
"""Exceptions after which another try may succeed; sockets, requests and database drivers derive theirs from these."""


@executor("function")
def run_function(node: FunctionNode, visit: Visit) -> VisitResult:
    """Call the node's function. Raises VisitLost, nothing else (but KeyboardInterrupt and MemoryError)."""
    try:
        found = _run(node, visit)
    except NodeFailed as error:
        return output.failure(node, error, what="function")
    return output.success(node, visit, found, what="function")


def _run(node: FunctionNode, visit: Visit) -> dict[str, Json]:
    """Loading counts towards the timeout: a module's top level is the user's code too."""
    state = {key: _copy(value) for key, value in visit.state.items()}
    try:
        returned = deadline.call(
            lambda: _function(node.call, visit.folder)(state), timeout_s=node.timeout, lost=visit.lost
        )
    except deadline.DeadlinePassed:
        raise NodeFailed(f"Function '{node.call}' timed out after {node.timeout}s", "timeout") from None
    except NodeFailed:
        raise
    except (Exception, SystemExit) as error:
        message = f"Function '{node.call}' {_raised(error, visit.folder)}"
        raise NodeFailed(message, "exception", transient=isinstance(error, TRANSIENT)) from error
    return _checked(node, returned)


@functools.lru_cache(maxsize=4096)
def _function(call: str, folder: Path) -> Callable[[dict[str, Json]], Any]:
    """The function that `call` names. Found once per bundle: its folder never changes. Errors are not kept."""
    place, colon, name = call.rpartition(":")
    if not colon or not place or not name:
        raise NodeFailed(f"Function call '{call}' must be 'file.py:name' or 'package.module:name'", "not_found")
    module = _module(call, place, folder)
    found = getattr(module, name, None)
    if found is None:
        raise NodeFailed(f"Function '{call}' not found: '{place}' defines no '{name}'", "not_found")
    if not callable(found):
        raise NodeFailed(f"Function '{call}' is a {type(found).__name__}, which cannot be called", "not_found")
    if inspect.iscoroutinefunction(found):
        raise NodeFailed(f"Function '{call}' is async; write a plain def", "not_found")
    function: Callable[[dict[str, Json]], Any] = found
    return function


def _module(call: str, place: str, folder: Path) -> Any:
    if place.endswith(".py"):
        return load(agent_file(folder, place, what="Function"))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(error.name + ".")):
            raise  # the module is there; something that it imports is not
        raise NodeFailed(
            f"Function '{call}' not found: no module '{place}' is installed on this worker; "
            f"a file of the agent's folder is written 'file.py:name'",
            "not_found",
        ) from error


def _copy(value: Json) -> Json:
    """A deep copy of a JSON value; copy.deepcopy costs ten times this."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value


def _checked(node: FunctionNode, returned: Any) -> dict[str, Json]:
    if returned is None:
        return {}
    if not isinstance(returned, dict):
        raise NodeFailed(
            f"Function '{node.call}' returned a {type(returned).__qualname__}; return a dict or None", "output"
        )
    if problem := output.first_not_json(returned):
        raise NodeFailed(f"Function '{node.call}' returned something that is not JSON: {problem}", "output")
    return returned


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
