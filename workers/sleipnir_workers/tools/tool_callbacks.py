"""The callbacks around a call of a tool: `before(state, info, call)` and `after(state, info, call, result, error)`.

`call` is {id, name, arguments}; `before` may change its arguments. The call itself is executed as without callbacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import ToolsNode
from sleipnir.graph.plain import first_not_json
from sleipnir.messages import RESULT, VisitResult
from sleipnir.runs.retry_rules import is_last, tool_policies
from sleipnir_workers.callbacks import chain
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.visit_callbacks import VisitCallbacks
from sleipnir_workers.tools import results
from sleipnir_workers.tools.repeated_calls import PastCall

MOST_CONTEXT: Final = 64 * 1024
"""Bytes of `info.context` as JSON: a command gets it in its environment."""

Run = Callable[[PastCall], VisitResult]


def around(own: VisitCallbacks, execution: Execution, id_: str, call: PastCall, run: Run) -> VisitResult:
    """The result of a call. Raises VisitLost, MachineFailed and what `run` raises."""
    given: dict[str, Any] = {"id": id_, "name": call.name, "arguments": _object(call)}
    try:
        outcome = chain.before(own, "tool", execution, given)
        if outcome is not None:
            return _result(own, call, outcome.value)
        _check_context(own)
        executed = run(_changed(call, given))
        if executed.interrupt is not None or _is_retried(execution, executed):
            return executed
        ended = chain.CallOutcome(executed.delta.get(RESULT), None if executed.ok else executed.error or "failed")
        outcome = chain.after(own, "tool", execution, given, ended)
        if outcome is ended:
            return executed
        return replace(_result(own, call, outcome.value), notes=executed.notes, usage=executed.usage)
    except NodeFailed as error:
        if not own.is_final:
            raise
        value = results.storable({"tool_call_error": str(error)})
        message = f"tool '{call.name}' failed: {error}"
        return VisitResult(False, {RESULT: value}, error=message, error_kind=error.kind, is_final=True)


def _object(call: PastCall) -> Any:
    """The arguments as an object; text that is none stays text."""
    if not isinstance(call.arguments, str):
        return dict(call.arguments)
    try:
        return json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments


def _changed(call: PastCall, given: dict[str, Any]) -> PastCall:
    """The call with the arguments that callbacks have left, and otherwise as the model has written it."""
    arguments = given.get("arguments")
    if json.dumps(arguments, sort_keys=True) == json.dumps(_object(call), sort_keys=True):
        return call
    return PastCall(call.name, arguments if isinstance(arguments, str) else json.dumps(arguments))


def _is_retried(execution: Execution, result: VisitResult) -> bool:
    node = execution.node
    if result.ok or not isinstance(node, ToolsNode):
        return False
    return not is_last(tool_policies(node, result), execution.failures, result)


def _result(own: VisitCallbacks, call: PastCall, value: Any) -> VisitResult:
    if problem := first_not_json({"result": value}):
        own.is_final = True
        raise NodeFailed(f"a callback of tool '{call.name}' returned something that is not JSON: {problem}", "callback")
    return VisitResult(True, {RESULT: results.storable(value)})


def _check_context(own: VisitCallbacks) -> None:
    size = len(json.dumps(own.info.context).encode())
    if size > MOST_CONTEXT:
        own.is_final = True
        raise NodeFailed(f"`info.context` has {size:,} bytes, at most {MOST_CONTEXT:,} are given to a tool", "callback")
