"""The audit, for admins of the whole deployment."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir_console.connection import client_of
from sleipnir_console.json_lines import LINES, JsonLines
from sleipnir_console.permissions import GuardedRoute, requires

router = APIRouter(prefix="/audit", tags=["audit"], route_class=GuardedRoute)


@router.get("", operation_id="export_audit", summary="The audit", responses=LINES)
@requires("admin", everywhere=True)
async def export_audit(request: Request, since_ms: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
    """The entries of the audit as lines of JSON, the oldest first, as `sleipnir audit export` prints them."""
    entries = client_of(request).access.audit(oldest_ms=since_ms)

    async def lines() -> AsyncIterator[dict[str, Any]]:
        async for entry in entries:
            yield dataclasses.asdict(entry)

    return JsonLines(lines(), request.app.state.is_stopping)
