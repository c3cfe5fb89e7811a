"""Agents: the catalogue, and one with its graph, definition, findings, and a form that starts a run."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from starlette.responses import Response

from sleipnir.errors import SleipnirError, StoreUnavailable
from sleipnir.graph.draw import page_svg
from sleipnir.graph.model import Graph
from sleipnir.messages import RunStatus
from sleipnir.runs.cards import tag_of
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.agent_history import MOST_RUNS, NOW, VersionSummary, difference_of, versions_of
from sleipnir_console.pages.decision_form import FormField, answer_of_form, fields_of, filled
from sleipnir_console.pages.forms import REFUSALS, body_of, refusal_of, typed
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem, problem_of
from sleipnir_console.routes.agents import AgentSummary, get_agent, get_agent_source, list_agents
from sleipnir_console.routes.runs import Submission, submit_run
from sleipnir_console.strict_model import AgentPath

router = APIRouter(route_class=PageRoute)

MOST_AGENTS: Final = 200
MOST_DRAWN: Final = 300
LIVE: Final[tuple[RunStatus, ...]] = ("submitted", "running", "waiting", "paused")
FIELDS: Final = ("prompt", "state", "tags", "max_cost_usd", "thread", "user")
_TYPES: Final = {
    "string": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "object": "object",
    "datetime": "string",
}  # fmt: skip
"""The types of state keys that a form has fields for, as JSON Schema has them."""
VARIABLE: Final = "variable."
"""What the names of fields for variables begin with."""

Tab: TypeAlias = Literal["graph", "source", "findings", "versions", "start"]


@dataclass(frozen=True)
class AgentRow:
    """An agent of the catalogue, with the numbers of its runs by state."""

    agent: AgentSummary
    counts: Mapping[str, int]

    @property
    def success(self) -> float | None:
        """The share of the runs that ended by themselves and completed, in percent; None: none did."""
        ended = self.counts["completed"] + self.counts["failed"]
        return 100 * self.counts["completed"] / ended if ended else None


@router.get("/agents", operation_id="show_agents")
@requires("viewer")
@same_as("/agents")
async def show_agents(request: Request) -> Response:
    """The agents that the server knows by name."""
    agents = await list_agents(request)
    rows = [await _row(request, agent) for agent in agents[:MOST_AGENTS]]
    return render(request, "agents.html", title="Agents", rows=rows, agent_count=len(agents))


@router.get("/agents/{agent}", operation_id="show_agent")
@requires("viewer")
@same_as("/agents/{agent}")
async def show_agent(
    request: Request,
    agent: AgentPath,
    tab: Tab = "graph",
    prompt: Annotated[str, Query(max_length=2_000)] = "",
    first: Annotated[str | None, Query(max_length=64)] = None,
    second: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """One agent. `first` and `second` are versions whose definitions are compared."""
    return await _page(request, agent, tab, given={"prompt": prompt}, compared=(first, second))


@router.post("/agents/{agent}/start", operation_id="start_agent")
@requires("operator")
async def start_agent(request: Request, agent: AgentPath) -> Response:
    """Submits a run. The same form sent twice is one run; one that is refused is shown again with what was typed."""
    form = form_of(request)
    try:
        graph = await client_of(request).definition(agent)
        body = _submission(request, agent, _fields(graph))
        run = await submit_run(request, Response(), body, form.get("request") or None)
    except REFUSALS as error:
        return await _page(request, agent, "start", error=error)
    return next_page(f"/runs/{run.id}")


def _submission(request: Request, agent: str, fields: list[FormField]) -> Submission:
    form = form_of(request)
    variables = {name.removeprefix(VARIABLE): text for name, text in form.items() if name.startswith(VARIABLE) and text}
    tags = dict(tag_of(line.strip()) for line in form.get("tags", "").splitlines() if line.strip())
    given: dict[str, Any] = {"agent": agent, "prompt": form.get("prompt", "")}
    if variables:
        given["variables"] = variables
    changed = [field for field in filled(fields, form) if field.is_changed]
    declared, checked = answer_of_form(changed)
    if wrong := next((field for field in checked if field.problem), None):
        raise HttpProblem("refused", f"{wrong.label}: {wrong.problem}")
    if tags:
        given["tags"] = tags
    text = form.get("state", "").strip()
    if state := {**declared, **(_object(text) if text else {})}:
        given["state"] = state
    if text := form.get("max_cost_usd", "").strip():
        given["max_cost_usd"] = _number(text)
    return body_of(request, Submission, **given)


def _fields(graph: Graph) -> list[FormField]:
    """The fields for the keys of the state that the graph declares, with what the run begins with otherwise."""
    properties = {
        name: {
            **(field.schema or {}), "title": name, "description": field.description,
            **({"type": _TYPES[field.type]} if field.type in _TYPES else {}),
            **({} if field.default is None else {"default": field.default}),
        }
        for name, field in graph.state.items()
        if field.type in _TYPES or field.type == "any"
    }  # fmt: skip
    required = [name for name, field in graph.state.items() if field.required]
    if not properties:
        return []
    schema = {"type": "object", "properties": properties, "required": required}
    return [each for each in fields_of(schema, graph.initial_state) if each.path]


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HttpProblem("refused", f"the initial state is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise HttpProblem("refused", "the initial state is a JSON object: values by name")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise HttpProblem("refused", f"the cost limit is a number of USD, not {text!r:.60}") from None


async def _row(request: Request, agent: AgentSummary) -> AgentRow:
    client = client_of(request)
    groups: Mapping[str, tuple[RunStatus, ...]] = {"live": LIVE, "completed": ("completed",), "failed": ("failed",)}
    counts = {name: int(await client.run_count(group, agents=[agent.name])) for name, group in groups.items()}
    return AgentRow(agent, counts)


async def _page(
    request: Request,
    name: str,
    tab: Tab,
    *,
    given: Mapping[str, str] | None = None,
    error: Exception | None = None,
    compared: tuple[str | None, str | None] = (None, None),
) -> Response:
    agent = await get_agent(request, name)
    problem, graph = None, None
    try:
        graph = await client_of(request).definition(name)
    except StoreUnavailable:
        raise
    except SleipnirError as broken:
        problem = problem_of(broken).detail
    source = await get_agent_source(request, name)
    refused = None if error is None else refusal_of(request, error)
    variables = [] if graph is None else graph.variables
    sent = form_of(request) if error is not None else {}
    drawing = None
    if tab == "graph" and graph is not None and len(graph.nodes) <= MOST_DRAWN:
        drawing = await asyncio.to_thread(_drawing, graph)
    fields = [] if graph is None else _fields(graph)
    client, versions, difference = client_of(request), list[VersionSummary](), None
    if tab == "versions":
        versions = await versions_of(client, name, seen_namespace(request, None))
        first, second = compared
        if first and second:
            difference = await difference_of(client, versions, first, second, source.text)
    path = f"/agents/{quote(name)}"
    return render(
        request, "agent.html", status=200 if refused is None else refused.kind.status, title=f"Agent {name}",
        row=await _row(request, agent), graph=graph, problem=problem, source=source, tab=tab, drawing=drawing,
        tabs=[("graph", "Graph", None), ("source", source.file, None),
              ("findings", "Findings", len(source.findings)), ("versions", "Versions", None),
              ("start", "Start a run", None)],
        refused=refused, typed={**typed(request, *FIELDS), **(given or {})}, request_id=secrets.token_hex(16),
        variables=[(each, sent.get(VARIABLE + each.name, each.default or "")) for each in variables],
        versions=versions, difference=difference, now_name=NOW, run_limit=MOST_RUNS,
        now_ms=await client.now_ms(),
        fields=filled(fields, sent) if sent else fields, variable=VARIABLE,
        may_start=caller_of(request).may("operator"), agent_path=path,
        path_of=lambda **query: f"{path}?{urlencode(query)}",
    )  # fmt: skip


def _drawing(graph: Graph) -> Markup:
    """The graph, which escapes its texts by itself."""
    return Markup(page_svg(graph, progress=None, links={}, selected=None))
