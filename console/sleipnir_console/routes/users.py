"""Users and access tokens: admins manage those of their namespaces, and users their own password, logins and tokens.

Rule. Nobody gives more than they have (access/granted_roles.py). The rules are asked about the record that is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from sleipnir.access import credentials, granted_roles
from sleipnir.access.audit import MOST_REASON
from sleipnir.access.records import EVERY, AccessRole, AccessToken, Login, User
from sleipnir.client.access import LoginRefused, UserNotFound
from sleipnir.client.async_client import AsyncAccess
from sleipnir_console.authentication import COOKIE, Authentication
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.login import CurrentCaller, current, login_problem
from sleipnir_console.strict_model import Limit, StrictModel

router = APIRouter(tags=["users"], route_class=GuardedRoute)

DAY_S: Final = 24 * 3600
MOST_DAYS: Final = 3_650

UserName: TypeAlias = Annotated[str, Path(max_length=64, description="The name of a user.")]
Why: TypeAlias = Annotated[str | None, Field(max_length=MOST_REASON, description="Why, for the audit.")]
Roles: TypeAlias = Annotated[dict[str, AccessRole], Field(min_length=1, description="Roles by namespace; `*`: in all.")]
NewPassword: TypeAlias = Annotated[str, Field(max_length=1_000, description="12 to 1,000 characters.")]


class UserInfo(BaseModel):
    """A user. `has_password` false: only a proxy names this user."""

    name: str
    roles: dict[str, str]
    disabled: bool
    has_password: bool
    created_ms: int

    @classmethod
    def of(cls, user: User) -> UserInfo:
        return cls(
            name=user.name, roles=dict(user.roles), disabled=user.disabled, has_password=bool(user.password),
            created_ms=user.created_ms,
        )  # fmt: skip


class UserPage(BaseModel):
    """Users by name. `after` is the cursor of the next page; null: there is none."""

    items: list[UserInfo]
    after: str | None


class NewUser(StrictModel):
    """A user to be added."""

    name: str = Field(max_length=64, description="Letters, digits and `. _ @ + -`.")
    roles: Roles
    password: NewPassword | None = Field(default=None, description="null: only a proxy names the user.")
    reason: Why = None


class RoleChange(StrictModel):
    """The role of a user in a namespace."""

    namespace: str = Field(max_length=64, description="`*`: all.")
    role: AccessRole | None = Field(description="null: none.")
    reason: Why = None


class PasswordReset(StrictModel):
    """The new password of another user."""

    password: NewPassword
    reason: Why = None


class WhyBody(StrictModel):
    """Why."""

    reason: Why = None


class PasswordChange(StrictModel):
    """The caller's own password."""

    current: str = Field(max_length=1_000)
    new: NewPassword


class LoginInfo(BaseModel):
    """A login of the caller, without its secret. `is_this`: that of the request."""

    id: str
    created_ms: int
    seen_ms: int
    until_ms: int
    address: str
    is_this: bool


class TokenInfo(BaseModel):
    """An access token, without its secret."""

    id: str
    user: str
    role: str
    namespaces: list[str]
    created_ms: int
    expires_ms: int | None
    used_ms: int | None
    label: str

    @classmethod
    def of(cls, token: AccessToken) -> TokenInfo:
        return cls(
            id=token.id, user=token.user, role=token.role, namespaces=list(token.namespaces),
            created_ms=token.created_ms, expires_ms=token.expires_ms, used_ms=token.used_ms, label=token.label,
        )  # fmt: skip


class TokenPage(BaseModel):
    """Tokens by id. `after` is the cursor of the next page; null: there is none."""

    items: list[TokenInfo]
    after: str | None


class TokenRequest(StrictModel):
    """A token to be made: `role` in `namespaces`, which the caller must have there."""

    role: AccessRole = Field(description="At most this role.")
    namespaces: list[str] | None = Field(
        default=None, min_length=1, description="Only there. null: the namespace of the server."
    )
    user: str | None = Field(default=None, max_length=64, description="For whom it acts. null: for the caller.")
    days: Annotated[float, Field(strict=False)] = Field(default=90, gt=0, le=MOST_DAYS, description="It expires then.")
    label: str = Field(default="", max_length=200, description="What it is for.")
    reason: Why = None


class CreatedToken(BaseModel):
    """`token` is shown this once: only its hash is stored."""

    token: str
    info: TokenInfo


