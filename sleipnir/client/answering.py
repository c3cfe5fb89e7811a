"""Answers to the questions of a run: which question is meant, whether the answer fits it, and sending it.

`Answering` is the part of a run that is the same for any way to reach the deployment. A run with another way has other
`gates`, `status` and methods with an underscore at their head.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sleipnir.client.gate_person import checked_comment
from sleipnir.client.texts import refuse_text
from sleipnir.errors import AnswerRefused, GateClaimed, GateError, UsageError
from sleipnir.messages import FINAL, RunStatus
from sleipnir.runs.budgets import BUDGET, read_budget_answer
from sleipnir.runs.handling import VoiceCount
from sleipnir.runs.interrupts import answer_of, text_of
from sleipnir.runs.run import read_effect_answer
from sleipnir.runs.views import GateInfo, StepInfo
from sleipnir.settings import Settings

if TYPE_CHECKING:
    from sleipnir.graph.model import Json

MOST_LISTED = 20  # of open questions in a message


class Answering:
    """The answers of people to one run."""

    id: str
    settings: Settings

    @property
    def status(self) -> RunStatus:
        """What the run is now."""
        raise NotImplementedError

    def gates(self) -> list[GateInfo]:
        """The open questions, in the order in which they were asked, including those of child runs."""
        raise NotImplementedError

    def _newest_steps(self, run: str) -> Iterator[StepInfo]:
        """The journal of this run or of one below it, the last step first."""
        raise NotImplementedError

    def _question(self, seq: int, text_of: Callable[[GateInfo], str]) -> GateInfo | None:
        """The open question of a visit. None: it was answered with this text just now. Raises GateError."""
        raise NotImplementedError

    def _give(self, gate: GateInfo, value: Json, text: str, comment: str | None) -> VoiceCount | None:
        """Send an answer; `text` is its stored form. Raises GateError."""
        raise NotImplementedError

    def _last_event(self) -> str:
        """The id of the last event of the run."""
        raise NotImplementedError

    def _event_after(self, event: str, within_s: float) -> str:
        """The id of an event after this one, as soon as there is one; after a time, up to `within_s`, the same one."""
        raise NotImplementedError

    def answer(
        self, value: Json, gate: GateInfo | int | str | None = None, *, comment: str | None = None
    ) -> VoiceCount | None:
        """Answer an open question of this run or of a descendant; `gate` (the Gate, its visit's number, the key of an
        interrupt, its node, or either of them after the path to its run, `review/approve`) may be omitted if only one
        is open. With a Gate no other question can be answered by mistake, even if the answer arrives late.

        The answer to an interrupt is any JSON, that to another question a text. The same answer to an interrupt counts
        once, however often it is given. None: the question is answered; else the same answer of more people is needed.
        `comment` says why; some questions require it.

        Raises GateError when there is no such question, several fit, or it was answered before (GateAnswered, while no
        scheduler has taken that answer), AnswerRefused for a person who may not answer, GateClaimed while another
        person holds it (`client.gate_inbox.claim` takes it over). Raises UsageError if the answer does not match the
        schema of an interrupt, is no text for another question, or is not `run again`, `fail` or a JSON object for the
        question about a lost `effect: once`, or not `yes`, `no` or a number for a budget question.
        """
        counts = self._send_answers([(gate, value)], comment)
        return counts[0] if counts else None

    def answer_all(
        self,
        values: Mapping[str, Json],
        *,
        ahead: bool = False,
        timeout_s: float | None = None,
        comment: str | None = None,
    ) -> None:
        """Answer several open questions, by their keys, nodes, paths or visit numbers, with one `comment`. Raises as
        `answer` does, and then has sent none if a key is unknown or a value is refused.

        With `ahead`, the questions may also open later: block until each value has answered one, or raise TimeoutError
        after `timeout_s`, and GateError if the run ends before.
        """
        if ahead:
            self._answer_as_they_open(dict(values), timeout_s, comment)
            return
        self._send_answers(list(values.items()), comment)

    def _answer_as_they_open(self, left: dict[str, Json], timeout_s: float | None, comment: str | None) -> None:
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        after = self._last_event()  # before the look, so that no question opens between the two
        while True:
            is_over = self._answer_open_ones(left, comment)
            if not left:
                return
            unused = ", ".join(map(repr, left))
            if is_over:
                raise GateError(f"run {self.id!r} ({self.status}) has not asked for {unused}")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"run {self.id!r} has not asked for {unused} within {timeout_s:g} s")
            after = self._event_after(after, left_s)

    def _answer_open_ones(self, left: dict[str, Json], comment: str | None) -> bool:
        """Use the answers whose questions are open, and drop them. Returns whether the run was over before."""
        is_over = self.status in FINAL
        still_open = self.gates()
        now = [name for name in left if any(_means(name, gate) for gate in still_open)]
        self._send_answers([(name, left.pop(name)) for name in now], comment)
        return is_over

    def _send_answers(
        self, answers: Sequence[tuple[GateInfo | int | str | None, Json]], comment: str | None = None
    ) -> list[VoiceCount | None]:
        """Check all answers, then send them."""
        said = checked_comment(comment)
        are_known = all(isinstance(gate, GateInfo) for gate, _ in answers)
        still_open = [] if are_known else self.gates()
        meant: list[tuple[GateInfo, Json, str]] = []
        for gate, value in answers:
            found = gate if isinstance(gate, GateInfo) else self._gate(gate, still_open, value)
            if isinstance(found, GateInfo):
                if any(found is other for other, _, _ in meant):
                    raise UsageError(f"two of the answers are for the question {found.address}, number {found.seq}")
                meant.append((found, value, self._text(found, value)))
        return [self._send_answer(found, value, text, said) for found, value, text in meant]

    def _send_answer(self, gate: GateInfo, value: Json, text: str, comment: str | None) -> VoiceCount | None:
        try:
            return self._give(gate, value, text, comment)
        except (AnswerRefused, GateClaimed):
            raise
        except GateError:
            if not self._has_answer(gate.run, gate.seq, value):
                raise
        return None

    def _text(self, gate: GateInfo, value: Json) -> str:
        """An answer as it is sent. Raises UsageError for one that the run could not use."""
        try:
            text = text_of(gate, value)
        except ValueError as error:
            raise UsageError(f"question {gate.key or gate.seq} of run {gate.run!r}: {error}") from None
        refuse_text("the answer", text, self.settings.max_prompt_bytes)
        _refuse_unreadable(gate, text)
        return text

    def _has_answer(self, run: str, name: int | str, value: Json) -> bool:
        """Whether the last answer to an interrupt, by the number of its visit or its key, is this value. Raises
        GateError if it is another one."""
        for step in self._newest_steps(run):
            if step.kind == "answered" and step.key is not None and name in (step.key, step.gate):
                if step.answer is None or answer_of(step.answer) != value:
                    raise GateError(f"question {step.key!r} of run {run!r} was already answered with {step.answer}")
                return True
        return False

    def _gate(self, gate: int | str | None, still_open: list[GateInfo], value: Json) -> GateInfo | None:
        """The open question that `gate` refers to. None: it is an interrupt that has this answer already. Raises
        GateError."""
        if isinstance(gate, int) or (isinstance(gate, str) and gate.isdigit()):
            found = [each for each in still_open if each.seq == int(gate)]
            own = [each for each in found if each.run == self.id]
            if own or len(found) == 1:
                return (own or found)[0]
            if found:
                raise GateError(self._no_single_gate(str(gate), found))
            if self._has_answer(self.id, int(gate), value):
                return None
            # It may have opened, or was answered, just now.
            return self._question(int(gate), lambda found: self._text(found, value))
        fitting = [found for found in still_open if gate is None or _means(gate, found)]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting and gate is not None and self._has_answer(self.id, gate, value):
            return None
        raise GateError(self._no_single_gate(None if gate is None else str(gate), fitting or still_open))

    def _no_single_gate(self, gate: str | None, still_open: list[GateInfo]) -> str:
        which = f" of node {gate!r}" if gate else ""
        if still_open:
            listed = ", ".join(f"{found.seq} ({found.address})" for found in still_open[:MOST_LISTED])
            left = f" and {len(still_open) - MOST_LISTED:,} more" if len(still_open) > MOST_LISTED else ""
            several = len(still_open) > 1 and all(gate is None or _means(gate, each) for each in still_open)
            fitting = f"several open questions{which}" if several else f"no open question{which}"
            name_by = "its path or its number" if several and gate else "its number, its key, its node or its path"
            return f"run {self.id!r} has {fitting}; open: {listed}{left}. Name one by {name_by}"
        asked = (step.node for step in self._newest_steps(self.id) if step.kind in ("approval", "input"))
        if any(gate in (None, node) for node in asked):
            return f"the question{which} of run {self.id!r} was already answered; `sleipnir history {self.id}` shows it"
        return f"run {self.id!r} ({self.status}) has no open question{which}"


def _means(name: str, gate: GateInfo) -> bool:
    """Whether a person may call the question so."""
    return name in gate.names or name == str(gate.seq)


def _refuse_unreadable(gate: GateInfo, text: str) -> None:
    """Raises UsageError for an answer that the run could not use and would ask for again."""
    try:
        if gate.kind == "effect":
            read_effect_answer(text)
        elif gate.kind == BUDGET:
            read_budget_answer(text)
    except ValueError as error:
        raise UsageError(f"question {gate.seq} ({gate.node}) of run {gate.run!r}: {error}") from None
