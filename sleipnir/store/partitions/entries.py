"""The entries of an inbox: stored fields to events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sleipnir.decoding import check_version, decoded, decoded_object, read, read_text, whole
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL, ResultHeader, Usage
from sleipnir.runs.events import (
    Answered,
    AwaitedAgain,
    Cancelled,
    ChildEnded,
    ChildGone,
    Commented,
    Continued,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Skipped,
    Submitted,
    TimerFired,
    Told,
    TurnReached,
    Unreadable,
)
from sleipnir.runs.handling import voice_text
from sleipnir.runs.run import NO_FAILED_VISITS, FailedVisits, HoldOwner
from sleipnir.runs.visits import Failure


@dataclass(frozen=True)
class Entry:
    """One inbox entry. `at_ms` is the time when Redis received it: the planner's only clock."""

    id: str
    partition: int
    run: str
    event: Event

    @cached_property
    def at_ms(self) -> int:
        return int(self.id.split("-", 1)[0])


NO_RUN = "?"
"""The run of an inbox entry that names no run. No run has this id."""


def event_of(fields: Mapping[str, str]) -> Event:
    """The event of an entry. Raises RecordUnreadable, and KeyError for a missing field."""
    if "v" in fields:
        check_version({"v": whole(fields["v"], "inbox entry")}, "inbox entry")
    match fields["t"]:
        case "result":
            header = ResultHeader.from_json(decoded(fields["h"], "result"))
            return Resulted(*_visit(fields), header)
        case "submitted" | "forked":  # of which earlier releases do not know where they begin
            return Submitted()
        case "turn":
            return TurnReached()
        case "answered":
            text, attempt = decoded(fields["text"], "answer"), whole(fields.get("attempt", "1"), "attempt")
            answered = Answered(whole(fields["seq"], "visit"), str(text), attempt, fields.get("by", ""))
            return _with_rules(answered, fields) if "checked" in fields or "reason" in fields else answered
        case "commented":
            return Commented(*_visit(fields), fields["text"], fields.get("by", ""))
        case "cancelled":
            return Cancelled(fields.get("keeps") == "1", fields.get("by", ""), fields.get("reason") or None)
        case "retried":
            return Retried(fresh_children=fields.get("fresh_children") == "1", by=fields.get("by", ""))
        case "paused":
            return Paused(fields["by"], fields.get("reason") or None, _owner(fields))
        case "paused_until":  # earlier releases, which would not stop anything, do not know it
            paused = Paused(fields["by"], fields.get("reason") or None, _owner(fields))
            return replace(paused, timeout_ms=_number(fields, "timeout_ms"), due_ms=_number(fields, "due_ms"))
        case "resumed":
            seen_ms = whole(fields["seen_ms"], "time") if "seen_ms" in fields else None
            return Resumed(_owner(fields), fields.get("by", ""), seen_ms)
        case "skipped":
            return _skipped(fields)
        case "lease_lost":
            reason = fields.get("reason")
            return LeaseLost(
                *_visit(fields),
                fields["worker"],
                handed_back=reason in ("drain", "machine", "directory", "stopped"),
                begun=reason not in ("machine", "directory"),
                restored=reason == "restored",
                lacks_directory=reason == "directory",
                stopped=reason == "stopped",
                seen=_number(fields, "seen"),
            )
        case "timer":
            return TimerFired(fields["name"])
        case "child_ended":
            return _child_ended(fields)
        case "child_gone":
            return ChildGone(*_visit(fields), fields["child"])
        case "await_again":
            return AwaitedAgain(*_visit(fields), fields["name"])
        case "continued":
            return Continued()
        case "told":
            return Told(fields["what"], decoded_object(fields["data"], "news"))
        case other:
            return Unreadable(other, f"written by a newer release: this one knows no entries {ascii(other)[:40]}")


def _with_rules(answered: Answered, fields: Mapping[str, str]) -> Answered:
    voices = decoded(fields.get("voices") or "[]", "voices")
    if type(voices) is not list or not all(type(voice) is dict for voice in voices):
        raise RecordUnreadable("voices", "", "damaged: a list of objects is needed")
    read_voices = tuple({**voice, "answer": voice_text(voice.get("answer"))} for voice in voices)
    checked = fields.get("checked") == "1"
    return replace(answered, reason=fields.get("reason") or None, voices=read_voices, checked=checked)


def _skipped(fields: Mapping[str, str]) -> Skipped:
    data = {"seq": whole(fields["seq"], "visit"), "value": decoded(fields["value"], "value")}
    to, reason = decoded(fields.get("to") or "[]", "targets"), fields.get("reason") or None
    return read(Skipped, {**data, "to": to, "by": fields.get("by", ""), "reason": reason}, "skip")


def _child_ended(fields: Mapping[str, str]) -> ChildEnded:
    usage = decoded_object(fields["usage"], "usage") if fields.get("usage") else None
    if usage is not None:
        read(Usage, usage, "usage")
    status: Any = fields["status"]
    if status not in FINAL and status != "refused":
        raise RecordUnreadable("end of a child", "", f"its status {ascii(status)[:40]} is not known here", newer=True)
    text = fields.get("failed_visits")
    failed = read_text(FailedVisits, text, "failed visits") if text else NO_FAILED_VISITS
    cause = fields.get("failure")
    failure = read_text(Failure, cause, "failure") if cause else None
    error, end_bytes = fields.get("error") or None, whole(fields.get("end_bytes", "0"), "entry")
    return ChildEnded(*_visit(fields), fields["child"], status, error, usage, failed, failure, end_bytes)


def _visit(fields: Mapping[str, str]) -> tuple[int, int]:
    """Number and attempt."""
    return whole(fields["seq"], "visit"), whole(fields["attempt"], "attempt")


def _number(fields: Mapping[str, str], name: str) -> int | None:
    return whole(fields[name], name) if name in fields else None


def _owner(fields: Mapping[str, str]) -> HoldOwner:
    """The owner of the hold that an entry begins or ends; "" for older releases and for unknown owners of newer
    ones."""
    match fields.get("owner"):
        case "person":
            return "person"
        case "parent":
            return "parent"
        case _:
            return ""


def delta_key(run: Any, event: Event) -> str:
    """The delta key of an event; for events without one, a key that never exists."""
    if isinstance(event, Resulted | ChildEnded):
        return str(run.delta(event.seq, event.attempt))
    return str(run.delta(0, 0))
