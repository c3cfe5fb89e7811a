"""Nodes with `effect: once` whose worker was lost: nobody knows whether the work was done, and it must not be done
twice, so a person decides."""

from __future__ import annotations

from collections.abc import Mapping

from sleipnir.graph.model import FunctionNode, Json, ScriptNode
from sleipnir.graph.template import apply_updates, updates_read
from sleipnir.runs import FAIL, RUN_AGAIN, Gate, LeaseLost, Transition, Visit, read_effect_answer
from sleipnir_scheduler.planner.moves import Moves, no_route, queue_of


def ask(moves: Moves, visit: Visit, lost: LeaseLost) -> Transition:
    """Let the visit wait for a decision."""
    how = "stopped" if lost.handed_back else "died"
    return _put(
        moves,
        visit,
        f"{lost.worker} {how} while it ran node '{visit.node}', whose effect must happen once, and left no result.\n"
        f"Find out whether it happened. Then answer '{RUN_AGAIN}', '{FAIL}', or with the result that it would have "
        "printed, as a JSON object ({} for none), to go on as if it had ended well.",
    )


def answered(moves: Moves, visit: Visit, node: ScriptNode | FunctionNode, text: str) -> Transition:
    """Do as the person says; ask again when that cannot be understood."""
    moves.draft.notice("gate_answered", seq=visit.seq, node=visit.node, answer=text)
    try:
        verdict = read_effect_answer(text)
    except ValueError as error:
        return _put(moves, visit, f"{error}. What became of node '{visit.node}'?")
    if verdict == RUN_AGAIN:
        moves.draft.redeliver(visit, queue=queue_of(node))
        return moves.draft.transition()
    if verdict == FAIL:
        return moves.give_up(visit, "WorkerLost: its worker died, and it was decided not to run it again")
    return _settle(moves, visit, node, verdict)


def _put(moves: Moves, visit: Visit, question: str) -> Transition:
    gate = Gate(visit.seq, visit.node, "effect", question, (RUN_AGAIN, FAIL), None, moves.now_ms)
    moves.draft.ask_instead(visit, gate)
    return moves.draft.transition()


def _settle(moves: Moves, visit: Visit, node: ScriptNode | FunctionNode, output: Mapping[str, Json]) -> Transition:
    """End the visit as if its node had printed `output`."""
    merged = {key: value for key, value in output.items() if key != "_next"}
    chosen = output.get("_next")
    target = moves.route(visit, ok=True, chosen=chosen if isinstance(chosen, str) else None)
    state = {**moves.state(updates_read(node) - merged.keys()), **merged}
    moves.draft.close(visit, target, {**merged, **apply_updates(node.state_updates, state)})
    return moves.follow(visit, target, no_route(visit))
