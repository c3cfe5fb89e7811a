"""The caller's own account: password, logins and access tokens."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from sleipnir.access.records import ACCESS_ROLES
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import REFUSALS, body_of, refusal_of
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import RANKS, caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.users import (
    CreatedToken,
    PasswordChange,
    TokenRequest,
    change_password,
    create_token,
    end_login,
    list_logins,
    revoke_token,
)

router = APIRouter(route_class=PageRoute)

DAYS: Final = (("1", "1 day"), ("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "1 year"))


@router.get("/me", operation_id="show_account")
@requires("user")
@same_as("/me")
async def show_account(request: Request) -> Response:
    """What the caller may do, its logins and its tokens."""
    return await _page(request)


@router.post("/me/password", operation_id="send_password")
@requires("user")
async def send_password(request: Request) -> Response:
    """Changes the password. All logins end; this browser gets a new one."""
    form = form_of(request)
    response = next_page("/me")
    try:
        if form.get("new") != form.get("again"):
            raise HttpProblem("refused", "the new password and its repetition differ")
        body = body_of(request, PasswordChange, current=form.get("current", ""), new=form.get("new", ""))
        await change_password(request, response, body)
    except REFUSALS as error:
        return await _page(request, error)
    return response


@router.post("/me/tokens", operation_id="send_token")
@requires("user")
async def send_token(request: Request) -> Response:
    """Makes an access token, and shows it this once."""
    form = form_of(request)
    try:
        days = float(form["days"]) if form.get("days") in dict(DAYS) else 90.0
        created = await create_token(request, Response(), body_of(request, TokenRequest, days=days))
    except REFUSALS as error:
        return await _page(request, error)
    return await _page(request, created=created)


@router.post("/me/logins/{login}/end", operation_id="send_end_of_login")
@requires("user")
async def send_end_of_login(request: Request, login: Annotated[str, Path(max_length=64)]) -> Response:
    """Ends a login."""
    await end_login(request, login)
    return next_page("/me")


@router.post("/tokens/{token}/revoke", operation_id="send_token_revocation")
@requires("user")
async def send_token_revocation(request: Request, token: Annotated[str, Path(max_length=64)]) -> Response:
    """Revokes a token: of the caller, or of a user whom it manages, whose page is shown then."""
    owner = (await client_of(request).access.token(token)).user
    await revoke_token(request, token)
    identity = caller_of(request).identity
    return next_page("/me" if identity is not None and identity.user == owner else f"/users/{owner}")


async def _page(request: Request, error: Exception | None = None, *, created: CreatedToken | None = None) -> Response:
    caller = caller_of(request)
    refused = None if error is None else refusal_of(request, error)
    user = None if caller.identity is None else caller.identity.user
    tokens = [token for token in await client_of(request).access.tokens() if token.user == user]
    return render(
        request, "account.html", status=200 if refused is None else refused.kind.status, title="Account",
        refused=refused, created=created, logins=await list_logins(request),
        tokens=sorted(tokens, key=lambda each: each.id), days=DAYS, identity=caller.identity,
        roles=[(role, role.capitalize()) for role in ACCESS_ROLES if RANKS[role] <= RANKS[caller.permission]],
        now_ms=await client_of(request).now_ms(),
    )  # fmt: skip
