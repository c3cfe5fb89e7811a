"""Requests on one run: cancel, pause, resume, retry, skip, fork, rewind, update."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, caller_of, requires
from sleipnir_console.routes.runs import SubmittedRun
from sleipnir_console.strict_model import MOST_INT, AgentName, PauseTimeout, Reason, RunId, StrictModel, Values

router = APIRouter(prefix="/runs/{run_id}", tags=["runs"], route_class=GuardedRoute)


class PauseRequest(StrictModel):
    """How a run is paused."""

    reason: Reason = None
    timeout_s: PauseTimeout = None


class RetryRequest(StrictModel):
    """How a failed run goes on."""

    fresh_children: bool = Field(default=False, description="Start new child runs in the place of failed ones.")


class SkipRequest(StrictModel):
    """A visit that ends with a given value."""

    node: str | Annotated[int, Field(ge=0, le=MOST_INT)] = Field(
        description="The node, or the number of its visit.", examples=["fetch"]
    )
    value: Any = Field(default=None, description="What the node would have returned.")
    to: list[str] = Field(default=[], description="The nodes to go on at; none: as the edges say.")
    reason: Reason = None


class SkippedVisit(BaseModel):
    """The number of the visit."""

    seq: int


class ForkChangesRequest(StrictModel):
    """Where a fork begins, and what it has in the place of what its source has."""

    at: int | None = Field(
        default=None,
        ge=0,
        le=MOST_INT,
        description="After this step. Default: the last checkpoint that leads anywhere.",
    )
    before: str | None = Field(default=None, description="Before the last visit of this node.")
    state: Values | None = Field(default=None, description="Values that replace those of the past.")
    agent: AgentName | None = Field(default=None, description="Go on with the current definition of this agent.")
    model: str | None = Field(
        default=None, description="All llm nodes use this model.", examples=["openai:gpt-4o-mini"]
    )
    overrides: dict[str, Values] | None = Field(default=None, description="As for a submission.")
    patches: Values | None = Field(default=None, description="As for a submission.")


class ForkRequest(ForkChangesRequest):
    """The fork of one run."""

    thread: str | None = Field(default=None, description="The fork is the next turn of this thread.")


class UpdateRequest(StrictModel):
    """Values of the state, and who has written them."""

    values: Values = Field(description="By state key, in their JSON form.")
    as_node: str | None = Field(default=None, description="As this node. Default: the one that wrote last.")
    mode: Literal["reduce", "set"] = Field(
        default="reduce", description="`set` replaces the values of keys with reducers."
    )
    at: int | None = Field(default=None, ge=0, le=MOST_INT, description="After this step. Default: the last one.")
    thread: str | None = Field(default=None, description="The fork is the next turn of this thread.")


@router.post("/cancel", status_code=202, operation_id="cancel_run", summary="Cancel a run")
@requires("operator")
async def cancel_run(request: Request, run_id: RunId) -> Response:
    """Scripts and model calls stop within one heartbeat. Refused for a run that has ended."""
    await (await client_of(request).run(run_id)).cancel()
    return Response(status_code=202)


@router.post("/pause", status_code=202, operation_id="pause_run", summary="Pause a run")
@requires("operator")
async def pause_run(request: Request, run_id: RunId, body: PauseRequest | None = None) -> Response:
    """Active visits finish and are committed, and no visit starts. With `timeout_s`, visits that still run after so
    many seconds are stopped, and run again after `resume`."""
    wanted = body or PauseRequest()
    await (await client_of(request).run(run_id)).pause(reason=wanted.reason, timeout=wanted.timeout_s)
    return Response(status_code=202)


@router.post("/resume", status_code=202, operation_id="resume_run", summary="Resume a run")
@requires("operator")
async def resume_run(request: Request, run_id: RunId) -> Response:
    """It goes on, also past breakpoints, unless its parent, its budget or the deployment also holds it."""
    await (await client_of(request).run(run_id)).resume()
    return Response(status_code=202)


@router.post("/retry", status_code=202, operation_id="retry_run", summary="Continue a failed run")
@requires("operator")
async def retry_run(request: Request, run_id: RunId, body: RetryRequest | None = None) -> Response:
    """It goes on from the failed visit, with the current state. Refused for a run that did not fail."""
    wanted = body or RetryRequest()
    await (await client_of(request).run(run_id)).retry(fresh_children=wanted.fresh_children)
    return Response(status_code=202)


@router.post("/skip", operation_id="skip_visit", summary="Finish a visit with a value")
@requires("operator")
async def skip_visit(request: Request, run_id: RunId, body: SkipRequest) -> SkippedVisit:
    """The visit ends as if its node had returned `value`. The same request counts once."""
    run = await client_of(request).run(run_id)
    by = str(caller_of(request).by)
    return SkippedVisit(seq=await run.skip(body.node, body.value, to=body.to, by=by, reason=body.reason))


@router.post("/fork", status_code=201, operation_id="fork_run", summary="Go on from an earlier step in a new run")
@requires("operator")
async def fork_run(
    request: Request, response: Response, run_id: RunId, body: ForkRequest | None = None
) -> SubmittedRun:
    """The source stays as it is. Nothing before the checkpoint runs again."""
    run = await client_of(request).run(run_id)
    fork = await run.fork(**(body or ForkRequest()).model_dump())
    response.headers["Location"] = f"/api/v1/runs/{fork.id}"
    return SubmittedRun(id=fork.id)


@router.post("/update", status_code=201, operation_id="update_run_state", summary="Fork a run with other values")
@requires("operator")
async def update_run_state(request: Request, response: Response, run_id: RunId, body: UpdateRequest) -> SubmittedRun:
    """The fork begins as if the node `as_node` had written the values, and stops before the next nodes until it is
    resumed. This run stays as it is."""
    run = await client_of(request).run(run_id)
    fork = await run.update_state(body.values, body.as_node, mode=body.mode, at=body.at, thread=body.thread)
    response.headers["Location"] = f"/api/v1/runs/{fork.id}"
    return SubmittedRun(id=fork.id)


@router.post("/rewind", status_code=201, operation_id="rewind_run", summary="Go on from an earlier step, and cancel")
@requires("operator")
async def rewind_run(request: Request, response: Response, run_id: RunId, body: ForkRequest) -> SubmittedRun:
    """As `fork`, and in the same step this run is cancelled."""
    run = await client_of(request).run(run_id)
    fork = await run.rewind(**body.model_dump())
    response.headers["Location"] = f"/api/v1/runs/{fork.id}"
    return SubmittedRun(id=fork.id)
