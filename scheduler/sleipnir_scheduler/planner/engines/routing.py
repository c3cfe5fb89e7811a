"""Where an ended visit leads (spec/graph-agents.md 2.8, graph-package.md F10-F14).

The choice of the node itself comes before its edges: a list of commands, one visit each; else `_next`, a node or
several. Else the edges are taken: all of `next`, and what the conditional edge chooses. A failure goes to the handler
that failing.py names, or takes the same edges as a success. A name is looked up among the node's `ends` first, then
among the nodes.

An edge into a node whose `wait_for` names the source opens no visit: the source arrives at that join by ending
(joins.py). Commands always become visits, and so do the edges of graphs written in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.graph import choice
from sleipnir.graph.expression import ExpressionError
from sleipnir.graph.model import Branch, Node
from sleipnir.graph.template import TemplateError
from sleipnir.runs.visits import Ended, Visit
from sleipnir_scheduler.planner import failing
from sleipnir_scheduler.planner.context import Context, NextVisit, RunFailed, VisitOutcome
from sleipnir_scheduler.planner.draft.visits import Member


def dead_end(context: Context, visit: Visit, outcome: VisitOutcome) -> str | None:
    """Why the run cannot go on from here: its visit has ended well, and (Loki) leads nowhere. None when there is a way,
    or the branch may end."""
    node = context.graph.nodes[visit.node]
    if outcome.sends is not None or outcome.next is not None or node.kind == "end":
        return None
    leads = node.targets or node.branch or visit.node in context.graph.joins
    return None if leads or not context.graph.is_loki else no_route(visit)


def needing_calls(context: Context, members: Sequence[Member]) -> list[Visit]:
    """The ended visits whose conditional edge a worker evaluates. Raises MissingValues."""
    needs: dict[tuple[str, bool], bool] = {}
    visits: list[Visit] = []
    for member in members:
        ended = member.ended
        if ended is None or ended.sends is not None or ended.next is not None:
            continue
        alike = (member.rank[1], ended.ok)
        if alike not in needs:
            needs[alike] = _needs_call(context, member.visit, ended)
        if needs[alike]:
            visits.append(member.visit)
    return visits


def _needs_call(context: Context, visit: Visit, ended: Ended) -> bool:
    """Whether the conditional edge is chosen on a worker: by a function of the agent's own, or by conditions that
    cost more than a moment. Raises MissingValues."""
    branch = _taken_branch(context, visit, ended)
    return branch is not None and (branch.call is not None or choice.needs_worker(branch, _reader(context)))


def ways_on(context: Context, visit: Visit, ended: Ended, labels: Sequence[str] | None) -> list[NextVisit]:
    """The visits that an ended visit leads to, joins apart. `labels` are the labels that a worker chose. Raises
    RunFailed, and MissingValues: conditions read the state after the whole step."""
    if ended.sends is None:
        return _plain_ways(context, visit, ended, labels)
    targets = command_targets(context, visit, ended)
    commands = [NextVisit(to, command) for command, to in enumerate(targets) if to]
    return [*chosen_nodes(context, visit, ended), *commands]


def chosen_nodes(context: Context, visit: Visit, ended: Ended) -> list[NextVisit]:
    """The visits of the nodes that it chose beside its commands."""
    return [] if ended.next is None else _plain_ways(context, visit, ended, None)


def _plain_ways(context: Context, visit: Visit, ended: Ended, labels: Sequence[str] | None) -> list[NextVisit]:
    """The visits that the node's choice or its edges lead to."""
    node = context.graph.nodes[visit.node]
    if ended.next is not None:
        chosen = (ended.next,) if isinstance(ended.next, str) else ended.next
        targets = [node.ends.get(name, name) for name in chosen]
    elif not ended.ok and (handler := failing.handler(context.graph, node)) is not None:
        targets = [handler]
    else:
        targets = list(node.targets)
        if (branch := _taken_branch(context, visit, ended)) is not None:
            chosen_labels = _labels(context, node, branch) if labels is None else labels
            targets += [_labelled(context, node, label) for label in chosen_labels if label]
    graph = context.graph
    ways = [NextVisit(target) for target in dict.fromkeys(targets) if not graph.ends_branch(target)]
    if not graph.joins or graph.is_state_graph:
        return ways
    return [way for way in ways if not graph.waits_for(way.target, node.id)]


def command_targets(context: Context, visit: Visit, ended: Ended) -> list[str]:
    """The nodes that its commands lead to, by number; empty for one that only ends its branch."""
    node, sends = context.graph.nodes[visit.node], ended.sends
    if not sends:
        return []
    named = {name: node.ends.get(name, name) if name else node.id for name in set(sends)}
    targets = {name: "" if context.graph.ends_branch(to) else to for name, to in named.items()}
    return [targets[name] for name in sends]


def no_route(visit: Visit) -> str:
    if visit.kind in ("script", "function"):
        return f"{visit.kind} node '{visit.node}' did not emit `_next` and has no static `next`"
    if visit.kind == "input":
        return "Input node has no `next` set"
    return f"{visit.kind} node '{visit.node}' has no `next` and is not an end node"


def _taken_branch(context: Context, visit: Visit, ended: Ended) -> Branch | None:
    """The conditional edge, if the visit's outcome is routed by its node's edges."""
    node = context.graph.nodes[visit.node]
    if ended.sends is not None or ended.next is not None:
        return None
    return None if not ended.ok and failing.handler(context.graph, node) is not None else node.branch


def _labels(context: Context, node: Node, branch: Branch) -> list[str]:
    """The labels that the conditional edge chooses, by the state. Raises RunFailed and MissingValues."""
    try:
        return choice.chosen(branch, _reader(context))
    except (ExpressionError, TemplateError, ValueError) as error:
        raise RunFailed(f"conditional edge evaluation failed: {error}", node.id) from None


def _reader(context: Context) -> choice.Read:
    return lambda keys: context.values.whole_state() if keys is None else context.values.state(keys)


def _labelled(context: Context, node: Node, label: str) -> str:
    """The target of a label: the branch's own, then the named ends, then a node, then the default."""
    target = context.graph.target_of_choice(node, label)
    if target is not None:
        return target
    raise RunFailed(f"conditional edge chose '{label}', which is no label, no named end and no node", node.id)
