"""What scripts and functions return: one JSON object of new state, with an optional `_next` (routing.py).

Rules. `_next` is never stored. state_updates see the new keys. A failure merges nothing and runs no state_updates; it
leaves `_error` (`{"node", "message"}`) and `last_error` in the state, so that the node it is routed to can react.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import FunctionNode, GraphNode, Json, ScriptNode
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.results import typed_state
from sleipnir_workers.results.items import with_own_output
from sleipnir_workers.results.routing import EDGES, NEXT, Route, route_of


def success(
    node: ScriptNode | FunctionNode, execution: Execution, output: Mapping[str, Any], *, what: str
) -> VisitResult:
    """The result of a body that returned `output`. `what` names the body in the narration ("script").

    Raises NodeFailed (`output`) when `_next` is a list that cannot be followed.
    """
    merged = {key: value for key, value in output.items() if key != NEXT}
    route = _route(node, output[NEXT], what) if NEXT in output else EDGES
    updates = typed_state.updates(execution, merged)
    notes = [f"running {what} '{_body_of(node)}'"]
    if merged:
        notes.append(f"merged: {', '.join(merged)}")
    if (chosen := route.note(what, node.id)) is not None:
        notes.append(chosen)
    delta = {**merged, **updates}
    return VisitResult(
        ok=True,
        delta=with_own_output(execution, delta, merged) if merged else delta,
        next=route.next,
        sends=route.sends,
        notes=tuple(notes),
    )


def _route(node: ScriptNode | FunctionNode, value: Json, what: str) -> Route:
    try:
        return route_of(value)
    except NodeFailed as error:
        raise NodeFailed(f"{what.capitalize()} '{_body_of(node)}': {error}", error.kind) from None


def failure(node: ScriptNode | FunctionNode, error: NodeFailed, *, what: str) -> VisitResult:
    """The result of a body that failed."""
    message = str(error)
    return VisitResult(
        ok=False,
        delta={"_error": {"node": node.id, "message": message}, "last_error": message},
        error=message,
        error_kind=error.kind,
        error_type=error_type(error),
        error_code=error_code(error),
        retried_as=error.retried_as,
        transient=error.transient,
        notes=(f"running {what} '{_body_of(node)}'",),
    )


def failed(error: NodeFailed, message: str) -> VisitResult:
    """The result of a visit that failed and writes nothing to the state."""
    return VisitResult(
        ok=False,
        error=message,
        error_kind=error.kind,
        error_type=error_type(error),
        error_code=error_code(error),
        retried_as=error.retried_as,
        transient=error.transient,
    )


def error_type(error: NodeFailed) -> str | None:
    """The exception that a node's own code raised, as `module:Name`."""
    cause = error.__cause__ if error.kind == "exception" else None
    return None if cause is None else f"{type(cause).__module__}:{type(cause).__qualname__}"


def error_code(error: NodeFailed) -> str | None:
    """The `code` of the exception that a node's own code raised, or of a script's own failure."""
    code = getattr(error.__cause__ if error.kind == "exception" else error, "code", None)
    return str(code)[:200] if isinstance(code, str | int) and not isinstance(code, bool) else None


def recoverable(result: VisitResult, kept: VisitResult) -> VisitResult:
    """The failure `result` of a node whose code says that the run may go on, which then writes what `kept` does."""
    return replace(result, delta=kept.delta, next=kept.next, sends=kept.sends, recoverable=True)


def _body_of(node: ScriptNode | FunctionNode) -> str:
    if isinstance(node, ScriptNode):
        return node.script
    return node.graph if isinstance(node, GraphNode) else node.call
