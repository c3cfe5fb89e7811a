"""/a2a/AGENT: the endpoint of an agent for other agents, JSON-RPC over HTTP, and its card.

Rule. The protocol is described elsewhere, so docs/openapi.json has it not; docs/a2a.md says what is special here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, Final
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from sleipnir.client.agent_preparation import AgentPreparation
from sleipnir.errors import SleipnirError
from sleipnir.graph.model import Graph
from sleipnir_console.agent_protocol.agent_card import agent_card
from sleipnir_console.agent_protocol.agent_message import AgentMessage, task_id_of
from sleipnir_console.agent_protocol.agent_tasks import AgentTasks
from sleipnir_console.agent_protocol.protocol_forms import (
    BAD_REQUEST,
    NO_PUSH,
    NO_VERSION,
    UNREADABLE,
    UNSUPPORTED,
    A2aError,
    Json,
    ProtocolCall,
)
from sleipnir_console.connection import client_of
from sleipnir_console.frame_stream import BEAT, FrameStream, unless_gone
from sleipnir_console.listened_run import AnswerSlots, ListenedRun
from sleipnir_console.permissions import GuardedRoute, caller_of, requires
from sleipnir_console.problems import HttpProblem, problem_of
from sleipnir_console.strict_model import AgentPath

PREFIX: Final = "/a2a"
VERSION_HEADER: Final = "A2A-Version"
_INTERNAL: Final = -32603

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)


@router.get("/{agent}/.well-known/agent-card.json", operation_id="get_agent_card")
@requires("viewer")
async def get_agent_card(request: Request, agent: AgentPath) -> Response:
    """The card."""
    graph = await asyncio.to_thread(_graph, request, agent)
    scheme = "https" if request.app.state.authentication.is_secure else request.url.scheme
    url = f"{scheme}://{request.headers.get('host', '')}{PREFIX}/{quote(agent, safe='')}"
    has_tokens = caller_of(request).identity is not None
    return JSONResponse(agent_card(agent, graph, url, has_tokens=has_tokens))


@router.post("/{agent}", operation_id="call_agent")
@requires("operator")
async def call_agent(request: Request, agent: AgentPath) -> Response:
    """One call of JSON-RPC."""
    graph = await asyncio.to_thread(_graph, request, agent)
    caller = caller_of(request)
    tasks = AgentTasks(
        client_of(request), agent, graph, request.app.state.namespace, caller.by.user, request.app.state.is_stopping
    )
    call_id: Any = None
    try:
        call = _read(await request.body())
        call_id = call.get("id")
        _check_version(request)
        called = ProtocolCall.of(call.get("method"))
        if called.method in ("stream", "follow"):
            return await _stream(request, tasks, called, call.get("params"), call_id)
        result = await unless_gone(request.receive, _result(request, tasks, called, call.get("params")))
        return Response(status_code=499) if result is None else JSONResponse(_done(call_id, result))
    except A2aError as error:
        return JSONResponse(_failed(call_id, error))


def _graph(request: Request, agent: str) -> Graph:
    preparation: AgentPreparation = request.app.state.agents
    return preparation.agent(agent).graph


def _read(body: bytes) -> Json:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        raise A2aError(UNREADABLE, "the body is not JSON") from None
    if not isinstance(call, dict) or call.get("jsonrpc") != "2.0":
        raise A2aError(BAD_REQUEST, "the body must be one call of JSON-RPC 2.0")
    if isinstance(call.get("id"), bool | list | dict | float):
        raise A2aError(BAD_REQUEST, "the id of a call must be a text or an integer")
    return call


def _check_version(request: Request) -> None:
    version = request.headers.get(VERSION_HEADER, "0.3")
    if version.partition(".")[0] != "1" and not version.startswith("0.3"):
        raise A2aError(NO_VERSION, f"the version {version[:20]!r} is not spoken here; 1.0 and 0.3 are")


async def _result(request: Request, tasks: AgentTasks, called: ProtocolCall, parameters: Any) -> Json:
    """The result of a call that does not stream."""
    match called.method:
        case "send":
            message = AgentMessage.of(parameters)
            slots = _slots(request)
            listened = await tasks.begin(message)
            if not message.waits:
                return called.sent(await tasks.now(listened.run))
            with slots.taken():
                return called.sent(await tasks.ended(listened))
        case "get":
            return called.task(await tasks.now(await tasks.find(task_id_of(parameters))))
        case "cancel":
            return called.task(await tasks.cancel(await tasks.find(task_id_of(parameters))))
    raise A2aError(NO_PUSH, "this server pushes no notifications: get the task, or stream")


async def _stream(request: Request, tasks: AgentTasks, called: ProtocolCall, parameters: Any, call_id: Any) -> Response:
    slots = _slots(request)
    if called.method == "stream":
        listened = await tasks.begin(AgentMessage.of(parameters))
    else:
        run = await tasks.find(task_id_of(parameters))
        if (await run.info()).is_final:
            raise A2aError(UNSUPPORTED, f"task {run.id!r} is over: get it")
        listened = ListenedRun(run, tasks.is_stopping)
    return _EventFrames(tasks, called, listened, slots, call_id)


def _slots(request: Request) -> AnswerSlots:
    """Raises HttpProblem if the server takes no more."""
    slots: AnswerSlots = request.app.state.answers
    slots.check()
    return slots


class _EventFrames(FrameStream):
    """The events of a task. An error ends them; the client comes back for the task."""

    def __init__(
        self, tasks: AgentTasks, called: ProtocolCall, listened: ListenedRun, slots: AnswerSlots, call_id: Any
    ) -> None:
        super().__init__({})
        self._tasks, self._called, self._listened, self._slots = tasks, called, listened, slots
        self._call_id = call_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slots.taken():
            await super().__call__(scope, receive, send)

    async def frames(self) -> AsyncGenerator[bytes]:
        try:
            async for event in self._tasks.events(self._listened):
                yield BEAT if event is None else _frame(_done(self._call_id, self._called.event(event)))
        except SleipnirError as error:
            yield _frame(_failed(self._call_id, A2aError(_INTERNAL, problem_of(error).detail)))
        except HttpProblem as problem:
            yield _frame(_failed(self._call_id, A2aError(_INTERNAL, problem.detail)))
        except Exception as error:
            structlog.get_logger().error("a stream of a task failed", run=self._listened.run.id, exc_info=error)
            yield _frame(_failed(self._call_id, A2aError(_INTERNAL, "the server failed; its log has the reason")))


def _done(call_id: Any, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


def _failed(call_id: Any, error: A2aError) -> Json:
    return {"jsonrpc": "2.0", "id": call_id, "error": {"code": error.code, "message": error.message}}


def _frame(data: Json) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
