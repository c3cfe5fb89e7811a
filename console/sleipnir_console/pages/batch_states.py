"""The state of a batch as pages show it, and the parts of its bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sleipnir.batches.records import BatchInfo, RowState
from sleipnir.runs.actor import Change
from sleipnir.runs.plain_text import one_line
from sleipnir_console.pages.formats import count
from sleipnir_console.pages.run_states import MOST_REASON, StateSummary

ROW_WORDS: Final[Mapping[RowState, str]] = {
    "completed": "Completed", "failed": "Failed", "cancelled": "Cancelled", "active": "Under way",
    "waiting": "Not begun",
}  # fmt: skip
"""In the order of the bar."""
ROW_FILLS: Final[Mapping[RowState, str]] = {
    "completed": "ok", "failed": "bad", "cancelled": "off", "active": "run", "waiting": "none",
}  # fmt: skip
"""The class of the colour of each, after `f-`."""


@dataclass(frozen=True)
class BarPart:
    """The rows in a state: from which percent of the bar on, and how wide."""

    state: RowState
    count: int
    left: float
    width: float

    @property
    def word(self) -> str:
        return ROW_WORDS[self.state]

    @property
    def fill(self) -> str:
        return ROW_FILLS[self.state]


def bar_of(info: BatchInfo) -> list[BarPart]:
    """All states of rows, in the order of the bar, also those without rows."""
    parts, left = list[BarPart](), 0.0
    for state in ROW_WORDS:
        number: int = getattr(info, state)
        width = 100 * number / info.total if info.total else 0.0
        parts.append(BarPart(state, number, round(left, 3), round(width, 3)))
        left += width
    return parts


def in_words(parts: Sequence[BarPart]) -> str:
    """The bar for who does not see it."""
    return ", ".join(f"{count(part.count)} {part.word.lower()}" for part in parts if part.count)


def batch_state_of(info: BatchInfo) -> StateSummary:
    """The state of a batch, with its reason."""
    match info.state:
        case "unreadable":
            return StateSummary("failed", "Cannot be read", one_line(info.unreadable or "", MOST_REASON))
        case "canary":
            return StateSummary("person", "Waits for a person", "its canary rows are over")
        case "over_budget":
            return StateSummary("person", "Waits for a person", "it has used its budget")
        case "paused":
            return StateSummary("paused", "Paused", _by(info, "paused"))
        case "cancelling":
            return StateSummary("cancelled", "Is being cancelled", _by(info, "cancelled"))
        case "cancelled":
            return StateSummary("cancelled", "Cancelled", _by(info, "cancelled"))
        case "done" if info.failed:
            return StateSummary("partial", "Over", f"{count(info.failed)} failed")
        case "done":
            return StateSummary("completed", "Over")
        case "accepting":
            return StateSummary("running", "Running", "more rows may be added")
    return StateSummary("running", "Running")


def _by(info: BatchInfo, what: str) -> str:
    found: Change | None = next((change for change in reversed(info.changes) if change.what == what), None)
    return "" if found is None else one_line(f"by {found.by}", MOST_REASON)
