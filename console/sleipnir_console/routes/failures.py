"""Failed runs, in groups that failed alike."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from sleipnir.runs.run_filters import MOST_NOTE, FailureGroup
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, caller_of, refusal, requires
from sleipnir_console.strict_model import MOST_INT, Limit, StrictModel

router = APIRouter(prefix="/failures", tags=["runs"], route_class=GuardedRoute)


Fingerprint: TypeAlias = Annotated[str, Path(max_length=64, description="That of a group of failures.")]


class ReopenRequest(StrictModel):
    """Where the failures are."""

    namespace: str | None = Field(default=None, max_length=63, description="Others need the permission in `*`.")


class DiscardRequest(ReopenRequest):
    """What was done about the failures."""

    note: str = Field(min_length=1, max_length=MOST_NOTE)


@router.get("", operation_id="list_failures", summary="Failed runs in groups, the latest failure first")
@requires("viewer")
async def list_failures(
    request: Request,
    agent: Annotated[str | None, Query(description="Only of this agent.")] = None,
    node: Annotated[str | None, Query(description="Only at this node.")] = None,
    since_ms: Annotated[
        int | None, Query(ge=0, le=MOST_INT, description="Only groups in which a run failed since then.")
    ] = None,
    namespace: Annotated[
        str | None,
        Query(description="Default: that of the server. Others need a role in `*`. `*` is refused."),
    ] = None,
    fingerprint: Annotated[str | None, Query(description="Only this failure, in all versions.")] = None,
    limit: Limit = 50,
) -> list[FailureGroup]:
    """The same message at the same node of the same version of an agent, but for numbers, ids and quoted values. The
    runs of a group are those with its `fingerprint`."""
    seen = seen_namespace(request, namespace)
    return await client_of(request).failures(
        agent=agent, node=node, since_ms=since_ms, limit=limit, namespace=seen, fingerprint=fingerprint
    )


@router.post("/{fingerprint}/discard", status_code=204, operation_id="discard_failures", summary="Note what was done")
@requires("operator")
async def discard_failures(request: Request, fingerprint: Fingerprint, body: DiscardRequest) -> None:
    """The failures of the group up to now are dealt with: the list has this as `discarded`, until another run fails
    so. The runs stay as they are."""
    namespace = _steered(request, body.namespace)
    await client_of(request).discard_failures(fingerprint, body.note, namespace=namespace)


@router.post("/{fingerprint}/reopen", status_code=204, operation_id="reopen_failures", summary="Take the note back")
@requires("operator")
async def reopen_failures(request: Request, fingerprint: Fingerprint, body: ReopenRequest | None = None) -> None:
    """The group is as if it had not been discarded."""
    namespace = _steered(request, (body or ReopenRequest()).namespace)
    await client_of(request).reopen_failures(fingerprint, namespace=namespace)


def _steered(request: Request, asked: str | None) -> str:
    """The namespace in which something is changed. Raises HttpProblem for one in which the caller may not."""
    own: str = request.app.state.namespace
    if asked in (None, own):
        return own
    caller = caller_of(request)
    if not caller.may("operator", everywhere=True):
        raise refusal(caller, "operator")
    return str(asked)
