"""The state of a run at a step, computed from its journal alone, as the scheduler computes it from the same writes.

An entry of the journal is a line with a transitions.Step, then lines of a key as a JSON string and its JSON text.
Rules:

* Writes of a step apply from that step on; those of a `held` one from the step that `applies` it, without `skips`.
* A key that the step `folds` got an update for that reducer; other keys got a value. A reducer of the agent's own is
not called again: the writes of a visit with the role `reduce` are its result.
* Steps with a `rank` (those of a `dag`) may end in another order than the visit order, which decides: an update is
folded at the position of its rank, and a value of a lower rank is ignored. Of a visit with the role `after_run`,
which comes after all others, none is.
* Step 0 of a fork continues the journal of its source, whose entries up to the step named by `past` come before it.
* An update `Overwrite` replaces what its super-step would have folded.

A journal may have a million entries: a fold keeps of each key the text of its last value and the updates since, and
folds these when they are more than the value has elements, so that it needs memory for about one state. Updates of a
`dag` are all kept, because a lower rank may come later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sleipnir.graph.reducers import ABSENT, OVERWRITE, fold_all, is_custom, overwritten
from sleipnir.runs.state_differences import StateDifference, same
from sleipnir.runs.transitions import Step

MOST_UPDATES: Final = 1_000
"""The updates of a key that a fold keeps as text, unless the key's value has more elements."""


def read_entry(element: str) -> tuple[Step, dict[str, str]]:
    """A journal entry: its step, and JSON texts by key."""
    header, *written = element.split("\n")
    return Step.from_json(header), dict(zip(map(json.loads, written[::2]), written[1::2], strict=True))


def state_after(elements: Iterable[str]) -> dict[str, Any]:
    """The state after the first entries of a journal. Values that no longer count are not even parsed."""
    return StateFold().over(elements).state()


class StateFold:
    """The state after the entries that were added, from the first one on.

    `step` is the number of the last entry, `checkpoint` that of the last checkpoint (Step.is_checkpoint). -1: none.
    With `read_left_out`, texts may begin with `=`: they stand for values that were not read, of keys that the step does
    not fold, and `texts` returns them. If an update comes after one, that function reads it: key, text.
    """

    def __init__(self, *, read_left_out: Callable[[str, str], str] | None = None) -> None:
        self.step = self.checkpoint = -1
        self._read_left_out = read_left_out
        self._keys: dict[str, _Key] = {}
        self._held: dict[int, tuple[Step, Mapping[str, str]]] = {}
        self._run = 0

    def over(self, elements: Iterable[str]) -> StateFold:
        """This fold, with the next entries added. Raises RecordUnreadable."""
        for step, written in map(read_entry, elements):
            self.add(step, written)
        return self

    def add(self, step: Step, written: Mapping[str, str]) -> None:
        """Add the next entry."""
        self.step = step.step
        self._run += step.step == 0
        if step.is_checkpoint:
            self.checkpoint = step.step
        if step.held:
            self._held[step.step] = (step, written)
        else:
            self._count(step, written, step.step)
        for number in step.applies:
            held, texts = self._held.pop(number)
            self._count(held, texts, step.step, skipped=(step.skips or {}).get(str(number), ()))

    def state(self) -> dict[str, Any]:
        return {name: key.value() for name, key in self._keys.items()}

    def texts(self) -> dict[str, str]:
        """The state as JSON texts. Values that no reducer has made are not even parsed."""
        return {name: key.json_text() for name, key in self._keys.items()}

    def difference(self, elements: Iterable[str]) -> StateDifference:
        """What the next entries, which are added, change in the state. Values of other keys are not parsed."""
        before = {name: key.copy() for name, key in self._keys.items()}
        self.over(elements)
        difference = StateDifference()
        for name, key in self._keys.items():
            if name not in before:
                difference.added[name] = key.value()
            elif key != before[name] and (values := (before[name].value(), key.value())) and not same(*values):
                difference.changed[name] = values
        return difference

    def _count(self, step: Step, written: Mapping[str, str], since: int, *, skipped: Collection[str] = ()) -> None:
        """Let the writes of a step count since the step `since`."""
        rank, folds = (self._run, *(step.rank or ())), step.folds or {}  # the past comes first
        for name, text in written.items():
            reducer = folds.get(name)
            if name in skipped or (reducer is not None and is_custom(reducer)):
                continue
            key = self._keys.get(name) or self._keys.setdefault(name, _Key())
            if reducer is not None:
                if self._read_left_out is not None and key.text is not None and key.text[0] == "=":
                    key.text = self._read_left_out(name, key.text)
                key.update(_Update(rank, (self._run, since), text), reducer, step.strict)
            elif rank >= key.rank or step.role in ("reduce", "after_run"):
                key.text, key.rank, key.updates = text, rank, []


class _Update(NamedTuple):
    """An update of a key, which counts since the step `since` of a run: of the first source, of its fork, ..."""

    rank: tuple[Any, ...]
    since: tuple[int, int]
    text: str


@dataclass
class _Key:
    """A key's last value as JSON text, and the updates since."""

    text: str | None = None
    rank: tuple[Any, ...] = ()
    updates: list[_Update] = field(default_factory=list)
    most: int = 0
    reducer: str = "overwrite"
    strict: bool = False

    def copy(self) -> _Key:
        return replace(self, updates=[*self.updates])

    def update(self, update: _Update, reducer: str, strict: bool) -> None:
        self.reducer, self.strict = reducer, strict
        # Those of one super-step are folded together, and those of a `dag` may get others between them.
        if (
            len(self.updates) > max(self.most, MOST_UPDATES)
            and len(update.rank) == 1
            and update.since != self.updates[-1].since
        ):
            value = self.value()
            self.text, self.updates = json.dumps(value), []
            self.most = len(value) if isinstance(value, (list, dict, str)) else 0
        self.updates.append(update)

    def json_text(self) -> str:
        return self.text if self.text is not None and not self.updates else json.dumps(self.value(), ensure_ascii=False)

    def value(self) -> Any:
        value = ABSENT if self.text is None else json.loads(self.text)
        waiting: list[Any] = []
        for _, of_one in groupby(sorted(self.updates, key=itemgetter(0)), itemgetter(0, 1)):
            updates = [json.loads(update.text) for update in of_one]
            if not self.strict and (replaced := overwritten(updates)) is not None:
                value, waiting = replaced[OVERWRITE], []
            else:
                waiting += updates
        return fold_all(self.reducer, value, waiting, strict=self.strict) if waiting else value
