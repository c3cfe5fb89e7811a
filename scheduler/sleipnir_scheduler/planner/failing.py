"""The reaction of a run to a visit that has failed for good, after its retries.

A `fallback`, or an `on_error` that names a node, takes the failure over: the run goes on there. Any other is a *failed
visit*, which the run counts and shows: the run goes on by the node's edges (`continue`), or fails (`fail`).

The setting of the node applies, else that of the graph, else the rule of its language: in version 1.0 scripts,
functions and llm nodes go on by their edges, as in Loki; in sleipnir/1 the run fails. A strict run fails for every
failed visit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from sleipnir.graph.model import CONTINUE, FAIL, AgentNode, FunctionNode, Graph, Json, LlmNode, Node, ScriptNode
from sleipnir.runs.visits import Visit, stable_type
from sleipnir_scheduler.planner import recovering
from sleipnir_scheduler.planner.context import Context, VisitOutcome

Reaction: TypeAlias = Literal["handled", "continue", "fail"]


def failed(context: Context, visit: Visit, outcome: VisitOutcome) -> tuple[VisitOutcome, str | None]:
    """Handle a failed visit whose node chose no target: its outcome for the journal, and the error of the run (None: it
    goes on). Counts a failed visit."""
    node, error = context.graph.nodes[visit.node], outcome.error or "failed"
    reacts = reaction(context, node)
    if reacts != "handled":
        count_failed_visit(context, visit.node, error, ends_run=reacts == "fail")
        outcome = replace(outcome, how={**outcome.how, "failed_visit": True})
    if reacts != "fail" and (records := recovering.recorded(context, visit, outcome)):
        outcome = replace(outcome, values={**outcome.values, **records})
    if reacts != "fail" and context.graph.on_error_of(node) is not None and not _has_written(node, outcome):
        # Scripts write the error to the state themselves. With `on_error`, every node does.
        values = {"_error": _written(context, visit, outcome, error), "last_error": error}
        outcome = replace(outcome, values={**outcome.values, **values})
    return outcome, error if reacts == "fail" else None


def _has_written(node: Node, outcome: VisitOutcome) -> bool:
    """Whether a worker that was told of a child's failure has written it."""
    return isinstance(node, AgentNode) and "_error" in outcome.keys


def _written(context: Context, visit: Visit, outcome: VisitOutcome, error: str) -> dict[str, Json]:
    """What a failure writes to `_error`. In sleipnir/1 also why the run failed that the visit waited for."""
    written: dict[str, Json] = {"node": visit.node, "message": error}
    if outcome.failure is not None and not context.graph.is_loki:
        about = {
            "kind": outcome.failure.kind,
            "type": stable_type(outcome.failure.error_type),
            "code": outcome.failure.code,
        }
        written |= {name: value for name, value in about.items() if value is not None}
    return written


def count_failed_visit(context: Context, node: str, error: str, *, ends_run: bool) -> None:
    """Count a failure that nothing took over."""
    draft = context.draft
    draft.failed_visits = draft.failed_visits.plus(node, error, ends_run=ends_run)


def reaction(context: Context, node: Node) -> Reaction:
    """How the run reacts to a failed visit of `node`."""
    graph = context.graph
    if graph.loop is not None or node.kind == "end":
        return "fail"
    if handler(graph, node) is not None:
        return "handled"
    leads = bool(node.targets or node.branch)
    rule = graph.on_error_of(node)
    if context.run.spec.strict or rule == FAIL:
        return "fail"
    if rule == CONTINUE:
        return "continue" if leads or node.id in graph.joins or not graph.is_loki else "fail"
    goes_on = not graph.fails_by_default and isinstance(node, ScriptNode | FunctionNode | LlmNode)
    return "continue" if goes_on and leads else "fail"


def handler(graph: Graph, node: Node) -> str | None:
    """The target that takes over the failures of `node`: `fallback`, else its own `on_error`, else that of the graph.
    None: there is none."""
    if isinstance(node, ScriptNode | FunctionNode | LlmNode) and node.fallback is not None:
        return node.fallback
    rule = graph.on_error_of(node)
    return None if rule in (None, FAIL, CONTINUE) or rule == node.id else rule
