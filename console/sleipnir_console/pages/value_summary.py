"""Values of the state as pages show them: the beginning of long ones, and what a step has changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sleipnir.runs.state_differences import StateDifference
from sleipnir_console.pages.formats import json_text
from sleipnir_console.pages.text_difference import ChangedLine, changed_lines

MOST_VALUE: Final = 4_000


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
    return ValueChange(
        name, what, changed_lines(first[:MOST_VALUE].splitlines(), second[:MOST_VALUE].splitlines()), is_cut
    )
