"""Who asks, and what they may do. Each route declares the permission that it needs, and it is checked before the body
of the request is read.

    router = APIRouter(route_class=GuardedRoute)

    @router.post("/runs/{run_id}/cancel")
    @requires("operator")
    async def cancel_run(...): ...

Until there are users, every caller on this machine is an admin without a name; `main.py` binds no other address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from sleipnir.access.records import Identity
from sleipnir.client.async_client import AsyncClient
from sleipnir.errors import BatchNotFound, JobNotFound, RunNotFound, ScheduleNotFound
from sleipnir.runs.actor import Actor
from sleipnir_console.problems import HttpProblem

Permission: TypeAlias = Literal["public", "user", "viewer", "approver", "operator", "admin"]
"""What a route needs: nothing (`public`, for probes), to be known (`user`), or what callers of at least this role may
do."""

RANKS: Final[dict[Permission, int]] = {
    "public": 0, "user": 1, "viewer": 2, "approver": 3, "operator": 4, "admin": 5,
}  # fmt: skip
UNSEEN: Final = "there is nothing here that you may see"
_DECLARED: Final = "__sleipnir_permission__"
_EVERYWHERE: Final = "__sleipnir_everywhere__"


async def namespace_of_run(client: AsyncClient, run_id: str, own: str) -> str | None:
    return (await (await client.run(run_id)).info()).namespace


async def namespace_of_schedule(client: AsyncClient, name: str, own: str) -> str | None:
    return (await (await client.open_schedule(name)).info()).namespace


async def namespace_of_job(client: AsyncClient, job: str, own: str) -> str | None:
    return (await client.jobs.get(job)).plan.namespace


async def namespace_of_batch(client: AsyncClient, name: str, own: str) -> str | None:
    """A name may be that of a batch in each namespace: the own one is first."""
    try:
        await client.open_batch(name, namespace=own)
    except BatchNotFound:
        return (await (await client.open_batch(name)).info()).namespace
    return own


async def namespace_itself(client: AsyncClient, name: str, own: str) -> str | None:
    return name


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Caller:
    """Who asks. `permission` is what it may do with runs, `everywhere` with the whole deployment: with all namespaces.
    `by` is the actor for journals and records."""

    permission: Permission
    by: Actor
    everywhere: Permission
    identity: Identity | None = None

    def may(self, permission: Permission, *, everywhere: bool = False) -> bool:
        return RANKS[self.everywhere if everywhere else self.permission] >= RANKS[permission]


Authenticate: TypeAlias = Callable[[Request], Awaitable[Caller]]
"""Finds the caller of a request. Raises Problem `unauthenticated`."""


async def anyone_here(request: Request) -> Caller:
    """Every caller is an admin without a name: the server listens on this machine alone."""
    return Caller("admin", Actor("anonymous", request.client.host if request.client else "", "api", "admin"), "admin")


def requires(permission: Permission, *, everywhere: bool = False) -> Callable[[F], F]:
    """Declare the permission that an endpoint needs: with runs, or `everywhere`."""

    def declare(endpoint: F) -> F:
        setattr(endpoint, _DECLARED, permission)
        setattr(endpoint, _EVERYWHERE, everywhere)
        return endpoint

    return declare


def permission_of(endpoint: Callable[..., Any]) -> Permission | None:
    """The declared permission; None: there is none."""
    return getattr(endpoint, _DECLARED, None)


NAMESPACES: Final[Mapping[str, Callable[[AsyncClient, str, str], Awaitable[str | None]]]] = {
    "run_id": namespace_of_run, "other_id": namespace_of_run, "schedule": namespace_of_schedule,
    "batch_id": namespace_of_batch, "other_batch_id": namespace_of_batch, "job_id": namespace_of_job,
    "namespace": namespace_itself,
}  # fmt: skip
"""The parts of paths that name something of one namespace, and how that is found, with that of the server; None: it is
not known."""


class GuardedRoute(APIRoute):
    """A route that answers only callers with its permission. One without a declared permission cannot be made."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        permission = permission_of(self.endpoint)
        if permission is None:
            raise TypeError(f"the route {self.path} declares no permission: add @requires(...) to {self.name}")
        answer, everywhere = super().get_route_handler(), getattr(self.endpoint, _EVERYWHERE, False)

        async def guarded(request: Request) -> Response:
            if permission != "public":
                caller: Caller = await request.app.state.authenticate(request)
                request.state.caller = caller
                if not caller.may(permission, everywhere=everywhere):
                    raise refusal(caller, permission)
                if not caller.may(permission, everywhere=True):
                    for part in NAMESPACES.keys() & request.path_params.keys():
                        await _refuse_other_namespaces(request, caller, permission, part)
            response: Response = await answer(request)
            return response

        return guarded


async def _refuse_other_namespaces(request: Request, caller: Caller, permission: Permission, part: str) -> None:
    """In other namespaces than that of the server a caller may do what its role in all of them allows; without such a
    role, nothing of them is there, and an answer does not tell what is missing from what is theirs."""
    own: str = request.app.state.namespace
    sees_all = caller.may("viewer", everywhere=True)
    try:
        namespace = await NAMESPACES[part](request.app.state.client, request.path_params[part], own)
    except (RunNotFound, ScheduleNotFound, BatchNotFound, JobNotFound):
        if sees_all:
            raise
        raise HttpProblem("not-found", UNSEEN) from None  # of a prefix, the text would name runs of all namespaces
    if namespace == own:
        return
    if not sees_all:
        raise HttpProblem("not-found", UNSEEN)
    raise refusal(caller, permission)


def refusal(caller: Caller, permission: Permission) -> HttpProblem:
    """What a caller gets that may not do this. To one without any role there, nothing is there."""
    if caller.permission == "user":
        return HttpProblem("not-found", UNSEEN)
    return HttpProblem("forbidden", f"this needs the permission {permission}", {"permission": permission})


def caller_of(request: Request) -> Caller:
    """The caller of a request to a route that is not public."""
    caller: Caller = request.state.caller
    return caller
