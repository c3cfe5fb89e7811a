"""Interrupts: the code of a node asks a person, and runs again from its beginning with the answer (spec F27).

A visit has one open question; it holds no worker and no slot. Asking is no failure, no loss and no entry into the node.
Answers belong to the visit: a later visit of the node asks again.
"""

from __future__ import annotations

from typing import Final

from sleipnir.graph.model import Json
from sleipnir.graph.plain import compact_json
from sleipnir.messages import InterruptQuestion, ResultHeader
from sleipnir.runs.interrupts import INTERRUPT, UsedAnswer, answer_of, answers_of, answers_text, output_of, problem_of
from sleipnir.runs.run import Gate, changed
from sleipnir.runs.transitions import DropValue, SetValue
from sleipnir.runs.visits import Question, Ready, Visit, Work
from sleipnir_scheduler.planner.context import Context
from sleipnir_scheduler.planner.nodes import remotes

QUESTION_LENGTH: Final = 2_000
"""Characters of the text form of what is asked; the gate has all of it as its payload."""


def ask(context: Context, visit: Visit, work: Work, header: ResultHeader, asked: InterruptQuestion) -> None:
    """An execution has delivered a question in place of a result."""
    context.draft.deliver(visit, header)
    _ask(context, visit, work, asked)


def answered(context: Context, visit: Visit, question: Question, text: str, by: str) -> None:
    """The visit goes on with the answer. One that does not match the schema is asked for again."""
    work, asked = _parts(question)
    context.answered(visit, text, by, key=asked.name)
    value = answer_of(text)
    problem = problem_of(asked.schema, value)
    if problem is not None:
        _ask(context, visit, work, asked, remark=f"The answer is not accepted: {problem}")
        return
    go_on(context, visit, work, asked, value)


def go_on(context: Context, visit: Visit, work: Work, asked: InterruptQuestion, value: Json) -> None:
    """The node runs again, with one more answer."""
    given = work.given or f"{visit.seq}.answers"
    before = (context.values.item(work.given) or "") if work.given is not None else ""
    if remotes.is_remote(context, visit):
        text = answers_text(remotes.newest(asked, value, before))
    else:
        text = answers_text([*answers_of(before), UsedAnswer(asked.key, asked.at, value)], output_of(before))
    context.draft.record.item(SetValue(given, text))
    # What has happened in an execution that asked is known: a node with `effect: once` had not come to its effect.
    again = changed(work, given=given, generation=None, error=None)
    context.draft.visits.move(visit, Ready(again), attempt=visit.attempt + 1)


def unanswered(context: Context, visit: Visit, question: Question) -> None:
    """The time for the answer is over: the visit fails."""
    work, asked = _parts(question)
    context.draft.record.notice("gate_expired", seq=visit.seq, node=visit.node, key=asked.name)
    forget_answers(context, work)
    error = (
        f"question {asked.name!r} of node '{visit.node}' was not answered within {(asked.timeout_ms or 0) / 1000:g}s"
    )
    context.kinds.ended(context, visit, context.given_up(visit, error))


def forget_answers(context: Context, work: Work) -> None:
    """Drop what was given to the executions of a visit that ends without another one."""
    if work.given is not None:
        context.draft.record.item(DropValue(work.given))


def ask_again(context: Context, visit: Visit, question: Question, remark: str) -> None:
    """Ask the same anew."""
    work, asked = _parts(question)
    _ask(context, visit, work, asked, remark=remark)


def _ask(context: Context, visit: Visit, work: Work, asked: InterruptQuestion, remark: str = "") -> None:
    due_ms = None if asked.timeout_ms is None else context.now_ms + asked.timeout_ms
    visit = context.draft.visits.move(visit, Question(due_ms, work, asked))
    shown = asked.value if isinstance(asked.value, str) else compact_json(asked.value)
    text = shown if len(shown) <= QUESTION_LENGTH else f"{shown[: QUESTION_LENGTH - 1]}…"
    gate = Gate(
        visit.seq,
        visit.node,
        INTERRUPT,
        f"{remark}\n{text}" if remark else text,
        opened_ms=context.now_ms,
        key=asked.name,
        payload=asked.value,
        schema=asked.schema,
        due_ms=due_ms,
    )
    context.draft.record.ask(visit, context.restricted(gate, asked.rules))


def _parts(question: Question) -> tuple[Work, InterruptQuestion]:
    if question.work is None or question.asked is None:
        raise TypeError("the question is that of a node without code")
    return question.work, question.asked
