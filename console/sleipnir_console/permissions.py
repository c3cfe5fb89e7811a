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

from sleipnir.runs.actor import Actor
from sleipnir_console.problems import HttpProblem

Permission: TypeAlias = Literal["public", "viewer", "approver", "operator", "admin"]
"""What a route needs: nothing (`public`, for probes), or what callers of at least this rank may do."""

RANKS: Final[dict[Permission, int]] = {"public": 0, "viewer": 1, "approver": 2, "operator": 3, "admin": 4}
_DECLARED: Final = "__sleipnir_permission__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Caller:
    """Who asks. `by` is the actor for journals and records."""

    permission: Permission
    by: Actor

    def may(self, permission: Permission) -> bool:
        return RANKS[self.permission] >= RANKS[permission]


Authenticate: TypeAlias = Callable[[Request], Awaitable[Caller]]
"""Finds the caller of a request. Raises Problem `unauthenticated`."""


async def anyone_here(request: Request) -> Caller:
    """Every caller is an admin without a name: the server listens on this machine alone."""
    return Caller("admin", Actor("anonymous", request.client.host if request.client else "", "api"))


def requires(permission: Permission) -> Callable[[F], F]:
    """Declare the permission that an endpoint needs."""

    def declare(endpoint: F) -> F:
        setattr(endpoint, _DECLARED, permission)
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
        answer = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            if permission != "public":
                caller: Caller = await request.app.state.authenticate(request)
                if not caller.may(permission):
                    raise HttpProblem(
                        "forbidden", f"this needs the permission {permission}", {"permission": permission}
                    )
                request.state.caller = caller
            response: Response = await answer(request)
            return response

        return guarded


def caller_of(request: Request) -> Caller:
    """The caller of a request to a route that is not public."""
    caller: Caller = request.state.caller
    return caller
