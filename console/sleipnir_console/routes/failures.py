"""Failed runs, in groups that failed alike."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from sleipnir.runs.run_filters import FailureGroup
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.strict_model import MOST_INT, Limit

router = APIRouter(prefix="/failures", tags=["runs"], route_class=GuardedRoute)


@router.get("", operation_id="list_failures", summary="Failed runs in groups, the latest failure first")
@requires("viewer")
async def list_failures(
    request: Request,
    agent: Annotated[str | None, Query(description="Only of this agent.")] = None,
    node: Annotated[str | None, Query(description="Only at this node.")] = None,
    since_ms: Annotated[
        int | None, Query(ge=0, le=MOST_INT, description="Only groups in which a run failed since then.")
    ] = None,
    namespace: Annotated[str | None, Query(description="`*` for all; default: that of the server.")] = None,
    limit: Limit = 50,
) -> list[FailureGroup]:
    """The same message at the same node of the same version of an agent, but for numbers, ids and quoted values. The
    runs of a group are those with its `fingerprint`."""
    seen = seen_namespace(request, namespace)
    return await client_of(request).failures(agent=agent, node=node, since_ms=since_ms, limit=limit, namespace=seen)
