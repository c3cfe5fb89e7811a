"""Agent nodes: a run of their own, and a visit that waits for it without a worker (spec/graph-agents.md 2.7.5).

    start the child ─► it ends ─► its output is the node's ─► (with a schema) a worker makes data of it

The child of a graph node is a run of one of the `graphs` of the document, with a state:

    a worker makes its first state ─► start the child ─► it ends ─► a worker writes what it returned

A function under `map_in` or `map_out` of an agent node is called in the same places (child_mapping.py), and so are its
callbacks: what a `before` gives in the place of the child ends the visit.

The child's id follows from the visit, so a commit that is delivered twice starts it once. A child is cancelled when no
visit waits for it (owed.py). A failed visit that runs again waits for the same child again, which goes on from where it
failed; if that child is gone, a new one starts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeGuard

from sleipnir.graph.agent_names import name_below
from sleipnir.graph.child_values import response_of
from sleipnir.graph.model import AgentNode, Graph, GraphNode, Json, LoopAgent, Node
from sleipnir.graph.template import updates_read
from sleipnir.messages import CHILD, QUEUE_OF, RESULT
from sleipnir.runs.child_run import ChildSettings
from sleipnir.runs.events import ChildEnded
from sleipnir.runs.run import changed
from sleipnir.runs.transitions import RetryChild, StartChild, TakeResult, TellChild
from sleipnir.runs.values import WantedValues
from sleipnir.runs.visits import Child, ChildWait, Failure, Item, Ready, Visit, Work
from sleipnir_scheduler.planner.context import Context, VisitFailed, VisitOutcome
from sleipnir_scheduler.planner.known import require
from sleipnir_scheduler.planner.nodes import child_mapping, maps


def start(context: Context, visit: Visit, node: AgentNode | GraphNode) -> None:
    """Start a child, or continue the child that the visit waited for before it failed; for a graph node, let a worker
    make the child's first state. Raises VisitFailed for a prompt that cannot be rendered, and at the limit of depth."""
    earlier = visit.body.resumes if isinstance(visit.body, Ready) else None
    if isinstance(earlier, Work):
        context.begin(
            visit, earlier if earlier.child is not None else changed(earlier, queue=_queue(context.graph, node))
        )
    elif isinstance(earlier, Child):
        context.begin(visit, _wait_for(context, node, earlier))
        alone = isinstance(node, AgentNode) and node.isolated
        context.draft.owed.add(RetryChild(earlier.run, earlier.agent, visit.seq, visit.attempt, isolated=alone))
        _notify(context, "child_retried", visit, earlier)
    elif needs_first_state(node, context.graph):
        context.begin(visit, Work(_queue(context.graph, node)))
    elif isinstance(node, AgentNode):
        new = _new_child(context, visit, node, None)
        context.begin(visit, _wait_for(context, node, new.child))
        _start_child(context, visit, new)


def needs_first_state(node: Node | None, graph: Graph) -> TypeGuard[AgentNode | GraphNode]:
    """Whether a worker has to make the first state of the node's child, or to call the callbacks before it."""
    if isinstance(node, AgentNode):
        return isinstance(node.map_in, str) or graph.has_callbacks(node, "before")
    return isinstance(node, GraphNode)


def begin(
    context: Context,
    visit: Visit,
    node: AgentNode | GraphNode,
    *,
    input_changed: bool,
    decided: tuple[str, ...],
) -> None:
    """A worker has made the first state of the child: start it. `input_changed`: callbacks have changed what the node
    sees of the state; `decided` is what they have decided. Raises MissingValues."""
    require(context.known, WantedValues(delta=frozenset([RESULT])))
    state = context.known.delta[RESULT]
    if isinstance(node, AgentNode):
        made = child_mapping.FirstState(**state) if input_changed else child_mapping.FirstState(state)
        _start_anew(context, visit, node, made, decided)
        return
    agent = name_below(context.run.spec.agent, node.graph)
    child = Child(context.child_id(visit.seq, agent), agent)
    # A new attempt, so that a late message for the worker's is not taken for the child's end.
    visit = context.draft.visits.move(visit, _wait_for(context, node, child), attempt=visit.attempt + 1)
    context.draft.owed.add(StartChild(child.run, agent, "", visit.node, visit.seq, visit.attempt, state, visit.twin))
    _notify(context, "child_started", visit, child)


def gone(context: Context, visit: Visit, waiting: ChildWait) -> None:
    """The child cannot go on: start another one. Raises MissingValues."""
    node, draft = _node(context, visit), context.draft
    draft.owed.ended.add(waiting.child.run)
    if needs_first_state(node, context.graph):
        draft.visits.move(visit, Ready(Work(_queue(context.graph, node))), attempt=visit.attempt + 1)
    elif isinstance(node, AgentNode):
        _start_anew(context, visit, node, None)


