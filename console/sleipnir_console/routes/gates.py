"""Gates: the open questions of runs to people, and their answers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field

from sleipnir.client.async_client import AsyncRun
from sleipnir.errors import AnswerRefused, GateAnswered, GateClaimed, GateError
from sleipnir.graph.ways_on import WayOn
from sleipnir.runs.gate_filters import GateCounts, GateView
from sleipnir.runs.views import GateInfo, StepInfo
from sleipnir_console.asked_runs import AskedNamespace, seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.problems import HttpProblem, problem_of
from sleipnir_console.strict_model import Limit, RunId, StrictModel

router = APIRouter(tags=["gates"], route_class=GuardedRoute)

_GATE: Final = re.compile(r"^([0-9]{1,15})(?:\.([0-9]{1,9}))?$")
GateId: TypeAlias = Annotated[
    str, Path(pattern=_GATE.pattern, description="The number of the visit that asks, or `VISIT.ATTEMPT`.")
]


class AnswerRequest(StrictModel):
    """An answer. That to an interrupt is any JSON which fits its `schema`, that to another question a text."""

    answer: Any = Field(description="The answer.", examples=["yes"])
    comment: str | None = Field(None, max_length=4_000, description="Why; some questions require it.")


class AnswerReceipt(BaseModel):
    """`accepted`: the question has this answer, given now, or the same one before. `counted`: `voices` people have
    given it, of the `quorum` that must; the question stays open."""

    run: str
    seq: int
    outcome: Literal["accepted", "counted"] = "accepted"
    voices: int | None = None
    quorum: int | None = None


class GatePage(BaseModel):
    """Open questions, the oldest first; `count` is how many there are in the namespace, with those whose answers are on
    their way. `after` is the cursor of the next page, null if there is none. `looked` questions were looked at: a page
    of a view may be short, or empty, and have a next one."""

    items: list[GateInfo]
    count: int
    after: str | None = None
    looked: int = 0


@router.get("/gates", operation_id="list_gates", summary="The open questions of all runs")
@requires("viewer")
async def list_gates(
    request: Request,
    limit: Limit = 100,
    skip: Annotated[int, Query(ge=0, le=10_000, description="Leave out so many.")] = 0,
    view: Annotated[
        GateView,
        Query(
            description="`mine`: claimed by the caller, assigned to it, or that name it; `role`: that it may answer; "
            "`overdue`: open for longer than `SLEIPNIR_GATE_OVERDUE_S`; `snoozed`: by the caller."
        ),
    ] = "all",
    node: Annotated[str | None, Query(max_length=500, description="The node that asks.")] = None,
    agent: Annotated[str | None, Query(max_length=500, description="The agent of the run.")] = None,
    after: Annotated[str | None, Query(max_length=100, description="The cursor of the page before.")] = None,
    namespace: AskedNamespace = None,
) -> GatePage:
    """What waits for a person in a namespace, the oldest question first."""
    client, seen = client_of(request), seen_namespace(request, namespace)
    page = await client.gate_inbox.page(
        view=view, node=node, agent=agent, namespace=seen, after=after, limit=skip + limit
    )
    count = await client.gate_count(namespace=seen)
    return GatePage(items=list(page.items[skip:]), count=count, after=page.after, looked=page.looked)


@router.get("/gates/counts", operation_id="count_gates", summary="How many questions each view has")
@requires("viewer")
async def count_gates(request: Request, namespace: AskedNamespace = None) -> GateCounts:
    """The numbers of the caller's views."""
    return await client_of(request).gate_inbox.counts(namespace=seen_namespace(request, namespace))


@router.get("/runs/{run_id}/gates", operation_id="list_run_gates", summary="The open questions of a run")
@requires("viewer")
async def list_run_gates(request: Request, run_id: RunId) -> list[GateInfo]:
    """Its questions and those of runs below it, in the order in which they were asked."""
    return await (await client_of(request).run(run_id)).gates()


@router.get("/gates/{run_id}/{gate}", operation_id="get_gate", summary="One open question")
@requires("viewer")
async def get_gate(request: Request, run_id: RunId, gate: GateId) -> GateInfo:
    """409 with who answered and when, if it is not open any more."""
    run = await client_of(request).run(run_id)
    return await open_gate(run, gate)


@router.get("/gates/{run_id}/{gate}/ways-on", operation_id="list_ways_on", summary="Where the answers lead")
@requires("viewer")
async def list_ways_on(request: Request, run_id: RunId, gate: GateId) -> list[WayOn]:
    """Which nodes run next for each option, and for any other answer (`answer` null), by the graph of the run's
    version; `then` is `code` where that decides. Empty: the definition is not stored any more."""
    client = client_of(request)
    return await client.gate_inbox.ways_on(await open_gate(await client.run(run_id), gate))


@router.post("/gates/{run_id}/{gate}/answer", operation_id="answer_gate", summary="Answer a question")
@requires("approver")
async def answer_gate(request: Request, run_id: RunId, gate: GateId, body: AnswerRequest) -> AnswerReceipt:
    """One answer counts. The same one may be repeated; for another one: 409 with who answered, when, and what. 409
    `claimed`: another person holds the question. 403: it is not for the caller, or requires a comment."""
    run = await client_of(request).run(run_id)
    seq, _ = _numbers(gate)
    count = None
    try:
        count = await run.answer(body.answer, await open_gate(run, gate), comment=body.comment)
    except (AnswerRefused, GateClaimed):
        raise
    except GateAnswered as error:
        raise await _answered(run, seq, error) from None
    except GateError as error:
        raise await closed_problem(run, seq, str(error)) from None
    except HttpProblem as problem:
        if problem.more.get("answer") != body.answer or problem.type != "already-answered":
            raise
    if count is not None:
        return AnswerReceipt(run=run.id, seq=seq, outcome="counted", voices=count.voices, quorum=count.quorum)
    return AnswerReceipt(run=run.id, seq=seq)


def _numbers(gate: str) -> tuple[int, int | None]:
    match = _GATE.fullmatch(gate)
    assert match is not None, "the path has this pattern"
    return int(match[1]), int(match[2]) if match[2] else None


async def open_gate(run: AsyncRun, gate: str) -> GateInfo:
    """The open question of the run itself. Raises HttpProblem."""
    seq, attempt = _numbers(gate)
    for found in await run.gates():
        if (found.run, found.seq) == (run.id, seq) and attempt in (None, found.attempt):
            return found
    raise await closed_problem(run, seq, f"run {run.id!r} has no open question {gate}")


async def closed_problem(run: AsyncRun, seq: int, detail: str) -> HttpProblem:
    """Why a question is not open, with who answered it."""
    step = await run.answered(seq)
    if step is None:
        return HttpProblem("no-question", detail)
    return HttpProblem("already-answered", f"question {seq} of run {run.id!r} was answered by {step.by}", _facts(step))


async def _answered(run: AsyncRun, seq: int, error: GateAnswered) -> HttpProblem:
    """What is known of an answer that no scheduler has taken yet, or has taken since."""
    step = await run.answered(seq)
    return problem_of(error) if step is None else await closed_problem(run, seq, str(error))


def _facts(step: StepInfo) -> dict[str, Any]:
    return {"answered_by": step.by, "answered_at_ms": step.at_ms, "answer": step.answer, "reason": step.reason}
