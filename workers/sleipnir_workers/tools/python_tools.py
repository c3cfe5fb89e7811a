"""Tools of a tools node that are Python functions, `{name: add, call: "tools.py:add"}`: called in the worker's process.

Rules. The arguments are those of the model, by name; the result is JSON, or text. A failure is a result for the model,
and names the exception for retry policies. Limits and errors are those of function nodes (functions/python_call.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json, NodeTool
from sleipnir.graph.plain import first_not_json
from sleipnir.messages import RESULT, VisitResult
from sleipnir.python_graph.call_context import call_context
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.functions import python_call
from sleipnir_workers.machine.host import Host
from sleipnir_workers.results import output
from sleipnir_workers.tools import results, timeouts
from sleipnir_workers.tools.repeated_calls import PastCall


def run(tool: NodeTool, call: PastCall, execution: Execution, host: Host) -> VisitResult:
    """Execute a call of a Python function. Raises VisitLost and MachineFailed."""
    assert tool.call is not None
    try:
        arguments = _arguments(call)
        timeout_s = timeouts.seconds_of(execution.node, execution.graph, host)
        with _call_context(execution):
            value = python_call.call(tool.call, execution, _called_with(arguments), timeout_s=timeout_s)
        if problem := first_not_json({"result": value}):
            raise NodeFailed(f"Function '{tool.call}' returned something that is not JSON: {problem}", "output")
    except NodeFailed as error:
        if execution.observer is not None:
            execution.observer.failed(error)
        message = f"tool '{tool.name}' failed: {error}"
        failure: dict[str, Json] = {RESULT: results.storable({"tool_call_error": str(error)})}
        return VisitResult(
            ok=False,
            delta=failure,
            error=message,
            error_kind=error.kind,
            error_type=output.error_type(error),
            transient=error.transient,
        )
    value = results.limited(value, host.settings.max_tool_result_bytes)
    return VisitResult(ok=True, delta={RESULT: results.storable(value)})


def _arguments(call: PastCall) -> dict[str, Any]:
    """The arguments as an object. Raises NodeFailed (`arguments`)."""
    try:
        arguments = json.loads(call.arguments or "{}") if isinstance(call.arguments, str) else dict(call.arguments)
    except (ValueError, RecursionError) as error:
        raise NodeFailed(f"the arguments of '{call.name}' are not JSON: {error}", "arguments") from None
    if not isinstance(arguments, dict):
        raise NodeFailed(f"the arguments of '{call.name}' must be an object", "arguments")
    return arguments


@contextmanager
def _call_context(execution: Execution) -> Iterator[None]:
    """What callbacks have left for the call is in effect in the block."""
    context = execution.callbacks.info.context if execution.callbacks is not None else {}
    token = call_context.set(context)
    try:
        yield
    finally:
        call_context.reset(token)


def _called_with(arguments: dict[str, Any]) -> Callable[[Callable[..., Any]], Any]:
    return lambda function: function(**arguments)
