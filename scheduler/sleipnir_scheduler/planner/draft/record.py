"""The record of one event while it is planned: journal steps, values, notices, counters, open gates.

Bookkeeping only: callers decide what is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sleipnir.graph.model import Json
from sleipnir.runs.run import Gate, RunView, Timing, changed
from sleipnir.runs.transitions import (
    CollectResults,
    ItemOp,
    Notice,
    PutValues,
    SetValue,
    SplitCommands,
    Step,
    TakeResult,
    Write,
)
from sleipnir.runs.visits import Branch, Call, RunFunction, Turn, Visit

_STEP: Final = Step(0, "", 0)


@dataclass(frozen=True)
class GivenAnswer:
    """The answer of `by` to the question of the visit `seq`, with its comment; `key` is that of an interrupt, `voices`
    are those of a question with a quorum."""

    seq: int
    text: str
    by: str
    key: str | None = None
    comment: str | None = None
    voices: tuple[Mapping[str, Any], ...] = ()

    def of_step(self) -> dict[str, Any]:
        """The fields of the step that has it."""
        fields: dict[str, Any] = {"answer": self.text, "by": self.by, "key": self.key}
        if self.comment is not None:
            fields["reason"] = self.comment
        return {**fields, "voices": self.voices} if self.voices else fields


@dataclass
class EventRecord:
    """`items` are operations on the run's items in order. `changed_items` are the items that TakeResult and SetValue
    have changed in this event, `overlays` those that PutValues has, by field: the store does not have them yet. `split`
    is the visit whose commands this event follows. Of the steps that are applied, `copies` are those whose writes the
    store copies (None: all), `apart` the keys that it does not, `folded` the values that reducers have made of them,
    `windows` those of a `dag` (dag_folding.py). `answer` is an answer to a question that no step has yet, `comment` and
    `voices` are those of the answer that this event is. `drops` are fields of items that nothing needs any more."""

    before: RunView
    now_ms: int
    last_step: int
    writes: list[Write] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    gates: dict[int, Gate] = field(default_factory=dict)
    answer: GivenAnswer | None = None
    comment: str | None = None
    voices: tuple[Mapping[str, Any], ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    items: list[ItemOp] = field(default_factory=list)
    changed_items: dict[str, TakeResult | SetValue] = field(default_factory=dict)
    overlays: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    split: int | None = None
    copies: tuple[int, ...] | None = None
    apart: set[str] = field(default_factory=set)
    folded: dict[str, Json] = field(default_factory=dict)
    windows: dict[str, Any] = field(default_factory=dict)
    drops: list[str] = field(default_factory=list)
    _forgiven: set[str] = field(default_factory=set)
    _closings: dict[int, dict[str, Any]] = field(default_factory=dict)

    def notice(self, type_: str, **data: Any) -> None:
        self.notices.append(Notice(type_, data))

    # The journal

    def write(
        self,
        visit: Visit,
        target: str | tuple[str, ...] | None = None,
        *,
        delta: bool = False,
        collect: CollectResults | None = None,
        values: Mapping[str, Json] | None = None,
        keys: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        code: str | None = None,
        **how: Any,
    ) -> int:
        """Write the step of a visit that has ended; its number. `keys` are all that it writes, `code` is that of its
        failure, for watchers; `how` fields of the step."""
        self.last_step += 1
        how.setdefault("took_ms", self.now_ms - visit.opened_ms)
        if self.answer is not None and self.answer.seq == visit.seq:
            how |= self.answer.of_step()
            self.answer = None
        place, item = visit.place, visit.item
        step = changed(
            _STEP,
            step=self.last_step,
            kind=visit.kind,
            at_ms=self.now_ms,
            seq=visit.seq,
            node=visit.node,
            attempt=visit.attempt,
            next=target,
            opened_ms=visit.opened_ms,
            role=place.role,
            item=None if item is None else (item.map, item.index),
            part=place.part,
            sent_by=place.batch if isinstance(place, Branch) else None,
            **how,
        )
        self.writes.append(Write(step, delta, collect, values or {}))
        if isinstance(place, (Turn, Call, RunFunction)):
            return self.last_step
        timing = self.timings.get(visit.node) or self.before.timings.get(visit.node) or Timing()
        self.timings[visit.node] = timing.plus(step.took_ms, cached=step.cached)
        if item is None:
            self._closings[self.last_step] = closing = {
                "seq": step.seq,
                "node": step.node,
                "kind": step.kind,
                "ok": step.ok,
                "next": step.next,
                "keys": list(keys),
                "took_ms": step.took_ms,
                "notes": list(notes),
                "error": step.error,
                **({"code": code} if code is not None else {}),
                **({"failed_visit": True} if step.failed_visit else {}),
                **({"cached": True} if step.cached else {}),
            }
            self.notices.append(Notice("visit_closed", closing))
        return self.last_step

    def write_request(self, kind: str, by: str, **fields: Any) -> None:
        """Write a request about the run, with its actor."""
        self.last_step += 1
        self.writes.append(Write(Step(step=self.last_step, kind=kind, at_ms=self.now_ms, by=by, **fields)))

    def written(self, step: int) -> Write | None:
        """The write of this event with the number `step`; None for an earlier step."""
        index = step - self.before.step - 1
        return self.writes[index] if index >= 0 else None

    def amend(self, step: int, **fields: Any) -> None:
        """Add to a step of this event."""
        index = step - self.before.step - 1
        if index < 0:
            raise ValueError(f"step {step} is committed: it cannot be changed")
        self.writes[index] = changed(self.writes[index], step=changed(self.writes[index].step, **fields))
        if "next" in fields:
            self._closings[step]["next"] = fields["next"]

    def keep_commands(self, step: int) -> None:
        """Let a step of this event have the updates of the commands of its visit."""
        index = step - self.before.step - 1
        self.writes[index] = changed(self.writes[index], keeps_commands=True)

    # Answers

    def ask(self, visit: Visit, gate: Gate) -> None:
        """Open a question of a visit, or ask it again."""
        twin = visit.twin
        self.gates[visit.seq] = changed(gate, seq=visit.seq, attempt=visit.attempt, twin=twin)
        self.notice(
            "gate_opened",
            seq=visit.seq,
            attempt=visit.attempt,
            node=visit.node,
            kind=gate.kind,
            question=gate.question,
            options=list(gate.options),
            default=gate.default,
            **({} if gate.key is None else {"key": gate.key}),
            **({} if twin is None else {"twin": twin}),
        )

    def answered(
        self,
        visit: Visit,
        answer: str,
        by: str,
        key: str | None = None,
    ) -> None:
        """A question was answered. The step with which the visit ends has the answer, else a step of its own
        (`write_answer`)."""
        self.answer = GivenAnswer(visit.seq, answer, by, key, self.comment, self.voices)
        named = {} if key is None else {"key": key}
        commented = {} if self.comment is None else {"comment": self.comment}
        self.notice("gate_answered", seq=visit.seq, node=visit.node, answer=answer, by=by, **named, **commented)

    def write_answer(self) -> None:
        """Write an answer that ends no visit, unless that is done."""
        if self.answer is not None:
            given, self.answer = self.answer, None
            self.write_request("answered", gate=given.seq, **given.of_step())

    # Counters and items

    def count(self, node: str) -> int:
        """Count an entry into `node`; how many that makes."""
        before = self.counts.get(node, 0 if node in self._forgiven else self.before.counts.get(node, 0))
        self.counts[node] = before + 1
        return before + 1

    def forgive(self, nodes: list[str]) -> None:
        """Reset the counts of these nodes."""
        self._forgiven.update(nodes)

    def item(self, op: ItemOp) -> None:
        """Add an operation on items. They are applied in order, and later planning of this event sees their results."""
        self.items.append(op)
        if isinstance(op, (TakeResult, SetValue)):
            self.changed_items[op.field] = op
        elif isinstance(op, SplitCommands):
            self.split = op.of
        elif isinstance(op, PutValues):
            fields = (f"{op.of}.{number}" for number in range(op.first, op.first + len(op.overlays)))
            self.overlays.update(zip(fields, op.overlays, strict=True))
