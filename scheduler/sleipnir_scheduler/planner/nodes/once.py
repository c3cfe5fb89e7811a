"""Nodes with `effect: once` whose worker was lost, or that were queued before Redis lost writes. It is unknown whether
the work was done, and it must not run twice, so a person decides."""

from __future__ import annotations

from sleipnir.graph.model import FunctionNode, Json, Node, ScriptNode
from sleipnir.graph.template import TemplateError, updated_by, updates_read
from sleipnir.runs.events import LeaseLost
from sleipnir.runs.run import FAIL, RUN_AGAIN, Gate, changed, read_effect_answer
from sleipnir.runs.visits import Doubt, Failed, Ready, Visit, Work
from sleipnir_scheduler.planner.context import Context, VisitOutcome
from sleipnir_scheduler.planner.nodes import interrupts
from sleipnir_scheduler.planner.nodes.starting import queue_of

_WHAT_TO_DO = (
    f"Find out whether it happened. Then answer '{RUN_AGAIN}', '{FAIL}', or with the result that it would have "
    "printed, as a JSON object ({} for none), to go on as if it had ended well."
)


def applies_to(node: Node | None, visit: Visit) -> bool:
    """Whether executing the visit has an effect that must happen once."""
    return isinstance(node, (ScriptNode, FunctionNode)) and node.effect == "once" and visit.role == "node"


def ask(context: Context, visit: Visit, work: Work, lost: LeaseLost) -> None:
    """Let the visit wait for a decision."""
    if lost.restored:
        cause = (
            f"Redis may have lost writes, or a backup was restored, since node '{visit.node}' was queued. Its effect "
            "must happen once, and may have happened in what was lost."
        )
    elif lost.stopped:
        cause = (
            f"The run was paused, and the time ended while {lost.worker or 'a worker'} ran node '{visit.node}', whose "
            "effect must happen once. The node was stopped, and left no result."
        )
    else:
        end = "stopped" if lost.handed_back else "died"
        cause = (
            f"{lost.worker} {end} while it ran node '{visit.node}', whose effect must happen once, and left no result."
        )
    _ask(context, visit, work, f"{cause}\n{_WHAT_TO_DO}")


def ask_again(context: Context, visit: Visit, failed: Failed) -> None:
    """After a retry, let a visit wait for a decision if it may have done its work when the run ended. A visit whose
    node failed has reported that."""
    if not failed.begun or not isinstance(failed.was, (Work, Doubt)):
        return
    cause = f"The run ended while node '{visit.node}' ran, whose effect must happen once, and has no result of it."
    _ask(context, visit, Work(""), f"{cause}\n{_WHAT_TO_DO}")


def ask_in_fork(context: Context, visit: Visit) -> None:
    """Let a visit wait for a decision that may have done its work in the run that was forked while it was open."""
    source = context.run.spec.fork.run if context.run.spec.fork is not None else ""
    cause = (
        f"Run '{source}' was forked at a step at which node '{visit.node}' had not ended. Its effect must happen once, "
        "and that run may have done it."
    )
    _ask(context, visit, Work(""), f"{cause}\n{_WHAT_TO_DO}")


def answered(context: Context, visit: Visit, doubt: Doubt, text: str, by: str) -> None:
    """Apply the person's decision; after an invalid answer, ask again."""
    node = context.graph.nodes[visit.node]
    if not isinstance(node, (ScriptNode, FunctionNode)):
        raise TypeError(f"node '{visit.node}' has no effect")
    context.answered(visit, text, by)
    try:
        answer = read_effect_answer(text)
    except ValueError as error:
        _ask(context, visit, doubt.work, f"{error}. What became of node '{visit.node}'?")
        return
    if answer == RUN_AGAIN:
        work = changed(doubt.work, queue=queue_of(node), generation=None, error=None)
        context.draft.visits.move(visit, Ready(work), attempt=visit.attempt + 1)
        return
    interrupts.forget_answers(context, doubt.work)
    if answer == FAIL:
        message = "WorkerLost: its worker died, and it was decided not to run it again"
        context.kinds.ended(context, visit, context.given_up(visit, message))
    else:
        context.kinds.ended(context, visit, _as_printed(context, visit, node, answer))


def _ask(context: Context, visit: Visit, work: Work, question: str) -> None:
    visit = context.draft.visits.move(visit, Doubt(work))
    gate = Gate(visit.seq, visit.node, "effect", question, (RUN_AGAIN, FAIL), None, context.now_ms)
    context.draft.record.ask(visit, gate)


def _as_printed(
    context: Context, visit: Visit, node: ScriptNode | FunctionNode, output: dict[str, Json]
) -> VisitOutcome:
    """The outcome of a visit whose node has printed `output`."""
    printed = {key: value for key, value in output.items() if key != "_next"}
    chosen = output.get("_next")
    state = {**context.values.state(updates_read(node) - printed.keys(), visit), **printed}
    try:
        values = {**printed, **updated_by(node, state)}
    except TemplateError as error:
        return VisitOutcome(ok=False, error=str(error))
    return VisitOutcome(values=values, next=chosen if isinstance(chosen, str) else None)
