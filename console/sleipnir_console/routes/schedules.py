"""Schedules: runs that start by themselves. Add, list, look at, change, pause, resume, remove, run now."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from sleipnir.batches.records import DEFAULT_PRIORITY, PRIORITIES
from sleipnir.batches.rows import row_of
from sleipnir.client.async_client import AsyncSchedule
from sleipnir.client.scheduled_rows import ScheduleRows
from sleipnir.schedules.records import MOST_REASON, MOST_ROWS, Fire, Overlap, ScheduledRun, ScheduleInfo
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.routes.runs import SubmittedRun
from sleipnir_console.strict_model import MOST_INT, AgentName, Limit, StrictModel, Values

router = APIRouter(prefix="/schedules", tags=["schedules"], route_class=GuardedRoute)

ScheduleName: TypeAlias = Annotated[str, Path(max_length=64, description="The name of a schedule.")]
ScheduleReason: TypeAlias = Annotated[str, Field(max_length=MOST_REASON, description="Why, for the audit.")]
Duration: TypeAlias = Annotated[str, Field(max_length=40, examples=["90s", "2h", "1d"])]


class TimePlan(StrictModel):
    """When a schedule fires: one of `cron`, `every` and `at`."""

    cron: str | None = Field(default=None, max_length=200, description="Five fields.", examples=["0 7 * * 1-5"])
    every: Duration | None = Field(default=None, description="An interval, counted from now.")
    at: str | None = Field(default=None, max_length=40, description="Once.", examples=["2026-12-01T07:00"])
    tz: str | None = Field(
        default=None, max_length=64, description="The zone of `cron` and `at`; a new schedule's is `UTC`.",
        examples=["Europe/Berlin"],
    )  # fmt: skip
    overlap: Overlap | None = Field(
        default=None, description="If the run before is not over; a new schedule's is `skip`."
    )
    catch_up: Duration | None = Field(
        default=None, description="Make up for missed fires of so long, or `latest`: only for the last one."
    )
    jitter: Duration | None = Field(default=None, description="Put each fire off by up to so long.")

    def times(self) -> dict[str, Any]:
        """What is given, as keywords of Client.schedule."""
        names = TimePlan.model_fields.keys()
        return {name: value for name, value in self.model_dump(include=set(names)).items() if value is not None}


class NewScheduleBatch(StrictModel):
    """What each fire submits as a batch, in the place of one run."""

    rows: list[dict[str, Any]] = Field(
        min_length=1, max_length=MOST_ROWS, description="Objects of columns: `prompt`, and values of state keys."
    )
    as_text: bool = Field(
        default=False, description="Values are texts, as cells of CSV: those of keys of other types are read as JSON."
    )
    key: str | None = Field(default=None, max_length=200, description="The column that identifies rows.")
    name: str | None = Field(default=None, max_length=200, description="Of the batches; null: that of the schedule.")
    priority: int = Field(default=DEFAULT_PRIORITY, ge=PRIORITIES[0], le=PRIORITIES[-1])
    parallel: int | None = Field(default=None, gt=0, le=MOST_INT, description="Rows that may be active at once.")
    canary: int | None = Field(default=None, gt=0, le=MOST_INT, description="Rows that run first.")

    def given(self) -> ScheduleRows:
        """As Client.schedule takes it."""
        rows = (
            row_of(f"row {number}", number, columns, self.key, as_text=self.as_text)
            for number, columns in enumerate(self.rows, 1)
        )
        return ScheduleRows(rows, self.key, self.name, self.priority, self.parallel, self.canary)


class NewSchedule(TimePlan):
    """A schedule to be added. Its runs are in the namespace of the server, and their commands in scratch folders."""

    name: str = Field(max_length=64, description="Letters, digits, `.`, `_` and `-`.", examples=["report"])
    agent: AgentName = Field(description="The name of an agent that the server knows.", examples=["log-triage"])
    prompt: str = Field(default="", description="It becomes `{{initial_prompt}}`.", examples=["server.log"])
    state: Values | None = Field(default=None, description="As for a run.")
    variables: dict[str, str] | None = Field(default=None, description="As for a run.")
    user: str | None = Field(default=None, description="As for a run.")
    tags: dict[str, str] | None = Field(default=None, description="Texts by key, to find the runs by.")
    max_cost_usd: Annotated[float, Field(strict=False)] | None = Field(default=None, gt=0, description="As for a run.")
    max_tokens: int | None = Field(default=None, gt=0, le=MOST_INT, description="As for a run.")
    strict: bool | None = Field(default=None, description="As for a run.")
    batch: NewScheduleBatch | None = Field(default=None, description="Each fire submits a batch; the budget is its.")


class ChangedSchedule(TimePlan):
    """What is changed; null: it stays. With `agent`, `prompt` or `state` the agent is read again."""

    agent: AgentName | None = None
    prompt: str | None = None
    state: Values | None = Field(default=None, description="All initial values of later runs.")
    reason: ScheduleReason = ""


class ScheduleReasonBody(StrictModel):
    """Why a schedule is paused."""

    reason: ScheduleReason = ""


class SchedulePage(BaseModel):
    """Schedules by name. `after` is the cursor of the next page; null: there is none."""

    items: list[ScheduleInfo]
    after: str | None


class ScheduleDetail(BaseModel):
    """A schedule with its last fires, the newest first, and the runs that they have started."""

    schedule: ScheduleInfo
    fires: list[Fire]
    runs: list[ScheduledRun]


@router.get("", operation_id="list_schedules", summary="Schedules by name")
@requires("viewer")
async def list_schedules(
    request: Request,
    limit: Limit = 100,
    after: Annotated[str | None, Query(max_length=64, description="The cursor of the page before.")] = None,
    namespace: Annotated[
        str | None, Query(description="Default: that of the server. Others, and `*` for all, need a role in `*`.")
    ] = None,
) -> SchedulePage:
    """Their plans, next times and last runs. A page with few items and a cursor says that few fit."""
    seen = seen_namespace(request, namespace) or request.app.state.namespace
    found = await client_of(request).schedules(limit, after=after, namespace=None if seen == "*" else seen)
    return SchedulePage(items=list(found), after=found.after)


@router.post("", status_code=201, operation_id="add_schedule", summary="Add a schedule")
@requires("operator")
async def add_schedule(request: Request, response: Response, body: NewSchedule) -> ScheduleDetail:
    """Its runs have the definition that the agent has now. Refused if there is a schedule of this name."""
    given = body.model_dump(exclude={*TimePlan.model_fields, "name", "agent", "prompt", "batch"}, exclude_none=True)
    if body.batch is not None:
        given["rows"] = body.batch.given()
    namespace = request.app.state.namespace
    added = await client_of(request).schedule(
        body.name, body.agent, body.prompt, scratch=True, namespace=namespace, **body.times(), **given
    )
    response.headers["Location"] = f"/api/v1/schedules/{body.name}"
    return await _detail(added, 10)


@router.get("/{schedule}", operation_id="get_schedule", summary="One schedule")
@requires("viewer")
async def get_schedule(request: Request, schedule: ScheduleName, limit: Limit = 10) -> ScheduleDetail:
    """Its plan and next times, its last fires, and the runs of these; at most 100 fires are kept."""
    return await _detail(await _opened(request, schedule), limit)


@router.patch("/{schedule}", operation_id="change_schedule", summary="Change a schedule")
@requires("operator")
async def change_schedule(request: Request, schedule: ScheduleName, body: ChangedSchedule) -> ScheduleDetail:
    """What is not given stays. Other times count from now on."""
    opened = await _opened(request, schedule)
    given = body.model_dump(include={"agent", "prompt", "state", "reason"}, exclude_none=True)
    await opened.edit(**body.times(), **given)
    return await _detail(opened, 10)


@router.post("/{schedule}/pause", operation_id="pause_schedule", summary="Pause a schedule")
@requires("operator")
async def pause_schedule(
    request: Request, schedule: ScheduleName, body: ScheduleReasonBody | None = None
) -> ScheduleDetail:
    """It fires no more until `resume`. Its runs go on."""
    opened = await _opened(request, schedule)
    await opened.pause((body or ScheduleReasonBody()).reason)
    return await _detail(opened, 10)


@router.post("/{schedule}/resume", operation_id="resume_schedule", summary="Resume a schedule")
@requires("operator")
async def resume_schedule(request: Request, schedule: ScheduleName) -> ScheduleDetail:
    """It fires again, from now on: times that came meanwhile are not made up for."""
    opened = await _opened(request, schedule)
    await opened.resume()
    return await _detail(opened, 10)


@router.post("/{schedule}/run-now", status_code=201, operation_id="fire_schedule", summary="Start a run of it now")
@requires("operator")
async def fire_schedule(request: Request, response: Response, schedule: ScheduleName) -> SubmittedRun:
    """A run (or batch) besides its times, whatever its pause and its overlap policy say. Each request starts one."""
    opened = await _opened(request, schedule)
    if (await opened.info()).plan.batch is not None:
        batch = await opened.batch_now()
        response.headers["Location"] = f"/api/v1/batches/{batch.id}"
        return SubmittedRun(id=batch.id)
    run = await opened.run_now()
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return SubmittedRun(id=run.id)


@router.delete("/{schedule}", status_code=204, operation_id="remove_schedule", summary="Remove a schedule")
@requires("operator")
async def remove_schedule(
    request: Request,
    schedule: ScheduleName,
    reason: Annotated[str, Query(max_length=MOST_REASON, description="Why, for the audit.")] = "",
) -> None:
    """Its runs go on."""
    await (await _opened(request, schedule)).remove(reason)


async def _opened(request: Request, name: str) -> AsyncSchedule:
    return await client_of(request).open_schedule(name)


async def _detail(opened: AsyncSchedule, limit: int) -> ScheduleDetail:
    return ScheduleDetail(schedule=await opened.info(), fires=await opened.fires(limit), runs=await opened.runs(limit))
