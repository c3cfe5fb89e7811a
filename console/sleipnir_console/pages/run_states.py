"""The state of a run or of a visit as pages show it: colour and icon, word, reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sleipnir.runs.failure_text import in_one_line
from sleipnir.runs.plain_text import one_line
from sleipnir.runs.reasons import in_words, slot_in_words, stopped_in_words
from sleipnir.runs.views import Reason, ReasonCode, RunInfo, VisitInfo

Colour: TypeAlias = Literal[
    "submitted", "running", "person", "waiting", "paused", "completed", "partial", "failed", "cancelled"
]
"""The class of a state in the stylesheet, and the name of its icon."""

MOST_REASON: Final = 160


@dataclass(frozen=True)
class StateSummary:
    """`word` says the state, `reason` why, in one line."""

    colour: Colour
    word: str
    reason: str = ""


WORDS: Final[Mapping[ReasonCode, tuple[Colour, str]]] = {
    "queued": ("waiting", "Waits for a worker"),
    "paused": ("paused", "Paused"),
    "retry": ("waiting", "Waits to try again"),
    "limit": ("waiting", "Waits for a limit"),
    "lease": ("running", "Running"),
    "stream": ("running", "Running"),
    "result": ("waiting", "Waits for a scheduler"),
    "lost": ("waiting", "Waits for a scheduler"),
    "person": ("person", "Waits for a person"),
    "answered": ("waiting", "Waits for a scheduler"),
    "slot": ("waiting", "Waits for a slot"),
    "siblings": ("waiting", "Waits for its step"),
    "items": ("running", "Running"),
    "turns": ("running", "Running"),
    "child": ("waiting", "Waits for another run"),
    "message": ("waiting", "Waits for another run"),
    "commands": ("running", "Running"),
    "timer": ("waiting", "Waits for a time"),
    "event": ("waiting", "Waits for a signal"),
}


def state_of(info: RunInfo, now_ms: int) -> StateSummary:
    """The state of a run. A live one shows one of its visits: one that waits for a person first, then the oldest."""
    if info.unreadable is not None:
        return StateSummary("failed", "Cannot be read", one_line(info.unreadable, MOST_REASON))
    match info.status:
        case "completed" if info.failed_visits.count:
            failed = info.failed_visits.count
            return StateSummary("partial", "Completed", f"{failed:,} failed visit{'s' if failed > 1 else ''}")
        case "completed":
            return StateSummary("completed", "Completed", stopped_in_words(info) if info.stopped_by else "")
        case "failed":
            return StateSummary("failed", "Failed", _failure(info))
        case "cancelled":
            return StateSummary("cancelled", "Cancelled", _cancelled(info))
        case "paused":
            return StateSummary("paused", "Paused", _held(info))
    if info.parked is not None:
        return StateSummary("waiting", "Waits for a scheduler", "no running one can read or plan part of it")
    if info.slot is not None and not info.slot.granted:
        return StateSummary("waiting", "Waits for a slot", slot_in_words(info.agent, info.slot.key, info.slot.limit))
    if info.is_queued:
        return StateSummary("waiting", "Waits for its turn", f"behind run {info.previous} of thread {info.thread}")
    shown = shown_visit(info)
    if shown is None:
        word: tuple[Colour, str] = ("submitted", "Submitted") if info.status == "submitted" else ("running", "Running")
        return StateSummary(*word, "not begun" if info.status == "submitted" else "between two visits")
    found = state_of_visit(shown, now_ms)
    more = f" and {len(info.visits) - 1:,} more" if len(info.visits) > 1 else ""
    return StateSummary(found.colour, found.word, one_line(f"{shown.node}: {found.reason}{more}", MOST_REASON))


def shown_visit(info: RunInfo) -> VisitInfo | None:
    """The live visit whose reason is that of its run."""
    first = [visit for visit in info.visits if visit.reason.code == "person"]
    return min(first or info.visits, key=lambda visit: (visit.since_ms, visit.seq), default=None)


def state_of_visit(visit: VisitInfo, now_ms: int) -> StateSummary:
    """The state of a live visit."""
    return state_of_reason(visit.reason, now_ms)


def state_of_reason(reason: Reason, now_ms: int) -> StateSummary:
    """The state of what has this reason."""
    colour, word = WORDS[reason.code]
    return StateSummary(colour, word, in_words(reason, now_ms))


def _failure(info: RunInfo) -> str:
    where = f"{info.failure.node}: " if info.failure is not None and info.failure.node else ""
    return one_line(where + in_one_line(info.error or "the reason is not known"), MOST_REASON)


def _cancelled(info: RunInfo) -> str:
    last = next((change for change in reversed(info.changes) if change.what == "cancelled"), None)
    if last is None:
        return ""
    return one_line(f"by {last.by}" + (f": {last.reason}" if last.reason else ""), MOST_REASON)


def _held(info: RunInfo) -> str:
    holds = [f"{hold.in_words}{f': {hold.reason}' if hold.reason else ''}" for hold in info.holds]
    if info.is_over_budget:
        holds.append("its budget is used up, and it asks whether to go on")
    return one_line(f"by {', '.join(holds)}" if info.holds else ", ".join(holds), MOST_REASON)
