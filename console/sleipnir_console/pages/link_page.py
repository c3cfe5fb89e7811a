"""The page of a signed link: one question, for one person, without a login. Only looking at it and answering it.

Rules. The token is in the path, so it is in no log (request_log.py) and no `Referer`. What a login of the same browser
may do does not count here. The link is checked again for each request: its signature and time, its person, and the
role that the person has now.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from sleipnir.client.gate_links import LinkRefused, OpenedLink
from sleipnir.errors import RunNotFound
from sleipnir.runs.actor import Actor
from sleipnir_console.pages.decision_actions import send_answer
from sleipnir_console.pages.decision_page import show_decision
from sleipnir_console.pages.page_route import PageRoute, be_linked
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import RANKS, Caller, Permission, requires

router = APIRouter(route_class=PageRoute)

LinkToken: TypeAlias = Annotated[str, Path(max_length=2_000)]
REFERRER_POLICY: Final = "strict-origin"  # with `no-referrer` browsers send forms with the origin `null`
STATUSES = {"damaged": 404, "expired": 410, "person": 403}


@router.get("/d/{token}", operation_id="show_linked_decision")
@requires("public")
async def show_linked_decision(request: Request, token: LinkToken) -> Response:
    """The page of the question, or why the link opens nothing."""
    try:
        opened = await _opened(request, token)
        response = await show_decision(request, opened.link.run, opened.link.gate, "")
    except (LinkRefused, RunNotFound) as error:
        response = _refused(request, error)
    return _private(response)


@router.post("/d/{token}/answer", operation_id="send_linked_answer")
@requires("public")
async def send_linked_answer(request: Request, token: LinkToken) -> Response:
    """Answers the question in the name of the person."""
    try:
        opened = await _opened(request, token)
        if not request.state.caller.may("approver"):
            raise LinkRefused("person", f"{opened.link.person} may look at this question, and not answer it")
        response = await send_answer(request, opened.link.run, opened.link.gate)
    except (LinkRefused, RunNotFound) as error:
        response = _refused(request, error)
    return _private(response)


async def _opened(request: Request, token: str) -> OpenedLink:
    """The link; from then on the request is that of its person. Raises LinkRefused."""
    authentication = request.app.state.authentication
    authentication.refuse_clear_text(request)
    opened: OpenedLink = await request.app.state.client.gate_links.opened(token)
    role: Permission = opened.role  # type: ignore[assignment]
    permission = min(role, "approver", key=RANKS.__getitem__)
    by = Actor(opened.link.person, authentication.address(request), "link", opened.role)
    request.state.caller = Caller(permission, by, "user")
    be_linked(request, f"/d/{token}")
    return opened


def _refused(request: Request, error: LinkRefused | RunNotFound) -> Response:
    """Why a link opens nothing, and whom to ask."""
    be_linked(request, "")
    request.state.caller = None
    problem = error.problem if isinstance(error, LinkRefused) else "expired"
    return render(
        request,
        "link_refused.html",
        status=STATUSES[problem],
        title="This link opens nothing",
        text=str(error) if isinstance(error, LinkRefused) else "the run of this question is not stored any more",
        by=getattr(error, "by", ""),
    )


def _private(response: Response) -> Response:
    response.headers["Referrer-Policy"] = REFERRER_POLICY
    return response
