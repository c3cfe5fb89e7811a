"""Why a visit is where it is, in words. Programs read the codes (views.Reason)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sleipnir.cli.render import duration
from sleipnir.cli.terminal import one_line

if TYPE_CHECKING:
    from sleipnir.views import Reason


def in_words(reason: Reason, now_ms: int) -> str:
    """`queued on 'scripts', 3rd in line, 2 consumers`. `now_ms` is Redis' clock."""
    match reason.code:
        case "queued":
            return f"queued on {reason.queue!r}{_line(reason)}"
        case "paused":
            return f"paused by {reason.by}"
        case "retry":
            after = f" after: {one_line(reason.error, 60)}" if reason.error else ""
            return f"tries again {_at(reason.until_ms, now_ms)}{after}"
        case "lease":
            return f"runs on {reason.worker}{_lease(reason, now_ms)}"
        case "result":
            return f"result of {reason.worker} waits for the scheduler"
        case "lost":
            return f"lost by {reason.worker}; waits for the scheduler"
        case "person":
            expiry = "" if reason.until_ms is None else f", expires {_at(reason.until_ms, now_ms)}"
            return f"waits for a person's answer{expiry}"
        case "answered":
            return "answered; waits for the scheduler"


def _line(reason: Reason) -> str:
    if reason.consumers == 0:
        return ": no worker serves it"
    place = "" if reason.position is None else f", {_ordinal(reason.position)} in line"
    workers = "1 consumer" if reason.consumers == 1 else f"{reason.consumers} consumers"
    return place + ("" if reason.consumers is None else f", {workers}")


def _lease(reason: Reason, now_ms: int) -> str:
    if reason.until_ms is None:
        return ""
    if reason.until_ms <= now_ms:
        return f", lease expired {_span(now_ms - reason.until_ms)} ago"
    return f", lease expires in {_span(reason.until_ms - now_ms)}"


def _at(ms: int | None, now_ms: int) -> str:
    return "now" if ms is None or ms <= now_ms else f"in {_span(ms - now_ms)}"


def _span(ms: int) -> str:
    """Rounded up: what is left of a second is not nothing."""
    seconds = -(-ms // 1000)
    return f"{seconds} s" if seconds < 60 else duration(ms)


def _ordinal(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`, `11th`, `21st`."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"
