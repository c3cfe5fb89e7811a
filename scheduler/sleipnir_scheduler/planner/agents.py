"""Agent nodes: a run of their own, and a visit that waits for it without a worker (spec/graph-agents.md 2.7.5).

    start the child ─► it ends ─► its output is the node's ─► (with a schema) a worker makes data of it

The child's id follows from the visit, so a commit that is delivered twice starts it once. Who is not waited for any
more is cancelled (draft.py). A failed visit that is run again waits for the same child again, which goes on from where
it failed; where that is gone, another one is started.
"""

from __future__ import annotations

from sleipnir.graph.model import AgentNode, Json, LoopAgent, MapNode
from sleipnir.graph.template import TemplateError, keys_read, render, updates_read
from sleipnir.messages import QUEUE_OF, RESULT
from sleipnir.runs.events import ChildEnded
from sleipnir.runs.run import Child, Visit, changed
from sleipnir.runs.transitions import RetryChild, StartChild, Take, TellChild
from sleipnir.runs.values import Wanted
from sleipnir_scheduler.planner import maps
from sleipnir_scheduler.planner.context import Context, Outcome, VisitFailed
from sleipnir_scheduler.planner.known import require


def start(context: Context, visit: Visit, node: AgentNode) -> None:
    """Start the child, or let the one go on that the visit has waited for before it failed. Raises VisitFailed for a
    prompt that cannot be rendered, and at the limit of depth."""
    if visit.former is None:
        _start_new(context, visit, node)
        return
    child = visit.former
    _wait_for(context, visit, node, child)
    context.draft.effect(RetryChild(child.run, child.agent, visit.seq, visit.attempt))
    context.draft.notice("child_retried", seq=visit.seq, node=visit.node, child=child.run, agent=child.agent)
    _hold_if_paused(context, child)


def gone(context: Context, visit: Visit) -> None:
    """The child that was to go on cannot: start another one. Raises VisitFailed as `start` does, and Missing."""
    node, draft = _node(context, visit), context.draft
    assert visit.child is not None
    draft.child_gone(visit.child.run)
    _start_new(context, draft.put(changed(visit, attempt=visit.attempt + 1, child=None, wake_ms=None)), node)


def _start_new(context: Context, visit: Visit, node: AgentNode) -> None:
    try:
        prompt = render(node.prompt, context.state(keys_read(node.prompt), visit))
    except TemplateError as error:
        raise VisitFailed(f"Failed to interpolate prompt for agent '{node.agent}': {error}") from None
    depth, most = context.run.spec.depth + 1, (context.graph.loop or LoopAgent()).max_agent_depth
    if depth > most:
        raise VisitFailed(f"Max agent depth exceeded ({depth}/{most})")
    draft, child = context.draft, Child(context.child_id(visit.seq, node.agent), node.agent)
    _wait_for(context, visit, node, child)
    draft.effect(StartChild(child.run, node.agent, prompt, node.id, visit.seq, visit.attempt))
    draft.notice("child_started", seq=visit.seq, node=visit.node, child=child.run, agent=child.agent)
    _hold_if_paused(context, child)


def _wait_for(context: Context, visit: Visit, node: AgentNode, child: Child) -> None:
    waiting = context.draft.begin(visit, None, context.now_ms + node.timeout * 1000)
    context.draft.put(changed(waiting, child=child, former=None))


def _hold_if_paused(context: Context, child: Child) -> None:
    if (holder := context.draft.holder) is not None:
        context.draft.effect(TellChild(child.run, "paused", holder))


def ended(context: Context, visit: Visit, event: ChildEnded) -> Outcome | None:
    """The child is over. None: a worker has to make data of what it has said. Raises Missing."""
    node, draft, child = _node(context, visit), context.draft, visit.child
    assert child is not None
    completed = event.status == "completed"
    if completed and node.output_schema is None:
        require(context.known, Wanted(delta=frozenset([RESULT])))
        text = context.known.delta.get(RESULT, "")
        try:
            values = _values(context, visit, node, text)
        except VisitFailed as failure:
            outcome = Outcome(ok=False, error=str(failure))
        else:
            outcome = Outcome(values=values)
    visit = draft.child_ended(visit, event)
    draft.count_failed_of_child(visit.node, child, event.failed_visits)
    draft.notice_child_ended(visit.seq, visit.node, event)
    if not completed:
        draft.put(changed(visit, former=changed(child, failed_visits=event.failed_visits.count)))
        why = "it was cancelled" if event.status == "cancelled" else event.error or "it gives no reason"
        return Outcome(ok=False, error=f"Agent '{node.agent}' failed: {why}")
    if node.output_schema is None:
        return outcome
    given = f"{visit.seq}.output"
    draft.item(Take(given, RESULT))
    # Another attempt, so that nothing that is still under way for this one can be taken for the worker's result.
    queue = node.queue or QUEUE_OF["agent"]
    draft.put(changed(visit, attempt=visit.attempt + 1, queue=queue, given=given, ready=True))
    return None


def timed_out(context: Context, visit: Visit) -> Outcome:
    """The child has taken too long; it is cancelled, as nobody waits for it any more."""
    node = _node(context, visit)
    context.draft.put(changed(visit, child=None, former=visit.child, wake_ms=None))
    return Outcome(ok=False, error=f"Agent '{node.agent}' timed out after {node.timeout}s")


def _values(context: Context, visit: Visit, node: AgentNode, text: str) -> dict[str, Json]:
    """What the node writes: its state_updates; as the last body of a map also its own output, unless they do."""
    values = context.updates(node, context.state(updates_read(node), visit), text)
    if visit.item is None:
        return values
    of = context.graph.nodes[maps.map_of(context, visit).node]
    assert isinstance(of, MapNode)
    if visit.item.position + 1 < len(of.body):
        return values
    return {of.output_key: values.get(of.output_key, text)}


def _node(context: Context, visit: Visit) -> AgentNode:
    node = context.graph.nodes[visit.node]
    assert isinstance(node, AgentNode)
    return node
