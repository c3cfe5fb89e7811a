"""Answers to a run's open questions, from the command line or the terminal; and values of an agent's variables.

Rules. Questions go to stderr, answers come from stdin. A choice is a number or the option's exact text; free text only
after choosing the last one, so that a typing error is asked again instead of being routed as free text. An empty answer
to an input stays empty: the run uses its default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from sleipnir.cli.terminal.terminal import ReadLine, can_ask, first_line, note, typed_line
from sleipnir.errors import AnswerRefused, GateError, UsageError
from sleipnir.runs.budgets import BUDGET, read_budget_answer
from sleipnir.runs.interrupts import INTERRUPT, answer_of, text_of, typed_answer
from sleipnir.runs.plain_text import one_line, printable

if TYPE_CHECKING:
    from sleipnir.agents.variables import Asker
    from sleipnir.cli.options import GlobalOptions
    from sleipnir.graph.model import Json, Variable
    from sleipnir.runs.handling import VoiceCount
    from sleipnir.runs.views import GateInfo

OTHER = {"approval": "Other (custom)", "effect": "It happened; here is its result (JSON)", BUDGET: "Another limit"}
_OWN_WORDS = {
    "approval": "your own words", "effect": '{"key": "value"}', BUDGET: "a number", INTERRUPT: "JSON or text",
}  # fmt: skip


class NoAnswer(Exception):
    """There is no terminal, or its input is closed. Has the gate, which stays open."""

    def __init__(self, gate: GateInfo) -> None:
        super().__init__(f"no answer to {gate.node!r}")
        self.gate = gate


class ScriptedAnswers:
    """The `--answer NODE=TEXT` of a command line: used in order for each node, the last one for all later visits."""

    def __init__(self, answers: Iterable[tuple[str, str]]) -> None:
        self._left: dict[str, list[str]] = {}
        for node, text in answers:
            self._left.setdefault(node, []).append(text)
        self.unused = set(self._left)
        self._given: dict[tuple[int, int], str] = {}

    def next_for(self, gate: GateInfo) -> str | None:
        """The answer for this visit of the node; None if there is none. The last one applies to all later visits, but
        is not used again for a question that refused it."""
        texts, asked = self._left.get(gate.node), (gate.seq, gate.attempt)
        if not texts or texts[0] == self._given.get(asked):
            return None
        self.unused.discard(gate.node)
        self._given[asked] = texts.pop(0) if len(texts) > 1 else texts[0]
        return self._given[asked]


def refuse_unknown(answers: Iterable[tuple[str, str]], nodes: Collection[str], agent: str) -> None:
    """Raises UsageError for an answer to a node that neither the agent nor one that it starts has: otherwise the typing
    error would be noticed only when the run waits."""
    from sleipnir.graph.findings import suggestion

    for node, _ in answers:
        if node not in nodes and node != BUDGET:
            hint = suggestion(node, sorted(nodes), "nodes")
            raise UsageError(f"--answer {node}=...: agent {agent!r} has no node {node!r}. {hint or ''}".rstrip())


def ask(gate: GateInfo, read_line: ReadLine | None = None) -> str:
    """Ask the question on the terminal. Raises NoAnswer at the end of the input."""
    line_of = read_line or sys.stdin.readline
    if gate.kind in OTHER and gate.options:
        return _choose(gate, line_of)
    note(_question(gate))
    if gate.kind == INTERRUPT:
        return _understood("Your answer (JSON or text): ", lambda typed: text_of(gate, answer_of(typed)), gate, line_of)
    return _read("Your answer: ", gate, line_of)


def ask_variable(variable: Variable, read_line: ReadLine | None = None) -> str | None:
    """Asks for the value of an agent's variable on the terminal; None at the end of the input."""
    line_of = read_line or sys.stdin.readline
    while True:
        typed = typed_line(f"{one_line(variable.name)} ({one_line(variable.description)}): ", line_of)
        if typed is None or typed.strip():
            return typed
        note("This field is required")


def variable_asker() -> Asker | None:
    """The callback that asks for missing variables on the terminal, if there is one."""
    return ask_variable if can_ask() else None


def _question(gate: GateInfo) -> str:
    question = printable(gate.question)
    shown = f"[default: {gate.default}]"
    if not gate.default or shown in gate.question:
        return question
    return f"{question} {printable(shown)}"


