"""`skip`: which visit is meant, and whether the value fits it, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.client.texts import refuse_text
from sleipnir.errors import UsageError
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.graph.state import to_json
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.skips import digest_of, refuse_output

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph
    from sleipnir.runs.views import KeptVisit, RunInfo, VisitInfo
    from sleipnir.store.store import Store

MOST_SHOWN: Final = 12
"""The most visits that a message lists."""


def skip(
    store: Store,
    run_id: str,
    node: str | int,
    value: Any,
    to: Sequence[str],
    *,
    by: str | None,
    reason: str | None,
    most_bytes: int,
) -> int:
    """Request the end of a visit; the number of the visit. Raises as Run.skip."""
    info, targets = store.runs.info(run_id), tuple(to)
    graph = pinned_graph(store, store.runs.spec(run_id))
    given = _stored(graph, value)
    visit = _visit(info, node)
    if visit is None:
        return _skipped_before(store, info, node, digest_of(given, targets))
    refuse_output(run_id, graph, visit.seq, visit.node, given, targets)
    text = compact_json(given)
    refuse_text("the value", text, most_bytes)
    refuse_text("the reason", reason or "", most_bytes)
    store.runs.skip(run_id, visit.seq, text, targets, by=by, reason=reason or "")
    return visit.seq


def _stored(graph: Graph, value: Any) -> Any:
    """The value in its JSON form: datetime and bytes objects are allowed for keys that are declared so. Raises
    UsageError."""
    if isinstance(value, dict):
        declared = graph.state
        value = {key: to_json(declared[key], each) if key in declared else each for key, each in value.items()}
    if problem := first_not_json({"value": value}):
        raise UsageError(f"the value of a skip is not JSON: {problem}")
    return value


def _visit(info: RunInfo, node: str | int) -> VisitInfo | KeptVisit | None:
    """The visit that is meant; None: there is none. Raises UsageError for several, and for one that asks about the
    budget."""
    live = [visit for visit in info.visits if visit.state != "ended" and visit.role == "node" and visit.part is None]
    kept = [visit for visit in info.kept if visit.again and visit.role == "node"] if info.status == "failed" else []
    visits: list[VisitInfo | KeptVisit] = [*live, *kept]
    if isinstance(node, int) or node.isdecimal():
        found = [visit for visit in visits if visit.seq == int(node)]
    else:
        found = [visit for visit in visits if visit.node == node]
    if len(found) > 1:
        raise UsageError(
            f"run {info.id!r} has several visits of node {node!r}: {_listed(found)}. Name one by its number"
        )
    if found and getattr(found[0], "kind", "") == BUDGET:
        raise UsageError(f"run {info.id!r} asks about its budget there: answer that question")
    return found[0] if found else None


def _skipped_before(store: Store, info: RunInfo, node: str | int, digest: str) -> int:
    """The number of the visit that was skipped with this value before. Raises UsageError if there is none."""
    number = int(node) if isinstance(node, int) or node.isdecimal() else None
    for step in store.runs.newest_steps(info.id):
        is_meant = step.node == node or (number is not None and number in (step.seq, step.gate))
        if step.skipped is not None and step.seq is not None and is_meant:
            if step.skipped == digest:
                return step.seq
            raise UsageError(
                f"visit {step.seq} of run {info.id!r} was already skipped by {step.by}, with another value; "
                f"`sleipnir history {info.id}` shows it"
            )
    open_visits = [visit for visit in info.visits if visit.state != "ended" and visit.role == "node"]
    listed = _listed([*open_visits, *(visit for visit in info.kept if visit.again and visit.role == "node")])
    has = f"; it has {listed}" if listed else ""
    raise UsageError(
        f"run {info.id!r} ({info.status}) has no visit {node!r} that waits or has failed{has}. A run below has "
        "its own visits, under its own id"
    )


def _listed(visits: Sequence[VisitInfo | KeptVisit]) -> str:
    """`3 (build), 4 (test, item 2)`."""
    names = [f"{visit.seq} ({visit.node}{f', item {visit.item[1]}' if visit.item else ''})" for visit in visits]
    more = f" and {len(names) - MOST_SHOWN:,} more" if len(names) > MOST_SHOWN else ""
    return ", ".join(names[:MOST_SHOWN]) + more
