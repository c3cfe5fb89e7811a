"""The agent's functions around a whole run: `callbacks.agent` of a graph.

    the run begins ─► a worker calls those before it ─► the first visits; or the end, with the output that one has given
    it would end ─► nothing is open any more ─► a worker calls those after it ─► the end, as these have left it

What they change in the state is written as the journal step of their visit, which belongs to no super-step. One that
raises fails the run. While such a visit is live, whatever ends the run ends it for good (Context.end). A run that is
paused meanwhile ends once it goes on: until then their visit has ended, and has the end of the run.
"""

from __future__ import annotations

import json

from sleipnir.graph.plain import compact_json
from sleipnir.messages import RESULT
from sleipnir.runs.transitions import SetValue
from sleipnir.runs.values import WantedValues
from sleipnir.runs.visits import Ended, Ending, RunFunction, Visit, Work
from sleipnir_scheduler.planner import forked_run
from sleipnir_scheduler.planner.context import OUTPUT_OF_RUN, Context, VisitOutcome
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
        _end(context, visit, _failed(context, outcome.error or "failed", ending))
    elif gives_output:
        if ending is not None and ending.status == "failed":
            context.draft.failed_visits = context.draft.failed_visits.without_ending()
        output = delta[RESULT]
        _end(context, visit, Ending("completed"), output if isinstance(output, str) else compact_json(output))
    elif ending is not None:
        _end(context, visit, ending, _output_before(context, visit) if ending.status == "completed" else None)
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


def _failed(context: Context, error: str, ending: Ending | None) -> Ending:
    """The run fails for its functions, and for what it failed for before."""
    if ending is not None and ending.error is not None:
        error = f"{error} (before that: {ending.error})"
    return Ending("failed", context.failed_for(error), None if ending is None else ending.failure)


def _end(context: Context, visit: Visit, ending: Ending, output: str | None = None) -> None:
    """End the run, or keep its end while it is paused."""
    draft = context.draft
    if not any(hold.breakpoint is None for hold in draft.clock.holds):  # a run that failed keeps its breakpoints
        context.end(ending.status, error=ending.error, failure=ending.failure, output=output)
        return
    if output is not None:
        draft.record.item(SetValue(OUTPUT_OF_RUN, output))
    role = visit.place.role if isinstance(visit.place, RunFunction) else "after_run"
    draft.visits.move(visit, Ended(draft.record.last_step), place=RunFunction(role, ending))


def go_on_after_hold(context: Context) -> None:
    """A hold has ended: end the run if its functions have returned meanwhile. Raises MissingValues."""
    if context.draft.clock.is_held:
        return
    for seq in tuple(context.draft.visits.frontier.run_functions):
        visit = context.draft.visits.frontier[seq]
        if isinstance(visit.body, Ended) and isinstance(visit.place, RunFunction) and visit.place.ending is not None:
            ending, output = visit.place.ending, None
            if ending.status == "completed":
                require(context.known, WantedValues(items=frozenset([OUTPUT_OF_RUN])))
                output = context.known.items.get(OUTPUT_OF_RUN)
            context.end(ending.status, error=ending.error, failure=ending.failure, output=output)
