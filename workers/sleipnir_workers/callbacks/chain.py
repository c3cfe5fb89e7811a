"""The callbacks around one call of a model or of a tool: `before` and `after`, one after the other.

Rules. Before: plugins, then the graph's, then the node's. What one returns stands in the place of the call, and no
`after` runs; one of a higher rank (plugin, node, graph) still runs and may return something else. After: plugins, then
the node's, then the graph's; each sees the outcome so far, and what a higher rank has returned stays. A callback that
raises makes the visit fail, finally.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import CallbackKind, CallbackLevel, CallbackPhase
from sleipnir.graph.plain import first_not_json
from sleipnir_workers.callbacks.calling import call
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.visit_callbacks import RANKS, Callback, VisitCallbacks


@dataclass(frozen=True)
class CallOutcome:
    """How a call ended: with a value, or with an error. `by` is the level of the callback that has decided it."""

    value: Any
    error: str | None = None
    by: CallbackLevel | None = None


def outranks(callback: Callback, by: CallbackLevel | None) -> bool:
    """Whether a callback that runs before a node or call may overrule what one of the level `by` has returned."""
    return by is None or RANKS[callback.level] > RANKS[by]


def before(own: VisitCallbacks, kind: CallbackKind, execution: Execution, given: dict[str, Any]) -> CallOutcome | None:
    """What stands in the place of the call; None: nothing. `given` is what the call gets, as callbacks leave it. Raises
    NodeFailed, VisitLost and MachineFailed."""
    outcome: CallOutcome | None = None
    for callback in own.of(kind, "before"):
        if outcome is not None and not outranks(callback, outcome.by):
            continue
        earlier = json.dumps(given, sort_keys=True)
        value = _called(own, kind, "before", callback, execution, [given])
        if _text(own, kind, callback, given) != earlier:
            own.marks.append(f"{kind} call changed by before {callback.name}")
        if value is not None:
            outcome = CallOutcome(value, by=callback.level)
            own.marks.append(f"{kind} call skipped by before {callback.name}")
    return outcome


def after(
    own: VisitCallbacks,
    kind: CallbackKind,
    execution: Execution,
    given: dict[str, Any],
    outcome: CallOutcome,
    completed: Callable[[Any], Any] = lambda value: value,
) -> CallOutcome:
    """The outcome as callbacks leave it; a value of one is `completed` for those after it. Raises NodeFailed, VisitLost
    and MachineFailed."""
    for callback in own.of(kind, "after"):
        value = _called(own, kind, "after", callback, execution, [given, outcome.value, outcome.error])
        if value is None or (outcome.by is not None and RANKS[callback.level] < RANKS[outcome.by]):
            continue
        what = "replaced" if outcome.error is None else "recovered"
        own.marks.append(f"{kind} call {what} by after {callback.name}")
        outcome = CallOutcome(completed(value), by=callback.level)
    return outcome


def _text(own: VisitCallbacks, kind: CallbackKind, callback: Callback, given: dict[str, Any]) -> str:
    """What a callback has left of its arguments, for a comparison. Raises NodeFailed."""
    if problem := first_not_json({"call": given, "context": own.info.context}):
        own.is_final = True
        own.marks.append(f"{kind} call failed by before {callback.name}")
        raise NodeFailed(f"Callback '{callback.name}' left something that is not JSON: {problem}", "callback")
    return json.dumps(given, sort_keys=True)


def _called(
    own: VisitCallbacks,
    kind: CallbackKind,
    phase: CallbackPhase,
    callback: Callback,
    execution: Execution,
    arguments: Sequence[Any],
) -> Any:
    try:
        return call(callback, execution, own.info, arguments).value
    except NodeFailed as error:
        own.is_final = True
        own.marks.append(f"{kind} call failed by {phase} {callback.name}")
        if execution.observer is not None:
            execution.observer.failed(error)
        raise NodeFailed(str(error), "callback") from error
