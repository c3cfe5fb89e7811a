"""The `errors:` block of a graph (spec/graph-package.md F54): failures that are recorded, and those after which a visit
counts as ended well.

A failure that is recovered from is none for the run: it takes the edges of success, is counted nowhere, and is recorded
once, in the commit that closes the visit. One that `on_error` handles is recorded too. One that fails the run is not in
the state, whose step never closes: the run keeps it as its failure (Failure). Items of maps have `on_item_error`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sleipnir.graph.error_records import ERRORS_KEY
from sleipnir.graph.model import Json
from sleipnir.runs.run import changed
from sleipnir.runs.visits import MOST_MESSAGE, Failure, Visit, stable_type
from sleipnir_scheduler.planner.context import Context, VisitOutcome

MOST_RECORDS: Final = 100
"""In the state of a run; further ones are dropped. Visits of one super-step may exceed it together."""


def recovered(context: Context, visit: Visit, outcome: VisitOutcome) -> VisitOutcome | None:
    """The outcome of a failed visit that counts as ended well; None: it has failed. Raises MissingValues."""
    rules = context.graph.errors
    if rules is None or outcome.ok or not (outcome.recoverable or _names(outcome) & {*rules.recoverable}):
        return None
    note = f"recovered from: {(outcome.error or 'a failure')[:200]}"
    return replace(
        outcome,
        ok=True,
        error=None,
        keys=outcome.keys if outcome.recoverable else (),
        values=recorded(context, visit, outcome),
        notes=(*outcome.notes, note),
        failure=None,
    )


def recorded(context: Context, visit: Visit, outcome: VisitOutcome) -> dict[str, Json]:
    """What a failure that does not fail the run writes. Raises MissingValues."""
    if context.graph.errors is None or not context.graph.errors.collect:
        return {}
    before = context.values.state([ERRORS_KEY]).get(ERRORS_KEY)
    if isinstance(before, list) and len(before) >= MOST_RECORDS:
        return {}
    kind, type_, code = _about(outcome)
    fields = {"node": visit.node, "step": visit.group, "type": type_ or kind or "failed"}
    message = (outcome.error or "it gives no reason")[:MOST_MESSAGE]
    told = {"message": message, "code": code, "time": context.now_ms}
    return {ERRORS_KEY: [{"severity": "recoverable", **fields, **told}]}


def with_place(context: Context, visit: Visit, failure: Failure, outcome: VisitOutcome | None) -> Failure:
    """Why a run fails, with what is recorded of it."""
    _, type_, code = (None, None, None) if outcome is None else _about(outcome)
    failure = failure if code is None else changed(failure, code=code)
    if context.graph.errors is None or not context.graph.errors.collect:
        return failure
    return changed(failure, node=visit.node, step=visit.group, error_type=failure.error_type or type_)


def code_of(outcome: VisitOutcome) -> str | None:
    """The code of a failure, or of that of the run that the visit waited for; None: it has none."""
    return outcome.error_code or (None if outcome.failure is None else outcome.failure.code)


def _about(outcome: VisitOutcome) -> tuple[str | None, str | None, str | None]:
    """The kind, the exception and the code of a failure, or of that of the run that the visit waited for."""
    below = outcome.failure or Failure("")
    type_ = stable_type(outcome.error_type or below.error_type)
    return outcome.error_kind or below.kind or None, type_, code_of(outcome)


def _names(outcome: VisitOutcome) -> set[Any]:
    """The names under which a failure may be recoverable."""
    kind, type_, _ = _about(outcome)
    return {kind, type_, (type_ or "").rpartition(":")[2]} - {None, ""}
