"""Interrupts of tools: a call that asks a person leaves its question in a file, and is made again with the answers.

Rules. The file that LLM_INTERRUPT names takes one JSON object, as a script prints it after `_interrupt`; what the tool
does or returns after that does not count. The answers come by key in GRAPH_RESUME, or if they are large in the file
that GRAPH_RESUME_FILE names; the runner of Python tools, where `interrupt()` works as in a node, gets them in order in
the file that LLM_ANSWERS_FILE names. None of the three is set before the first answer.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from sleipnir.graph.plain import compact_json
from sleipnir.messages import MOST_ANSWER_SCHEMA_BYTES, MOST_QUESTION_BYTES, InterruptQuestion
from sleipnir.python_graph.interrupts import VisitAnswers
from sleipnir.runs.interrupts import answers_text

INLINE_BYTES: Final = 32 * 1024  # as for the state of a script
_FIELDS = frozenset(("key", "value", "schema", "timeout", "rules", "at"))


def variables(answers: VisitAnswers, folder: Path) -> dict[str, str]:
    """The variables of a call that may ask; `folder` is a directory for this call only. Raises OSError."""
    names = {"LLM_INTERRUPT": str(_question_file(folder))}
    if not answers.given:
        return names
    in_order, by_key = folder / "answers.json", folder / "resume.json"
    in_order.write_text(answers_text(answers.given), encoding="utf-8")
    text = compact_json(answers.named())
    by_key.write_text(text, encoding="utf-8")
    is_small = len(text.encode()) <= INLINE_BYTES
    resume = {"GRAPH_RESUME": text} if is_small else {"GRAPH_RESUME_FILE": str(by_key)}
    return {**names, **resume, "LLM_ANSWERS_FILE": str(in_order)}


def question(answers: VisitAnswers, folder: Path) -> InterruptQuestion | None:
    """What a call has asked. None: nothing. Raises ValueError for what cannot be asked."""
    text = _read(_question_file(folder))
    if not text:
        return None
    asked: Any = json.loads(text)
    if not isinstance(asked, dict) or "value" not in asked or asked.keys() - _FIELDS:
        raise ValueError("it must be an object with value, and if needed key, schema, timeout and rules")
    at = asked.get("at")
    if at is not None and (isinstance(at, bool) or not isinstance(at, int) or at < 0):
        raise ValueError(f"`at` counts the questions before this one, but it is {at!r}")
    key, schema, timeout, rules = map(asked.get, ("key", "schema", "timeout", "rules"))
    return answers.ask(asked["value"], key, schema, timeout, at=at, rules=rules)


def _question_file(folder: Path) -> Path:
    return folder / "question.json"


def _read(file: Path) -> str:
    """The text of the file; '' if there is none. Raises ValueError for a long one and for one that is not UTF-8."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    most = 2 * (MOST_QUESTION_BYTES + MOST_ANSWER_SCHEMA_BYTES)  # JSON may be written with escapes and spaces
    with os.fdopen(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        content = opened.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes: store what it asks, and ask with a reference to it")
    return content.decode().strip()
