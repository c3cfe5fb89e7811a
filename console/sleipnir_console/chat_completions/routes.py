"""/v1/chat/completions and /v1/models: OpenAI's protocol, whose models are agents.

Rule. They are described by OpenAI, so docs/openapi.json has them not; docs/openai-api.md says what is special here.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Header, Request
from pydantic import StringConstraints
from starlette.responses import Response

from sleipnir.client.agent_preparation import AgentPreparation
from sleipnir.errors import AgentNotFound
from sleipnir.graph.model import Graph
from sleipnir.runs.views import AgentInfo
from sleipnir_console.chat_completions.chat_request import ChatRequest, conversation_of
from sleipnir_console.chat_completions.chat_response import ChunkStream, Completion
from sleipnir_console.chat_completions.chat_run import Conversation
from sleipnir_console.connection import client_of
from sleipnir_console.listened_run import AnswerSlots
from sleipnir_console.permissions import GuardedRoute, caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import AgentPath

PREFIX: Final = "/v1"
OWNER: Final = "sleipnir"

router = APIRouter(route_class=GuardedRoute, include_in_schema=False)

RequestKey: TypeAlias = Annotated[str | None, Header(min_length=1, max_length=200)]
SessionHeader: TypeAlias = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=128)] | None, Header(alias="X-Sleipnir-Session")
]
DisconnectHeader: TypeAlias = Annotated[Literal["cancel", "continue"], Header(alias="X-Sleipnir-Disconnect")]


@router.get("/models", operation_id="list_models")
@requires("viewer")
async def list_models(request: Request) -> dict[str, Any]:
    """The agents that can run."""
    agents = await client_of(request).agents()
    return {"object": "list", "data": [_model(agent) for agent in agents if agent.kind != "broken"]}


@router.get("/models/{agent}", operation_id="get_model")
@requires("viewer")
async def get_model(request: Request, agent: AgentPath) -> dict[str, Any]:
    """One agent that can run."""
    for info in await client_of(request).agents():
        if info.name == agent and info.kind != "broken":
            return _model(info)
    raise _no_model(agent)


@router.post("/chat/completions", operation_id="create_chat_completion")
@requires("operator")
async def create_chat_completion(
    request: Request,
    body: ChatRequest,
    idempotency_key: RequestKey = None,
    session: SessionHeader = None,
    disconnect: DisconnectHeader = "cancel",
) -> Response:
    """Run an agent, or answer its question, and return what it says."""
    body.check()
    graph = await asyncio.to_thread(_graph, request, body.model)
    slots: AnswerSlots = request.app.state.answers
    slots.check()
    name = session
    if name is None and body.user:
        name = conversation_of(body.user, caller_of(request).by.user, request.app.state.namespace)
    chat = await Conversation(
        client_of(request),
        graph,
        request.app.state.namespace,
        request.app.state.is_stopping,
        body,
        name,
        idempotency_key,
    ).run()
    created_s = (await chat.run.info()).created_ms // 1000
    completion = Completion(chat, body.model, created_s, slots, disconnect == "cancel", body.has_usage)
    return ChunkStream(completion) if body.stream else await completion.whole(request)


def _model(info: AgentInfo) -> dict[str, Any]:
    return {"id": info.name, "object": "model", "created": 0, "owned_by": OWNER, "description": info.description}


def _graph(request: Request, agent: str) -> Graph:
    preparation: AgentPreparation = request.app.state.agents
    try:
        return preparation.agent(agent).graph
    except AgentNotFound:
        raise _no_model(agent) from None


def _no_model(agent: str) -> HttpProblem:
    return HttpProblem("not-found", f"the model {agent[:200]!r} does not exist", {"code": "model_not_found"})
