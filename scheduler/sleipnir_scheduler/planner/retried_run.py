"""`retry` of a failed run, or of a cancelled child run: its failed visits run again."""

from __future__ import annotations

from sleipnir.runs.run import Fork, limited_from
from sleipnir.runs.transitions import ForgetConversation
from sleipnir.runs.visits import (
    Body,
    Branch,
    Child,
    Commands,
    Failed,
    Fan,
    Loop,
    Ready,
    Visit,
    Work,
)
from sleipnir_scheduler.planner import forked_run, whole_run
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.engines import steps
from sleipnir_scheduler.planner.nodes import maps, once


def go_on(context: Context, fresh_children: bool, by: str) -> None:
    """Run failed visits again, as new visits; ended visits stay. With `fresh_children`, agent nodes start new child
    runs."""
    draft, graph = context.draft, context.graph
    if (fork := context.run.spec.fork) is not None and not context.run.seq:
        _begin_again(context, fork, by)
        return
    failed = [visit for visit in draft.visits.all() if isinstance(visit.body, Failed)]
    nodes = sorted({visit.node for visit in failed if visit.is_branch and not isinstance(_was(visit), Commands)})
    begun = draft.steps > 0  # else it failed before its first step, or in an older release
    _revive(context, nodes if begun else nodes or [context.run.failed_at or graph.start], by)
    if graph.settings.timeout:
        draft.clock.arm_deadline(context.now_ms + graph.settings.timeout * 1000)
    for node in nodes:
        draft.record.count(node)
    for visit in failed:
        _reopen(context, visit, fresh_children=fresh_children)
    if failed:
        context.arm_step()
    ended = {visit.group for visit in draft.visits.all() if visit.state == "ended"}
    for group in sorted(ended - {visit.group for visit in failed}):
        steps.close(context, group, draft.record.last_step)
    if not begun and not draft.visits.frontier:
        if whole_run.calls_before(context):
            whole_run.begin(context)
        else:
            steps.enter(context, context.run.failed_at or graph.start)


def _begin_again(context: Context, fork: Fork, by: str) -> None:
    """A fork that failed before its first visit begins where it was to begin."""
    _revive(context, list(fork.checkpoint.opens), by)
    if (lost := context.lost_past()) is not None:
        context.fail(lost)
        return
    if context.graph.settings.timeout:
        context.draft.clock.arm_deadline(context.now_ms + context.graph.settings.timeout * 1000)
    forked_run.begin(context, fork)


def _revive(context: Context, nodes: list[str], by: str) -> None:
    """Revive the run: restart its clock, reset the counts of the nodes at which it failed, and give it its limit of
    super-steps again."""
    draft = context.draft
    draft.revives = True
    draft.clock.start()
    draft.record.forgive(nodes)
    draft.failed_visits = draft.failed_visits.without_ending()
    if "recursion_limit" in context.run.spec.config:
        draft.limited_from = limited_from(draft.steps)
    draft.record.write_request("retried", by, next=nodes[0] if len(nodes) == 1 else tuple(nodes) or None)
    draft.record.notice("run_retried", node=", ".join(nodes), by=by)


def _reopen(context: Context, visit: Visit, *, fresh_children: bool) -> None:
    """A new visit in the place of a failed one."""
    draft, was, node = context.draft, _was(visit), context.graph.nodes.get(visit.node)
    draft.visits.drop(visit)
    if isinstance(was, Loop):
        draft.record.item(ForgetConversation(was.id, was.turn, was.calls))
    body: Body = Ready()
    if isinstance(was, Commands):
        body = was
    elif isinstance(was, Fan):
        body = Ready(maps.with_failed_items_to_do(was, node))
    elif isinstance(was, Child) and not fresh_children:
        body = Ready(was)
    elif isinstance(was, Work) and was.given is not None:
        body = Ready(Work(was.queue, given=was.given, child=was.child))
    alone = context.graph.engine == "dag" and isinstance(visit.place, Branch) and not isinstance(was, Commands)
    fresh = draft.visits.open(
        visit.node,
        visit.kind,
        place=visit.place,
        body=body,
        group=None if alone else visit.group,
        depth=visit.depth,
        lineage=visit.lineage,
        index=visit.index,
        overlay=visit.overlay,
    )
    if isinstance(visit.body, Failed) and once.applies_to(node, fresh):
        once.ask_again(context, fresh, visit.body)


def _was(visit: Visit) -> object:
    return visit.body.was if isinstance(visit.body, Failed) else None
