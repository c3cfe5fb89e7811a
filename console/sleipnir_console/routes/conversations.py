"""Threads of graph agents and sessions of config agents: series of runs."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from sleipnir.runs.views import RunInfo, SessionInfo, ThreadInfo
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import AgentName, AgentPath, Limit

router = APIRouter(tags=["conversations"], route_class=GuardedRoute)

Name: TypeAlias = Annotated[str, Path(min_length=1, max_length=200)]


class SessionDetail(BaseModel):
    """A session with its messages, the oldest first, in the format for models."""

    session: SessionInfo
    messages: list[dict[str, Any]]


@router.get("/threads", operation_id="list_threads", summary="Threads, the one used last first")
@requires("viewer")
async def list_threads(
    request: Request, agent: Annotated[AgentName | None, Query(description="Only of this agent.")] = None
) -> list[ThreadInfo]:
    """Threads of an agent, or of all."""
    return await client_of(request).threads(agent)


@router.get("/threads/{agent}/{name}", operation_id="get_thread", summary="One thread")
@requires("viewer")
async def get_thread(request: Request, agent: AgentPath, name: Name) -> ThreadInfo:
    """Its last run, and queued turns."""
    thread = await client_of(request).thread(agent, name)
    if thread is None:
        raise _no_thread(agent, name)
    return thread


@router.get("/threads/{agent}/{name}/runs", operation_id="list_thread_runs", summary="The runs of a thread")
@requires("viewer")
async def list_thread_runs(request: Request, agent: AgentPath, name: Name, limit: Limit = 50) -> list[RunInfo]:
    """Also queued ones, the last one first, as far back as they are stored."""
    runs = await client_of(request).thread_runs(agent, name, limit)
    if not runs and await client_of(request).thread(agent, name) is None:
        raise _no_thread(agent, name)
    return runs


@router.delete("/threads/{agent}/{name}", status_code=204, operation_id="remove_thread", summary="Remove a thread")
@requires("operator")
async def remove_thread(request: Request, agent: AgentPath, name: Name) -> Response:
    """Its runs stay as long as other ended runs."""
    if not await client_of(request).remove_thread(agent, name):
        raise _no_thread(agent, name)
    return Response(status_code=204)


@router.get("/sessions/{agent}", operation_id="list_sessions", summary="Sessions of an agent, the one used last first")
@requires("viewer")
async def list_sessions(request: Request, agent: AgentPath) -> list[SessionInfo]:
    """Temporary ones are not listed."""
    return await client_of(request).sessions(agent)


@router.get("/sessions/{agent}/{name}", operation_id="get_session", summary="One session with its messages")
@requires("viewer")
async def get_session(request: Request, agent: AgentPath, name: Name) -> SessionDetail:
    """What was said in it."""
    client = client_of(request)
    session = await client.session(agent, name)
    if session is None:
        raise _no_session(agent, name)
    return SessionDetail(session=session, messages=await client.said(agent, name))


@router.delete("/sessions/{agent}/{name}", status_code=204, operation_id="remove_session", summary="Delete a session")
@requires("operator")
async def remove_session(request: Request, agent: AgentPath, name: Name) -> Response:
    """Refused while a run goes on in it."""
    if not await client_of(request).remove_session(agent, name):
        raise _no_session(agent, name)
    return Response(status_code=204)


def _no_thread(agent: str, name: str) -> HttpProblem:
    return HttpProblem("not-found", f"agent {agent!r} has no thread {name!r}")


def _no_session(agent: str, name: str) -> HttpProblem:
    return HttpProblem("not-found", f"agent {agent!r} has no session {name!r}")
