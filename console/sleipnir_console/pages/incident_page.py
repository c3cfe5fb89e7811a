"""The incident switch: pause everything of a namespace or of the deployment, and let it go on in parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from sleipnir.client.async_client import AsyncClient
from sleipnir.runs.deployment_holds import DEPLOYMENT, ScopeHold, resumption_in_words
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import REFUSALS, number_of, refusal_of, typed
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.holds import seen_holds

router = APIRouter(route_class=PageRoute)

MOST_REASON: Final = 1_000
Action: TypeAlias = Literal["pause", "resume-agents", "resume-rate", "resume"]


@dataclass(frozen=True)
class ScopeRow:
    """A namespace, or the deployment, with its hold, if there is one, and what goes on of it in words. `path` is that
    of its forms, `api` that of the API; `may`: whether the caller may use them. `live` is how many runs of it are not
    over; None: that is not counted."""

    scope: str
    name: str
    held: ScopeHold | None
    goes_on: str
    path: str
    api: str
    may: bool
    live: int | None


@router.get("/incident", operation_id="show_incident")
@requires("viewer")
@same_as("/holds")
async def show_incident(request: Request) -> Response:
    """What is paused as a whole, and what of it goes on."""
    return await _page(request)


@router.post("/incident/deployment/{action}", operation_id="switch_deployment")
@requires("operator", everywhere=True)
async def switch_deployment(request: Request, action: Annotated[Action, Path()]) -> Response:
    """Does what a form about the deployment says."""
    return await _switch(request, None, action)


@router.post("/incident/namespaces/{namespace}/{action}", operation_id="switch_namespace")
@requires("operator")
async def switch_namespace(request: Request, namespace: str, action: Annotated[Action, Path()]) -> Response:
    """Does what a form about a namespace says."""
    return await _switch(request, namespace, action)


async def _switch(request: Request, namespace: str | None, action: Action) -> Response:
    try:
        await _ACTIONS[action](client_of(request), form_of(request), namespace)
    except REFUSALS as error:
        return await _page(request, error, namespace or DEPLOYMENT)
    return next_page("/incident")


async def _pause(client: AsyncClient, form: Mapping[str, str], namespace: str | None) -> None:
    reason = form.get("reason", "").strip()
    if not reason:
        raise HttpProblem("refused", "Say why, for everybody who looks at a run meanwhile.")
    if len(reason) > MOST_REASON:
        raise HttpProblem("refused", f"A reason has at most {MOST_REASON:,} characters.")
    await client.pause_all(reason=reason, namespace=namespace)


async def _resume_agents(client: AsyncClient, form: Mapping[str, str], namespace: str | None) -> None:
    agents = [name for name in form.get("agents", "").replace(",", " ").split() if name]
    if not agents:
        raise HttpProblem("refused", "Name the agents whose runs go on.")
    await client.resume_part(agents=agents, namespace=namespace)


async def _resume_rate(client: AsyncClient, form: Mapping[str, str], namespace: str | None) -> None:
    rate = number_of(form, "rate")
    if rate is None:
        raise HttpProblem("refused", "Say how many runs a second go on.")
    await client.resume_part(rate=float(rate), namespace=namespace)


async def _resume(client: AsyncClient, form: Mapping[str, str], namespace: str | None) -> None:
    await client.resume_all(namespace=namespace)


_ACTIONS: Final[Mapping[Action, Callable[[AsyncClient, Mapping[str, str], str | None], Awaitable[None]]]] = {
    "pause": _pause, "resume-agents": _resume_agents, "resume-rate": _resume_rate, "resume": _resume,
}  # fmt: skip


async def _page(request: Request, error: Exception | None = None, scope: str = "") -> Response:
    client, refused = client_of(request), None if error is None else refusal_of(request, error)
    holds = await seen_holds(request)
    own: str = request.app.state.namespace
    counts = await client.run_counts(namespace=own)
    live = sum(number for status, number in counts.by_status.items() if status in _LIVE)
    rows = [_row(request, each, holds, live if each == own else None) for each in _scopes(own, holds)]
    paused = sum(row.held is not None for row in rows)
    return render(
        request, "incident.html", status=200 if refused is None else refused.kind.status,
        title=f"{paused} paused: incident switch" if paused else "Incident switch", rows=rows, refused=refused,
        refused_scope=scope, typed=typed(request, "reason", "agents", "rate"),
        agents=sorted(each.name for each in await client.agents()), now_ms=await client.now_ms(),
    )  # fmt: skip


_LIVE: Final = ("submitted", "running", "waiting", "paused")


def _scopes(own: str, holds: Sequence[ScopeHold]) -> list[str]:
    """The namespace of the server, the deployment, and other namespaces that are held."""
    return [own, DEPLOYMENT, *(held.scope for held in holds if held.scope not in (own, DEPLOYMENT))]


def _row(request: Request, scope: str, holds: Sequence[ScopeHold], live: int | None) -> ScopeRow:
    own: str = request.app.state.namespace
    held = next((each for each in holds if each.scope == scope), None)
    path = "/deployment" if scope == DEPLOYMENT else f"/namespaces/{quote(scope, safe='')}"
    return ScopeRow(
        scope,
        "The deployment" if scope == DEPLOYMENT else f"Namespace {scope}",
        held,
        "" if held is None else resumption_in_words(held),
        f"/incident{path}",
        f"/api/v1{path}",
        caller_of(request).may("operator", everywhere=scope != own),
        live,
    )
