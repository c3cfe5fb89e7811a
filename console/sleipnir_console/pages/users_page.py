"""Users, for admins: the list, one with its roles and access tokens, and the form for a new one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from sleipnir.access.records import ACCESS_ROLES
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import REFUSALS, body_of, refusal_of, typed
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.routes.users import (
    NewUser,
    PasswordReset,
    RoleChange,
    UserName,
    WhyBody,
    add_user,
    disable_user,
    enable_user,
    get_user,
    list_users,
    reset_password,
    set_role,
)
from sleipnir_console.strict_model import Limit

router = APIRouter(route_class=PageRoute)

ROLES: Final = tuple((role, role.capitalize()) for role in ACCESS_ROLES)
FIELDS: Final = ("name", "namespace", "role", "reason")
Action: TypeAlias = Literal["role", "password", "disable", "enable"]


@router.get("/users", operation_id="show_users")
@requires("admin")
@same_as("/users")
async def show_users(request: Request, limit: Limit = 50, after: Annotated[str, Query(max_length=64)] = "") -> Response:
    """A page of users, by name: those with a role where the caller is an admin."""
    page = await list_users(request, limit, after)
    following = None if page.after is None else f"/users?{urlencode({'after': page.after})}"
    now_ms = await client_of(request).now_ms()
    return render(
        request, "users.html", title="Users", rows=page.items, next=following, is_first=not after, now_ms=now_ms
    )


@router.get("/new-user", operation_id="show_new_user")
@requires("admin")
async def show_new_user(request: Request) -> Response:
    """The form for a new user."""
    return _form(request)


@router.post("/new-user", operation_id="send_new_user")
@requires("admin")
async def send_new_user(request: Request) -> Response:
    """Adds a user. One who cannot be added is shown again with the reason, without the password."""
    form = form_of(request)
    try:
        roles = {form.get("namespace", "").strip(): form.get("role", "")}
        password = form.get("password") or None
        body = body_of(request, NewUser, roles=roles, password=password)
        await add_user(request, body)
    except REFUSALS as error:
        return _form(request, error)
    return next_page(f"/users/{quote(body.name)}")


@router.get("/users/{user}", operation_id="show_user")
@requires("admin")
@same_as("/users/{user}")
async def show_user(request: Request, user: UserName) -> Response:
    """One user: roles, access tokens, and what can be done."""
    return await _page(request, user)


@router.post("/users/{user}/{action}", operation_id="change_user")
@requires("admin")
async def change_user(request: Request, user: UserName, action: Annotated[Action, Path()]) -> Response:
    """Does what a button of the page says. What is refused is shown above the page."""
    try:
        await _ACTIONS[action](request, user)
    except REFUSALS as error:
        return await _page(request, user, error)
    return next_page(f"/users/{quote(user)}")


async def _role(request: Request, user: str) -> None:
    role = form_of(request).get("role") or None
    await set_role(request, user, body_of(request, RoleChange, role=role))


async def _password(request: Request, user: str) -> None:
    given = form_of(request).get("password", "")
    await reset_password(request, user, body_of(request, PasswordReset, password=given))


async def _disable(request: Request, user: str) -> None:
    await disable_user(request, user, body_of(request, WhyBody))


async def _enable(request: Request, user: str) -> None:
    await enable_user(request, user, body_of(request, WhyBody))


_ACTIONS: Final[Mapping[Action, Callable[[Request, str], Awaitable[Any]]]] = {
    "role": _role, "password": _password, "disable": _disable, "enable": _enable,
}  # fmt: skip


def _form(request: Request, error: Exception | None = None) -> Response:
    refused = None if error is None else refusal_of(request, error)
    given = {"namespace": request.app.state.namespace, "role": "viewer"} if refused is None else {}
    return render(
        request, "new_user.html", status=200 if refused is None else refused.kind.status, title="New user",
        refused=refused, typed={**typed(request, *FIELDS), **given}, roles=ROLES,
    )  # fmt: skip


async def _page(request: Request, name: str, error: Exception | None = None) -> Response:
    user = await get_user(request, name)
    access = client_of(request).access
    tokens = sorted((token for token in await access.tokens() if token.user == user.name), key=lambda each: each.id)
    refused = None if error is None else refusal_of(request, error)
    identity = caller_of(request).identity
    return render(
        request, "user.html", status=200 if refused is None else refused.kind.status, title=f"User {user.name}",
        shown=user, tokens=tokens, refused=refused, roles=(*ROLES, ("", "None")),
        is_self=identity is not None and identity.user == user.name, api=f"/api/v1/users/{quote(user.name)}",
        now_ms=await client_of(request).now_ms(),
    )  # fmt: skip
