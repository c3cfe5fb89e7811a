"""What the buttons of a decision do: answer, claim, release, assign, snooze, comment.

What was typed stays if it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import AnswerRefused, GateClaimed, GateError, UsageError
from sleipnir.graph.model import Json
from sleipnir.runs.handling import MOST_COMMENT
from sleipnir.runs.interrupts import INTERRUPT
from sleipnir.runs.views import GateInfo
from sleipnir_console.connection import client_of
from sleipnir_console.pages.decision_form import FormField, answer_of_form, fields_of, filled
from sleipnir_console.pages.decision_page import Typed, closed_page, decision_page, is_choice, together_with
from sleipnir_console.pages.gate_rows import path_of, question_of
from sleipnir_console.pages.login_page import path_here
from sleipnir_console.pages.markdown import title_of
from sleipnir_console.pages.page_route import PageRoute, form_of, link_of, next_page
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import requires
from sleipnir_console.problems import HttpProblem, problem_of
from sleipnir_console.routes.gates import GateId, closed_problem, open_gate
from sleipnir_console.strict_model import RunId

router = APIRouter(route_class=PageRoute)

ACTIONS: Final = ("claim", "take-over", "release", "assign", "snooze", "comment")
MOST_SNOOZE_S: Final = 31 * 86_400


@dataclass(frozen=True)
class Outcome:
    """What became of one of several answers."""

    gate: GateInfo
    title: str
    text: str
    is_taken: bool


@router.post("/decisions/{run_id}/{gate}/answer", operation_id="send_answer")
@requires("approver")
async def send_answer(request: Request, run_id: RunId, gate: GateId) -> Response:
    """Answers one question, or several of one node. The same answer may be sent again."""
    client, form = client_of(request), form_of(request)
    run = await client.run(run_id)
    comment = form.get("comment", "").strip()
    try:
        found = await open_gate(run, gate)
    except HttpProblem as problem:
        if problem.type not in ("already-answered", "no-question"):
            raise
        return await closed_page(request, run, gate, problem, _kept(form))
    answer, fields = _answer(found, form)
    linked = link_of(request)
    also = form.get("also", "") if linked is None else ""  # a link is for its question alone
    typed = Typed(fields, form.get("words", ""), comment)
    if answer is None or any(field.problem for field in fields):
        return await _again(request, run, found, also, typed, "Some of what was typed cannot be read.", 422)
    if len(comment) > MOST_COMMENT:
        return await _again(
            request, run, found, also, typed, f"A comment has at most {MOST_COMMENT:,} characters.", 422
        )
    others = await together_with(client, found, also)
    try:
        await run.answer(answer[0], found, comment=comment or None)
    except (AnswerRefused, GateClaimed) as error:
        status = problem_of(error).kind.status
        return await _again(request, run, found, also, typed, str(error), status)
    except GateError as error:
        closed = await closed_problem(run, found.seq, str(error))
        return await closed_page(request, run, gate, closed, _kept(form))
    except UsageError as error:
        return await _again(request, run, found, also, typed, str(error), 422)
    if linked is not None:
        return next_page(linked)
    if not others:
        return next_page(path_here(form["next"]) if form.get("next") else path_of(found))
    outcomes = [Outcome(found, title_of(question_of(found)), "answered", True)]
    outcomes += [await _answered(client_of(request), other, answer[0], comment) for other in others]
    return render(request, "decision_results.html", title="Answered together", outcomes=outcomes)


@router.post("/decisions/{run_id}/{gate}/{action}", operation_id="handle_decision")
@requires("approver")
async def handle_decision(
    request: Request, run_id: RunId, gate: GateId, action: Annotated[str, Path(pattern=f"^({'|'.join(ACTIONS)})$")]
) -> Response:
    """Claims, releases, assigns, snoozes or comments a question."""
    client, form = client_of(request), form_of(request)
    run = await client.run(run_id)
    try:
        found, inbox = await open_gate(run, gate), client.gate_inbox
    except HttpProblem as problem:
        if action != "comment" or problem.type not in ("already-answered", "no-question"):
            raise
        return await closed_page(request, run, gate, problem, _kept(form))
    typed = Typed()
    try:
        match action:
            case "claim" | "take-over":
                await inbox.claim(found, take_over=action == "take-over")
            case "release":
                await inbox.release(found)
            case "assign":
                await inbox.assign(found, form.get("person", "").strip() or None)
            case "comment":
                typed = Typed(_answer(found, form)[1], form.get("words", ""), form.get("comment", "").strip())
                await inbox.comment(found, typed.comment.replace("\r\n", "\n"))
            case _:
                await inbox.snooze(found, await _snoozed_until(request, form))
    except (AnswerRefused, GateClaimed) as error:
        return await _again(request, run, found, "", typed, str(error), problem_of(error).kind.status)
    except GateError as error:
        raise await closed_problem(run, found.seq, str(error)) from None
    except UsageError as error:
        return await _again(request, run, found, form.get("also", ""), typed, str(error), 422)
    return next_page(path_here(form["next"]) if form.get("next") else path_of(found))


async def _snoozed_until(request: Request, form: Mapping[str, str]) -> int | None:
    given = form.get("for_s", "")
    if given in ("", "0"):
        return None
    if not (given.isascii() and given.isdigit() and len(given) < 9 and int(given) <= MOST_SNOOZE_S):
        raise UsageError("a question is snoozed for at most 31 days")
    return await client_of(request).now_ms() + int(given) * 1000


def _answer(gate: GateInfo, form: Mapping[str, str]) -> tuple[tuple[Json] | None, list[FormField]]:
    """The answer, in a tuple, and the fields as filled in; None: there is none."""
    way, words = form.get("way"), form.get("words", "")
    if gate.kind == INTERRUPT and not is_choice(gate):
        value, fields = answer_of_form(filled(fields_of(gate.schema, gate.payload), form))
        return (value,), fields
    if way is None:
        return (words.replace("\r\n", "\n"),) if "own" in form or gate.kind == "input" else None, []
    if is_choice(gate):
        try:
            return (json.loads(way),), []
        except (ValueError, RecursionError):
            return (way,), []
    return (way,), []


async def _again(
    request: Request, run: AsyncRun, gate: GateInfo, also: str, typed: Typed, problem: str, status: int
) -> Response:
    """The page with what was typed, and why it was not sent."""
    shown = Typed(typed.fields or None, typed.words, typed.comment, problem, status)
    return await decision_page(request, run, gate, also=also, typed=shown)


def _kept(form: Mapping[str, str]) -> Typed:
    texts = [f"{name.removeprefix('f.')}: {text}" for name, text in form.items() if name.startswith("f.") and text]
    return Typed(words="\n".join([form.get("words", ""), *texts]).strip(), comment=form.get("comment", ""))


async def _answered(client: AsyncClient, gate: GateInfo, answer: Json, comment: str) -> Outcome:
    try:
        count = await (await client.run(gate.run)).answer(answer, gate, comment=comment or None)
    except (GateError, UsageError) as error:
        return Outcome(gate, title_of(question_of(gate)), str(error), False)
    text = "answered" if count is None else f"counted: {count.voices} of {count.quorum} people have given this answer"
    return Outcome(gate, title_of(question_of(gate)), text, True)
