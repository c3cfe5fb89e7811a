"""The application: middleware, errors, routes, and the client that all requests share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sleipnir.client.agent_preparation import AgentPreparation
from sleipnir.client.async_client import AsyncClient
from sleipnir.runs.actor import Actor
from sleipnir.settings import Settings
from sleipnir_console import error_responses, hook_requests, openapi
from sleipnir_console.agent_protocol import routes as agent_protocol
from sleipnir_console.authentication import Authentication
from sleipnir_console.body_limits import BodyLimit
from sleipnir_console.chat_completions import routes as chat_completions
from sleipnir_console.event_feeds import EventFeeds
from sleipnir_console.listened_run import AnswerSlots
from sleipnir_console.login_provider.login_provider import LoginProvider
from sleipnir_console.login_provider.provider_settings import ProviderSettings
from sleipnir_console.mcp_endpoint import PATH, McpEndpoint
from sleipnir_console.origins import LOOPBACK, OriginGuard
from sleipnir_console.pages import (
    account_page,
    agents_page,
    audit_page,
    batch_compare_page,
    batch_page,
    batches_page,
    decision_actions,
    decision_page,
    error_pages,
    failures_page,
    fleet_page,
    hooks_page,
    inbox_page,
    incident_page,
    jobs_page,
    link_page,
    login_page,
    menu_page,
    new_batch_page,
    new_job_page,
    overview_page,
    playground_page,
    provider_login,
    run_compare_page,
    run_page,
    runs_page,
    schedules_page,
    static_files,
    threads_page,
    users_page,
    webhooks_page,
)
from sleipnir_console.pages.rendering import compile_templates
from sleipnir_console.pages.run_journals import RunJournals
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.request_log import RequestLog
from sleipnir_console.routes import (
    access,
    agents,
    batches,
    conversations,
    events,
    failures,
    fleet,
    gate_handling,
    gates,
    health,
    holds,
    hooks,
    jobs,
    login,
    run_steering,
    runs,
    schedules,
    users,
    webhooks,
)

PREFIX: Final = "/api/v1"
TAGS: Final[tuple[Mapping[str, str], ...]] = (
    {"name": "agents", "description": "What can be run."},
    {"name": "runs", "description": "Executions of agents."},
    {"name": "gates", "description": "Open questions to people."},
    {"name": "batches", "description": "Many runs that are submitted together."},
    {"name": "jobs", "description": "One request to many runs, which goes on whatever dies."},
    {"name": "schedules", "description": "Runs that start by themselves."},
    {"name": "conversations", "description": "Threads and sessions: series of runs."},
    {"name": "fleet", "description": "Queues, workers, limits, cached results, signals, pausing everything."},
    {"name": "health", "description": "Probes, and the state of the deployment."},
    {"name": "login", "description": "Users, as browsers and programs know themselves."},
    {"name": "users", "description": "Users and their access tokens."},
    {"name": "audit", "description": "What was changed, by whom and why."},
    {"name": "webhooks", "description": "Which other programs hear of what happens, and which start it."},
    {"name": "interface", "description": "This document."},
)

interface = APIRouter(tags=["interface"], route_class=GuardedRoute)
ROUTERS: Final = (
    agents.router, runs.router, failures.router, run_steering.router, events.router, gates.router,
    gate_handling.router, batches.router, jobs.router,
    schedules.router, conversations.router, fleet.router, holds.router, health.router, login.router, users.router,
    access.router, webhooks.router, hooks.router, interface,
)  # fmt: skip
PAGES: Final = (
    static_files.router,
    login_page.router,
    menu_page.router,
    overview_page.router,
    failures_page.router,
    runs_page.router,
    run_compare_page.router,
    run_page.router,
    inbox_page.router,
    decision_page.router,
    decision_actions.router,
    link_page.router,
    batches_page.router,
    new_batch_page.router,
    new_job_page.router,
    jobs_page.router,
    batch_compare_page.router,
    batch_page.router,
    agents_page.router,
    playground_page.router,
    schedules_page.router,
    fleet_page.router,
    incident_page.router,
    threads_page.router,
    webhooks_page.router,
    hooks_page.router,
    audit_page.router,
    users_page.router,
    account_page.router,
    provider_login.router,
)
"""The routers of pages, below no prefix, and in no document of the interface."""

PROTOCOLS: Final = {
    chat_completions.PREFIX: chat_completions.router,
    agent_protocol.PREFIX: agent_protocol.router,
    hook_requests.PREFIX: hook_requests.router,
}
"""The routers of protocols that others define, by what their paths begin with; the document has them not."""


@interface.get("/openapi.json", operation_id="get_openapi", summary="The OpenAPI document", response_class=JSONResponse)
@requires("public")
async def get_openapi(request: Request) -> Response:
    """The description of this interface, as in docs/openapi.json."""
    return JSONResponse(openapi_document(request.app))


def create_app(settings: Settings, *, is_stopping: Callable[[], bool] = lambda: False) -> FastAPI:
    """The application for a deployment. Nothing is connected yet. `is_stopping`: whether the server is being stopped,
    so that open streams end."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=_connected)
    app.state.settings = settings
    app.state.namespace = settings.namespace
    app.state.client = AsyncClient(settings, by=Actor.here("api"))
    app.state.authentication = authentication = Authentication.of(settings)
    app.state.authenticate = authentication.caller
    provided = ProviderSettings.of(settings)
    app.state.login_provider = LoginProvider(provided) if provided is not None else None
    app.state.is_stopping = is_stopping
    app.state.methods_of = methods_of
    app.state.feeds = EventFeeds(app.state.client, is_stopping)
    error_responses.add_handlers(app, error_pages.answer)
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    for prefix, router in PROTOCOLS.items():
        app.include_router(router, prefix=prefix)
    for router in PAGES:
        app.include_router(router)
    app.state.agents = AgentPreparation(settings, packs=False)
    app.state.answers = AnswerSlots()
    app.state.journals = RunJournals()
    app.state.mcp = McpEndpoint(settings, is_stopping)
    app.router.routes.append(Route(PATH, endpoint=app.state.mcp, include_in_schema=False))
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, most_bytes=settings.console_body_bytes)
    app.add_middleware(OriginGuard, hosts=LOOPBACK if authentication.is_private else None)
    app.add_middleware(RequestLog)
    return app


