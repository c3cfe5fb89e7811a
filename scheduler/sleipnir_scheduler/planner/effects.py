"""Nodes with `effect: once` whose worker was lost, or that were queued before Redis went back in time: whether the work
was done is not known, and it must not be done twice, so a person decides."""

from __future__ import annotations

from sleipnir.graph.model import FunctionNode, Json, Node, ScriptNode
from sleipnir.graph.template import TemplateError, apply_updates, updates_read
from sleipnir.runs.events import LeaseLost
from sleipnir.runs.run import FAIL, RUN_AGAIN, Gate, Visit, read_effect_answer
from sleipnir_scheduler.planner.context import Context, Outcome
from sleipnir_scheduler.planner.starting import queue_of


def ask(context: Context, visit: Visit, lost: LeaseLost) -> None:
    """Let the visit wait for a decision."""
    if lost.restored:
        _put(
            context,
            visit,
            f"Redis may have lost writes, or a backup was restored, since node '{visit.node}' was queued. Its effect "
            f"must happen once, and may have happened in what was lost.\n{_WHAT_TO_DO}",
        )
        return
    how = "stopped" if lost.handed_back else "died"
    _put(
        context,
        visit,
        f"{lost.worker} {how} while it ran node '{visit.node}', whose effect must happen once, and left no result.\n"
        f"{_WHAT_TO_DO}",
    )


_WHAT_TO_DO = (
    f"Find out whether it happened. Then answer '{RUN_AGAIN}', '{FAIL}', or with the result that it would have "
    "printed, as a JSON object ({} for none), to go on as if it had ended well."
)


def in_doubt(visit: Visit, node: Node | None) -> bool:
    """Whether a visit of a run that ended without it may have done its work. One that failed itself has said so."""
    if not isinstance(node, ScriptNode | FunctionNode) or node.effect != "once" or visit.role != "node":
        return False
    return not visit.ready and (visit.queue is not None or visit.error is None)


def ask_again(context: Context, visit: Visit) -> None:
    """Let a visit of a run that goes on wait for a decision."""
    how = f"The run ended while node '{visit.node}' ran"
    _put(context, visit, f"{how}, whose effect must happen once, and has no result of it.\n{_WHAT_TO_DO}")


def answered(
    context: Context, visit: Visit, node: ScriptNode | FunctionNode, text: str, by: str
) -> Outcome | str | None:
    """Do as the person says: how the visit ended, or why it failed; None when it goes on, or when what was said cannot
    be understood, and it is asked again."""
    context.answered(visit, text, by)
    try:
        verdict = read_effect_answer(text)
    except ValueError as error:
        _put(context, visit, f"{error}. What became of node '{visit.node}'?")
        return None
    if verdict == RUN_AGAIN:
        context.draft.run_again(visit, queue_of(node))
        return None
    if verdict == FAIL:
        return "WorkerLost: its worker died, and it was decided not to run it again"
    return _as_printed(context, visit, node, verdict)


def _put(context: Context, visit: Visit, question: str) -> None:
    gate = Gate(visit.seq, visit.node, "effect", question, (RUN_AGAIN, FAIL), None, context.now_ms)
    context.draft.ask_instead(visit, gate)


def _as_printed(context: Context, visit: Visit, node: ScriptNode | FunctionNode, output: dict[str, Json]) -> Outcome:
    """The outcome of a visit whose node has printed `output`."""
    merged = {key: value for key, value in output.items() if key != "_next"}
    chosen = output.get("_next")
    state = {**context.state(updates_read(node) - merged.keys(), visit), **merged}
    try:
        values = {**merged, **apply_updates(node.state_updates, state)}
    except TemplateError as error:
        return Outcome(ok=False, error=str(error))
    return Outcome(values=values, next=chosen if isinstance(chosen, str) else None)
