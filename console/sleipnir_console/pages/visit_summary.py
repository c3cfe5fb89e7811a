"""The visit that the page of a run shows: its state, attempts, what it wrote, and what it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from sleipnir.client.async_client import AsyncRun
from sleipnir.errors import RunNotFound, UsageError
from sleipnir.graph.model import Graph, MapNode, Node
from sleipnir.graph.template import TemplateError, render_lenient, render_typed
from sleipnir.runs.execution_trace import TraceStep
from sleipnir.runs.views import LateResult, RunInfo, StepInfo, VisitInfo
from sleipnir_console.pages.run_states import StateSummary, state_of_visit
from sleipnir_console.pages.value_summary import ValueSummary

Part: TypeAlias = Literal["output", "input", "log"]

TEMPLATES: Final = ("instructions", "prompt", "message", "query", "question", "output")
"""The fields of nodes whose text is made from the state."""


@dataclass(frozen=True)
class VisitSummary:
    """The visit that the page shows. `steps` are its entries in the journal, one for each attempt that ended. `parts`
    are the numbers of the visits whose text is its own: the turns of a loop beside itself. `before` and `after` are the
    visits that failed or wait, on both sides of it."""

    step: TraceStep
    state: StateSummary
    steps: Sequence[StepInfo]
    late: Sequence[LateResult]
    output: Sequence[ValueSummary]
    live: VisitInfo | None
    parts: Sequence[int]
    before: int | None
    after: int | None


@dataclass(frozen=True)
class VisitInput:
    """What a visit was given: the values of the state that its node reads, after the step `step` (None: as they are
    now), the `texts` that its templates make of them, and for an item of a map its value."""

    step: int | None
    values: Sequence[ValueSummary]
    texts: Sequence[ValueSummary]
    item: ValueSummary | None
    problem: str = ""


def selected(steps: Sequence[TraceStep], node: str | None, visit: int | None) -> TraceStep | None:
    """The visit that was asked for; else one that waits, then one that failed, then the last one. None: there is
    none."""
    if visit is not None:
        return next((each for each in steps if each.seq == visit), None)
    if node is not None:
        return max((each for each in steps if each.node == node), key=lambda each: each.seq, default=None)
    return max(steps, key=lambda each: (each.is_live, each.status == "failed", each.seq), default=None)


def visit_summary(
    step: TraceStep,
    info: RunInfo,
    steps: Sequence[StepInfo],
    late: Sequence[LateResult],
    own: Sequence[TraceStep],
    now_ms: int,
) -> VisitSummary:
    """`own` are all visits of the run, `steps` its journal."""
    live = None if info.is_final else next((each for each in info.visits if each.seq == step.seq), None)
    if live is not None:
        state = state_of_visit(live, now_ms)
    elif step.status == "completed":
        state = StateSummary("completed", "Completed", "from the cache" if step.cached else "")
    elif step.status == "failed":
        state = StateSummary("failed", "Failed")
    else:
        state = StateSummary("cancelled", "Not ended", f"the run is {info.status}")
    people = {each.seq for each in info.visits if each.reason.code == "person"}
    marked = [each.seq for each in own if each.status == "failed" or each.seq in people]
    turns = [each.seq for each in info.visits if each.part is not None and each.part.loop == step.seq]
    return VisitSummary(
        step,
        state,
        [each for each in steps if each.seq == step.seq and each.part is None],
        [each for each in late if each.seq == step.seq],
        [ValueSummary.of(name, value) for name, value in step.output.items()],
        live,
        [step.seq, *turns] if step.is_live else (),
        max((seq for seq in marked if seq < step.seq), default=None),
        min((seq for seq in marked if seq > step.seq), default=None),
    )


async def input_of(run: AsyncRun, graph: Graph | None, step: TraceStep, own: Sequence[TraceStep]) -> VisitInput:
    """What a visit was given, as far as the journal and the definition are still stored."""
    at: int | None = None
    try:
        if step.journal_step:
            at = await run.checkpoint(step.journal_step - 1)
        state = await run.state() if at is None else await run.state_at(at)
    except (RunNotFound, UsageError) as error:
        return VisitInput(at, (), (), None, str(error))
    node = graph.nodes.get(step.node) if graph is not None else None
    item, name = _item(graph, step, own, state)
    names = [key for key in (sorted(state) if step.reads is None else step.reads) if key in state]
    values = [ValueSummary.of(key, state[key]) for key in names]
    given = {**state, name: item} if name else state
    return VisitInput(at, values, _texts(node, given), ValueSummary.of(name, item) if name else None)


def _texts(node: Node | None, state: Mapping[str, Any]) -> list[ValueSummary]:
    found = []
    for name in TEMPLATES:
        template = getattr(node, name, None)
        if isinstance(template, str) and template.strip():
            try:
                found.append(ValueSummary.of(name, render_lenient(template, state)))
            except TemplateError as error:
                found.append(ValueSummary.of(name, f"{template}\n\n({error})"))
    return found


def _item(graph: Graph | None, step: TraceStep, own: Sequence[TraceStep], state: Mapping[str, Any]) -> tuple[Any, str]:
    """The item of a map that a visit works on, and its name; no name: it is none, or the list is not known any more."""
    if graph is None or step.item is None:
        return None, ""
    above = next((each for each in own if each.id == step.parent), None)
    node = graph.nodes.get(above.node) if above is not None else None
    if not isinstance(node, MapNode):
        return None, ""
    try:
        items = render_typed(node.over, state)
    except TemplateError:
        return None, ""
    if not isinstance(items, list) or step.item >= len(items):
        return None, ""
    return items[step.item], node.item
