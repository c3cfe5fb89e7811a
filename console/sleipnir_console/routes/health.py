"""Probes, and the state of the deployment."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from sleipnir import __version__
from sleipnir.runs.views import Health
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.problems import HttpProblem

router = APIRouter(prefix="/health", tags=["health"], route_class=GuardedRoute)


class Liveness(BaseModel):
    """The process serves requests."""

    status: Literal["ok"] = "ok"
    version: str = __version__


@router.get("/live", operation_id="get_liveness", summary="Does the server answer?")
@requires("public")
async def get_liveness() -> Liveness:
    """For liveness probes: it asks nobody else, so an outage of Redis does not restart the server."""
    return Liveness()


@router.get("/ready", operation_id="get_readiness", summary="Can the server take requests?")
@requires("public")
async def get_readiness(request: Request) -> Liveness:
    """For readiness probes: 503 while Redis does not answer, or the server is being stopped."""
    if request.app.state.is_stopping():
        raise HttpProblem("stopping", "the server is being stopped")
    await request.app.state.client.now_ms()
    return Liveness()


@router.get("", operation_id="get_health", summary="The state of the deployment")
@requires("viewer")
async def get_health(request: Request) -> Health:
    """Redis, the lengths of queues, schedulers and workers, as `sleipnir doctor` reads them."""
    return await client_of(request).health()
