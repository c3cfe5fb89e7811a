"""Threads of graph agents and sessions of config agents: series of runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from sleipnir.runs.views import RunInfo, SessionInfo, ThreadInfo
from sleipnir_console.asked_runs import AskedNamespace, seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import UNSEEN, GuardedRoute, Permission, caller_of, refusal, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.runs import SubmittedRun
from sleipnir_console.strict_model import AgentName, AgentPath, Limit, StrictModel, Values

router = APIRouter(tags=["conversations"], route_class=GuardedRoute)

Name: TypeAlias = Annotated[str, Path(min_length=1, max_length=200)]
AskedAgent: TypeAlias = Annotated[AgentName | None, Query(description="Only of this agent.")]
After: TypeAlias = Annotated[str | None, Query(description="The cursor of the page before.", max_length=1000)]
OneNamespace: TypeAlias = Annotated[
    str | None, Query(description="Default: that of the server. Others need a role in `*`.", max_length=63)
]


class ThreadPage(BaseModel):
    """Threads, and the cursor of the next page; null: there is none."""

    items: list[ThreadInfo]
    after: str | None


class SessionPage(BaseModel):
    """Sessions, and the cursor of the next page; null: there is none."""

    items: list[SessionInfo]
    after: str | None


class ThreadUpdateRequest(StrictModel):
    """Values of the state, and who has written them."""

    values: Values = Field(description="By state key, in their JSON form.")
    as_node: str | None = Field(default=None, description="As this node. Default: the one that wrote last.")
    mode: Literal["reduce", "set"] = Field(
        default="reduce", description="`set` replaces the values of keys with reducers."
    )
    checkpoint_id: str | None = Field(
        default=None,
        max_length=100,
        description="After this checkpoint of the thread, `RUN:STEP`. Default: the last one.",
    )


class SessionDetail(BaseModel):
    """A session with its messages, the oldest first, in the format for models."""

    session: SessionInfo
    messages: list[dict[str, Any]]


@router.get("/threads", operation_id="list_threads", summary="Threads, the one used last first")
@requires("viewer")
async def list_threads(
    request: Request,
    agent: AskedAgent = None,
    namespace: AskedNamespace = None,
    limit: Limit = 50,
    after: After = None,
) -> ThreadPage:
    """Threads of an agent, or of all, in a namespace. A page with few items and a cursor says that few fit."""
    namespace = seen_namespace(request, namespace)
    found = await client_of(request).threads(agent, namespace=namespace, limit=limit, after=after)
    return ThreadPage(items=list(found), after=found.after)


@router.get("/threads/{agent}/{name}", operation_id="get_thread", summary="One thread")
@requires("viewer")
async def get_thread(request: Request, agent: AgentPath, name: Name, namespace: OneNamespace = None) -> ThreadInfo:
    """Its last run, and queued turns."""
    thread = await client_of(request).thread(agent, name, namespace=_namespace_of(request, namespace, "viewer"))
    if thread is None:
        raise _no_thread(agent, name)
    return thread


@router.get("/threads/{agent}/{name}/runs", operation_id="list_thread_runs", summary="The runs of a thread")
@requires("viewer")
async def list_thread_runs(
    request: Request, agent: AgentPath, name: Name, limit: Limit = 50, namespace: OneNamespace = None
) -> list[RunInfo]:
    """Also queued ones, the last one first, as far back as they are stored."""
    of = _namespace_of(request, namespace, "viewer")
    runs = await client_of(request).thread_runs(agent, name, limit, namespace=of)
    if not runs and await client_of(request).thread(agent, name, namespace=of) is None:
        raise _no_thread(agent, name)
    return runs


@router.post(
    "/threads/{agent}/{name}/update", status_code=201, operation_id="update_thread_state",
    summary="Begin the next turn with other values",
)  # fmt: skip
@requires("operator")
async def update_thread_state(
    request: Request,
    response: Response,
    agent: AgentPath,
    name: Name,
    body: ThreadUpdateRequest,
    namespace: OneNamespace = None,
) -> SubmittedRun:
    """The turn begins as if the node `as_node` had written the values, and stops before the next nodes until it is
    resumed. Refused while the last run of the thread is not over."""
    client, of = client_of(request), _namespace_of(request, namespace, "operator")
    if await client.thread(agent, name, namespace=of) is None:
        raise _no_thread(agent, name)
    place = {"thread_id": name, "checkpoint_id": body.checkpoint_id}
    run = await client.update_state(
        agent, {"configurable": place}, body.values, body.as_node, mode=body.mode, namespace=of
    )
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return SubmittedRun(id=run.id)


@router.delete("/threads/{agent}/{name}", status_code=204, operation_id="remove_thread", summary="Remove a thread")
@requires("operator")
async def remove_thread(request: Request, agent: AgentPath, name: Name, namespace: OneNamespace = None) -> Response:
    """Its runs stay as long as other ended runs."""
    of = _namespace_of(request, namespace, "operator")
    if not await client_of(request).remove_thread(agent, name, namespace=of):
        raise _no_thread(agent, name)
    return Response(status_code=204)


@router.get("/sessions", operation_id="list_sessions", summary="Sessions, the one used last first")
@requires("viewer")
async def list_sessions(
    request: Request,
    agent: AskedAgent = None,
    namespace: AskedNamespace = None,
    limit: Limit = 50,
    after: After = None,
) -> SessionPage:
    """Sessions of an agent, or of all, in a namespace; temporary ones are not listed. A page with few items and a
    cursor says that few fit."""
    namespace = seen_namespace(request, namespace)
    found = await client_of(request).sessions(agent, namespace=namespace, limit=limit, after=after)
    return SessionPage(items=list(found), after=found.after)


@router.get("/sessions/{agent}/{name}", operation_id="get_session", summary="One session with its messages")
@requires("viewer")
async def get_session(request: Request, agent: AgentPath, name: Name, namespace: OneNamespace = None) -> SessionDetail:
    """What was said in it."""
    client, of = client_of(request), _namespace_of(request, namespace, "viewer")
    session = await client.session(agent, name, namespace=of)
    if session is None:
        raise _no_session(agent, name)
    return SessionDetail(session=session, messages=await client.said(agent, name, namespace=of))


@router.delete("/sessions/{agent}/{name}", status_code=204, operation_id="remove_session", summary="Delete a session")
@requires("operator")
async def remove_session(request: Request, agent: AgentPath, name: Name, namespace: OneNamespace = None) -> Response:
    """Refused while a run goes on in it."""
    of = _namespace_of(request, namespace, "operator")
    if not await client_of(request).remove_session(agent, name, namespace=of):
        raise _no_session(agent, name)
    return Response(status_code=204)


def _namespace_of(request: Request, asked: str | None, permission: Permission) -> str:
    """The namespace of a thread or a session. What a caller may do in others than that of the server, its role in all
    of them allows; without such a role, nothing of them is there."""
    own: str = request.app.state.namespace
    if asked in (None, own):
        return own
    caller = caller_of(request)
    if not caller.may("viewer", everywhere=True):
        raise HttpProblem("not-found", UNSEEN)
    if not caller.may(permission, everywhere=True):
        raise refusal(caller, permission)
    return asked


def _no_thread(agent: str, name: str) -> HttpProblem:
    return HttpProblem("not-found", f"agent {agent!r} has no thread {name!r}")


def _no_session(agent: str, name: str) -> HttpProblem:
    return HttpProblem("not-found", f"agent {agent!r} has no session {name!r}")
