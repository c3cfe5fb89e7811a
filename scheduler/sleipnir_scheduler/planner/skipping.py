"""`skip`: a person gives the output of a visit that waits, is on a worker, or has failed the run.

A live visit ends as if its node had returned the value; whatever it waited for is let go: its child run is cancelled,
its question is withdrawn, and a late result of its worker is refused, because the visit has ended. A failed visit has
ended too then, and the run goes on as after `retry`, which runs only the other failed visits again.
"""

from __future__ import annotations

from typing import Final

from sleipnir.graph.model import AgentNode, ApprovalNode, InputNode, LlmNode, Node, RagNode
from sleipnir.graph.template import updates_read
from sleipnir.runs.events import Skipped
from sleipnir.runs.run import changed
from sleipnir.runs.skips import SkippedOutput, SkipRefused, digest_of, skipped_output
from sleipnir.runs.visits import (
    Branch,
    Commands,
    Ended,
    Failed,
    Fan,
    Item,
    Loop,
    Ready,
    Visit,
)
from sleipnir_scheduler.planner.context import Context, VisitFailed, VisitOutcome
from sleipnir_scheduler.planner.ending import forget
from sleipnir_scheduler.planner.engines import steps
from sleipnir_scheduler.planner.loops import tool_calls, turns
from sleipnir_scheduler.planner.loops.model_loop import TOOLS, ModelLoop
from sleipnir_scheduler.planner.nodes import maps, starting

REFUSED: Final = "skip_refused"
"""The notice of a skip that changes nothing, with its reason."""


def skip(context: Context, visit: Visit, event: Skipped) -> None:
    """End a live visit with the value. Raises SkipRefused and MissingValues, and then has changed nothing."""
    if isinstance(visit.body, Commands | Ended | Failed):
        raise SkipRefused(f"visit {visit.seq} of node '{visit.node}' has ended")
    outcome = _outcome(context, visit, event)
    body = visit.body
    if isinstance(body, Loop):
        (tool_calls if visit.kind == TOOLS else turns).end(context, ModelLoop(visit, body), outcome)
        return
    _forget(context, body)
    if isinstance(body, Ready):
        visit = context.pass_by(visit)
    context.kinds.ended(context, visit, outcome)


def skip_failed(context: Context, visit: Visit, event: Skipped) -> None:
    """Let a visit that failed have ended with the value; the run is still over. Raises as `skip`."""
    failed = visit.body
    if not isinstance(failed, Failed) or isinstance(failed.was, Commands):
        raise SkipRefused(f"visit {visit.seq} of node '{visit.node}' has not failed, or had commands to start")
    outcome = _outcome(context, visit, event)
    _forget(context, failed.was)
    outcome = changed(outcome, how={**outcome.how, "gate": visit.seq})  # the step has a number of its own
    if isinstance(visit.place, Item):
        maps.skip_failed_item(context, visit, outcome)
        return
    _have_ended(context, visit, outcome)
    others = (other for other in context.draft.visits.all() if isinstance(other.body, Failed) and other.is_branch)
    if not failed.counted and all(other.node != visit.node for other in others):  # else `retry` counts the entry
        context.draft.record.count(visit.node)


def _have_ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """Put a visit that has ended in the place of a failed one. Its writes count when its step closes."""
    draft = context.draft
    draft.visits.drop(visit)
    fresh = draft.visits.open(
        visit.node,
        visit.kind,
        place=visit.place,
        group=None if context.graph.engine == "dag" else visit.group,
        depth=visit.depth,
        lineage=visit.lineage,
        index=visit.index,
        overlay=visit.overlay,
    )
    step = steps.journal(context, fresh, outcome, held=True)
    draft.visits.move(fresh, Ended(step, keys=outcome.written, next=outcome.next))


def _outcome(context: Context, visit: Visit, event: Skipped) -> VisitOutcome:
    """What the visit writes, and where it leads. Raises SkipRefused and MissingValues."""
    node = context.graph.nodes.get(visit.node)
    if node is None or not isinstance(visit.place, Branch | Item):
        raise SkipRefused(f"visit {visit.seq} is only a part of node '{visit.node}'")
    if isinstance(visit.place, Item) and event.to:
        raise SkipRefused(f"visit {visit.seq} is an item of map node '{visit.place.of}', and leads nowhere by itself")
    given = skipped_output(context.graph, node, event.value, event.to)
    if isinstance(node, ApprovalNode | InputNode):
        outcome = starting.outcome_of(context, visit, node, str(given.value))
        if not outcome.ok:
            raise SkipRefused(outcome.error or "the value does not fit")
    else:
        outcome = VisitOutcome(values=_values(context, visit, node, given))
    if isinstance(visit.place, Item):
        outcome = _of_item(context, visit.place, node, given, outcome)
    by = f"{event.by}: {event.reason}" if event.reason else event.by
    how = {"by": event.by, "reason": event.reason, "skipped": digest_of(event.value, event.to)}
    chosen = given.next[0] if len(given.next) == 1 else given.next or outcome.next
    return changed(outcome, next=chosen, notes=(f"skipped by {by}",), how=how)


def _values(context: Context, visit: Visit, node: Node, given: SkippedOutput) -> dict[str, object]:
    """The written keys, with those of the node's `state_updates`. Raises SkipRefused and MissingValues."""
    read = updates_read(node)
    state = {**context.values.state(read - given.written.keys(), visit), **given.written} if read else given.written
    try:
        return {**given.written, **context.updates(node, state, given.value)}
    except VisitFailed as failure:
        raise SkipRefused(str(failure)) from None


def _of_item(context: Context, item: Item, node: Node, given: SkippedOutput, outcome: VisitOutcome) -> VisitOutcome:
    """The last body of an item leaves its result under one key: its own output, unless it writes that key."""
    if not maps.is_last_body(context, item):
        return outcome
    key = maps.output_key(context, item)
    if key in outcome.values:
        return outcome
    if isinstance(node, LlmNode | AgentNode | RagNode):
        return changed(outcome, values={**outcome.values, key: given.value})
    if not outcome.values:
        raise SkipRefused(f"map node '{item.of}' needs a value of '{key}' from each item")
    return changed(outcome, values={**outcome.values, key: dict(given.written)}) if given.written else outcome


def _forget(context: Context, body: object) -> None:
    """Drop what is stored of a visit that does not go on: answers to its code, items of a map, a conversation."""
    match body:
        case (Fan() as fan) | Ready(Fan() as fan):
            maps.forget_items(context, fan)
        case _:
            forget(context.draft, body)
