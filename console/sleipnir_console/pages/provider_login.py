"""Logging in at a login provider: going there, coming back, and logging out there too."""

from __future__ import annotations

from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from sleipnir.client.access import LoginRefused, ProofRefused
from sleipnir.errors import UsageError
from sleipnir_console.authentication import COOKIE, Authentication
from sleipnir_console.login_provider.begun_login import LIFE_MS, BegunLogin
from sleipnir_console.login_provider.login_provider import LoginProvider, ProviderRefused, ProviderUnavailable
from sleipnir_console.pages.login_page import login_form, path_here
from sleipnir_console.pages.page_route import PageRoute, next_page
from sleipnir_console.permissions import requires
from sleipnir_console.problems import HttpProblem

router = APIRouter(route_class=PageRoute)

MOST_TEXT: Final = 4_000
"""Characters of a code."""
Text = Annotated[str, Query(max_length=MOST_TEXT)]


@router.get("/login/oidc", operation_id="begin_provider_login")
@requires("public")
async def begin_provider_login(request: Request, next: Annotated[str, Query(max_length=2_000)] = "/") -> Response:
    """Leads to the page of the login provider."""
    provider, authentication = _provider_of(request), _authentication_of(request)
    wanted, now_ms = path_here(next), await request.app.state.client.now_ms()
    begun = BegunLogin.new(now_ms, wanted)
    try:
        response = next_page(await provider.address_of_login(begun, now_ms))
    except ProviderUnavailable as error:
        return login_form(request, wanted, refused=str(error), status=503)
    response.set_cookie(
        _cookie_name(authentication), begun.cookie, max_age=LIFE_MS // 1000, httponly=True, samesite="lax",
        secure=authentication.is_secure,
    )  # fmt: skip
    response.headers["Cache-Control"] = "no-store"
    return response


@router.get("/login/oidc/callback", operation_id="finish_provider_login")
@requires("public")
async def finish_provider_login(
    request: Request, state: Text = "", code: Text = "", iss: Text = "", error: Text = ""
) -> Response:
    """Logs in whom the provider has proved, and shows the page that was asked for."""
    provider, authentication = _provider_of(request), _authentication_of(request)
    client = request.app.state.client
    begun = BegunLogin.of(request.cookies.get(_cookie_name(authentication), ""), await client.now_ms())
    if begun is None or not begun.is_state(state):
        return login_form(
            request, "/", status=400,
            refused="This login was not begun in this browser, or too long ago, or it has been used. Nobody was logged "
            f"in. Begin again at {provider.settings.console}/login.",
        )  # fmt: skip
    try:
        if iss and iss != provider.settings.issuer:
            raise ProviderRefused("the answer is of another login provider")
        if error or not code:
            raise ProviderRefused(f"{provider.settings.name} has refused the login ({error[:80] or 'no code'})")
        response = await _logged_in(request, provider, begun, code)
    except LoginRefused as refused:
        response = login_form(request, begun.next, refused=str(refused), status=429 if refused.retry_after_ms else 401)
    except ProviderUnavailable as away:
        response = login_form(request, begun.next, refused=str(away), status=503)
    except UsageError as wrong:
        structlog.get_logger().warning("a login through the provider is refused", why=str(wrong))
        response = login_form(request, begun.next, refused=str(wrong), status=403 if _is_known(wrong) else 401)
    response.delete_cookie(_cookie_name(authentication), httponly=True, samesite="lax", secure=authentication.is_secure)
    return response


async def _logged_in(request: Request, provider: LoginProvider, begun: BegunLogin, code: str) -> Response:
    authentication, access = _authentication_of(request), request.app.state.client.access
    address = authentication.address(request)
    attempt = await access.begin_provided(address)
    user = await provider.user_of(code, begun, attempt.now_ms)
    made = await access.log_in_provided(
        user, attempt, begun.proof, life_ms=provider.settings.login_ms, replaces=request.cookies.get(COOKIE, ""),
        by=f"{user.name}@{address} (api)",
    )  # fmt: skip
    response = next_page(path_here(begun.next))
    authentication.give(response, made.cookie)
    response.headers["Cache-Control"] = "no-store"
    return response


@router.get("/login/oidc/logout", operation_id="leave_provider")
@requires("public")
async def leave_provider(request: Request) -> Response:
    """Leads to the page of the provider that ends its own login."""
    provider = _provider_of(request)
    try:
        address = await provider.address_of_logout(await request.app.state.client.now_ms())
    except ProviderUnavailable as error:
        return login_form(request, "/", refused=str(error), status=503)
    if address is None:
        return login_form(request, "/", refused=f"{provider.settings.name} has no page to log out; close the browser.")
    return RedirectResponse(address, 303, {"Cache-Control": "no-store"})


def _is_known(error: UsageError) -> bool:
    """Whether it is clear who it is, who may not log in."""
    return isinstance(error, ProofRefused)


def _provider_of(request: Request) -> LoginProvider:
    provider: LoginProvider | None = request.app.state.login_provider
    if provider is None:
        raise HttpProblem("not-found", "no login provider is configured; docs/users.md says how")
    _authentication_of(request).refuse_clear_text(request)
    return provider


def _authentication_of(request: Request) -> Authentication:
    found: Authentication = request.app.state.authentication
    return found


def _cookie_name(authentication: Authentication) -> str:
    """With TLS, browsers take a cookie of this name from this very host alone."""
    return "__Host-sleipnir_begun" if authentication.is_secure else "sleipnir_begun"
