"""The open questions of a run in this process: its own, and those of graphs that its nodes have called.

A node that calls a graph waits while that has open questions, all of which are shown to the caller at the top. An
answer goes to the run that asks; the visits that wait for it are executed again, and their calls go on with that run.
Each of these visits keeps the answer too, with the way to its question: if it fails and is tried again, its calls begin
anew.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.memory.store import MemoryStore
from sleipnir.memory.values import json_text
from sleipnir.runs.run import Gate, changed
from sleipnir_inprocess.execution import CalledRun

BELOW: Final = "__answers_below__"
"""The key of an answer to a visit that is for questions of a graph that it has called. Its value is a list of pairs:
the way to the question, as the visit and the attempt at each level, and the text of the answer."""

Way = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class WaitingVisit:
    """A visit that waits for a graph that it has called: its run, its gate, and the number of the call."""

    store: MemoryStore
    run_id: str
    gate: Gate
    call: int


@dataclass(frozen=True)
class OpenQuestion:
    """A question of a run. `above` are the visits that wait for that run, from the top; `id` names the question."""

    id: str
    store: MemoryStore
    run_id: str
    gate: Gate
    above: tuple[WaitingVisit, ...] = ()

    @property
    def visit(self) -> int:
        """The number of the visit of the run at the top that waits for the answer."""
        return (self.above[0].gate if self.above else self.gate).seq


def open_questions(
    store: MemoryStore, run_id: str, above: tuple[WaitingVisit, ...] = (), name: str = ""
) -> Iterator[OpenQuestion]:
    """The unanswered questions of a run, by their visits. `name` begins the names of those of runs below."""
    run = store.runs[run_id]
    for seq, gate in sorted(run.gates.items()):
        if seq in run.answers:
            continue
        below = [
            (call, called.run.store, called.run.run_id)
            for (visit, call), called in sorted(store.called.get(run_id, {}).items())
            if visit == seq and called.run.record is not None and called.run.record.gates
        ]
        for call, store_below, below_id in below:
            waiting = WaitingVisit(store, run_id, gate, call)
            yield from open_questions(store_below, below_id, (*above, waiting), name_below(name, run_id, seq, call))
        if not below:
            id_ = hashlib.sha256(f"{name}{run_id}/{seq}/{gate.attempt}".encode()).hexdigest()[:32]
            yield OpenQuestion(id_, store, run_id, gate, above)


def name_below(name: str, run_id: str, seq: int, call: int) -> str:
    """The beginning of the names of questions of a run that a visit has called."""
    return f"{name}{run_id}/{seq}/{call}/"


def asked_for(store: MemoryStore, run_id: str, gate: Gate) -> Gate:
    """The question behind that of a visit: the first one of the graph that it has called, or its own."""
    return next(each for each in open_questions(store, run_id) if each.visit == gate.seq).gate


def answered(questions: Collection[OpenQuestion], resume: Any) -> Iterator[tuple[OpenQuestion, Any]]:
    """The answer to each question: `resume` itself if one is open, else by id. Raises RuntimeError for several open
    questions without ids, and for ids that none has."""
    by_id = {question.id: question for question in questions}
    if isinstance(resume, Mapping) and all(re.fullmatch("[0-9a-f]{32}", str(key)) for key in resume):
        if unknown := [key for key in resume if key not in by_id]:
            raise RuntimeError(f"no open question has the id {unknown[0]}; open are {', '.join(by_id) or 'none'}")
        yield from ((by_id[key], value) for key, value in resume.items())
    elif len(by_id) > 1:
        raise RuntimeError(
            "When there are multiple pending interrupts, you must specify the interrupt id when resuming. "
            f"Open are {', '.join(by_id)}"
        )
    else:
        yield from ((question, resume) for question in by_id.values())


def give(answers: Collection[tuple[OpenQuestion, str]]) -> None:
    """Answer questions of one run and of those below it, with these texts. Raises GateError for a question that has
    another answer."""
    passed: dict[int, tuple[WaitingVisit, list[tuple[Way, str]]]] = {}
    for question, text in answers:
        gate = question.gate
        question.store.answer(question.run_id, gate.seq, text, gate.attempt)
        way: Way = ((gate.seq, gate.attempt),)
        for waiting in reversed(question.above):
            passed.setdefault(id(waiting.gate), (waiting, []))[1].append((way, text))
            way = ((waiting.gate.seq, waiting.gate.attempt), *way)
    for waiting, below in passed.values():
        gate, called = waiting.gate, waiting.store.called[waiting.run_id]
        waiting.store.answer(waiting.run_id, gate.seq, _passed_on(below), gate.attempt)
        run: CalledRun = called[gate.seq, waiting.call]
        called[gate.seq, waiting.call] = changed(run, answers=run.answers + 1)


def given_below(gates: Mapping[int, Gate], answer: Any) -> Iterator[tuple[Gate, str]] | None:
    """What an answer to a visit is for the open questions of the graph that it has called, by visit; those that are not
    open get nothing. None: it is the answer to the first of them."""
    if not isinstance(answer, dict) or answer.keys() != {BELOW}:
        return None
    by_gate: dict[tuple[int, int], list[tuple[Any, str]]] = {}
    for (first, *rest), text in answer[BELOW]:
        by_gate.setdefault(tuple(first), []).append((rest, text))
    return (
        (gates[seq], below[0][1] if not below[0][0] else _passed_on(below))
        for (seq, attempt), below in by_gate.items()
        if seq in gates and gates[seq].attempt == attempt
    )


def _passed_on(below: Collection[tuple[Any, str]]) -> str:
    return json_text({BELOW: list(below)})