def ended(context: Context, visit: Visit, child: Child, event: ChildEnded) -> None:
    """The child is over: the visit ends, or a worker has to make data of the output. Raises MissingValues."""
    node, draft = _node(context, visit), context.draft
    if isinstance(node, AgentNode) and child_mapping.maps_end(context.graph, node):
        _ended_mapped(context, visit, node, child, event)
        return
    text, is_for_worker = "", isinstance(node, GraphNode) or node.output_schema is not None
    if event.status == "completed" and not is_for_worker:
        require(context.known, WantedValues(delta=frozenset([RESULT])))
        text = context.known.delta.get(RESULT, "")
    count_child(context, visit.seq, visit.node, child, event)
    if event.status != "completed":
        child = changed(child, failed_visits=event.failed_visits.count)
        visit = draft.visits.move(visit, ChildWait(child))
        outcome = VisitOutcome(ok=False, error=_why(node, event), failure=event.failure)
        context.kinds.ended(context, visit, with_decisions(child, outcome))
    elif isinstance(node, AgentNode) and not is_for_worker:
        try:
            outcome = VisitOutcome(values=_values(context, visit, node, text))
        except VisitFailed as failure:
            outcome = VisitOutcome(ok=False, error=str(failure))
        context.kinds.ended(context, draft.visits.move(visit, ChildWait(child)), with_decisions(child, outcome))
    else:
        given = f"{visit.seq}.output"
        draft.record.item(TakeResult(given, RESULT))
        # A new attempt, so that a late message for this one is not taken for the worker's result.
        work = Work(_queue(context.graph, node), given=given)
        draft.visits.move(visit, Ready(work), attempt=visit.attempt + 1)


def _ended_mapped(context: Context, visit: Visit, node: AgentNode, child: Child, event: ChildEnded) -> None:
    """The child of a node with `map_out` is over. Raises MissingValues."""
    is_for_worker = child_mapping.is_for_worker(context.graph, node)
    is_for_worker = is_for_worker or event.end_bytes > child_mapping.MOST_RENDERED_HERE
    end = None
    if event.end_bytes and not is_for_worker:
        require(context.known, WantedValues(delta=frozenset([CHILD])))
        end = context.known.delta.get(CHILD)
    count_child(context, visit.seq, visit.node, child, event)
    if event.status != "completed":
        child = changed(child, failed_visits=event.failed_visits.count)
    visit = context.draft.visits.move(visit, ChildWait(child))
    error = None if event.status == "completed" else _why(node, event)
    ending = child_mapping.End(child, error, event.status, event.failure, end, is_delivered=event.end_bytes > 0)
    _map(context, visit, node, ending, is_for_worker=is_for_worker)


def _map(context: Context, visit: Visit, node: AgentNode, end: child_mapping.End, *, is_for_worker: bool) -> None:
    """Let the visit write what `map_out` says, here or on a worker."""
    if is_for_worker and child_mapping.applies(context, visit, node, end):
        given = f"{visit.seq}.output"
        context.draft.record.item(end.as_item(given))
        extracts = node.map_out is None and node.output_schema is not None  # with the model
        queue = node.queue or QUEUE_OF[node.kind if extracts else "function"]
        work = Work(queue, given=given, child=None if extracts else end.child)  # a refused text needs another child
        context.draft.visits.move(visit, Ready(work), attempt=visit.attempt + 1)
    else:
        outcome = child_mapping.outcome(context, visit, node, end)
        context.kinds.ended(context, visit, with_decisions(end.child, outcome))


def timed_out(context: Context, visit: Visit, waiting: ChildWait) -> None:
    """The child has timed out; it is cancelled, because no visit waits for it."""
    node = _node(context, visit)
    visit = context.draft.visits.move(visit, ChildWait(waiting.child))
    error = f"{_title(node)} timed out after {node.timeout}s"
    if isinstance(node, AgentNode) and child_mapping.maps_end(context.graph, node):
        end = child_mapping.End(waiting.child, error, "timed_out", Failure("timeout"))
        _map(context, visit, node, end, is_for_worker=child_mapping.is_for_worker(context.graph, node))
    else:
        outcome = VisitOutcome(ok=False, error=error, error_kind="timeout")
        context.kinds.ended(context, visit, with_decisions(waiting.child, outcome))


def with_decisions(child: Child | None, outcome: VisitOutcome) -> VisitOutcome:
    """The outcome of a visit, with what callbacks have decided before its child began."""
    if child is None or not child.callbacks:
        return outcome
    decided = *child.callbacks, *outcome.how.get("callbacks", ())
    return replace(outcome, how={**outcome.how, "callbacks": decided})


def count_child(context: Context, seq: int, node: str, child: Child, event: ChildEnded) -> None:
    """A child run is over: count its cost and its failed visits. Each end is counted once."""
    note_cost(context, event)
    draft = context.draft
    draft.failed_visits = draft.failed_visits.plus_child(node, child, event.failed_visits)
    failed = {"failed_visits": event.failed_visits.count} if event.failed_visits.count else {}
    draft.record.notice("child_ended", seq=seq, node=node, child=event.child, status=event.status, **failed)


