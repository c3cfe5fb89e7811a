"""POST /hooks/NAME: the requests of other programs, which prove with each who they are. docs/webhooks.md says how."""

from __future__ import annotations

from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from sleipnir import failpoints
from sleipnir.client.async_client import AsyncClient
from sleipnir.client.hooks import HookRefused
from sleipnir.errors import ConfigError
from sleipnir.runs.actor import Actor
from sleipnir.webhooks.hooks import HookRequest
from sleipnir_console.authentication import CHALLENGE, Authentication
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.problems import HttpProblem

PREFIX: Final = "/hooks"

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)


@router.post("/{name}", operation_id="receive_hook")
@requires("public")
async def receive_hook(request: Request, name: Annotated[str, Path(max_length=64)]) -> Response:
    """202 with the id of the run, or of the signal: the same for the same request again."""
    authentication: Authentication = request.app.state.authentication
    authentication.refuse_clear_text(request)
    address = authentication.address(request)
    client: AsyncClient = request.app.state.client
    acting = client.acting_as(Actor(f"hook {name}", address, "hook", "operator"))
    given = HookRequest(await request.body(), dict(request.headers), address)
    try:
        receipt = await acting.hooks.receive(name, given)
    except HookRefused as refused:
        raise _problem_of(name, address, refused) from None
    except ConfigError as error:  # the sender repeats it; the operator finds why in the log
        structlog.get_logger().error("a request to a hook cannot be verified", hook=name, error=str(error))
        raise HttpProblem("internal", "this server cannot verify requests to this hook: its log says why") from None
    failpoints.hit("hook_received.after")
    answer: dict[str, Any] = {"id": receipt.run} if receipt.run else {"signal": receipt.signal, "id": receipt.id}
    structlog.get_logger().info("a request to a hook", hook=name, address=address, **answer)
    return JSONResponse(answer, 202)


def _problem_of(name: str, address: str, refused: HookRefused) -> HttpProblem:
    """The problem of a request that is refused. While wrong ones are slowed down they are not logged."""
    wait_s = -(-refused.retry_after_ms // 1000)
    headers = {"Retry-After": str(wait_s)} if wait_s else {}
    if not refused.is_forged:
        return HttpProblem("too-many-requests", str(refused), headers=headers)
    if wait_s:
        return HttpProblem("too-many-attempts", "too many requests from here had a wrong proof", headers=headers)
    structlog.get_logger().warning("a request to a hook had a wrong proof", hook=name, address=address)
    return HttpProblem("unauthenticated", str(refused), headers=CHALLENGE)
