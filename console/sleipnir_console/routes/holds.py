"""Pausing everything, or everything of a namespace, and letting parts of it go on."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from sleipnir.runs.deployment_holds import DEPLOYMENT, MOST_RESUME_RATE, MOST_RESUMED_AGENTS, ScopeHold
from sleipnir.runs.run import Hold
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, caller_of, requires
from sleipnir_console.strict_model import AgentName, Reason, StrictModel

router = APIRouter(tags=["fleet"], route_class=GuardedRoute)


class DeploymentPauseRequest(StrictModel):
    """Why everything is paused."""

    reason: Reason = None


class ResumePartRequest(StrictModel):
    """What goes on: agents are added to those that do already, a new rate replaces the old one."""

    agents: list[AgentName] = Field(
        default_factory=list, max_length=MOST_RESUMED_AGENTS, description="All runs of these agents."
    )
    rate: float | None = Field(
        default=None, gt=0, le=MOST_RESUME_RATE, description="So many runs a second of the others, the oldest first."
    )


class DeploymentState(BaseModel):
    """Who paused the deployment; null: it is not paused."""

    held: Hold | None


async def seen_holds(request: Request) -> Sequence[ScopeHold]:
    """What is held of what the caller may see."""
    holds, own = await client_of(request).holds(), request.app.state.namespace
    if caller_of(request).may("viewer", everywhere=True):
        return holds
    return [held for held in holds if held.scope in (DEPLOYMENT, own)]


@router.get("/holds", operation_id="list_holds", summary="What is paused as a whole")
@requires("viewer")
async def list_holds(request: Request) -> list[ScopeHold]:
    """The deployment (`*`) and namespaces that are paused: who paused them, why, and what of them goes on."""
    return list(await seen_holds(request))


@router.get("/deployment/hold", operation_id="get_deployment_hold", summary="Is the deployment paused?")
@requires("viewer")
async def get_deployment_hold(request: Request) -> DeploymentState:
    """Who paused it, when and why."""
    return DeploymentState(held=await client_of(request).held())


@router.post("/deployment/pause", status_code=202, operation_id="pause_deployment", summary="Pause everything")
@requires("operator", everywhere=True)
async def pause_deployment(request: Request, body: DeploymentPauseRequest | None = None) -> Response:
    """No visit starts on any worker, also of runs that are submitted later. Active visits finish; answers and cancels
    are accepted."""
    await client_of(request).pause_all(reason=(body or DeploymentPauseRequest()).reason)
    return Response(status_code=202)


@router.post("/deployment/resume", status_code=202, operation_id="resume_deployment", summary="Resume everything")
@requires("operator", everywhere=True)
async def resume_deployment(request: Request) -> Response:
    """Ends the pause of the deployment; pauses of namespaces and of single runs stay."""
    await client_of(request).resume_all()
    return Response(status_code=202)


@router.post(
    "/deployment/resume-part", operation_id="resume_part_of_deployment", summary="Let part of the deployment go on"
)
@requires("operator", everywhere=True)
async def resume_part_of_deployment(request: Request, body: ResumePartRequest) -> ScopeHold:
    """While the deployment is paused: runs of some agents, or so many runs a second."""
    return await client_of(request).resume_part(agents=body.agents, rate=body.rate)


@router.post(
    "/namespaces/{namespace}/pause", status_code=202, operation_id="pause_namespace", summary="Pause a namespace"
)
@requires("operator")
async def pause_namespace(request: Request, namespace: str, body: DeploymentPauseRequest | None = None) -> Response:
    """No visit of its runs starts on any worker, also of runs that are submitted later. Active visits finish; answers
    and cancels are accepted."""
    await client_of(request).pause_all(reason=(body or DeploymentPauseRequest()).reason, namespace=namespace)
    return Response(status_code=202)


@router.post(
    "/namespaces/{namespace}/resume", status_code=202, operation_id="resume_namespace", summary="Resume a namespace"
)
@requires("operator")
async def resume_namespace(request: Request, namespace: str) -> Response:
    """Its runs go on at once; the pause is listed until schedulers have published what waits. A pause of the
    deployment, and those of single runs, stay."""
    await client_of(request).resume_all(namespace=namespace)
    return Response(status_code=202)


@router.post(
    "/namespaces/{namespace}/resume-part", operation_id="resume_part_of_namespace",
    summary="Let part of a namespace go on",
)  # fmt: skip
@requires("operator")
async def resume_part_of_namespace(request: Request, namespace: str, body: ResumePartRequest) -> ScopeHold:
    """While the namespace is paused: runs of some agents, or so many runs a second."""
    return await client_of(request).resume_part(agents=body.agents, rate=body.rate, namespace=namespace)