@router.get("/users", operation_id="list_users", summary="Users by name")
@requires("admin")
async def list_users(
    request: Request,
    limit: Limit = 100,
    after: Annotated[str, Query(max_length=64, description="The cursor of the page before.")] = "",
) -> UserPage:
    """Those with a role where the caller is an admin."""
    maker = _maker(request)
    seen = [user for user in await _access(request).users() if user.name > after and granted_roles.sees(maker, user)]
    page = seen[:limit]
    return UserPage(items=[UserInfo.of(user) for user in page], after=page[-1].name if len(seen) > limit else None)


@router.post("/users", status_code=201, operation_id="add_user", summary="Add a user")
@requires("admin")
async def add_user(request: Request, body: NewUser) -> UserInfo:
    """An admin gives roles only where it is an admin itself. The first user must be an admin of all namespaces, so that
    somebody can add others."""
    maker = _maker(request)
    _refuse(lambda: granted_roles.refuse_admin_grant(maker, body.roles))
    if maker is None and body.roles.get(EVERY) != "admin":
        raise HttpProblem("refused", "the first user must be an admin in '*': nobody could add others")
    if maker is None and body.password is None:
        raise HttpProblem("refused", "the first user needs a password: nobody could log in")
    return UserInfo.of(await _access(request).add_user(body.name, body.password, body.roles, reason=body.reason))


@router.get("/users/{user}", operation_id="get_user", summary="One user")
@requires("admin")
async def get_user(request: Request, user: UserName) -> UserInfo:
    """A user with a role where the caller is an admin."""
    return UserInfo.of(await _seen(request, user))


@router.post("/users/{user}/role", operation_id="set_role", summary="Give or take a role")
@requires("admin")
async def set_role(request: Request, user: UserName, body: RoleChange) -> UserInfo:
    """It applies to the next request. The last admin of all namespaces stays one."""
    maker = _maker(request)
    await _seen(request, user)
    _refuse(lambda: granted_roles.refuse_admin_grant(maker, [body.namespace]))
    return UserInfo.of(
        await _access(request).set_role(user, body.namespace, body.role, reason=body.reason, keeps_admin=True)
    )


@router.post("/users/{user}/password", operation_id="reset_password", summary="Give a user a new password")
@requires("admin")
async def reset_password(request: Request, user: UserName, body: PasswordReset) -> UserInfo:
    """All logins of the user end; tokens stay. For users whom the caller manages; for oneself: `/me/password`."""
    caller = caller_of(request)
    if caller.identity is not None and caller.identity.user == user:
        raise HttpProblem("refused", "change your own password at /me/password, with the current one")
    await _seen(request, user)
    access = _access(request)
    return UserInfo.of(await access.set_password(user, body.password, reason=body.reason, check=_managed(request)))


@router.post("/users/{user}/disable", operation_id="disable_user", summary="Disable a user")
@requires("admin")
async def disable_user(request: Request, user: UserName, body: WhyBody | None = None) -> UserInfo:
    """Its logins end, and its tokens are refused. Refused for the last admin of all namespaces."""
    return await _disabled(request, user, body, disabled=True)


@router.post("/users/{user}/enable", operation_id="enable_user", summary="Enable a user")
@requires("admin")
async def enable_user(request: Request, user: UserName, body: WhyBody | None = None) -> UserInfo:
    """Its tokens are accepted again."""
    return await _disabled(request, user, body, disabled=False)


@router.post("/me/password", operation_id="change_password", summary="Change the own password")
@requires("user")
async def change_password(request: Request, response: Response, body: PasswordChange) -> CurrentCaller:
    """With the current one, in a request of a login: no token does it. All logins end; the answer sets a new cookie."""
    identity = caller_of(request).identity
    if identity is None or identity.via != "login":
        raise HttpProblem("refused", "this needs a login with a password: no token or proxy changes it")
    address = _authentication(request).address(request)
    access = _access(request)
    try:
        await access.change_password(identity.user, body.current, body.new, address)
        made = await access.log_in(identity.user, body.new, address)
    except LoginRefused as refused:
        raise login_problem(refused) from None
    return current(request, response, made)


@router.get("/me/logins", operation_id="list_logins", summary="The own logins")
@requires("user")
async def list_logins(request: Request) -> list[LoginInfo]:
    """Those that are not over, the one that was used last first."""
    identity = caller_of(request).identity
    if identity is None:
        return []
    access = _access(request)
    cookie = credentials.of_cookie(request.cookies.get(COOKIE, "")) if identity.via == "login" else None
    this = None if cookie is None else Login.id_of(cookie.hash)
    return [
        LoginInfo(
            id=id_, created_ms=login.created_ms, seen_ms=login.seen_ms, until_ms=login.until_ms, address=login.address,
            is_this=id_ == this,
        )
        for id_, login in (await access.logins(identity.user)).items()
    ]  # fmt: skip


