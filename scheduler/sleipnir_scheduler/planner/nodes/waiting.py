"""Wait nodes: the visit waits for a time, without a worker and without a slot.

A hold does not stop the delay. If it ends meanwhile, its end is committed, and the run goes on once no hold is left.
"""

from __future__ import annotations

from sleipnir.graph.model import WaitNode
from sleipnir.runs.visits import Delay, Visit
from sleipnir_scheduler.planner.context import Context, VisitFailed, VisitOutcome
from sleipnir_scheduler.planner.nodes import starting


def start(context: Context, visit: Visit, node: WaitNode) -> None:
    context.begin(visit, Delay(context.now_ms + node.duration))


def elapsed(context: Context, visit: Visit, _: Delay) -> None:
    """The time is over: the visit writes the `state_updates` of its node, and ends."""
    try:
        outcome = VisitOutcome(values=starting.updated(context, visit, context.graph.nodes[visit.node]))
    except VisitFailed as failure:
        outcome = VisitOutcome(ok=False, error=str(failure))
    context.kinds.ended(context, visit, outcome)
