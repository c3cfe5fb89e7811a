"""Runs: submit, find, look at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from sleipnir.graph.draw import Direction, Theme, svg
from sleipnir.runs.comparison import Comparison
from sleipnir.runs.execution_trace import Trace
from sleipnir.runs.run_filters import RunCounts
from sleipnir.runs.run_progress import progress_of
from sleipnir.runs.state_differences import StateDifference
from sleipnir.runs.views import DefinitionText, LateResult, Lineage, RunInfo, RunTree, StepInfo
from sleipnir_console.asked_runs import AskedPage, AskedRuns, seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.drawing import SVG, drawing
from sleipnir_console.json_lines import LINES, JsonLines
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.strict_model import MOST_INT, AgentName, Limit, RunId, StrictModel, Values

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)

MOST_DRAWN: Final = 4_000
"""The journal steps that a drawing shows: the last ones."""

Step: TypeAlias = Annotated[int, Query(ge=0, le=MOST_INT, description="A step of the journal; 0: as submitted.")]


class Submission(StrictModel):
    """A run to be submitted, as `sleipnir submit` does. Its commands work in a scratch folder of the run."""

    agent: AgentName = Field(description="The name of an agent that the server knows.", examples=["log-triage"])
    prompt: str = Field(default="", description="It becomes `{{initial_prompt}}`.", examples=["the build is red"])
    state: Values | None = Field(
        default=None, description="Initial values, which override the graph's `initial_state`."
    )
    variables: dict[str, str] | None = Field(default=None, description="Values of variables that the agent declares.")
    session: str | None = Field(
        default=None, description="The conversation of a config.yaml agent that the run continues."
    )
    thread: str | None = Field(default=None, description="The series of runs of a graph agent whose next turn this is.")
    user: str | None = Field(default=None, description="Whose values the run has, beside those of the agent.")
    tags: dict[str, str] | None = Field(default=None, description="Texts by key, to find the run by.")
    max_cost_usd: Annotated[float, Field(strict=False)] | None = Field(
        default=None, gt=0, description="Above it the run is paused, and asks whether it may continue."
    )
    max_tokens: int | None = Field(
        default=None, gt=0, le=MOST_INT, description="The same for tokens of prompts and answers."
    )
    strict: bool | None = Field(
        default=None, description="The run fails at every failed visit. null: as the server is set."
    )
    config: Values | None = Field(default=None, description="What nodes of a graph in Python get as `config`.")
    context: Any = Field(default=None, description="What these nodes get as `runtime.context`.")
    interrupt_before: list[str] | None = Field(default=None, description="Nodes before which the run stops; `*`: all.")
    interrupt_after: list[str] | None = Field(default=None, description="Nodes after which the run stops; `*`: all.")
    overrides: dict[str, Values] | None = Field(
        default=None, description="Other settings of llm nodes, by paths of nodes."
    )
    patches: Values | None = Field(default=None, description="What nodes say and may call instead, by surfaces.")


class SubmittedRun(BaseModel):
    """A run that was accepted, now or by an earlier request with the same `Idempotency-Key`."""

    id: str


class RunPage(BaseModel):
    """Runs, newest first. `after` is the cursor of the next page; null: there is none. `looked`: how many runs were
    looked at. Few items and a cursor say that few fit, and that the next page goes on."""

    items: list[RunInfo]
    after: str | None
    looked: int


class CountedRuns(BaseModel):
    """`is_exact` false: there are at least so many; counting stopped there."""

    count: int
    is_exact: bool


class RunDetail(BaseModel):
    """A run with its result text, which is null before its end."""

    run: RunInfo
    output: str | None


class History(BaseModel):
    """A page of a journal, oldest first. `after` is the step after which the next page begins; null: it is the end."""

    items: list[StepInfo]
    after: int | None


class RunState(BaseModel):
    """The state of a run after a step; `step` null: now."""

    step: int | None
    state: Values


@router.post("", status_code=201, operation_id="submit_run", summary="Submit a run")
@requires("operator")
async def submit_run(
    request: Request,
    response: Response,
    body: Submission,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=200, description="The same key again, with the same body, is the same run."),
    ] = None,
) -> SubmittedRun:
    """Submit a run of an agent. Missing knowledge bases are built first, which may take long."""
    given = body.model_dump(exclude={"agent", "prompt"}, exclude_none=True)
    run = await client_of(request).submit(body.agent, body.prompt, request_id=idempotency_key, scratch=True, **given)
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return SubmittedRun(id=run.id)


@router.get("", operation_id="list_runs", summary="Runs, newest first")
@requires("viewer")
async def list_runs(request: Request, chosen: Annotated[AskedPage, Query()]) -> RunPage:
    """A page of runs. Without `status` also those that have ended."""
    found = await client_of(request).runs(chosen.limit, after=chosen.after, **chosen.query(request))
    return RunPage(items=list(found), after=found.after, looked=found.looked)


@router.get("/count", operation_id="count_runs", summary="How many runs fit")
@requires("viewer")
async def count_runs(request: Request, chosen: Annotated[AskedRuns, Query()]) -> CountedRuns:
    """Of the same cost for any number of runs, if a status, a reason, or one of the other lists is asked for alone."""
    count = await client_of(request).run_count(**chosen.query(request))
    return CountedRuns(count=int(count), is_exact=count.is_exact)


@router.get("/standings", operation_id="get_run_standings", summary="The numbers of runs by status and reason")
@requires("viewer")
async def get_run_standings(
    request: Request,
    namespace: Annotated[
        str | None, Query(description="Default: that of the server. Others need a role in `*`. `*` is refused.")
    ] = None,
    children: Annotated[bool, Query(description="Also runs that other runs have started.")] = False,
    rows: Annotated[bool, Query(description="Also rows of batches.")] = True,
) -> RunCounts:
    """`waiting:person` and the like, with when the oldest run of each was submitted: for an overview."""
    seen = seen_namespace(request, namespace)
    return await client_of(request).run_counts(namespace=seen, children=children, rows=rows)


@router.get("/{run_id}", operation_id="get_run", summary="One run")
@requires("viewer")
async def get_run(request: Request, run_id: RunId) -> RunDetail:
    """Its status, where it is and why, usage, changes by people, and its result."""
    run = await client_of(request).run(run_id)
    info = await run.info()
    return RunDetail(run=info, output=await run.output() if info.is_final else None)


@router.get("/{run_id}/history", operation_id="get_run_history", summary="The journal of a run")
@requires("viewer")
async def get_run_history(
    request: Request,
    run_id: RunId,
    after: Annotated[int | None, Query(ge=0, le=MOST_INT, description="Begin after this step.")] = None,
    limit: Limit = 100,
) -> History:
    """A page of its journal: visits that ended, and requests of people."""
    run = await client_of(request).run(run_id)
    steps = await run.history(after=after, limit=limit)
    return History(items=steps, after=steps[-1].step if len(steps) == limit else None)


@router.get("/{run_id}/state", operation_id="get_run_state", summary="The state of a run")
@requires("viewer")
async def get_run_state(
    request: Request,
    run_id: RunId,
    at: Annotated[
        int | None, Query(ge=0, le=MOST_INT, description="After this step of the journal; 0: as submitted.")
    ] = None,
) -> RunState:
    """Its committed state now, or after a step."""
    run = await client_of(request).run(run_id)
    return RunState(step=at, state=await run.state() if at is None else await run.state_at(at))


@router.get("/{run_id}/state/difference", operation_id="compare_run_states", summary="What distinguishes two states")
@requires("viewer")
async def compare_run_states(request: Request, run_id: RunId, first: Step, second: Step) -> StateDifference:
    """The keys that differ between the state after the step `second` and that after `first`."""
    run = await client_of(request).run(run_id)
    return await run.state_difference(first, second)


@router.get("/{run_id}/trace", operation_id="get_run_trace", summary="What the visits of a run did")
@requires("viewer")
async def get_run_trace(
    request: Request,
    run_id: RunId,
    depth: Annotated[int, Query(ge=0, le=16, description="Levels of runs below.")] = 16,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Visits in all.")] = 1_000,
    after: Annotated[
        int | None, Query(ge=0, le=MOST_INT, description="Only visits that ended after this step, and live ones.")
    ] = None,
) -> Trace:
    """One step for each visit, of the run and of those below it."""
    run = await client_of(request).run(run_id)
    return await run.trace(depth=depth, limit=limit, after=after)


@router.get("/{run_id}/export", operation_id="export_run", summary="All that is stored of a run", responses=LINES)
@requires("operator")
async def export_run(request: Request, run_id: RunId, children: bool = False) -> Response:
    """Lines of JSON, as `sleipnir export` writes them, with `children` also all runs below. Values are not masked."""
    run = await client_of(request).run(run_id)

    async def lines() -> AsyncIterator[Any]:
        async for line in run.export(children=children):
            yield json.loads(line)

    return JsonLines(lines(), request.app.state.is_stopping)


@router.get("/{run_id}/tree", operation_id="get_run_tree", summary="A run and the runs below it")
@requires("viewer")
async def get_run_tree(request: Request, run_id: RunId) -> RunTree:
    """The run and all runs that it and its children have started."""
    run = await client_of(request).run(run_id)
    return await run.tree()


@router.get("/{run_id}/lineage", operation_id="get_run_lineage", summary="The sources and the forks of a run")
@requires("viewer")
async def get_run_lineage(request: Request, run_id: RunId, limit: Limit = 20) -> Lineage:
    """The runs that it was forked from, and the forks of all of them."""
    run = await client_of(request).run(run_id)
    return await run.lineage(limit=limit)


@router.get("/{run_id}/source", operation_id="get_run_source", summary="The definition of a run")
@requires("viewer")
async def get_run_source(request: Request, run_id: RunId) -> DefinitionText:
    """The text of the graph.yaml or config.yaml that it is pinned to, whatever its agent's folder has now."""
    run = await client_of(request).run(run_id)
    return await run.source()


