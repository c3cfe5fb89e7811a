"""Who asks, and what they may do. Each route declares the permission that it needs, and it is checked before the body
of the request is read.

    router = APIRouter(route_class=GuardedRoute)

    @router.post("/runs/{run_id}/cancel")
    @requires("operator")
    async def cancel_run(...): ...

Until there are users, every caller on this machine is an admin without a name; `main.py` binds no other address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from sleipnir.access.records import Identity
from sleipnir.runs.actor import Actor
from sleipnir_console.problems import HttpProblem

Permission: TypeAlias = Literal["public", "user", "viewer", "approver", "operator", "admin"]
"""What a route needs: nothing (`public`, for probes), to be known (`user`), or what callers of at least this role may
do."""

RANKS: Final[dict[Permission, int]] = {
    "public": 0, "user": 1, "viewer": 2, "approver": 3, "operator": 4, "admin": 5,
}  # fmt: skip
RUN_PARAMETERS: Final = frozenset(("run_id", "other_id"))
"""The parts of paths that name runs."""
UNSEEN: Final = "there is nothing here that you may see"
_DECLARED: Final = "__sleipnir_permission__"
_EVERYWHERE: Final = "__sleipnir_everywhere__"

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
    return Caller("admin", Actor("anonymous", request.client.host if request.client else "", "api"), "admin")


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
                if not caller.may("viewer", everywhere=True):
                    for name in RUN_PARAMETERS & request.path_params.keys():
                        await _refuse_other_namespaces(request, request.path_params[name])
            response: Response = await answer(request)
            return response

        return guarded


async def _refuse_other_namespaces(request: Request, run_id: str) -> None:
    """To a caller without a role in all namespaces, the runs of others than that of the server are not there."""
    run = await request.app.state.client.run(run_id)
    if (await run.info()).namespace != request.app.state.namespace:
        raise HttpProblem("not-found", UNSEEN)


def refusal(caller: Caller, permission: Permission) -> HttpProblem:
    """What a caller gets that may not do this. To one without any role there, nothing is there."""
    if caller.permission == "user":
        return HttpProblem("not-found", UNSEEN)
    return HttpProblem("forbidden", f"this needs the permission {permission}", {"permission": permission})


def caller_of(request: Request) -> Caller:
    """The caller of a request to a route that is not public."""
    caller: Caller = request.state.caller
    return caller
