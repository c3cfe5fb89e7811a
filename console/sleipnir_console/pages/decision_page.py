"""A decision: one open question with its evidence, the form of its answer, and where each answer leads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir.client.async_client import AsyncClient, AsyncRun
from sleipnir.errors import RecordUnreadable, RunNotFound
from sleipnir.graph.model import ApprovalNode, Graph, InputNode
from sleipnir.graph.ways_on import WayOn
from sleipnir.runs.interrupts import INTERRUPT
from sleipnir.runs.views import GateInfo, RunInfo, StepInfo
from sleipnir_console.connection import client_of
from sleipnir_console.pages.decision_form import FormField, fields_of
from sleipnir_console.pages.formats import json_text
from sleipnir_console.pages.gate_rows import has_own_words, is_refusal, name_of, path_of, question_of, row_of
from sleipnir_console.pages.markdown import markdown_html
from sleipnir_console.pages.page_route import PageRoute, link_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.value_summary import ValueSummary
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.gates import GateId, open_gate
from sleipnir_console.strict_model import RunId

router = APIRouter(route_class=PageRoute)

MOST_STATE: Final = 40
MOST_STEPS: Final = 8
MOST_TOGETHER: Final = 50
SNOOZES: Final = (
    (3600, "for an hour"),
    (4 * 3600, "for 4 hours"),
    (24 * 3600, "for a day"),
    (7 * 86_400, "for a week"),
)


@dataclass(frozen=True)
class WayOption:
    """A button of the form. `value` is the answer that it sends, `key` the letter that presses it; `way` is what runs
    next; None: not known."""

    label: str
    value: str
    key: str
    way: WayOn | None


@dataclass(frozen=True)
class Typed:
    """What was typed and could not be sent: it stays in the form, with what is wrong. `status` is that of the page."""

    fields: Sequence[FormField] | None = None
    words: str = ""
    comment: str = ""
    problem: str = ""
    status: int = 200


@dataclass(frozen=True)
class DecisionSummary:
    """What the decision is about, besides the question: what it shows, what the model wrote in the step `by` (None: no
    model was asked), the state, and the last steps of the run."""

    by: StepInfo | None = None
    said: Sequence[ValueSummary] = ()
    payload: Sequence[ValueSummary] = ()
    state: Sequence[ValueSummary] = ()
    more: int = 0
    steps: Sequence[StepInfo] = field(default=())


@router.get("/decisions", operation_id="show_decisions")
@requires("viewer")
async def show_decisions(request: Request, gate: Annotated[list[str], Query()] = []) -> Response:  # noqa: B006
    """The first one of several questions that are to be answered together."""
    if not gate:
        return next_page("/inbox")
    first, *others = dict.fromkeys(gate[:MOST_TOGETHER])
    run_id, _, name = first.partition("/")
    found = await open_gate(await client_of(request).run(run_id), _checked(name))
    also = f"?also={','.join(others)}" if others else ""
    return next_page(path_of(found) + also)


@router.get("/decisions/{run_id}/{gate}", operation_id="show_decision")
@requires("viewer")
@same_as("/gates/{run_id}/{gate}")
async def show_decision(
    request: Request, run_id: RunId, gate: GateId, also: Annotated[str, Query(max_length=4_000)] = ""
) -> Response:
    """The page of a question; of one that is not open any more, who answered it."""
    client = client_of(request)
    run = await client.run(run_id)
    try:
        found = await open_gate(run, gate)
    except HttpProblem as problem:
        if problem.type not in ("already-answered", "no-question"):
            raise
        return await closed_page(request, run, gate, problem)
    return await decision_page(request, run, found, also=also)


def _checked(name: str) -> str:
    number, _, attempt = name.partition(".")
    if not (number.isascii() and number.isdigit() and (not attempt or (attempt.isascii() and attempt.isdigit()))):
        raise HttpProblem("not-found", f"{name[:80]!r} is no question")
    return name


async def closed_page(
    request: Request, run: AsyncRun, gate: str, problem: HttpProblem, typed: Typed | None = None
) -> Response:
    """What is known of a question that is not open any more. What was typed is shown, so that nothing is lost."""
    return render(
        request,
        "decision_closed.html",
        status=200 if typed is None else 409,
        title="Answered" if problem.type == "already-answered" else "Not open any more",
        run=run.id,
        gate=gate,
        linked=link_of(request) is not None,
        problem=problem,
        typed=typed,
        now_ms=await client_of(request).now_ms(),
    )


async def decision_page(
    request: Request, run: AsyncRun, gate: GateInfo, *, also: str = "", typed: Typed | None = None
) -> Response:
    """The page of an open question."""
    client, caller = client_of(request), caller_of(request)
    info, now_ms = await run.info(), await client.now_ms()
    overdue_ms = round(request.app.state.settings.gate_overdue_s * 1000)
    row = row_of(gate, caller, now_ms, overdue_ms)
    counts = await client.gate_inbox.counts()
    typed = typed or Typed()
    together = await together_with(client, gate, also)
    ways = await client.gate_inbox.ways_on(gate)
    return render(
        request,
        "decision.html",
        status=typed.status,
        title=f"({counts.role}) {row.title}" if counts.role else row.title,
        gate=gate,
        row=row,
        info=info,
        usage=info.usage if info.usage.calls else None,
        question=markdown_html(question_of(gate)),
        evidence=await _evidence(request, run, gate, info),
        fields=_fields(gate, typed),
        ways=_buttons(gate, ways),
        own_words=has_own_words(gate),
        own_way=next((way for way in ways if way.answer is None), None),
        typed=typed,
        me=caller.by.person.name,
        may=row.may,
        may_handle=caller.may("approver") and link_of(request) is None,
        expiry=await _expiry(run, gate),
        snoozes=SNOOZES,
        together=together,
        also=",".join(name_of(each) for each in together),
        path=link_of(request) or path_of(gate),
        linked=link_of(request) is not None,
        api=f"/api/v1/gates/{name_of(gate)}",
        sample=_sample(gate),
        now_ms=now_ms,
    )  # fmt: skip


async def together_with(client: AsyncClient, gate: GateInfo, also: str) -> list[GateInfo]:
    """The other questions, of those named, that take the same answer: of one node of one agent and one namespace."""
    found = []
    names = [name for name in dict.fromkeys(also.split(",")) if name and name != name_of(gate)]
    if not names:
        return []
    namespace = (await (await client.run(gate.run)).info()).namespace
    for name in names[:MOST_TOGETHER]:
        run_id, _, number = name.partition("/")
        try:
            run = await client.run(run_id)
            other = await open_gate(run, _checked(number))
            if _takes_same(gate, other) and (await run.info()).namespace == namespace:
                found.append(other)
        except (RunNotFound, HttpProblem):
            continue
    return found


def _takes_same(gate: GateInfo, other: GateInfo) -> bool:
    same = [(each.agent, each.node, each.kind, each.options, each.schema) for each in (gate, other)]
    return same[0] == same[1]


def is_choice(gate: GateInfo) -> bool:
    """Whether an interrupt is answered by one of some values: each is a way on."""
    schema = gate.schema
    return gate.kind == INTERRUPT and isinstance(schema, dict) and "enum" in schema and "properties" not in schema


def _fields(gate: GateInfo, typed: Typed) -> Sequence[FormField]:
    if gate.kind != INTERRUPT or is_choice(gate):
        return ()
    return typed.fields if typed.fields is not None else fields_of(gate.schema, gate.payload)


def _buttons(gate: GateInfo, ways: Sequence[WayOn]) -> list[WayOption]:
    if is_choice(gate):
        found = [(json_text(value), json.dumps(value, ensure_ascii=False)) for value in gate.schema["enum"]]
    else:
        found = [(option, option) for option in gate.options]
    by_answer = {way.answer: way for way in ways}
    refused = next((label for label, _ in found if is_refusal(label)), None)
    first = next((label for label, _ in found if label != refused), None)
    keys = {first: "a", refused: "r"}
    return [WayOption(label, value, keys.get(label, ""), by_answer.get(label)) for label, value in found]


async def _evidence(request: Request, run: AsyncRun, gate: GateInfo, info: RunInfo) -> DecisionSummary | None:
    """None: the page asks for its parts that change, which this is not."""
    if "hx-request" in request.headers:
        return None
    state = await run.state()
    names = sorted(name for name in state if not name.startswith("_"))
    steps = await run.history(after=max(0, info.step - 4 * MOST_STEPS) or None, limit=8 * MOST_STEPS)
    by = next((step for step in reversed(steps) if step.ok and step.usage is not None and step.usage.calls), None)
    said = [name for name in (by.keys if by is not None else ()) if name in state]
    return DecisionSummary(
        by if said else None,
        [ValueSummary.of(name, state[name]) for name in said],
        _payload(gate),
        [ValueSummary.of(name, state[name]) for name in names[:MOST_STATE]],
        max(0, len(names) - MOST_STATE),
        [step for step in steps if step.node is not None and step.part is None][-MOST_STEPS:],
    )


def _payload(gate: GateInfo) -> list[ValueSummary]:
    if gate.payload is None or isinstance(gate.payload, str):
        return []
    if isinstance(gate.payload, Mapping):
        return [ValueSummary.of(str(name), value) for name, value in gate.payload.items() if value != question_of(gate)]
    return [ValueSummary.of("What is asked", gate.payload)]


async def _expiry(run: AsyncRun, gate: GateInfo) -> str:
    """What happens when the question expires; empty: it does not."""
    if gate.due_ms is None:
        return ""
    graph: Graph | None
    try:
        graph = await run.graph()
    except (RunNotFound, RecordUnreadable):
        graph = None
    node = graph.nodes.get(gate.node) if graph is not None else None
    if not isinstance(node, ApprovalNode | InputNode):
        return "then its node decides"
    if node.on_timeout is not None:
        return f"then the run goes on at {node.on_timeout}"
    if isinstance(node, InputNode) and node.default is not None:
        return f"then the answer is {node.default!r}"
    return "then the visit fails"


def _sample(gate: GateInfo) -> str:
    """The answer of the call that is shown."""
    return json.dumps(gate.options[0], ensure_ascii=False) if gate.options else '"..."'