@router.get("/{run_id}/late-results", operation_id="list_late_results", summary="Results that were refused")
@requires("viewer")
async def list_late_results(request: Request, run_id: RunId) -> list[LateResult]:
    """Results that arrived when their visit had ended or belonged to another attempt."""
    run = await client_of(request).run(run_id)
    return await run.late_results()


@router.get("/{run_id}/execution-errors", operation_id="list_execution_errors", summary="Failures that were recorded")
@requires("viewer")
async def list_execution_errors(request: Request, run_id: RunId) -> list[dict[str, Any]]:
    """Of a run that collects its failures: those that it recovered from or handled, and the one that failed it."""
    run = await client_of(request).run(run_id)
    return await run.execution_errors()


@router.get("/{run_id}/compare/{other_id}", operation_id="compare_runs", summary="Two runs side by side")
@requires("viewer")
async def compare_runs(request: Request, run_id: RunId, other_id: RunId) -> Comparison:
    """Status, output, error, state, path, tokens, cost and time of both; `changed` names what differs."""
    return await client_of(request).compare(run_id, other_id)


@router.get("/{run_id}/drawing", operation_id="draw_run", summary="The progress of a run as SVG", responses=SVG)
@requires("viewer")
async def draw_run(
    request: Request,
    run_id: RunId,
    direction: Annotated[Direction, Query(description="Top-down, or left to right.")] = "TB",
    theme: Annotated[Theme, Query(description="`auto` follows the theme of the viewer.")] = "auto",
) -> Response:
    """Its graph, with the nodes coloured by their status. Of a long run the last 4,000 steps are shown."""
    client = client_of(request)
    run = await client.run(run_id)
    info, now_ms, graph = await run.info(), await client.now_ms(), await run.graph()
    skipped = max(0, info.step - MOST_DRAWN)
    steps = await run.history(after=skipped or None, limit=2 * MOST_DRAWN)
    past = await run.past_steps() if info.forked_from and (info.forked_at or 0) <= MOST_DRAWN else []

    def drawn() -> str:
        return svg(graph, progress=progress_of(info, steps, now_ms, past), direction=direction, theme=theme)

    return drawing(await asyncio.to_thread(drawn))
