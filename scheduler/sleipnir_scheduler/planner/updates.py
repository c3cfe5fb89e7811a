"""An update of a state: the first visit of a fork stands for its node, which is not called (docs/history.md).

The visit writes the values as if its node had returned them: through the reducers, and the edges of the node lead on. A
worker calls the routers of a node of a graph written in Python, which are functions of the agent. After the visit the
run stops, as at a breakpoint, unless nothing comes next.
"""

from __future__ import annotations

from typing import Any

from sleipnir.graph.model import FunctionNode, Node
from sleipnir.graph.plain import compact_json
from sleipnir.runs.interrupts import answers_text
from sleipnir.runs.run import changed
from sleipnir.runs.transitions import SetValue
from sleipnir.runs.visits import Branch, Ready, Visit, Work
from sleipnir_scheduler.planner.context import Context, VisitOutcome
from sleipnir_scheduler.planner.engines import steps
from sleipnir_scheduler.planner.nodes import starting


def values_of(context: Context, visit: Visit) -> dict[str, Any] | None:
    """What a visit writes in the place of its node. None: its node runs. Another visit of the same step stands for the
    node if the first one has failed."""
    fork = context.run.spec.fork
    if fork is None or fork.update is None or not isinstance(visit.place, Branch):
        return None
    return fork.update if visit.group == fork.checkpoint.steps + 1 else None


def start(context: Context, visit: Visit, node: Node, values: dict[str, Any]) -> None:
    """The visit ends, or a worker calls the routers of its node."""
    if not (isinstance(node, FunctionNode) and node.routers):
        steps.ended(context, context.pass_by(visit), VisitOutcome(values=values))
        return
    earlier = visit.body.resumes if isinstance(visit.body, Ready) else None
    work = earlier if isinstance(earlier, Work) else Work("")
    if work.given is None:
        work = changed(work, given=f"{visit.seq}.update")
        context.draft.record.item(SetValue(str(work.given), answers_text((), compact_json(values))))
    context.begin(visit, changed(work, queue=starting.queue_of(node)))