def _choose(gate: GateInfo, read_line: ReadLine) -> str:
    choices = (*gate.options, OTHER[gate.kind])
    note(_question(gate))
    for number, choice in enumerate(choices, 1):
        note(f"  {number}. {one_line(choice)}")
    while True:
        typed = _read(f"Choose [1-{len(choices)}]: ", gate, read_line)
        chosen = _chosen(typed.strip(), choices)
        if chosen is None:
            note(f"Type a number from 1 to {len(choices)}; {len(choices)} is for an answer of your own.")
        elif chosen == len(choices) - 1:
            return _own(gate, read_line)
        else:
            return choices[chosen]


def _chosen(typed: str, choices: tuple[str, ...]) -> int | None:
    """The chosen option, by text or by number from 1; an option that looks like a number takes precedence."""
    if typed in choices:
        return choices.index(typed)
    if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(choices):
        return int(typed) - 1
    return None


def _own(gate: GateInfo, read_line: ReadLine) -> str:
    """A free-text answer."""
    if gate.kind == "effect":
        from sleipnir.runs.run import read_effect_answer

        return _understood("JSON object: ", read_effect_answer, gate, read_line)
    if gate.kind == BUDGET:
        return _understood("A number: ", read_budget_answer, gate, read_line)
    return _read("Custom response: ", gate, read_line)


def _understood(prompt: str, read: Callable[[str], object], gate: GateInfo, read_line: ReadLine) -> str:
    """The first input that `read` accepts without a ValueError."""
    while True:
        typed = _read(prompt, gate, read_line)
        try:
            read(typed)
            return typed
        except ValueError as error:
            note(str(error))


def _read(prompt: str, gate: GateInfo, read_line: ReadLine) -> str:
    typed = typed_line(prompt, read_line)
    if typed is None:
        raise NoAnswer(gate)
    return typed


def how_to_answer(gate: GateInfo, options: GlobalOptions, still_open: Iterable[GateInfo] = ()) -> str:
    """The question of a waiting run and the commands that answer it, one per option. The question is identified by its
    node, or by its number if `still_open` has another question of the same node."""
    name = _name(gate, list(still_open))
    own_words = _OWN_WORDS.get(gate.kind, "your answer")
    samples = [*gate.options] if gate.kind == "confirm" else [*gate.options, own_words]
    commands = [f"  {options.command('answer', gate.run, name, text)}" for text in samples]
    headline = f"run {gate.run} waits for an answer to {gate.place!r}: {first_line(gate.question)}"
    who = who_may_answer(gate)
    said = [f"  {one_line(each.by)}: {one_line(each.text)}" for each in gate.handling.comments]
    return "\n".join([headline, *([f"  for {one_line(who)}"] if who else []), *said, *commands])


def who_may_answer(gate: GateInfo) -> str:
    """`anna, bob, role admin, not eve; comment required; 1 of 2 so far: anna 'yes'`; empty: everybody, alone."""
    rules = gate.rules
    if rules is None:
        return ""
    who = [*rules.assignees, *([f"role {rules.role}"] if rules.role else [])]
    who += [f"not {gate.author}"] if gate.author else []
    parts = [", ".join(who)] if who else []
    parts += ["comment required"] if rules.comment else []
    if rules.quorum > 1:
        given = ", ".join(f"{voice.person} {one_line(voice.answer, 40)!r}" for voice in gate.handling.voices)
        parts.append(f"{rules.quorum} people must agree" + (f"; so far: {given}" if given else ""))
    return "; ".join(parts)


def _name(gate: GateInfo, still_open: Collection[GateInfo]) -> str:
    """The shortest name that only this question has: the key of an interrupt or the node, else the number."""
    others = [other for other in still_open if (other.run, other.seq) != (gate.run, gate.seq)]
    name = gate.key or gate.node
    return name if all(name not in (other.key, other.node) for other in others) else str(gate.seq)


class AnswerableRun(Protocol):
    """A run of a deployment, or one in this process."""

    def answer(self, value: Json, gate: GateInfo) -> VoiceCount | None:
        """Answer an open question. Not None: more people must give the same answer. Raises GateError, and UsageError
        for an answer that it does not accept."""


def answer_gate(run: AnswerableRun, gate: GateInfo, answers: ScriptedAnswers) -> None:
    """Answer with the next scripted answer, or ask on the terminal. Raises NoAnswer without either, and if others must
    answer."""
    text = answers.next_for(gate)
    if text is None:
        if not can_ask():
            raise NoAnswer(gate)
        text = ask(gate)
    try:
        count = run.answer(typed_answer(gate, text), gate)
        if count is not None:
            note(f"note: {count.voices} of {count.quorum} people have given this answer")
            raise NoAnswer(gate)
    except AnswerRefused as refused:
        note(f"note: {refused}")
        raise NoAnswer(gate) from None
    except GateError as late:
        note(f"note: {late}")  # another person answered first; the run continues with that answer
