"""One run: state, graph, timeline, the visit that is looked at, events, state, children, and what can be done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Path, Query, Request
from markupsafe import Markup
from starlette.responses import Response

from sleipnir.client.async_client import AsyncRun
from sleipnir.errors import RecordUnreadable, RunNotFound, UsageError
from sleipnir.graph.draw import page_svg
from sleipnir.graph.model import Graph
from sleipnir.runs.execution_trace import TraceStep
from sleipnir.runs.run_progress import progress_of
from sleipnir.runs.views import LateResult, RunInfo, StepInfo
from sleipnir_console.connection import client_of
from sleipnir_console.pages.formats import json_text
from sleipnir_console.pages.gate_rows import path_of
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_actions import ACTIONS, actions_of
from sleipnir_console.pages.run_states import StateSummary, state_of, state_of_visit
from sleipnir_console.pages.timeline import timeline_of
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import RunId

router = APIRouter(route_class=PageRoute)

MOST_STEPS: Final = 4_000
"""The journal steps that the graph shows: the last ones."""
MOST_VISITS: Final = 1_000
MOST_EVENTS: Final = 500
MOST_VALUE: Final = 4_000
MOST_DRAWN: Final = 300

Tab: TypeAlias = Literal["timeline", "events", "state", "children"]


@dataclass(frozen=True)
class ValueSummary:
    """A value of the state: the beginning of its text, and the length of all of it, in characters."""

    name: str
    text: str
    chars: int

    @classmethod
    def of(cls, name: str, value: Any) -> ValueSummary:
        text = json_text(value)
        return cls(name, text[:MOST_VALUE], len(text))

    @property
    def is_cut(self) -> bool:
        return self.chars > len(self.text)

    @property
    def is_short(self) -> bool:
        """Whether it has room in a line."""
        return self.chars <= 100 and "\n" not in self.text


@dataclass(frozen=True)
class VisitSummary:
    """The visit that the page shows. `steps` are its entries in the journal, one for each attempt that ended."""

    step: TraceStep
    state: StateSummary
    steps: Sequence[StepInfo]
    late: Sequence[LateResult]
    output: Sequence[ValueSummary]


@router.get("/runs/{run_id}", operation_id="show_run")
@requires("viewer")
@same_as("/runs/{run_id}")
async def show_run(
    request: Request,
    run_id: RunId,
    tab: Tab = "timeline",
    node: Annotated[str | None, Query(max_length=500)] = None,
    visit: Annotated[int | None, Query(ge=0)] = None,
    step: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """The page of a run. `node` or `visit` choose the visit that is shown, `step` the state."""
    client = client_of(request)
    run = await client.run(run_id)
    if run.id != run_id:
        return next_page(f"/runs/{run.id}")
    info, now_ms = await run.info(), await client.now_ms()
    if info.unreadable is not None:
        raise HttpProblem("unreadable-record", info.unreadable)
    trace = await run.trace(depth=0, limit=MOST_VISITS)
    gates = [] if info.is_final else await run.gates()
    own = [each for each in trace.steps if each.run == run.id]
    steps = await run.history(after=max(0, info.step - MOST_STEPS) or None, limit=2 * MOST_STEPS)
    shown = _selected(own, node, visit)
    people = frozenset(each.seq for each in info.visits if each.reason.code == "person")
    graph = await _graph(run)
    drawing = None
    if graph is not None and len(graph.nodes) <= MOST_DRAWN:
        selected = node or (shown.node if shown is not None else None)
        drawing = await asyncio.to_thread(_drawing, graph, info, steps, now_ms, selected)
    late = await run.late_results()
    state = state_of(info, now_ms)
    values: dict[str, Any] = {
        "info": info,
        "state": state,
        "usage": info.usage if info.usage.calls else None,
        "gates": [gate for gate in gates if gate.run == run.id],
        "child_gates": [gate for gate in gates if gate.run != run.id],
        "drawing": drawing,
        "timeline": timeline_of(own, people, shown.seq if shown is not None else None, now_ms),
        "is_cut": trace.is_cut,
        "visit": None if shown is None else _shown_visit(shown, info, steps, late, now_ms),
        "asked_node": node if shown is None else None,
        "steps": steps[-MOST_EVENTS:],
        "step_count": info.step,
        "tab": tab,
        "output": ValueSummary.of("output", await run.output() or "") if info.status == "completed" else None,
        "actions": [each for each in actions_of(info) if caller_of(request).may(each.permission)],
        "children": await _children(run) if tab == "children" else [],
        "chosen_step": info.step if step is None else step,
        "values": await _values(run, info, step) if tab == "state" else [],
        "path_of": lambda **chosen: _path_of(run.id, chosen),
        "gate_path": path_of,
        "api": f"/api/v1/runs/{run.id}",
    }  # fmt: skip
    title = f"{state.word}: {run.id}, {info.agent}"
    return render(request, "run.html", title=title, now_ms=now_ms, **values)


@router.post("/runs/{run_id}/{action}", operation_id="steer_run")
@requires("operator")
async def steer_run(
    request: Request, run_id: RunId, action: Annotated[str, Path(pattern=f"^({'|'.join(ACTIONS)})$")]
) -> Response:
    """Does what a button of the page says."""
    run = await client_of(request).run(run_id)
    shown = await ACTIONS[action].does(run, form_of(request))
    return next_page(f"/runs/{shown}")


def _path_of(run_id: str, chosen: dict[str, Any]) -> str:
    query = urlencode({name: value for name, value in chosen.items() if value is not None})
    return f"/runs/{quote(run_id)}" + (f"?{query}" if query else "")


async def _graph(run: AsyncRun) -> Graph | None:
    try:
        return await run.graph()
    except (RunNotFound, RecordUnreadable):  # it expires after its run
        return None


def _drawing(graph: Graph, info: RunInfo, steps: Sequence[StepInfo], now_ms: int, selected: str | None) -> Markup:
    """The graph, which escapes its texts by itself."""
    links = {name: _path_of(info.id, {"node": name}) for name in graph.nodes}
    return Markup(page_svg(graph, progress=progress_of(info, steps, now_ms), links=links, selected=selected))


def _selected(steps: Sequence[TraceStep], node: str | None, visit: int | None) -> TraceStep | None:
    """The visit that was asked for; else one that waits, then one that failed, then the last one."""
    if visit is not None:
        found = next((each for each in steps if each.seq == visit), None)
        if found is None:
            raise HttpProblem("not-found", f"the run has no visit {visit}")
        return found
    if node is not None:
        return max((each for each in steps if each.node == node), key=lambda each: each.seq, default=None)
    return max(steps, key=lambda each: (each.is_live, each.status == "failed", each.seq), default=None)


def _shown_visit(
    step: TraceStep, info: RunInfo, steps: Sequence[StepInfo], late: Sequence[LateResult], now_ms: int
) -> VisitSummary:
    live = next((each for each in info.visits if each.seq == step.seq), None)
    if live is not None and not info.is_final:
        state = state_of_visit(live, now_ms)
    elif step.status == "completed":
        state = StateSummary("completed", "Completed", "from the cache" if step.cached else "")
    elif step.status == "failed":
        state = StateSummary("failed", "Failed")
    else:
        state = StateSummary("cancelled", "Not ended", f"the run is {info.status}")
    return VisitSummary(
        step,
        state,
        [each for each in steps if each.seq == step.seq and each.part is None],
        [each for each in late if each.seq == step.seq],
        [ValueSummary.of(name, value) for name, value in step.output.items()],
    )


async def _children(run: AsyncRun) -> list[tuple[str, str, RunInfo | None]]:
    return [(child.id, child.agent, child.info) for child in (await run.tree()).children]


async def _values(run: AsyncRun, info: RunInfo, step: int | None) -> list[ValueSummary]:
    try:
        state = await run.state() if step is None or step >= info.step else await run.state_at(step)
    except UsageError as error:
        raise HttpProblem("refused", str(error)) from None
    return [ValueSummary.of(name, state[name]) for name in sorted(state)]
