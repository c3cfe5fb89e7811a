"""The tools that are no agents: list and show runs, wait for one, answer a question, cancel.

Rule. A client sees the runs of the agents that it has tools for, with the runs below them, in the namespace of the
server. Another run does not exist for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
from mcp.types import CallToolResult, Tool, ToolAnnotations

from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import RunNotFound
from sleipnir.mcp_server.arguments import Schema, checked
from sleipnir.mcp_server.results import RUN_SCHEMA, line_of, result_of, run_content, run_result
from sleipnir.messages import STATUSES
from sleipnir.runs.interrupts import INTERRUPT
from sleipnir.runs.views import RunInfo

MOST_RUNS: Final = 100
ANSWER_S: Final = 10.0  # until a scheduler has read an answer

_RUN_ID: Final[Schema] = {"type": "string", "description": "The id of a run, or a unique prefix of 6 characters."}
_LIST: Final[Schema] = {
    "type": "object",
    "properties": {"runs": {"type": "array", "items": RUN_SCHEMA}},
    "required": ["runs"],
}


def _object(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


LIST_RUNS: Final = Tool(
    name="list_runs",
    title="List runs",
    description="Lists runs of agents, the newest first.",
    input_schema=_object(
        {
            "status": {"type": "array", "items": {"type": "string", "enum": sorted(STATUSES)}},
            "agent": {"type": "string", "description": "Only runs of this agent."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST_RUNS, "default": 20},
        }
    ),
    output_schema=_LIST,
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
SHOW_RUN: Final = Tool(
    name="show_run",
    title="Show a run",
    description="Shows one run: its status, where it is, its open questions, its result.",
    input_schema=_object({"run_id": _RUN_ID}, "run_id"),
    output_schema=RUN_SCHEMA,
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
WAIT_FOR_RUN: Final = Tool(
    name="wait_for_run",
    title="Wait for a run",
    description="Waits until a run has ended and returns its result, or returns after a while: then call it again. "
    "Cancelling this call does not cancel the run.",
    input_schema=_object({"run_id": _RUN_ID}, "run_id"),
    output_schema=RUN_SCHEMA,
    annotations=ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    ),
)
ANSWER_QUESTION: Final = Tool(
    name="answer_question",
    title="Answer a run's question",
    description="Answers an open question of a run with the user's own answer. Runs ask because a person shall decide: "
    "ask the user, and never answer in the user's place.",
    input_schema=_object(
        {
            "run_id": _RUN_ID,
            "question_id": {"type": "string", "description": "May be left out if only one question is open."},
            "answer": {"description": "The answer: one of the options, a text, or JSON that matches the schema."},
        },
        "run_id",
        "answer",
    ),
    output_schema=RUN_SCHEMA,
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False),
)
CANCEL_RUN: Final = Tool(
    name="cancel_run",
    title="Cancel a run",
    description="Cancels a run and all runs below it. What they have done stays.",
    input_schema=_object({"run_id": _RUN_ID}, "run_id"),
    output_schema=RUN_SCHEMA,
    annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True),
)


@dataclass(frozen=True)
class VisibleRuns:
    """The runs that a client sees: those of a namespace, and of these agents (None: all)."""

    client: AsyncClient
    namespace: str
    agents: frozenset[str] | None

    async def run(self, run_id: str) -> AsyncRun:
        """Raises RunNotFound, also for a run of another agent or another namespace."""
        run = await self.client.run(run_id)
        info = await run.info()
        if info.namespace != self.namespace:
            raise RunNotFound(f"no run {run_id!r}")
        if self.agents is not None:
            top = info if info.root in (None, info.id) else await (await self.client.run(info.root)).info()
            if top.agent not in self.agents:
                raise RunNotFound(f"no run {run_id!r}")
        return run

    async def listed(self, status: list[str] | None, agent: str | None, limit: int) -> list[RunInfo]:
        """The newest runs that no other run has started."""
        agents = self.agents if agent is None else frozenset((agent,)) & (self.agents or frozenset((agent,)))
        if agents is not None and not agents:
            return []
        return await self.client.runs(limit, None if status is None else set(status), agents=agents or ())

    async def content(self, run: AsyncRun) -> Schema:
        """A run as it is now."""
        info = await run.info()
        output = await run.output() if info.status == "completed" else None
        gates = [] if info.is_final else await run.gates()
        return run_content(info, output, gates, await self.client.now_ms())


async def list_runs(runs: VisibleRuns, arguments: Mapping[str, Any] | None) -> CallToolResult:
    """Raises UsageError."""
    given = checked(LIST_RUNS.input_schema, arguments)
    infos = await runs.listed(given.get("status"), given.get("agent"), given.get("limit", 20))
    now_ms = await runs.client.now_ms()
    content = {"runs": [run_content(info, now_ms=now_ms) for info in infos]}
    return result_of(content, "\n".join(map(line_of, infos)) or "no runs")


async def show_run(runs: VisibleRuns, arguments: Mapping[str, Any] | None) -> CallToolResult:
    """Raises UsageError. A run that failed is no error here."""
    given = checked(SHOW_RUN.input_schema, arguments)
    content = await runs.content(await runs.run(given["run_id"]))
    return run_result(content).model_copy(update={"is_error": False})


async def answer_question(runs: VisibleRuns, arguments: Mapping[str, Any] | None) -> CallToolResult:
    """Returns when a scheduler has read the answer, or after ANSWER_S. Raises UsageError."""
    given = checked(ANSWER_QUESTION.input_schema, arguments)
    run = await runs.run(given["run_id"])
    answer, gates = given["answer"], await run.gates()
    of_interrupt = any(gate.kind == INTERRUPT for gate in gates)
    if not isinstance(answer, str) and not of_interrupt and isinstance(answer, bool | int | float):
        answer = str(answer)  # models write 3 for "3"
    await run.answer(answer, given.get("question_id"))
    before = {(gate.run, gate.seq, gate.attempt, gate.opened_ms) for gate in gates}
    with anyio.move_on_after(ANSWER_S):
        while before == {(gate.run, gate.seq, gate.attempt, gate.opened_ms) for gate in await run.gates()}:
            await anyio.sleep(0.05)
    return run_result(await runs.content(run), "The question is answered. Call wait_for_run for the result.")


async def cancel_run(runs: VisibleRuns, arguments: Mapping[str, Any] | None) -> CallToolResult:
    """Raises UsageError, also for a run that is over."""
    given = checked(CANCEL_RUN.input_schema, arguments)
    run = await runs.run(given["run_id"])
    await run.cancel()
    content = await runs.content(run)
    return result_of(content, f"The cancellation of run {run.id} is requested; it is {content['status']} now.")
