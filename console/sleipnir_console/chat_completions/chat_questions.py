"""Open questions of runs as messages of the assistant, and the answers in the user's next message.

The message ends with a line that says which question it is: `[question RUN VISIT.ATTEMPT.TIME]`. It comes back with the
history that a client sends, so that an answer reaches its question also where there is no session. It is the client's
word: the run is looked at like any other that the caller names.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.runs.interrupts import INTERRUPT
from sleipnir.runs.plain_text import printable
from sleipnir.runs.views import GateInfo

MOST_SCHEMA: Final = 2_000
"""Characters of the schema of an answer that are shown."""
_MARK: Final = re.compile(r"\[question ([A-Za-z0-9-]{1,64}) (\d{1,15})\.(\d{1,9})\.(\d{1,15})\]\s*\Z", re.ASCII)


@dataclass(frozen=True)
class QuestionMark:
    """Which question a message asks: that of an attempt of a visit, opened then."""

    run: str
    seq: int
    attempt: int
    opened_ms: int

    @classmethod
    def of(cls, gate: GateInfo) -> QuestionMark:
        return cls(gate.run, gate.seq, gate.attempt, gate.opened_ms)

    @classmethod
    def in_text(cls, text: str) -> QuestionMark | None:
        """The one at the end of a message; None: it asks nothing."""
        found = _MARK.search(text)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]), int(found[4]))

    def __str__(self) -> str:
        return f"[question {self.run} {self.seq}.{self.attempt}.{self.opened_ms}]"


def question_text(gate: GateInfo, problem: str | None = None) -> str:
    """The message that asks. `problem` is what became of the last answer."""
    parts = [problem] if problem else []
    parts.append(gate.question)
    if gate.options:
        parts.append(f"Options: {', '.join(gate.options)}")
    if gate.kind == INTERRUPT and gate.schema is not None:
        parts.append(f"The answer is JSON that matches: {json.dumps(gate.schema, ensure_ascii=False)[:MOST_SCHEMA]}")
    return printable("\n\n".join([*parts, str(QuestionMark.of(gate))]))


def question_facts(gate: GateInfo) -> dict[str, Any]:
    """The question for programs, as in the routes of gates."""
    return {
        "run_id": gate.run, "gate": f"{gate.seq}.{gate.attempt}", "node": gate.address, "kind": gate.kind,
        "text": gate.question, "options": list(gate.options), "schema": gate.schema,
    }  # fmt: skip
