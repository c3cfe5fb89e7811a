"""Jobs: one request to many runs. Count, submit, list, look at, stop."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Header, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from sleipnir.jobs.records import DELAY_S, MOST_DELAY_S, MOST_RATE, MOST_RUNS, MOST_WHY, JobInfo, JobPreview, Refusal
from sleipnir.jobs.records import JobAction as Action
from sleipnir_console.asked_runs import AskedNamespace, AskedRuns, seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, caller_of, refusal, requires
from sleipnir_console.strict_model import AgentName, Limit, PauseTimeout, StrictModel, Values

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=GuardedRoute)

JobId: TypeAlias = Annotated[str, Path(max_length=40, description="The id of a job.")]
Why: TypeAlias = Annotated[str, Field(max_length=MOST_WHY, description="Why, for the audit.")]


class WantedRuns(StrictModel):
    """What is asked, and of which runs: those that fit the `filter`, or the named `runs`."""

    action: Action = Field(description="What is asked of each run.")
    filter: AskedRuns | None = Field(default=None, description="As for `GET /runs`. Neither: all of the namespace.")
    runs: list[Annotated[str, Field(max_length=64)]] | None = Field(
        default=None, min_length=1, max_length=MOST_RUNS, description="Their ids, instead of a filter."
    )

    def chosen(self, request: Request) -> dict[str, Any]:
        """The keywords that choose runs. Raises HttpProblem for a namespace in which the caller may not steer runs."""
        asked, own = (self.filter or AskedRuns()).query(request), request.app.state.namespace
        if not caller_of(request).may("operator", everywhere=True):
            if asked["namespace"] not in (None, own):
                raise refusal(caller_of(request), "operator")
            asked["namespace"] = own  # not that of a batch or a parent that is named
        named = asked["namespace"]
        if self.runs is None:
            return asked
        if self.filter is not None and self.filter != AskedRuns(namespace=self.filter.namespace):
            return {**asked, "runs": self.runs}  # refused by the client, which names the rule
        return {"runs": self.runs, "namespace": named}


class NewJob(WantedRuns):
    """A job to be submitted. What is for one action is refused with others."""

    why: Why = ""
    rate: Annotated[float, Field(strict=False)] | None = Field(
        default=None, gt=0, le=MOST_RATE, description="At most so many runs per second."
    )
    delay_s: Annotated[float, Field(strict=False)] = Field(
        default=DELAY_S, ge=0, le=MOST_DELAY_S, description="It begins after so long; until then it can be undone."
    )
    timeout_s: PauseTimeout = None
    fresh_children: bool = Field(default=False, description="As for `retry` of a run.")
    before: str | None = Field(default=None, description="As for `fork` of a run.")
    state: Values | None = Field(default=None, description="As for `fork` of a run.")
    agent: AgentName | None = Field(default=None, description="As for `fork` of a run; its definition is read once.")
    model: str | None = Field(default=None, description="As for `fork` of a run.")


class StopRequest(StrictModel):
    """Why a job is stopped."""

    why: Why = ""


class JobPage(BaseModel):
    """Jobs, the newest first. `after` is the cursor of the next page; null: there is none."""

    items: list[JobInfo]
    after: str | None


@router.post("/preview", operation_id="preview_job", summary="What a job would do now")
@requires("operator")
async def preview_job(request: Request, body: WantedRuns) -> JobPreview:
    """How many runs fit, and the first of them. Nothing is done."""
    chosen = body.chosen(request)
    return await client_of(request).jobs.preview(body.action, **chosen)


@router.post("", status_code=201, operation_id="submit_job", summary="Ask many runs for the same")
@requires("operator")
async def submit_job(
    request: Request,
    response: Response,
    body: NewJob,
    idempotency_key: Annotated[
        str | None, Header(max_length=200, description="The same key again returns the same job.")
    ] = None,
) -> JobInfo:
    """It begins after `delay_s`, and goes on whatever dies. Refused if no run fits."""
    given = body.model_dump(exclude={"action", "filter", "runs", "timeout_s"}, exclude_none=True)
    chosen = body.chosen(request)
    made = await client_of(request).jobs.submit(
        body.action, timeout=body.timeout_s, request_id=idempotency_key, **chosen, **given
    )
    response.headers["Location"] = f"/api/v1/jobs/{made.id}"
    return made


@router.get("", operation_id="list_jobs", summary="Jobs, the newest first")
@requires("viewer")
async def list_jobs(
    request: Request,
    limit: Limit = 50,
    after: Annotated[str | None, Query(max_length=20, description="The cursor of the page before.")] = None,
    namespace: AskedNamespace = None,
) -> JobPage:
    """Of the runs of a namespace. A page with few items and a cursor says that few fit."""
    seen = seen_namespace(request, namespace)
    found = await client_of(request).jobs.page(limit, after=after, namespace=seen)
    return JobPage(items=list(found), after=found.after)


@router.get("/{job_id}", operation_id="get_job", summary="How far a job is")
@requires("viewer")
async def get_job(request: Request, job_id: JobId) -> JobInfo:
    """What it asks of which runs, and how many have taken it (`done`), not (`refused`), or did not need it (`left`)."""
    return await client_of(request).jobs.get(job_id)


@router.get("/{job_id}/refusals", operation_id="list_job_refusals", summary="Runs that did not take the request")
@requires("viewer")
async def list_job_refusals(request: Request, job_id: JobId, limit: Limit = 200) -> list[Refusal]:
    """The first 200 of them, each with the reason."""
    return await client_of(request).jobs.refusals(job_id, limit)


@router.post("/{job_id}/stop", operation_id="stop_job", summary="Let a job ask no more runs")
@requires("operator")
async def stop_job(request: Request, job_id: JobId, body: StopRequest | None = None) -> JobInfo:
    """What it has asked stays; a job that has not begun has no effect."""
    return await client_of(request).jobs.stop(job_id, (body or StopRequest()).why)
