"""One run: state, graph, timeline, the visit that is looked at, events, state, children, and what can be done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Path, Query, Request
from markupsafe import Markup
from starlette.responses import Response

from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import RunNotFound, SleipnirError, StoreUnavailable, UsageError
from sleipnir.graph.draw import page_svg
from sleipnir.graph.model import Graph
from sleipnir.runs.execution_trace import TraceStep
from sleipnir.runs.run_filters import PageOfRuns
from sleipnir.runs.run_progress import progress_of
from sleipnir.runs.views import RunInfo, StepInfo
from sleipnir_console.connection import client_of
from sleipnir_console.pages.gate_rows import path_of
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_actions import ACTIONS, actions_of
from sleipnir_console.pages.run_journals import MOST_STEPS
from sleipnir_console.pages.run_states import state_of
from sleipnir_console.pages.timeline import timeline_of
from sleipnir_console.pages.value_summary import ValueChange, ValueSummary, changes_of
from sleipnir_console.pages.visit_summary import Part, input_of, selected, visit_summary
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import RunId

router = APIRouter(route_class=PageRoute)

MOST_IN_TIMELINE: Final = 1_000
"""The journal steps that a timeline shows: the last ones up to the chosen one."""
AT_ONCE: Final = 500
"""Events in a page."""
MOST_CHILDREN: Final = 100
MOST_DRAWN: Final = 300
FROM_NOW: Final = 500
"""A run with more steps is followed from now on: the events that are stored of it say nothing new to its page."""

Tab: TypeAlias = Literal["timeline", "events", "state", "children", "log", "download"]


@dataclass(frozen=True)
class StepSummary:
    """The state after a step, and what that step has changed."""

    step: int
    values: Sequence[ValueSummary]
    changes: Sequence[ValueChange]


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
    part: Part = "output",
    opened: Annotated[int | None, Query(ge=0)] = None,
    before: Annotated[int | None, Query(ge=0)] = None,
    after: Annotated[str | None, Query(max_length=120)] = None,
    known: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """The page of a run. `node` or `visit` choose the visit that is shown, `part` what of it, `step` the state,
    `opened` the rows of the timeline that are in no group, `before` the visits or events, `after` the children. A page
    that is open has the events up to the step `known`, which are not sent again."""
    client = client_of(request)
    run = await client.run(run_id)
    if run.id != run_id:
        return next_page(f"/runs/{run.id}")
    info, now_ms = await run.info(), await client.now_ms()
    if info.unreadable is not None:
        raise HttpProblem("unreadable-record", info.unreadable)
    is_timeline = tab == "timeline"
    steps = await request.app.state.journals.steps(run, info.step)
    until, begin = _window(steps, info.step, visit, before)
    trace = await run.trace(depth=0, limit=2 * MOST_IN_TIMELINE, after=begin) if is_timeline else None
    own = [] if trace is None else [each for each in trace.steps if (each.journal_step or until) <= until]
    gates = [] if info.is_final else await run.gates()
    shown = selected(own, node, visit)
    # The visit of a page that has been open for long may be among them no more: then that part stays as it was.
    if visit is not None and shown is None and is_timeline and "hx-request" not in request.headers:
        raise HttpProblem("not-found", f"the run has no visit {visit} among its last {MOST_STEPS:,} steps")
    graph = await _graph(run)
    drawing = None
    if graph is not None and len(graph.nodes) <= MOST_DRAWN:
        mark = node or (shown.node if shown is not None else None)
        drawing = await asyncio.to_thread(_drawing, graph, *_at(info, steps, step), now_ms, mark)
    children = await _children(client, info, after if tab == "children" else None, has=bool(own) or tab == "children")
    people = frozenset(each.seq for each in info.visits if each.reason.code == "person")
    state = state_of(info, now_ms)
    late = await run.late_results() if shown is not None else []
    caller = caller_of(request)
    end = info.step + 1 if before is None else before
    values: dict[str, Any] = {
        "info": info,
        "state": state,
        "usage": info.usage if info.usage.calls else None,
        "gates": [gate for gate in gates if gate.run == run.id],
        "child_gates": [gate for gate in gates if gate.run != run.id],
        "drawing": drawing,
        "timeline": timeline_of(
            own, people, shown.seq if shown is not None else None, now_ms,
            children={each.id: each for each in children}, opened=opened,
        ),
        "timeline_from": begin,
        "timeline_until": until,
        "visit": None if shown is None else visit_summary(shown, info, steps, late, own, now_ms),
        "given": await input_of(run, graph, shown, own) if shown is not None and part == "input" else None,
        "part": part,
        "asked_node": node if shown is None else None,
        "events": _events(steps, end, known if before is None else None),
        "known": info.step if before is None else None,
        "most_events": AT_ONCE,
        "first_event": max(0, end - AT_ONCE),
        "step_count": info.step,
        "tab": tab,
        "output": ValueSummary.of("output", await run.output() or "") if info.status == "completed" else None,
        "actions": [each for each in actions_of(info) if caller.may(each.permission)],
        "may_steer": caller.may("operator"),
        "children": children,
        "child_state": lambda child: state_of(child, now_ms),
        "chosen_step": info.step if step is None else min(step, info.step),
        "at": await _state_at(run, info, step) if tab == "state" else None,
        "path_of": lambda **chosen: _path_of(run.id, chosen),
        "gate_path": path_of,
        "api": f"/api/v1/runs/{run.id}",
        "events_path": _events_path(run.id, info, now_ms),
        "live_path": _path_of(run.id, _shown_now(request, shown)),
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


def _window(steps: Sequence[StepInfo], last: int, visit: int | None, before: int | None) -> tuple[int, int]:
    """The journal steps of the timeline: the last one, and the one after which it begins. They contain the visit that
    was asked for."""
    until = last if before is None else min(last, max(0, before - 1))
    if visit is not None and before is None:
        ended = next((each.step for each in reversed(steps) if each.seq == visit and each.role == "node"), None)
        if ended is not None and ended <= last - MOST_IN_TIMELINE:
            until = min(last, ended + MOST_IN_TIMELINE // 2)
    return until, max(0, until - MOST_IN_TIMELINE)


def _events(steps: Sequence[StepInfo], end: int, known: int | None) -> Sequence[StepInfo]:
    """The last AT_ONCE events before the step `end`: those after `known`, and those that were not complete then."""
    shown = [each for each in steps if end - AT_ONCE <= each.step < end]
    if known is None:
        return shown
    sure = next((each.step for each in reversed(shown) if each.checkpoint and each.step <= known), 0)
    return [each for each in shown if each.step > sure]


def _path_of(run_id: str, chosen: dict[str, Any]) -> str:
    query = urlencode({name: value for name, value in chosen.items() if value is not None})
    return f"/runs/{quote(run_id)}" + (f"?{query}" if query else "")


def _shown_now(request: Request, shown: TraceStep | None) -> dict[str, Any]:
    """What an open page asks for again: the same visit, though the run goes on."""
    chosen = {name: value for name, value in request.query_params.items() if name != "known"}
    return chosen if shown is None else {**chosen, "visit": shown.seq}


def _events_path(run_id: str, info: RunInfo, now_ms: int) -> str:
    path = f"/api/v1/runs/{run_id}/events?mode=updates&mode=events&mode=messages"
    return path if info.step <= FROM_NOW else f"{path}&after={now_ms}-0%3A/0-0%3A0"


async def _graph(run: AsyncRun) -> Graph | None:
    try:
        return await run.graph()
    except StoreUnavailable:
        raise
    except SleipnirError:  # it expires after its run
        return None


def _at(info: RunInfo, steps: Sequence[StepInfo], step: int | None) -> tuple[RunInfo, Sequence[StepInfo]]:
    """The run as it was after a step: nothing was live of what is known to have ended later."""
    if step is None or step >= info.step:
        return info, steps
    return replace(info, visits=()), [each for each in steps if each.step <= step]


def _drawing(graph: Graph, info: RunInfo, steps: Sequence[StepInfo], now_ms: int, selected: str | None) -> Markup:
    """The graph, which escapes its texts by itself."""
    links = {name: _path_of(info.id, {"node": name}) for name in graph.nodes}
    return Markup(page_svg(graph, progress=progress_of(info, steps, now_ms), links=links, selected=selected))


async def _children(client: AsyncClient, info: RunInfo, after: str | None, *, has: bool) -> PageOfRuns:
    """A page of the runs that it has started, newest first: they are in its namespace, which has a list of them. A
    caller who sees a run sees those below it."""
    if not has:
        return PageOfRuns()
    return await client.runs(MOST_CHILDREN, parent=info.id, namespace=info.namespace, after=after)


async def _state_at(run: AsyncRun, info: RunInfo, step: int | None) -> StepSummary:
    chosen = info.step if step is None else step
    try:
        state: Mapping[str, Any] = await run.state() if chosen >= info.step else await run.state_at(chosen)
        difference = await run.state_difference(chosen - 1, chosen) if 0 < chosen <= info.step else None
    except UsageError as error:
        raise HttpProblem("refused", str(error)) from None
    except RunNotFound as error:  # of a fork, whose source has expired
        raise HttpProblem("not-found", str(error)) from None
    return StepSummary(chosen, ValueSummary.of_all(state), [] if difference is None else changes_of(difference))
