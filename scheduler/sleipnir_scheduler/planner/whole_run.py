"""The agent's functions around a whole run: `callbacks.agent` of a graph.

    the run begins ─► a worker calls those before it ─► the first visits; or the end, with the output that one has given
    it would end ─► nothing is open any more ─► a worker calls those after it ─► the end, as these have left it

What they change in the state is written as the journal step of their visit, which belongs to no super-step. One that
raises fails the run. While such a visit is live, whatever ends the run ends it for good (Context.end).
"""

from __future__ import annotations

import json

from sleipnir.graph.plain import compact_json
from sleipnir.messages import RESULT
from sleipnir.runs.values import WantedValues
from sleipnir.runs.visits import Ending, RunFunction, Visit, Work
from sleipnir_scheduler.planner import forked_run
from sleipnir_scheduler.planner.context import Context, VisitOutcome
from sleipnir_scheduler.planner.ending import call_run_functions
from sleipnir_scheduler.planner.engines import steps
from sleipnir_scheduler.planner.known import require


def calls_before(context: Context) -> bool:
    """Whether a run that begins now calls functions first. A fork does so if its source had not gone on from its
    beginning; that of an update does not."""
    if not context.graph.calls_around_run("before"):
        return False
    fork = context.run.spec.fork
    return fork is None or (fork.checkpoint.steps == 0 and fork.update is None)


def begin(context: Context) -> None:
    """Call the functions before the run."""
    call_run_functions(context.draft, context.graph.start, RunFunction("before_run"))


def ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """Functions have returned, or failed. Raises MissingValues."""
    ending = visit.place.ending if isinstance(visit.place, RunFunction) else None
    gives_output = RESULT in outcome.keys
    keys = tuple(key for key in outcome.keys if key != RESULT)
    if gives_output:  # the store would copy all that was delivered
        require(context.known, WantedValues(delta=frozenset(outcome.keys)))
    delta = context.known.delta
    context.draft.record.write(
        visit,
        delta=bool(keys) and not gives_output,
        values={key: delta[key] for key in keys} if gives_output else {},
        keys=keys,
        notes=outcome.notes,
        ok=outcome.ok,
        error=outcome.error,
        held=False,
        **outcome.how,
    )
    if not outcome.ok:
        _fail(context, outcome.error or "failed", ending)
    elif gives_output:
        if ending is not None and ending.status == "failed":
            context.draft.failed_visits = context.draft.failed_visits.without_ending()
        output = delta[RESULT]
        context.end("completed", output=output if isinstance(output, str) else compact_json(output))
    elif ending is not None:
        output = _output_before(context, visit) if ending.status == "completed" else None
        context.end(ending.status, error=ending.error, failure=ending.failure, output=output)
    else:
        context.draft.visits.drop(visit)
        _enter(context)


def given_up(context: Context, visit: Visit, error: str) -> None:
    """No worker could call the functions."""
    ended(context, visit, VisitOutcome(ok=False, error=error))


def _output_before(context: Context, visit: Visit) -> str | None:
    """The output that the functions were given. Raises MissingValues."""
    given = visit.body.given if isinstance(visit.body, Work) else None
    if given is None:
        return None
    require(context.known, WantedValues(items=frozenset([given])))
    output: str | None = json.loads(context.known.items[given])["output"]
    return output


def _enter(context: Context) -> None:
    fork = context.run.spec.fork
    if fork is None:
        steps.enter(context, context.run.failed_at or context.graph.start)
    else:
        forked_run.begin(context, fork)


def _fail(context: Context, error: str, ending: Ending | None) -> None:
    """The run fails for its functions, and for what it failed for before."""
    if ending is not None and ending.error is not None:
        error = f"{error} (before that: {ending.error})"
    context.fail(error, None if ending is None else ending.failure)
