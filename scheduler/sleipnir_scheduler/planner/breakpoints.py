"""Breakpoints: a run stops before nodes start, or after they have ended, until a person resumes it.

    a step has closed, the next one is open ─► a flagged node has ended ─► hold "after" ─► resume ─┐
                          │                                                                         ▼
                          └─────────────────────────────► a flagged node is open ─► hold "before" ─► resume ─► it starts

The stop is part of the commit that opens the visits, so nothing of them has started, control nodes included, and it is
a hold like a pause: work on workers ends, clocks stop, no worker is held. Nothing marks a breakpoint as passed: visits
that are open when the hold ends start, and only the next step that opens can stop the run again. In a `bsp` a stop is
about one super-step. In a `dag` other branches end meanwhile; what they lead to joins the stop of its phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sleipnir.graph.model import Phase
from sleipnir.runs.run import Breakpoint
from sleipnir.runs.visits import READY, Branch, Commands, Visit
from sleipnir_scheduler.planner import holds
from sleipnir_scheduler.planner.context import Context


def stop(context: Context, ended: Iterable[str], since: int = 0, wide: Collection[int] = ()) -> None:
    """Visits of the nodes `ended` have led on, or the run begins: hold it at the breakpoints of these, and of visits
    that this has opened. Those have numbers above `since`, or are among the commands of the visits `wide`."""
    spec, is_update = context.run.spec, _is_after_update(context)
    has_own = spec.interrupt_before is not None or spec.interrupt_after is not None
    if not (context.graph.has_breakpoints or has_own or is_update):
        return
    planned: dict[str, None] = {}
    opened: dict[str, None] = {}
    for visit in context.draft.visits.all():
        nodes = _planned(visit)
        planned |= nodes
        if visit.seq > since or visit.seq in wide:
            opened |= nodes
    if is_update:
        if planned:
            holds.stop(context.draft, Breakpoint("after", tuple(ended), tuple(sorted(planned))))
        return
    after = _flagged(context, "after", dict.fromkeys(ended))
    before = _flagged(context, "before", opened)
    if after:
        # LangGraph stops once between two super-steps.
        then = () if context.graph.is_state_graph else before
        holds.stop(context.draft, Breakpoint("after", after, tuple(sorted(planned)), then))
    elif before:
        holds.stop(context.draft, Breakpoint("before", before, tuple(sorted(planned))))


def _is_after_update(context: Context) -> bool:
    """Whether the visit that an update stands for has just led on."""
    fork = context.run.spec.fork
    return fork is not None and fork.update is not None and context.run.steps <= fork.checkpoint.steps + 1


def _flagged(context: Context, phase: Phase, nodes: Iterable[str]) -> tuple[str, ...]:
    spec = context.run.spec
    own = spec.interrupt_before if phase == "before" else spec.interrupt_after
    flagged: Collection[str] = context.graph.breakpoints[phase] if own is None else own
    return tuple(sorted(node for node in nodes if node in flagged))


def _planned(visit: Visit) -> dict[str, None]:
    """The nodes that a visit stands for and that have not started."""
    if isinstance(visit.body, Commands):
        return dict.fromkeys(visit.body.left)
    return {visit.node: None} if isinstance(visit.place, Branch) and visit.body == READY else {}
