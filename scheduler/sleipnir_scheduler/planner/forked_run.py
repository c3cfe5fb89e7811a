"""How a fork begins: with the visits of its checkpoint."""

from __future__ import annotations

from sleipnir.runs.run import Fork
from sleipnir.runs.visits import Branch, Ready
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.engines import steps
from sleipnir_scheduler.planner.nodes import once


def begin(context: Context, fork: Fork) -> None:
    """Open the first visits. One of a `dag` that may have done its work in the source asks, if that must happen once;
    no visit of a super-step that was still to open has."""
    point = fork.checkpoint
    steps.go_on_at(context, fork)
    ranks = {visit.rank for visit in point.visits if visit.begun}
    lists = {each.seq for each in point.lists if each.begun}
    if not (ranks or lists):
        return
    for visit in context.draft.visits.all():
        batch = visit.place.batch if isinstance(visit.place, Branch) else None
        has_begun = visit.rank in ranks if batch is None else batch in lists
        is_ready = isinstance(visit.body, Ready)
        if has_begun and is_ready and once.applies_to(context.graph.nodes.get(visit.node), visit):
            once.ask_in_fork(context, visit)
