"""Logging in and out, and who is logged in."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from sleipnir.client.access import LoginRefused, NewLogin
from sleipnir_console.authentication import CHALLENGE, COOKIE, Authentication
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, Permission, caller_of, requires
from sleipnir_console.problems import HttpProblem

router = APIRouter(tags=["login"], route_class=GuardedRoute)


class Password(BaseModel):
    """What a user logs in with."""

    model_config = ConfigDict(extra="forbid")

    user: str = Field(max_length=64)
    password: str = Field(max_length=1_000)


class CurrentCaller(BaseModel):
    """The caller. `user`: null while there are no users, and everybody on this machine is an admin. `permission` is
    what it may do with runs. `csrf` is the text for the header `X-CSRF-Token` of requests that change something; null
    where no cookie authenticates."""

    user: str | None
    via: Literal["login", "token", "proxy"] | None
    permission: Permission
    roles: dict[str, str]
    csrf: str | None


@router.post("/login", operation_id="log_in", summary="Log in", status_code=200)
@requires("public")
async def log_in(given: Password, request: Request, response: Response) -> CurrentCaller:
    """Sets the cookie of a new login, and ends the one that the browser had. Failures slow down further attempts of
    the user and from the address: 429 with `Retry-After`."""
    authentication: Authentication = request.app.state.authentication
    authentication.refuse_clear_text(request)
    address = authentication.address(request)
    try:
        made = await request.app.state.client.access.log_in(
            given.user,
            given.password,
            address,
            replaces=request.cookies.get(COOKIE, ""),
            by=f"{given.user}@{address} (api)",
        )
    except LoginRefused as refused:
        raise login_problem(refused) from None
    return current(request, response, made)


def login_problem(refused: LoginRefused) -> HttpProblem:
    """The problem that a refused login is."""
    if refused.retry_after_ms:
        wait = {"Retry-After": str(-(-refused.retry_after_ms // 1000))}
        return HttpProblem("too-many-attempts", str(refused), headers=wait)
    return HttpProblem("unauthenticated", str(refused), headers=CHALLENGE)


def current(request: Request, response: Response, made: NewLogin) -> CurrentCaller:
    """The caller of a new login, whose cookie the response sets."""
    authentication: Authentication = request.app.state.authentication
    authentication.give(response, made.cookie)
    response.headers["Cache-Control"] = "no-store"
    identity = made.identity
    permission: Permission = authentication.permission_of(identity)
    return CurrentCaller(
        user=identity.user, via="login", permission=permission, roles=dict(identity.roles), csrf=made.csrf
    )


@router.post("/logout", operation_id="log_out", summary="Log out", status_code=204)
@requires("user")
async def log_out(request: Request, response: Response) -> None:
    """Ends the login of the cookie, and the claims of its user. Other logins and tokens stay."""
    authentication: Authentication = request.app.state.authentication
    await client_of(request).gate_inbox.release_all()
    await request.app.state.client.access.log_out(request.cookies.get(COOKIE, ""))
    authentication.take(response)


@router.get("/me", operation_id="get_me", summary="Who am I?")
@requires("user")
async def get_me(request: Request, response: Response) -> CurrentCaller:
    """The caller, and what it may do."""
    response.headers["Cache-Control"] = "no-store"
    caller = caller_of(request)
    identity = caller.identity
    if identity is None:
        return CurrentCaller(user=None, via=None, permission=caller.permission, roles={}, csrf=None)
    return CurrentCaller(
        user=identity.user, via=identity.via, permission=caller.permission, roles=dict(identity.roles),
        csrf=identity.csrf,
    )  # fmt: skip
