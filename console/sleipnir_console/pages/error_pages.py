"""Errors as pages: what happened, what was kept, what to do. Programs get problem documents (problems.py)."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sleipnir_console.error_responses import response_of
from sleipnir_console.origins import SAFE_METHODS
from sleipnir_console.pages.page_route import is_of_page
from sleipnir_console.pages.rendering import render
from sleipnir_console.problems import HttpProblem

TITLES: Final = {
    "not-found": "There is no such page",
    "forbidden": "You may not do this",
    "csrf": "This page is of another login",
    "store-unavailable": "Redis does not answer",
    "stopping": "This server is being stopped",
    "internal": "The server failed",
}
REASONS: Final = {
    "csrf": "Somebody has logged in or out in this browser since the page was loaded. Nothing was changed. Go back, "
    "load the page again, and repeat it.",
    "store-unavailable": "Runs go on when it is back, and nothing that was accepted is lost.",
    "stopping": "Another server, or the next one, takes over.",
    "internal": "The log of the server has the reason, under the id of this request.",
}


def answer(request: Request, problem: HttpProblem) -> Response:
    """The answer to a request that failed."""
    if not is_of_page(request):
        return response_of(problem, request.scope)
    is_read = request.method in SAFE_METHODS
    if problem.type == "unauthenticated" and is_read and "hx-request" not in request.headers:
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?next={quote(here)}" if here != "/" else "/login", 303)
    kind = problem.kind
    page = render(
        request,
        "error.html",
        status=kind.status,
        title=TITLES.get(problem.type, kind.title),
        problem=problem,
        reason=REASONS.get(problem.type),
        request_id=request.scope.get("sleipnir_request_id"),
        comes_back_s=kind.retry_after_s if is_read else None,
        is_read=is_read,
    )
    page.headers.update(problem.headers)
    if kind.retry_after_s is not None:
        page.headers.setdefault("Retry-After", str(kind.retry_after_s))
    return page
