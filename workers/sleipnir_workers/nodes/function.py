"""The function node: a Python callable gets a copy of the state as a dict and returns new state and the next nodes.

Rules. The function is called with the state only (functions/python_call.py). It returns a dict, where `_next` routes as
in a script; a Command, or a list of Commands (sleipnir/commands.py); or None for an empty dict. Every value must be
JSON, or of the declared type of its key (results/typed_state.py). Anything else is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sleipnir.commands import Command
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import FunctionNode, GraphNode, Json
from sleipnir.graph.plain import first_not_json
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.functions import asking, python_call, state_graph
from sleipnir_workers.results import output, typed_state
from sleipnir_workers.results.routing import NEXT


@executor("function")
def run_function(node: FunctionNode, execution: Execution) -> VisitResult:
    """Call the node's function. Raises only VisitLost, KeyboardInterrupt and MemoryError."""
    return asking.unless_asked(execution, lambda: _called(node, execution))


def _called(node: FunctionNode, execution: Execution) -> VisitResult:
    try:
        if node.protocol == "state_graph":
            return state_graph.run(node, execution)
        return output.success(node, execution, _run(node, execution), what="function")
    except NodeFailed as error:
        if execution.observer is not None:
            execution.observer.failed(error)
        return output.failure(node, error, what="function")


@executor("graph")
def run_graph(node: GraphNode, execution: Execution) -> VisitResult:
    """Execute the node before its graph runs, and after. Raises only VisitLost, KeyboardInterrupt and MemoryError."""
    try:
        return state_graph.run_graph(node, execution)
    except NodeFailed as error:
        return output.failure(node, error, what="graph")


def _run(node: FunctionNode, execution: Execution) -> dict[str, Json]:
    def use(function: Callable[..., Any]) -> dict[str, Json]:
        returned = _as_output(node.call, function(typed_state.function_state(execution)))
        return _as_json(execution, returned) if execution.graph.state else returned

    result = python_call.call(node.call, execution, use, timeout_s=node.timeout)
    if problem := first_not_json(result):
        raise NodeFailed(f"Function '{node.call}' returned something that is not JSON: {problem}", "output")
    return result


def _as_output(call: str, returned: Any) -> dict[str, Json]:
    """The return value as the object that a script would print."""
    match returned:
        case dict():
            return returned
        case None:
            return {}
        case Command():
            return _single_command(call, returned)
        case list() | tuple():
            return {NEXT: list(_sends(call, returned))}
    raise _refused(call, type(returned).__qualname__, "return a dict, a Command, a list of Commands, or None")


def _as_json(execution: Execution, returned: dict[str, Any]) -> dict[str, Json]:
    """`returned`, with objects of declared types converted to JSON."""
    sends = returned.get(NEXT)
    written = typed_state.all_as_json(execution, {key: value for key, value in returned.items() if key != NEXT})
    if isinstance(sends, list | tuple):
        return {**written, NEXT: [_send_as_json(execution, send) for send in sends]}
    return {**written, NEXT: sends} if NEXT in returned else written


def _send_as_json(execution: Execution, send: Any) -> Any:
    if not isinstance(send, dict) or not isinstance(send.get("update"), dict):
        return send
    return {**send, "update": typed_state.all_as_json(execution, send["update"])}


def _single_command(call: str, command: Command[Any]) -> dict[str, Json]:
    update, goto = command.update or {}, command.goto
    if not isinstance(update, Mapping):
        raise _refused(call, f"Command whose update is a {type(update).__qualname__}", "update is a dict")
    if goto is not None and not isinstance(goto, str | list | tuple):
        raise _refused(call, f"Command whose goto is a {type(goto).__qualname__}", "goto names a node or several")
    written = {key: value for key, value in update.items() if key != NEXT}
    return written if goto is None or goto == "" else {**written, NEXT: goto}


def _sends(call: str, commands: Sequence[Any]) -> Iterator[Json]:
    for index, command in enumerate(commands):
        if not isinstance(command, Command):
            raise _refused(call, f"list with a {type(command).__qualname__} at [{index}]", "it may hold Commands only")
        update = dict(command.update) if isinstance(command.update, Mapping) else command.update
        for target in command.goto if isinstance(command.goto, list | tuple) else [command.goto]:
            yield {"to": target, "update": update}


def _refused(call: str, returned: str, advice: str) -> NodeFailed:
    return NodeFailed(f"Function '{call}' returned a {returned}; {advice}", "output")
