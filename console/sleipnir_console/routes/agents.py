"""Agents that the server knows: their description, definition and drawing."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from sleipnir.agents.finding import describe, find, look_up
from sleipnir.errors import AgentNotFound
from sleipnir.graph.draw import Direction, Theme, svg
from sleipnir.graph.load import load_agent
from sleipnir.runs.views import AgentInfo
from sleipnir.settings import Settings
from sleipnir_console.connection import client_of
from sleipnir_console.drawing import SVG, drawing
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import AgentPath

router = APIRouter(prefix="/agents", tags=["agents"], route_class=GuardedRoute)

MOST_SOURCE_BYTES: Final = 4 * 2**20


class AgentSummary(BaseModel):
    """An agent. `problem` says why a `broken` one cannot run."""

    name: str
    kind: str
    description: str = ""
    problem: str | None = None
    conversation_starters: list[str] = []

    @classmethod
    def of(cls, info: AgentInfo) -> AgentSummary:
        return cls(
            name=info.name, kind=info.kind, description=info.description, problem=info.problem,
            conversation_starters=list(info.conversation_starters),
        )  # fmt: skip


class AgentFinding(BaseModel):
    """A finding of `sleipnir validate`. Lines and columns count from 1."""

    level: str
    code: str
    message: str
    line: int | None = None
    column: int | None = None
    node: str | None = None
    hint: str | None = None


class AgentFile(BaseModel):
    """The file that defines an agent, as it is now, and the findings of its checks."""

    agent: str
    file: str
    text: str
    findings: list[AgentFinding]


@router.get("", operation_id="list_agents", summary="The agents that can be run by name")
@requires("viewer")
async def list_agents(request: Request) -> list[AgentSummary]:
    """All agents that the server finds, sorted by name; broken ones with their problem."""
    return [AgentSummary.of(info) for info in await client_of(request).agents()]


@router.get("/{agent}", operation_id="get_agent", summary="One agent")
@requires("viewer")
async def get_agent(request: Request, agent: AgentPath) -> AgentSummary:
    """Its kind and description, and the problem of a broken one."""
    settings = _settings(request)
    return AgentSummary.of(await asyncio.to_thread(lambda: describe(find(agent, settings), agent)))


@router.get("/{agent}/source", operation_id="get_agent_source", summary="The definition of an agent")
@requires("viewer")
async def get_agent_source(request: Request, agent: AgentPath) -> AgentFile:
    """The text of its graph.yaml, config.yaml or graph.py, with the findings of its checks. Of a graph.py, which is not
    executed for this, only the text."""
    return await asyncio.to_thread(_source, agent, _settings(request))


@router.get("/{agent}/structure", operation_id="get_agent_structure", summary="Nodes, edges and surfaces of an agent")
@requires("viewer")
async def get_agent_structure(request: Request, agent: AgentPath) -> dict[str, Any]:
    """As `sleipnir structure export` writes it, with the agents that its nodes name."""
    structure = await client_of(request).structure(agent)
    data: dict[str, Any] = structure.to_json()
    return data


@router.get("/{agent}/drawing", operation_id="draw_agent", summary="The graph of an agent as SVG", responses=SVG)
@requires("viewer")
async def draw_agent(
    request: Request,
    agent: AgentPath,
    direction: Annotated[Direction, Query(description="Top-down, or left to right.")] = "TB",
    theme: Annotated[Theme, Query(description="`auto` follows the theme of the viewer.")] = "auto",
) -> Response:
    """The picture that `sleipnir draw` makes."""
    graph = await client_of(request).definition(agent)
    return drawing(await asyncio.to_thread(svg, graph, direction=direction, theme=theme))


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def _source(name: str, settings: Settings) -> AgentFile:
    agent = look_up(name, settings)
    try:
        with agent.file.open("rb") as file:
            raw = file.read(MOST_SOURCE_BYTES + 1)
    except OSError as error:
        raise AgentNotFound(f"the definition of agent {name!r} cannot be read: {error.strerror}") from None
    if len(raw) > MOST_SOURCE_BYTES:
        raise HttpProblem("refused", f"the definition of agent {name!r} has more than {MOST_SOURCE_BYTES:,} bytes")
    found = [] if agent.is_python else load_agent(agent).problems
    findings = [
        AgentFinding(
            level=each.level, code=each.code, message=each.message, line=each.line, column=each.column, node=each.node,
            hint=each.hint,
        )
        for each in found
    ]  # fmt: skip
    return AgentFile(agent=name, file=agent.file.name, text=raw.decode("utf-8", "replace"), findings=findings)