def note_cost(context: Context, event: ChildEnded) -> None:
    """A child run is over, or reports its total cost; this transition consumes its delivery."""
    draft = context.draft
    draft.owed.ended.add(event.child)
    if event.status == "refused":  # after the refusing scheduler died, another one may have started the child
        draft.owed.recalled.append(event.child)
    draft.delivered = event.seq
    if event.usage:
        draft.usage, draft.usage_of = event.usage, event.child


def hold_if_paused(context: Context, child: str) -> None:
    """A child run that starts while its parent is held is held too."""
    if (holder := context.draft.clock.holder) is not None:
        context.draft.owed.add(TellChild(child, "paused", holder, due_ms=context.draft.clock.stop_ms))


class _NewChild(NamedTuple):
    child: Child
    prompt: str
    settings: ChildSettings | None


def _new_child(context: Context, visit: Visit, node: AgentNode, given: child_mapping.FirstState | None) -> _NewChild:
    """Another child. `given` is what a worker has made for it, if one has. Raises VisitFailed and MissingValues."""
    prompt, settings = child_mapping.given(context, visit, node, given)
    depth, most = context.run.spec.depth + 1, (context.graph.loop or LoopAgent()).max_agent_depth
    if depth > most:
        raise VisitFailed(f"Max agent depth exceeded ({depth}/{most})")
    agent = node.agent
    if agent in context.graph.agents:  # a remote one, whose graph is a part of this document
        agent = name_below(context.run.spec.agent, agent)
    child = Child(context.child_id(visit.seq, agent, in_session=not node.isolated), agent)
    return _NewChild(child, prompt, settings)


def _start_anew(
    context: Context,
    visit: Visit,
    node: AgentNode,
    given: child_mapping.FirstState | None,
    decided: tuple[str, ...] = (),
) -> None:
    """Start a child in a new attempt, so that a late message for the last one is not taken for the child's end."""
    try:
        new = _new_child(context, visit, node, given)
    except VisitFailed as failure:
        how = {"callbacks": decided} if decided else {}
        context.kinds.ended(context, visit, VisitOutcome(ok=False, error=str(failure), how=how))
        return
    if decided:
        new = new._replace(child=changed(new.child, callbacks=decided))
    visit = context.draft.visits.move(visit, _wait_for(context, node, new.child), attempt=visit.attempt + 1)
    _start_child(context, visit, new)


def _start_child(context: Context, visit: Visit, new: _NewChild) -> None:
    child, prompt, settings = new
    start = StartChild(
        child.run, child.agent, prompt, visit.node, visit.seq, visit.attempt, twin=visit.twin, settings=settings
    )
    context.draft.owed.add(start)
    _notify(context, "child_started", visit, child)


def _notify(context: Context, type_: str, visit: Visit, child: Child) -> None:
    context.draft.record.notice(type_, seq=visit.seq, node=visit.node, child=child.run, agent=child.agent)
    hold_if_paused(context, child.run)


def _wait_for(context: Context, node: AgentNode | GraphNode, child: Child) -> ChildWait:
    return ChildWait(child, context.now_ms + node.timeout * 1000 if node.timeout else None)


def _values(context: Context, visit: Visit, node: AgentNode, text: str) -> dict[str, Json]:
    """The values that the node writes: its state_updates, and in a graph with messages its response; as the last body
    of a map also its output, unless they write that key."""
    values = context.updates(node, context.values.state(updates_read(node), visit), text)
    item = visit.place
    if not isinstance(item, Item):
        values = {**response_of(context.graph, node, text), **values}
    if not isinstance(item, Item) or not maps.is_last_body(context, item):
        return values
    key = maps.output_key(context, item)
    return {key: values.get(key, text)}


def _node(context: Context, visit: Visit) -> AgentNode | GraphNode:
    node = context.graph.nodes[visit.node]
    if not isinstance(node, AgentNode | GraphNode):
        raise TypeError(f"node '{visit.node}' starts no run")
    return node


def _queue(graph: Graph, node: AgentNode | GraphNode) -> str:
    calls_functions = isinstance(node, AgentNode) and (bool(node.mappers) or graph.has_callbacks(node, "before"))
    return node.queue or QUEUE_OF["function" if calls_functions else node.kind]


def _why(node: AgentNode | GraphNode, event: ChildEnded) -> str:
    reason = "it was cancelled" if event.status == "cancelled" else event.error or "it gives no reason"
    return f"{_title(node)} failed: {reason}"


def _title(node: AgentNode | GraphNode) -> str:
    """What the child is a run of, for messages."""
    return f"Graph '{node.graph}'" if isinstance(node, GraphNode) else f"Agent '{node.agent}'"
