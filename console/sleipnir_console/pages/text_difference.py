"""What distinguishes two texts, as lines with signs, for pages. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

MOST_CHANGED_LINES: Final = 200
MOST_LINE: Final = 500
"""Characters of a line that are shown."""
AROUND: Final = 2
"""Lines around a change that are shown too."""
FEW_LINES: Final = 2_000
"""Of more lines, those that occur very often are not matched, which would take long."""

LineKind: TypeAlias = Literal["del", "add", "same", "cut"]


@dataclass(frozen=True)
class ChangedLine:
    """A line of two texts side by side: only in the first, only in the second, in both, or how many are left out."""

    kind: LineKind
    text: str


def changed_lines(
    first: Sequence[str], second: Sequence[str], most: int = MOST_CHANGED_LINES
) -> tuple[ChangedLine, ...]:
    """What distinguishes two texts, with AROUND lines around each change, and `most` lines at most; empty: nothing."""
    found = tuple(_changed_lines(first, second))
    if len(found) <= most:
        return found
    return (*found[:most], ChangedLine("cut", f"{len(found) - most:,} more lines"))


def _changed_lines(first: Sequence[str], second: Sequence[str]) -> Iterator[ChangedLine]:
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=len(first) + len(second) > FEW_LINES)
    seen = 0
    for group in matcher.get_grouped_opcodes(AROUND):
        left_out = group[0][1] - seen
        if left_out > 0:
            yield ChangedLine("cut", f"{left_out:,} equal line{'s' if left_out > 1 else ''}")
        for tag, begin, end, other_begin, other_end in group:
            if tag == "equal":
                yield from (ChangedLine("same", line[:MOST_LINE]) for line in first[begin:end])
            else:
                yield from (ChangedLine("del", line[:MOST_LINE]) for line in first[begin:end])
                yield from (ChangedLine("add", line[:MOST_LINE]) for line in second[other_begin:other_end])
        seen = group[-1][2]
