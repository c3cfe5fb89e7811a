"""The errors that the refusals of an HTTP API stand for: those that the same call raises with Redis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sleipnir.errors import (
    AccessDenied,
    AnswerRefused,
    BundleError,
    GateAnswered,
    GateClaimed,
    GateError,
    GraphError,
    Problem,
    RecordUnreadable,
    ServerFailed,
    SessionBusy,
    SleipnirError,
    StoreUnavailable,
    ThreadBusy,
    TooManyQueued,
    UsageError,
)

_BASE: Final = "urn:sleipnir:problem:"
SHOWN: Final = 200
_BUSY: Final = {"session": SessionBusy, "thread": ThreadBusy, "queue": TooManyQueued}
_UNTRIED: Final = frozenset(("stopping", "too-many-streams", "too-many-requests"))
_UNKNOWN: Final = frozenset(("store-unavailable", "too-slow"))


class RefusedResponse:
    """A response that is no success: its `type` (empty: it is no problem document) and what the document has."""

    def __init__(self, status: int, body: bytes, missing: type[UsageError] = UsageError) -> None:
        """`missing` is the error for a thing that is not there."""
        self.status, self._missing = status, missing
        document = _document(body)
        self.type = str(document.get("type", "")).removeprefix(_BASE)
        self.document = document
        self.text = body[:SHOWN].decode("utf-8", "replace")

    @property
    def is_untried(self) -> bool:
        """Whether the server has not tried it, so that it may be sent again, whatever it is."""
        return self.type in _UNTRIED

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed later, and it is unknown whether this one has changed anything."""
        return self.type in _UNKNOWN or (not self.type and self.status in (408, 429, 502, 503, 504))

    def error(self) -> SleipnirError:
        """The error to raise."""
        detail = str(self.document.get("detail") or f"the server answers with status {self.status}: {self.text!r}")
        if self.is_untried or self.is_passing:
            return StoreUnavailable(detail)
        if (made := _of_type(self.type, detail, self.document)) is not None:
            return made
        if self.type == "not-found":
            return self._missing(detail)
        if self.status in (401, 403):
            return AccessDenied(detail)
        if self.type and self.status < 500:
            return UsageError(detail)
        return ServerFailed(detail)


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and str(found.get("type", "")).startswith(_BASE) else {}


def _of_type(type_: str, detail: str, document: Mapping[str, Any]) -> SleipnirError | None:
    match type_:
        case "busy":
            return _BUSY.get(str(document.get("what")), UsageError)(detail)
        case "may-not-answer":
            who = [str(each) for each in document.get("assignees") or ()]
            return AnswerRefused(detail, str(document.get("why")), who, document.get("role"))
        case "already-answered":
            return GateAnswered(
                detail, str(document.get("answered_by") or ""), int(document.get("answered_at_ms") or 0)
            )
        case "claimed":
            times = (int(document.get("claimed_at_ms") or 0), int(document.get("until_ms") or 0))
            return GateClaimed(detail, str(document.get("claimed_by") or ""), *times)
        case "no-question":
            return GateError(detail)
        case "invalid-agent":
            problems = tuple(map(_finding, document.get("problems") or ()))
            return GraphError(detail, problems) if problems else BundleError(detail)
        case "unreadable-record":
            unreadable = RecordUnreadable("record", "", detail)
            unreadable.args = (detail,)
            return unreadable
    return None


def _finding(found: Mapping[str, Any]) -> Problem:
    known = {name: found.get(name) for name in ("line", "column", "node", "hint")}
    return Problem(
        "warning" if found.get("level") == "warning" else "error",
        str(found.get("message")),
        str(found.get("file")),
        code=str(found.get("code") or ""),
        **known,
    )
