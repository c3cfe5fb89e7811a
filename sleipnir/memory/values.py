"""The values of one run in memory: JSON texts, as Redis has them, so that nothing is shared with a node's objects.

A transition changes them as commit.lua does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sleipnir.messages import OVERLAY_END, OVERLAYS, Usage, overlay_text
from sleipnir.runs.conversation import SILENCE, StoredConversation
from sleipnir.runs.journal import StateFold
from sleipnir.runs.run import changed
from sleipnir.runs.transitions import (
    CollectResults,
    DropValue,
    ForgetConversation,
    GatherResults,
    ItemOp,
    PutValues,
    SetValue,
    SplitCommands,
    Step,
    TakeResult,
    Transition,
    piece_field,
    usage_fields,
)
from sleipnir.runs.values import KnownValues, WantedValues
from sleipnir.runs.visits import Visit, Work

json_text: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
"""Compact JSON of a value."""

Texts = Mapping[str, str]
"""JSON text by key."""


class RunValues:
    """`state` as committed, with the keys of these `scopes` that are `unshared`: written, and not written back yet; the
    `journal` (each step and what it wrote), `items` of single visits, `windows` of keys, and the `sums` of what was
    used, with the `costs` of child runs that they contain."""

    def __init__(self, state: Texts, scopes: tuple[str, ...] = ()) -> None:
        self.state: dict[str, str] = dict(state)
        self.scopes, self.unshared = scopes, set[str]()
        self.journal: list[tuple[Step, Texts]] = [(Step(step=0, kind="submitted", at_ms=0), dict(state))]
        self.items: dict[str, str] = {}
        self.windows: dict[str, str] = {}
        self.costs: dict[str, dict[str, float]] = {}
        self.sums: dict[str, float] = {}

    @property
    def usage(self) -> Usage:
        """What was used in all; the cost is None if the price of any call is unknown."""
        sums = self.sums
        calls = int(sums.get("model_calls", 0))
        priced = calls > 0 and not sums.get("unpriced_calls")
        cost_usd = round(sums.get("cost_usd", 0.0), 8) if priced else None
        return Usage(int(sums.get("tokens_in", 0)), int(sums.get("tokens_out", 0)), calls, cost_usd=cost_usd)

    def known(self, wanted: WantedValues, delta: Texts) -> KnownValues:
        """The values that planning asks for."""
        state = self.state if wanted.whole else {key: self.state[key] for key in wanted.state if key in self.state}
        return KnownValues(
            wanted,
            _parsed(state),
            _parsed({key: delta[key] for key in wanted.delta if key in delta}),
            {step: _parsed(self.journal[step][1]) for step in wanted.steps},
            {field: self.items[field] for field in wanted.items if field in self.items},
            _parsed({key: self.windows[key] for key in wanted.windows if key in self.windows}),
            tuple(_overlays(delta)) if wanted.updates else (),
            {child: self.costs[child] for child in wanted.costs if child in self.costs},
        )

    def state_after(self, step: int) -> dict[str, str]:
        """The state after a journal step."""
        fold = StateFold()
        for entry, texts in self.journal[: step + 1]:
            fold.add(entry, texts)
        return {key: json_text(value) for key, value in fold.state().items()}

    def talk(self, visit: Visit) -> StoredConversation:
        """The conversation of the loop that a visit is part of, or the value that it is given; SILENCE for others."""
        items, part = self.items, visit.part
        if isinstance(visit.body, Work) and visit.body.given is not None:
            asked_for = () if visit.role != "tool" or part is None else (items.get(f"{part.loop}.{part.turn}", ""),)
            return StoredConversation(items.get(visit.body.given, ""), tuple((reply, ()) for reply in asked_for))
        if part is None:
            return SILENCE
        if part.call is not None:
            return StoredConversation(turns=((items.get(f"{part.loop}.{part.turn}", ""), ()),))
        turns: list[tuple[str, tuple[str, ...]]] = []
        follow_ups: dict[int, str] = {}
        announced: dict[int, str] = {}
        for turn in range(part.turn):
            name = f"{part.loop}.{turn}"
            results: list[str] = []
            while (result := items.get(f"{name}.{len(results)}")) is not None:
                results.append(result)
            turns.append((items.get(name, ""), tuple(results)))
            if (text := items.get(f"{name}.user")) is not None:
                (announced if results else follow_ups)[turn] = text
        return StoredConversation(items.get(f"{part.loop}.first", ""), tuple(turns), follow_ups, announced)

    def apply(self, transition: Transition, delta: Texts) -> None:
        """Apply what a transition changes. `delta` is the delivered result that it applies."""
        for op in transition.items:
            self._apply_item(op, delta)
        for field in transition.drops:
            self.items.pop(field, None)
        for write in transition.writes:
            written = {key: text for key, text in delta.items() if key != OVERLAYS} if write.delta else {}
            if write.collect is not None:
                written[write.collect.key] = self._collected(write.collect)
            if write.values:
                written |= {key: json_text(value) for key, value in write.values.items()}
            step = write.step
            if write.keeps_commands:
                step = changed(step, overlays={str(step.seq): delta.get(OVERLAYS, "")})
            self.journal.append((step, written))
            if not write.step.held:
                self._set(written)
        for write in transition.writes:
            if write.step.applies:
                self._let_count(write.step.applies if transition.copies is None else transition.copies, transition)
        if transition.folded:
            self._set({key: json_text(value) for key, value in transition.folded.items()})
        for key, window in transition.windows.items():
            if window is None:
                self.windows.pop(key, None)
            else:
                self.windows[key] = json_text(window)
        if transition.usage:
            self._count(transition)

    def _set(self, texts: Texts) -> None:
        self.state |= texts
        if self.scopes:
            self.unshared.update(key for key in texts if key.startswith(self.scopes))

    def taken_unshared(self) -> dict[str, tuple[str, ...]]:
        """The keys to write back, by scope. They count as written back from now on."""
        keys, self.unshared = sorted(self.unshared), set()
        found = {scope: tuple(key for key in keys if key.startswith(scope)) for scope in self.scopes}
        return {scope: own for scope, own in found.items() if own}

    def _count(self, transition: Transition) -> None:
        """Add what a result used, or the increase of a child run's total since its last report."""
        adds, child = usage_fields(transition), transition.usage_of
        before = self.costs.get(child, {}) if child is not None else {}
        if child is not None:
            if adds.get("model_calls", 0) <= before.get("model_calls", 0):
                return
            self.costs[child] = adds
        for name, by in adds.items():
            self.sums[name] = self.sums.get(name, 0) + by - before.get(name, 0)

    def _let_count(self, steps: Sequence[int], transition: Transition) -> None:
        for step in steps:
            written = self.journal[step][1]
            self._set({key: text for key, text in written.items() if key not in transition.apart})

    def _collected(self, collect: CollectResults) -> str:
        """The results of a map, in the order of their items."""
        fields = [f"{collect.id}.{index}" for index in range(collect.total)]
        if collect.pieces:
            fields = [piece_field(collect.id, piece) for piece in range(collect.pieces)]
        texts = [self.items.pop(field, "") for field in fields]
        return f"[{','.join(text for text in texts if text)}]"

    def _apply_item(self, op: ItemOp, delta: Texts) -> None:
        match op:
            case PutValues(of, values, first):
                self.items |= {f"{of}.{index}": _overlay(value) for index, value in enumerate(values, first)}
            case GatherResults(of, first, count, piece):
                texts = [self.items.pop(f"{of}.{index}", "") for index in range(first, first + count)]
                self.items[piece_field(of, piece)] = ",".join(text for text in texts if text)
            case SplitCommands(of):
                self.items |= {f"{of}.{index}": text for index, text in enumerate(_overlays(delta))}
            case TakeResult(field, None):
                lines = [text for text in (self.items.get(field), overlay_text(delta)) if text]
                self.items[field] = "\n".join(lines)
            case TakeResult(field, key):
                self.items[field] = delta[str(key)]
            case SetValue(field, text):
                self.items[field] = text
            case DropValue(field):
                self.items.pop(field, None)
            case ForgetConversation(id, turn, calls):
                self._forget_conversation(str(id), turn, calls)

    def _forget_conversation(self, loop: str, turn: int, calls: int) -> None:
        turns = {f"{loop}.first", *(f"{loop}.{number}" for number in range(turn + 1))}
        for field in list(self.items):
            parent, _, call = field.rpartition(".")
            is_call = parent in turns and (parent != f"{loop}.{turn}" or call == "user" or int(call) < calls)
            if field in turns or is_call:
                del self.items[field]


def _parsed(texts: Texts) -> dict[str, Any]:
    return {key: json.loads(text) for key, text in texts.items()}


def _overlay(values: Mapping[str, Any]) -> str:
    return overlay_text({key: json_text(value) for key, value in values.items()})


def _overlays(delta: Texts) -> list[str]:
    """The updates of the commands in a delivered result."""
    return delta[OVERLAYS].split(OVERLAY_END) if OVERLAYS in delta else []
