"""Values of the state as pages show them: the beginning of long ones, and what a step has changed. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from sleipnir.runs.state_differences import StateDifference
from sleipnir_console.pages.formats import json_text

MOST_VALUE: Final = 4_000
MOST_CHANGED_LINES: Final = 200
AROUND: Final = 2
"""Lines around a change that are shown too."""

LineKind: TypeAlias = Literal["del", "add", "same", "cut"]


@dataclass(frozen=True)
class ValueSummary:
    """A value of the state: the beginning of its text, and the length of all of it, in characters."""

    name: str
    text: str
    chars: int

    @classmethod
    def of(cls, name: str, value: Any) -> ValueSummary:
        text = json_text(value)
        return cls(name, text[:MOST_VALUE], len(text))

    @classmethod
    def of_all(cls, values: Mapping[str, Any]) -> list[ValueSummary]:
        """The values by name."""
        return [cls.of(name, values[name]) for name in sorted(values)]

    @property
    def is_cut(self) -> bool:
        return self.chars > len(self.text)

    @property
    def is_short(self) -> bool:
        """Whether it has room in a line."""
        return self.chars <= 100 and "\n" not in self.text


@dataclass(frozen=True)
class ChangedLine:
    """A line of two texts side by side: only in the first, only in the second, in both, or how many are left out."""

    kind: LineKind
    text: str


@dataclass(frozen=True)
class ValueChange:
    """A key of the state that differs: `what` became of it, and the lines of its text. `is_cut`: only the beginnings
    of its values were compared."""

    name: str
    what: Literal["added", "changed", "removed"]
    lines: Sequence[ChangedLine]
    is_cut: bool


def changes_of(difference: StateDifference) -> list[ValueChange]:
    """What differs, by key."""
    found = [_change(name, "changed", *both) for name, both in difference.changed.items()]
    found += [_change(name, "added", None, value) for name, value in difference.added.items()]
    found += [_change(name, "removed", value, None) for name, value in difference.removed.items()]
    return sorted(found, key=lambda change: change.name)


def _change(name: str, what: Literal["added", "changed", "removed"], before: Any, after: Any) -> ValueChange:
    first = "" if what == "added" else json_text(before)
    second = "" if what == "removed" else json_text(after)
    is_cut = max(len(first), len(second)) > MOST_VALUE
    return ValueChange(name, what, diff_lines(first[:MOST_VALUE], second[:MOST_VALUE]), is_cut)


def diff_lines(first: str, second: str) -> list[ChangedLine]:
    """What distinguishes two texts, with AROUND lines around each change, and MOST_CHANGED_LINES at most."""
    found = list(_diff_lines(first.splitlines(), second.splitlines()))
    if len(found) <= MOST_CHANGED_LINES:
        return found
    return [*found[:MOST_CHANGED_LINES], ChangedLine("cut", f"{len(found) - MOST_CHANGED_LINES:,} more lines")]


def _diff_lines(first: Sequence[str], second: Sequence[str]) -> Iterator[ChangedLine]:
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=len(first) + len(second) > 2_000)
    seen = 0
    for group in matcher.get_grouped_opcodes(AROUND):
        left_out = group[0][1] - seen
        if left_out > 0:
            yield ChangedLine("cut", f"{left_out:,} equal line{'s' if left_out > 1 else ''}")
        for tag, begin, end, other_begin, other_end in group:
            if tag == "equal":
                yield from (ChangedLine("same", line) for line in first[begin:end])
            else:
                yield from (ChangedLine("del", line) for line in first[begin:end])
                yield from (ChangedLine("add", line) for line in second[other_begin:other_end])
        seen = group[-1][2]