@router.delete("/me/logins/{login}", status_code=204, operation_id="end_login", summary="End an own login")
@requires("user")
async def end_login(request: Request, login: Annotated[str, Path(max_length=64, description="Its id.")]) -> None:
    """Its next request is refused."""
    identity = caller_of(request).identity
    await _access(request).end_login("" if identity is None else identity.user, login)


@router.get("/tokens", operation_id="list_tokens", summary="Access tokens")
@requires("user")
async def list_tokens(
    request: Request,
    limit: Limit = 100,
    after: Annotated[str, Query(max_length=64, description="The cursor of the page before.")] = "",
) -> TokenPage:
    """The caller's own, and those of users whom it manages."""
    maker, access = _maker(request), _access(request)
    names = {user.name for user in await access.users() if granted_roles.manages(maker, user)}
    if maker is not None:
        names.add(maker.user)
    seen = sorted(
        (token for token in await access.tokens() if token.user in names and token.id > after),
        key=lambda token: token.id,
    )
    page = seen[:limit]
    return TokenPage(items=[TokenInfo.of(token) for token in page], after=page[-1].id if len(seen) > limit else None)


@router.post("/tokens", status_code=201, operation_id="create_token", summary="Make an access token")
@requires("user")
async def create_token(request: Request, response: Response, body: TokenRequest) -> CreatedToken:
    """For oneself, or for a user whom the caller manages. It has no more than the caller, nor does a token that makes
    it expire before it."""
    maker, access = _maker(request), _access(request)
    namespaces = [request.app.state.namespace] if body.namespaces is None else body.namespaces
    owner = body.user or (maker.user if maker else "")
    if maker is None or owner != maker.user:
        await _seen(request, owner)
    _refuse(lambda: granted_roles.refuse_grant(maker, body.role, namespaces))
    if maker is not None and maker.expires_ms is not None:
        expires_ms = await client_of(request).now_ms() + int(body.days * DAY_S * 1000)
        _refuse(lambda: granted_roles.refuse_longer(maker, expires_ms))
    made = await access.create_token(
        owner, role=body.role, namespaces=namespaces, expires_s=body.days * DAY_S, label=body.label,
        reason=body.reason, check=_managed(request),
    )  # fmt: skip
    response.headers["Cache-Control"] = "no-store"
    return CreatedToken(token=made.text, info=TokenInfo.of(made.info))


@router.delete("/tokens/{token}", status_code=204, operation_id="revoke_token", summary="Revoke an access token")
@requires("user")
async def revoke_token(
    request: Request,
    token: Annotated[str, Path(max_length=64, description="Its id.")],
    reason: Annotated[str | None, Query(max_length=MOST_REASON, description="Why, for the audit.")] = None,
) -> None:
    """Its next request is refused. One's own, or of a user whom the caller manages."""
    access = _access(request)
    found = await access.token(token)
    try:
        owner = await access.user(found.user)
    except UserNotFound:
        owner = None
    if not granted_roles.may_revoke(_maker(request), found, owner):
        raise HttpProblem("not-found", f"there is no token {token!r} that you may revoke")
    await access.revoke_token(token, reason=reason)


async def _disabled(request: Request, name: str, body: WhyBody | None, *, disabled: bool) -> UserInfo:
    await _seen(request, name)
    reason = (body or WhyBody()).reason
    access, check = _access(request), _managed(request)
    return UserInfo.of(await access.set_disabled(name, disabled, reason=reason, check=check, keeps_admin=disabled))


async def _seen(request: Request, name: str) -> User:
    """The user; one who has no role where the caller is an admin is not there."""
    user = await _access(request).user(name)
    if not granted_roles.sees(_maker(request), user):
        raise UserNotFound(f"there is no user {name[:80]!r}; `sleipnir users ls` lists them")
    return user


def _managed(request: Request) -> Callable[[User], None]:
    """The check of a change: of oneself, or of a user whom the caller manages. Raises HttpProblem."""
    maker = _maker(request)

    def check(user: User) -> None:
        if maker is None or maker.user != user.name:
            _refuse(lambda: granted_roles.refuse_unmanaged(maker, user))

    return check


def _refuse(rule: Callable[[], None]) -> None:
    """Raise HttpProblem `forbidden` for what a rule refuses."""
    try:
        rule()
    except granted_roles.NotGranted as error:
        raise HttpProblem("forbidden", str(error), {"permission": "admin"}) from None


def _maker(request: Request) -> granted_roles.Maker:
    return caller_of(request).identity


def _access(request: Request) -> AsyncAccess:
    return client_of(request).access


def _authentication(request: Request) -> Authentication:
    found: Authentication = request.app.state.authentication
    return found
