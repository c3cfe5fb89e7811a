"""The function node: a Python callable gets a copy of the state as a dict and returns new state and the next nodes.

Rules. The function is called with the state only (functions/python_call.py). It returns a dict, where `_next` routes as
in a script; a Command, or a list of Commands (sleipnir/commands.py); or None for an empty dict. Every value must be
JSON, or of the declared type of its key (results/typed_state.py). Anything else is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sleipnir.errors import NodeFailed, RecoverableError
from sleipnir.graph.load_edges import REFERENCE
from sleipnir.graph.model import FunctionNode, GraphNode, Json
from sleipnir.graph.plain import first_not_json
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.functions import asking, python_call, state_graph
from sleipnir_workers.functions.emitting import emitting
from sleipnir_workers.functions.stream_reading import reading
from sleipnir_workers.results import output, typed_state
from sleipnir_workers.results.returned import as_json, as_output


@executor("function")
def run_function(node: FunctionNode, execution: Execution) -> VisitResult:
    """Call the node's function. Raises only VisitLost, KeyboardInterrupt and MemoryError."""
    return asking.unless_asked(execution, lambda: _called(node, execution))


def _called(node: FunctionNode, execution: Execution) -> VisitResult:
    try:
        with emitting(execution), reading(execution):
            if node.protocol == "state_graph":
                return state_graph.run(node, execution)
            return output.success(node, execution, _run(node, execution), what="function")
    except NodeFailed as error:
        if execution.observer is not None:
            execution.observer.failed(error)
        return _recoverable(node, execution, error, output.failure(node, error, what="function"))


def _recoverable(node: FunctionNode, execution: Execution, error: NodeFailed, result: VisitResult) -> VisitResult:
    """The failure, marked if its exception says that the run may go on: a RecoverableError, with what the node writes
    instead, or a class that the graph lists."""
    rules, cause = execution.graph.errors, error.__cause__
    if rules is None or not isinstance(cause, Exception):
        return result
    if not isinstance(cause, RecoverableError):
        listed = [name for name in rules.recoverable if REFERENCE.fullmatch(name)]
        is_listed = any(python_call.is_instance(cause, name, execution) for name in listed)
        return output.recoverable(result, VisitResult(True)) if is_listed else result
    try:
        if node.protocol == "state_graph":
            kept = state_graph.run_update(node, execution, {} if cause.value is None else cause.value)
        else:
            kept = output.success(node, execution, as_output(f"Function '{node.call}'", cause.value), what="function")
            if problem := first_not_json(kept.delta):
                raise NodeFailed(f"its value is not JSON: {problem}", "output")
    except Exception as wrong:
        return output.failure(
            node, NodeFailed(f"{error}; it cannot be recovered from: {wrong}", "output"), what="function"
        )
    return output.recoverable(result, kept)


@executor("graph")
def run_graph(node: GraphNode, execution: Execution) -> VisitResult:
    """Execute the node before its graph runs, and after. Raises only VisitLost, KeyboardInterrupt and MemoryError."""
    return asking.unless_asked(execution, lambda: _around_graph(node, execution))


def _around_graph(node: GraphNode, execution: Execution) -> VisitResult:
    try:
        return state_graph.run_graph(node, execution)
    except NodeFailed as error:
        return output.failure(node, error, what="graph")


def _run(node: FunctionNode, execution: Execution) -> dict[str, Json]:
    def use(function: Callable[..., Any]) -> dict[str, Json]:
        returned = as_output(f"Function '{node.call}'", function(typed_state.function_state(execution)))
        return as_json(execution, returned) if execution.graph.state else returned

    result = python_call.call(node.call, execution, use, timeout_s=node.timeout)
    if problem := first_not_json(result):
        raise NodeFailed(f"Function '{node.call}' returned something that is not JSON: {problem}", "output")
    return result
