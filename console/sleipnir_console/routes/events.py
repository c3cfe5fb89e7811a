"""The events of a run, as they happen."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from sleipnir.runs.views import DEFAULT_MODES
from sleipnir_console.connection import client_of
from sleipnir_console.event_feeds import FeedKey
from sleipnir_console.event_stream import MEDIA_TYPE, EventStream
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.strict_model import RunId

router = APIRouter(prefix="/runs/{run_id}", tags=["runs"], route_class=GuardedRoute)

Mode: TypeAlias = Literal["messages", "custom", "updates", "tools", "events", "values", "tasks", "checkpoints", "debug"]
EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Server-sent events.", "content": {MEDIA_TYPE: {"schema": {}}}},
    204: {"description": "The run has ended, and there is nothing after the cursor."},
}


@router.get("/events", operation_id="follow_run", summary="The events of a run as they happen", responses=EVENTS)
@requires("viewer")
async def follow_run(
    request: Request,
    run_id: RunId,
    mode: Annotated[list[Mode] | None, Query(description="What to send; repeatable. Default: three of them.")] = None,
    children: Annotated[bool, Query(description="Also the events of all runs below.")] = False,
    after: Annotated[
        str | None, Query(max_length=20_000, pattern=r"^[ -~]*$", description="As `Last-Event-ID`, for a short one.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=100_000, description="Resume after this event.")] = None,
) -> Response:
    """Server-sent events: `messages` (texts of models as they stream), `updates` and `tools` unless `mode` says
    otherwise. The id of an event is a cursor: with it as `Last-Event-ID` nothing is missed and nothing repeated. Failed
    visits, a `gap` where events are not kept any more, and the end of the run are always included; then the stream
    ends. A comment comes every 15 s. An event `problem` without an id ends a stream that failed."""
    run = await client_of(request).run(run_id)
    key = FeedKey(run.id, frozenset(mode or DEFAULT_MODES), children)
    return EventStream(request, request.app.state.feeds, key, last_event_id or after or None)