@asynccontextmanager
async def _connected(app: FastAPI) -> AsyncIterator[None]:
    """Close the connections at the end. The first request opens them: a server starts also while Redis is away."""
    compiling = asyncio.create_task(asyncio.to_thread(compile_templates))
    try:
        async with app.state.mcp.running():
            yield
    finally:
        await compiling
        await app.state.client.close()


def api_routes() -> Iterator[APIRoute]:
    """All routes, with paths below PREFIX, then those of PROTOCOLS."""
    return _routes((*ROUTERS, *PROTOCOLS.values()))


def page_routes() -> Iterator[APIRoute]:
    """All routes of pages."""
    return _routes(PAGES)


def _routes(routers: Iterable[APIRouter]) -> Iterator[APIRoute]:
    for router in routers:
        for route in router.routes:
            if not isinstance(route, GuardedRoute):
                raise TypeError(f"{route} is no GuardedRoute: make its router with route_class=GuardedRoute")
            yield route


def methods_of(path: str) -> set[str]:
    """The methods that the routes of a path take, for a path without parameters (`/jobs/preview`) those of its own
    routes alone; those of PROTOCOLS have one each."""
    below, routes = path.removeprefix(PREFIX), [route for router in ROUTERS for route in router.routes]
    found = [route for route in routes if isinstance(route, APIRoute) and route.path_regex.match(below)]
    return {method for route in found if route.path == found[0].path for method in route.methods or ()}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the application."""
    return openapi.document(app.routes, {str(route.operation_id): route for route in api_routes()}, TAGS)
