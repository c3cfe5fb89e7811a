"""The state of a run at a step, computed from its journal alone, as the scheduler computes it from the same writes.

An entry of the journal is a line with a transitions.Step, then lines of a key as a JSON string and its JSON text.
Rules:

* Writes of a step apply from that step on; those of a `held` one from the step that `applies` it, without `skips`.
* A key that the step `folds` got an update for that reducer; other keys got a value. A reducer of the agent's own is
not called again: the writes of a visit with the role `reduce` are its result.
* Steps with a `rank` (those of a `dag`) may end in another order than the visit order, which decides: an update is
folded at the position of its rank, and a value of a lower rank is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from sleipnir.graph.reducers import ABSENT, fold_all, is_custom
from sleipnir.runs.transitions import Step


def read_entry(element: str) -> tuple[Step, dict[str, str]]:
    """A journal entry: its step, and JSON texts by key."""
    header, *written = element.split("\n")
    return Step.from_json(header), dict(zip(map(json.loads, written[::2]), written[1::2], strict=True))


def state_after(elements: Iterable[str]) -> dict[str, Any]:
    """The state after the first entries of a journal. Values that no longer count are not even parsed."""
    keys: dict[str, _Key] = {}
    held: dict[int, tuple[Step, dict[str, str]]] = {}
    for step, written in map(read_entry, elements):
        if step.held:
            held[step.step] = (step, written)
        else:
            _count(keys, step, written)
        for number in step.applies:
            _count(keys, *held.pop(number), skipped=(step.skips or {}).get(str(number), ()))
    return {name: key.value() for name, key in keys.items()}


@dataclass
class _Key:
    """A key's last value as JSON text, and the updates since, each with its rank."""

    base: str | None = None
    rank: tuple[Any, ...] = ()
    updates: list[tuple[tuple[Any, ...], str]] = field(default_factory=list)
    reducer: str = "overwrite"
    strict: bool = False

    def value(self) -> Any:
        current = ABSENT if self.base is None else json.loads(self.base)
        in_order = [json.loads(text) for _, text in sorted(self.updates, key=lambda update: update[0])]
        return fold_all(self.reducer, current, in_order, strict=self.strict)


def _count(keys: dict[str, _Key], step: Step, written: dict[str, str], *, skipped: Collection[str] = ()) -> None:
    rank = step.rank or ()
    for name, text in written.items():
        reducer = (step.folds or {}).get(name)
        if name in skipped or (reducer is not None and is_custom(reducer)):
            continue
        key = keys.setdefault(name, _Key())
        if reducer is not None:
            key.reducer, key.strict = reducer, step.strict
            key.updates.append((rank, text))
        elif rank >= key.rank or step.role == "reduce":
            key.base, key.rank, key.updates = text, rank, []
