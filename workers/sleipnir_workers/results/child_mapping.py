"""Functions of the agent's own that make the first state of a child, and what its end writes: `map_in` and `map_out` of
an agent node.

    def to_child(state): return {"topic": state["topic"]}
    def from_child(state, child): return {"verdict": child["state"]["verdict"]}

Rules. `state` is what a function node gets; `child` is an object with the fields of runs/child_run.py. They return an
object of state keys; None is an empty one. A child that did not complete fails the visit nevertheless: its `map_out` is
called only if the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.child_values import keys_taken, response_of, written_by
from sleipnir.graph.model import AgentNode, Json
from sleipnir.graph.plain import first_not_json
from sleipnir.graph.template import TemplateError
from sleipnir.messages import RESULT, VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.functions import python_call, state_graph
from sleipnir_workers.results import typed_state
from sleipnir_workers.results.items import with_own_output
from sleipnir_workers.results.output import failed


def first_values(node: AgentNode, execution: Execution) -> VisitResult:
    """The first values of the child's state. Raises VisitLost and MachineFailed."""
    if not isinstance(node.map_in, str):  # only callbacks are called before the child
        return VisitResult(True, {RESULT: {}})
    name = node.map_in
    try:
        values = python_call.call(
            name, execution, lambda function: _returned(name, function(_state(execution))), timeout_s=_timeout_s(node)
        )
    except NodeFailed as error:
        return failed(error, str(error))
    return VisitResult(True, {RESULT: values}, notes=(f"running function '{name}'",))


def written(node: AgentNode, execution: Execution) -> VisitResult:
    """What the node writes after its child. Raises NodeFailed, VisitLost and MachineFailed."""
    child = json.loads(execution.talk.told)
    if (size := child.get("too_large")) is not None:
        raise NodeFailed(
            f"the state that `map_out` reads has {size:,} bytes, more than SLEIPNIR_MAX_OUTPUT_BYTES allows. Let the "
            "child write a smaller key, or store the data in a file and give its path",
            "too_large",
        )
    try:
        values = _called(node, execution, child) if isinstance(node.map_out, str) else _rendered(node, execution, child)
    except NodeFailed as error:
        return failed(error, str(error))
    notes: tuple[str, ...] = () if isinstance(node.map_out, dict) else (f"running function '{node.map_out}'",)
    notes += (f"merged: {', '.join(values)}",) if values else ()
    if child["status"] != "completed":
        return child_failed(node, child, values, notes)
    return VisitResult(True, with_own_output(execution, values, child["output"]), notes=notes)


def _called(node: AgentNode, execution: Execution, child: Mapping[str, Any]) -> Mapping[str, Json]:
    name = str(node.map_out)
    return python_call.call(
        name,
        execution,
        lambda function: _stored(execution, name, function(_state(execution), dict(child))),
        timeout_s=_timeout_s(node),
    )


def _rendered(node: AgentNode, execution: Execution, child: Mapping[str, Any]) -> Mapping[str, Json]:
    """What templates write of a child that returns much."""
    try:
        return written_by(
            node, {key: execution.state[key] for key in keys_taken(node) if key in execution.state}, child
        )
    except TemplateError as error:
        message = f"Agent '{node.agent}': `map_out` cannot be rendered: {error}"
        raise NodeFailed(message, "template") from None


def of_output(node: AgentNode, execution: Execution, output: str) -> VisitResult:
    """What a node without `map_out` writes after a child with this output. Raises NodeFailed."""
    response = response_of(execution.graph, node, output) if execution.item is None else {}
    values = {**response, **typed_state.updates(execution, {}, value=output)}
    return VisitResult(True, with_own_output(execution, values, output))


def child_failed(
    node: AgentNode,
    child: Mapping[str, Any],
    values: Mapping[str, Json] = MappingProxyType({}),
    notes: tuple[str, ...] = (),
) -> VisitResult:
    """The failure of a visit whose child did not complete."""
    reason = "it was cancelled" if child["status"] == "cancelled" else child["error"] or "it gives no reason"
    title = f"Agent '{node.agent}'"
    error = reason if reason.startswith(title) else f"{title} failed: {reason}"
    about = {"node": node.id, "message": error, "kind": child["error_kind"], "type": child["error_type"]}
    about["code"] = child.get("error_code")
    written = {"_error": {name: value for name, value in about.items() if value is not None}, "last_error": error}
    if node.map_out is None:  # as where no worker sees the end of the child
        cause = child["error_kind"], child["error_type"], child.get("error_code")
        return VisitResult(
            False, error=error, error_kind=cause[0] or "child", error_type=cause[1], error_code=cause[2], notes=notes
        )
    return VisitResult(False, {**values, **written}, error=error, error_kind="child", notes=notes)


def _timeout_s(node: AgentNode) -> float:
    return min(node.timeout or python_call.TIMEOUT_S, python_call.TIMEOUT_S)


def _state(execution: Execution) -> dict[str, Any]:
    if execution.graph.state_classes:
        return state_graph.state_of(execution)
    return typed_state.function_state(execution)


def _stored(execution: Execution, name: str, returned: Any) -> Mapping[str, Json]:
    """What a function under `map_out` returned, as it is stored. Raises NodeFailed."""
    if not isinstance(returned, dict):
        return _returned(name, returned)
    if execution.graph.state_classes:
        return _returned(name, state_graph.stored(execution, returned))
    return _returned(name, typed_state.all_as_json(execution, returned))


def _returned(name: str, returned: Any) -> dict[str, Json]:
    """Raises NodeFailed for what is no JSON object."""
    values = {} if returned is None else returned
    if not isinstance(values, dict):
        raise NodeFailed(f"Function '{name}' returned a {type(values).__qualname__}; return a dict, or None", "output")
    if problem := first_not_json(values):
        raise NodeFailed(f"Function '{name}' returned something that is not JSON: {problem}", "output")
    return values
