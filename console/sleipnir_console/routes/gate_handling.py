"""What people do with an open question besides answering it: claim, release, assign, snooze and comment it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import structlog
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from sleipnir.client.async_client import AsyncGateInbox, AsyncRun
from sleipnir.client.gate_inbox import CLAIM_S, MOST_CLAIM_S
from sleipnir.client.gate_links import LINK_S, MOST_LINK_S
from sleipnir.errors import AnswerRefused, ConfigError, GateClaimed, GateError
from sleipnir.runs.handling import MOST_COMMENT
from sleipnir.runs.views import GateInfo
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.gates import GateId, closed_problem, open_gate
from sleipnir_console.strict_model import MOST_INT, Reason, RunId, StrictModel

router = APIRouter(tags=["gates"], route_class=GuardedRoute)


class ClaimRequest(StrictModel):
    """How long the claim lasts, and whether it is taken over from another person."""

    for_s: float = Field(CLAIM_S, ge=1, le=MOST_CLAIM_S, description="Seconds.")
    take_over: bool = False


class ClaimReceipt(BaseModel):
    """Until when the caller holds the question, in ms by Redis' clock."""

    run: str
    seq: int
    until_ms: int


class AssignRequest(StrictModel):
    """Who gets the question; null: nobody."""

    person: str | None = Field(max_length=64)


class SnoozeRequest(StrictModel):
    """Until when the caller's lists do without the question, in ms by Redis' clock; null: it is seen again."""

    until_ms: int | None = Field(ge=1, le=MOST_INT)


class CommentRequest(StrictModel):
    """What the caller says about the question."""

    text: str = Field(min_length=1, max_length=MOST_COMMENT, examples=["I have asked the supplier."])


class LinkRequest(StrictModel):
    """For whom a link is, and for how long."""

    person: str = Field(max_length=64, description="A user with a role in the namespace of the run.")
    for_s: float = Field(LINK_S, ge=60, le=MOST_LINK_S, description="Seconds.")
    reason: Reason = None


class LinkView(BaseModel):
    """A link: it is stored nowhere, and shown this once."""

    url: str
    person: str
    until_ms: int


async def _asked(request: Request, run_id: str, gate: str) -> tuple[AsyncRun, GateInfo, AsyncGateInbox]:
    client = client_of(request)
    run = await client.run(run_id)
    return run, await open_gate(run, gate), client.gate_inbox


async def _done(run: AsyncRun, seq: int, change: Awaitable[Any]) -> Any:
    """What a change returns. Raises HttpProblem for a question that was closed meanwhile."""
    try:
        return await change
    except (AnswerRefused, GateClaimed):
        raise
    except GateError as error:
        raise await closed_problem(run, seq, str(error)) from None


@router.post("/gates/{run_id}/{gate}/link", status_code=201, operation_id="make_link", summary="Make a signed link")
@requires("admin")
async def make_link(request: Request, run_id: RunId, gate: GateId, body: LinkRequest) -> LinkView:
    """It opens the page of the question for one person, without a login: who has it answers as that person, as far as
    the person may."""
    client = client_of(request)
    found = await open_gate(await client.run(run_id), gate)
    try:
        made = await client.gate_links.make(found, body.person, for_s=body.for_s, reason=body.reason)
    except ConfigError as error:  # the path of the key is for the log
        structlog.get_logger().error("no links can be made", error=str(error))
        raise HttpProblem("refused", "this server cannot make links: its log says why") from None
    return LinkView(url=made.url, person=made.person, until_ms=made.until_ms)


@router.post("/gates/{run_id}/{gate}/claim", operation_id="claim_gate", summary="Claim a question")
@requires("approver")
async def claim_gate(request: Request, run_id: RunId, gate: GateId, body: ClaimRequest | None = None) -> ClaimReceipt:
    """While it lasts, others answer the question only after they have taken it over. Claimed again, it lasts longer.
    409 `claimed`: another person holds it."""
    asked = body or ClaimRequest()  # type: ignore[call-arg]
    run, found, inbox = await _asked(request, run_id, gate)
    until_ms = await _done(run, found.seq, inbox.claim(found, for_s=asked.for_s, take_over=asked.take_over))
    return ClaimReceipt(run=run.id, seq=found.seq, until_ms=until_ms)


@router.post(
    "/gates/{run_id}/{gate}/release", operation_id="release_gate", summary="Release a question", status_code=204
)
@requires("approver")
async def release_gate(request: Request, run_id: RunId, gate: GateId) -> None:
    """End the claim of the caller. 409 `claimed`: another person holds it."""
    run, found, inbox = await _asked(request, run_id, gate)
    await _done(run, found.seq, inbox.release(found))


@router.post("/gates/{run_id}/{gate}/assign", operation_id="assign_gate", summary="Assign a question", status_code=204)
@requires("approver")
async def assign_gate(request: Request, run_id: RunId, gate: GateId, body: AssignRequest) -> None:
    """Say whose work it is. Others may answer it as before. 403: that person may not answer it."""
    run, found, inbox = await _asked(request, run_id, gate)
    await _done(run, found.seq, inbox.assign(found, body.person))


@router.post("/gates/{run_id}/{gate}/snooze", operation_id="snooze_gate", summary="Snooze a question", status_code=204)
@requires("approver")
async def snooze_gate(request: Request, run_id: RunId, gate: GateId, body: SnoozeRequest) -> None:
    """Hide it from what the caller has to do, until a time. Others see it as before."""
    run, found, inbox = await _asked(request, run_id, gate)
    await _done(run, found.seq, inbox.snooze(found, body.until_ms))


@router.post(
    "/gates/{run_id}/{gate}/comment", operation_id="comment_gate", summary="Comment on a question", status_code=204
)
@requires("approver")
async def comment_gate(request: Request, run_id: RunId, gate: GateId, body: CommentRequest) -> None:
    """Say something about it without answering it; its `handling` has all comments, and so has the journal of the run.
    Who may not answer it may comment. The same text of the same person is kept once."""
    run, found, inbox = await _asked(request, run_id, gate)
    await _done(run, found.seq, inbox.comment(found, body.text))
