"""The login page, logging out, and the choice of a theme."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir.access.provided_users import is_provided
from sleipnir.client.access import LoginRefused
from sleipnir_console.authentication import COOKIE, Authentication
from sleipnir_console.connection import client_of
from sleipnir_console.login_provider.login_provider import LoginProvider
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page
from sleipnir_console.pages.rendering import THEME_COOKIE, THEMES, render
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem

router = APIRouter(route_class=PageRoute)

MOST_NAME: Final = 64
MOST_PASSWORD: Final = 1_000
_YEAR_S: Final = 365 * 86_400


def path_here(text: str) -> str:
    """A path of this server; the first page for anything else, so that no link leads away from here."""
    is_path = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and " " not in text
    return text if is_path else "/"


def login_form(
    request: Request, next: str, *, name: str = "", refused: str | None = None, status: int = 200
) -> Response:
    """The page to log in on. `next` is the page that follows, `refused` says why nobody was logged in."""
    provider: LoginProvider | None = request.app.state.login_provider
    return render(
        request, "login.html", status=status, title="Log in", next=next, name=name, refused=refused,
        provider=provider.settings.name if provider else None, left="left" in request.query_params,
    )  # fmt: skip


@router.get("/login", operation_id="show_login")
@requires("public")
async def show_login(request: Request, next: Annotated[str, Query(max_length=2_000)] = "/") -> Response:
    """The form for user and password, and the way to the login provider."""
    return login_form(request, path_here(next))


@router.post("/login", operation_id="send_login")
@requires("public")
async def send_login(request: Request) -> Response:
    """Logs in, and shows the page that was asked for. A refused attempt keeps the name."""
    form = form_of(request)
    name, password, wanted = form.get("user", ""), form.get("password", ""), path_here(form.get("next", "/"))
    authentication: Authentication = request.app.state.authentication
    authentication.refuse_clear_text(request)
    address = authentication.address(request)
    try:
        if len(name) > MOST_NAME or len(password) > MOST_PASSWORD:
            raise HttpProblem("too-large", "the name or the password is too long")
        made = await request.app.state.client.access.log_in(
            name, password, address, replaces=request.cookies.get(COOKIE, ""), by=f"{name}@{address} (api)"
        )
    except LoginRefused as refused:
        status = 429 if refused.retry_after_ms else 401
        return login_form(request, wanted, name=name, refused=str(refused), status=status)
    response = next_page(wanted)
    authentication.give(response, made.cookie)
    return response


@router.post("/logout", operation_id="send_logout")
@requires("user")
async def send_logout(request: Request) -> Response:
    """Ends the login of this browser, and the claims of its user."""
    authentication: Authentication = request.app.state.authentication
    await client_of(request).gate_inbox.release_all()
    await request.app.state.client.access.log_out(request.cookies.get(COOKIE, ""))
    identity = caller_of(request).identity
    is_there_too = identity is not None and is_provided(identity.user)
    response = next_page("/login?left=provider" if is_there_too else "/login")
    authentication.take(response)
    return response


@router.post("/theme", operation_id="choose_theme")
@requires("public")
async def choose_theme(request: Request) -> Response:
    """Keeps the theme in a cookie, so that pages come in it at once."""
    form = form_of(request)
    response = next_page(path_here(form.get("here", "/")))
    if form.get("theme") in THEMES:
        authentication: Authentication = request.app.state.authentication
        response.set_cookie(
            THEME_COOKIE, form["theme"], max_age=_YEAR_S, samesite="lax", secure=authentication.is_secure
        )
    return response
