"""Open questions as pages show them: title, who works on them, until when, and who may answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from sleipnir.runs.actor import Person
from sleipnir.runs.gate_filters import may_answer
from sleipnir.runs.interrupts import INTERRUPT
from sleipnir.runs.views import GateInfo
from sleipnir_console.pages.formats import rounded
from sleipnir_console.pages.markdown import title_of
from sleipnir_console.permissions import Caller

DUE_SOON_MS: Final = 3600 * 1000
_NO: Final = re.compile(r"(?i)^(no|reject|deny|decline|refuse|fail|cancel|stop)")


@dataclass(frozen=True)
class GateRow:
    """`name` identifies the question in forms, `due` is its time in words, `is_due`: it needs somebody soon. `holder`
    is who holds it, `who` says that in words. `may`: whether the caller may answer it."""

    gate: GateInfo
    name: str
    path: str
    title: str
    due: str
    is_due: bool
    holder: str | None
    who: str
    may: bool


def question_of(gate: GateInfo) -> str:
    """The text of a question: of an interrupt that shows an object, the one among its values."""
    if isinstance(gate.payload, Mapping):
        texts = (gate.payload.get(name) for name in ("question", "message", "text", "title", "prompt"))
        return next((text for text in texts if isinstance(text, str) and text.strip()), gate.question)
    return gate.question


def name_of(gate: GateInfo) -> str:
    """`RUN/VISIT.ATTEMPT`."""
    return f"{gate.run}/{gate.seq}.{gate.attempt}"


def path_of(gate: GateInfo) -> str:
    """The page of a question."""
    return f"/decisions/{quote(name_of(gate))}"


def row_of(gate: GateInfo, caller: Caller, now_ms: int, overdue_ms: int) -> GateRow:
    """A question as the caller sees it."""
    due, is_due = _due(gate, now_ms, overdue_ms)
    holder = gate.handling.holder(now_ms)
    return GateRow(
        gate, name_of(gate), path_of(gate), title_of(question_of(gate)), due, is_due, holder,
        _who(gate, holder, caller.by.person.name), is_for(gate, caller),
    )  # fmt: skip


def is_for(gate: GateInfo, caller: Caller) -> bool:
    """Whether the caller may answer a question."""
    person = caller.by.person
    return caller.may("approver") and may_answer(gate, Person(person.name, person.role))


def is_refusal(option: str) -> bool:
    """Whether an option says no: the way on of the key `r`."""
    return _NO.match(option) is not None


def has_own_words(gate: GateInfo) -> bool:
    """Whether the question takes other answers than its options."""
    return gate.kind not in ("confirm", INTERRUPT)


def _due(gate: GateInfo, now_ms: int, overdue_ms: int) -> tuple[str, bool]:
    if gate.due_ms is not None:
        left_ms = gate.due_ms - now_ms
        return (f"expires in {rounded(left_ms)}" if left_ms > 0 else "expires now"), left_ms < DUE_SOON_MS
    if now_ms - gate.opened_ms > overdue_ms:
        return f"overdue {rounded(now_ms - gate.opened_ms - overdue_ms)}", True
    return "no deadline", False


def _who(gate: GateInfo, holder: str | None, me: str) -> str:
    if holder is not None:
        return "you hold it" if holder == me else f"held by {holder}"
    if gate.handling.assigned is not None:
        assignee = gate.handling.assigned.person
        return "assigned to you" if assignee == me else f"assigned to {assignee}"
    return "free"
